"""TensorFlow's executor: in which order, and on which thread, the nodes of a step run."""
