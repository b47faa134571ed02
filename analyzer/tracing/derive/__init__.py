"""The graph of a trace without a capture note, from names and events."""
