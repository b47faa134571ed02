"""The graph of a target, joined with a trace."""
