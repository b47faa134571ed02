"""One file a question; an analysis in, findings out."""
