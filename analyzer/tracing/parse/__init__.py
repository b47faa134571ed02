"""Readers of profiler traces, run folders and compiled modules."""
