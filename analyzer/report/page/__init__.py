"""The report as one HTML file that opens from disk and asks nothing of any network."""
