"""Run a step under TensorFlow's profiler.

Input: a function that makes the step. Output: a trace, and a note with facts that the trace lacks:
variables and their addresses, gradients, layer scopes, source lines and the graph. The step's results
do not change. Needs a process whose allocator writes memory events.
"""
