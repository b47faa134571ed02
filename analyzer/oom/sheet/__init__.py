"""The page of an out-of-memory log: one file, no request, no script that is not its own."""
