"""Files for other people's tools."""
