"""Whether a trace is whole, and its marks and its sums can be what a run wrote."""
