"""One file a question; records in, findings out."""
