"""Graphs from outside a trace: of a target, or of TensorBoard's event file."""
