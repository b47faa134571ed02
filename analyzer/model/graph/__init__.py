"""The graph of ops and tensors, and what can be said from it."""
