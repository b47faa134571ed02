"""The graph of ops and tensors: index, phases, layers, shared buffers and host copies."""
