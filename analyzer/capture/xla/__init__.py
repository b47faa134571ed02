"""Modules and memory plans of the functions that XLA compiles for this machine's CPU."""
