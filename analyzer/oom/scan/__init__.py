"""A log's bytes to what it says of memory: lines, wordings, records."""
