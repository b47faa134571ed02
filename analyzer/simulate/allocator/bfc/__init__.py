"""The BFC allocator: its settings, pool, operations and compiled code."""
