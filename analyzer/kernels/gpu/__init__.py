"""A GPU's kernels."""
