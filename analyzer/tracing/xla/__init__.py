"""Memory plans of functions that XLA compiles, and their values inside a recording."""
