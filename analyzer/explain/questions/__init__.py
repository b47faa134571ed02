"""Findings about one step."""
