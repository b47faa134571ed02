"""Get the graph that TensorFlow would run for a step, without running it.

Input: a ``Program`` or a concrete function with its arguments. Output: the ops after all rewrites, with
dtypes and shapes, for this CPU or for a card of the table. Restrictions: an eager step has no graph;
sizes that depend on data are taken from the inputs, from the user or as their upper bound.
"""
