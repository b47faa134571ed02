"""Capture a step of TensorFlow or Keras as plain data in a run folder.

Input: a target (model, function, script or live object) and the capture options. Output: a run folder
with the graph, the trace and notes. Restrictions: only this package imports TensorFlow; it records and
does not judge; private names of TensorFlow and Keras appear only in ``private_names``.
"""
