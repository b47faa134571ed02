"""Variables without memory, and the order in which they and their initializers allocate."""
