"""The graph that TensorFlow would run for a step, on the CPU or a card, without running it."""
