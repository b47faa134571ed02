"""The BFC allocator on arrays, compiled by Numba."""
