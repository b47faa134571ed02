"""A run of many hosts: each host's trace to a row, the rows to one report."""
