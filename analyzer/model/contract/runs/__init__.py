"""What is said of several runs together, and of what the log of one says: typed records."""
