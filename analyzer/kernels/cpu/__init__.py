"""The CPU's kernels."""
