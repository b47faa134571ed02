"""Buffers of a step: references, lifetimes, and tables of them."""
