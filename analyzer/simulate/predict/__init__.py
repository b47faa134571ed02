"""Prediction of a step's allocations from its graph, without running it.

Input: the run note of a capture (graph, variables, device). Output: a ``Recording`` like a measured one,
with a stated range. Restriction: sizes that depend on data count as assumed or as 0.

A **schedule** is one possible execution of the step: which op runs when, and so when each buffer is
allocated and freed. TensorFlow's choice differs from process to process, so a prediction plays many
schedules, each from a seed. From the graph to the range:

1. ``prepared_step.prepare`` numbers the nodes, rebuilds their edges (``graph/``), and asks the kernel
   rules for memory plans.
2. ``prepared_step.play`` plays one schedule: the seed selects the order in which a node starts its
   successors, ``executor/`` runs the nodes, and ``buffers/`` allocates and frees their outputs.
3. ``sampling.predict`` plays up to 201 schedules, and ``uncertainty/decisions`` other outcomes of
   branches and loops that data decide: the requested figures.
4. ``sampling.choose`` continues schedules from the start of the process (``startup``, then
   ``process_table``) in the BFC allocator: the allocated range and the memory limits.
5. ``predicted_recording`` makes the table of a recording; ``uncertainty`` words the range.
"""
