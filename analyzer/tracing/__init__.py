"""Profiler traces and compiled plans as recordings.

Inputs: ``.xplane.pb`` files, the note of the capture and XLA's buffer assignments. Outputs: recordings
with attributed allocations, and memory plans. Restrictions: reads untrusted files without TensorFlow.
"""
