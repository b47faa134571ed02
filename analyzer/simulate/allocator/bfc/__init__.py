"""The BFC allocator in plain Python: the reference that the compiled one is held to."""
