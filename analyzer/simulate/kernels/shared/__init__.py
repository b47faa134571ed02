"""Records and rules that the kernels of all devices share."""
