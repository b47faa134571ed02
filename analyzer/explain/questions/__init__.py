"""Findings about one step: each function takes an analysis and returns findings."""
