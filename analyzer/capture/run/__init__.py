"""A step run under the profiler, and what is observed while it runs."""
