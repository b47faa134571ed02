"""Findings about a program whose own steps were traced: growth, retracing, data, kept objects."""
