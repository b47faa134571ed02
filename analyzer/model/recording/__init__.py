"""A recording: its records, its two tables, and bytes over time."""
