"""Predict the allocations of a step: kernels, executor, allocator and XLA's compiler.

Inputs: a run folder's graph and a device. Outputs: a `Recording` with the predicted allocations.
Restrictions: runs no TensorFlow code; imports neither TensorFlow nor Keras.
"""
