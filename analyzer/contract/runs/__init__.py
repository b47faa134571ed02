"""What is said of several runs together, and what goes between processes: typed records."""
