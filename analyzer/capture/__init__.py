"""Everything that touches TensorFlow. What leaves it is plain data in a run folder."""
