"""Read profiler traces and compiled modules into recordings.

Inputs: `.xplane.pb` files, run folders, HLO modules. Outputs: a `Recording` with measured allocations.
Restrictions: input is untrusted; imports neither TensorFlow nor Keras.
"""
