"""Run a step under TensorFlow's profiler.

Input: a function that makes the step. Output: a trace, and a note with what the trace lacks: variables
and their addresses, gradients, layer scopes, source lines, the graph. Nothing that the step computes
is changed. Needs a process whose allocator writes memory events.
"""
