"""What the kernels of every device have in common."""
