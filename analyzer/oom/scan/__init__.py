"""Reads the bytes of a log into records: text, lines, patterns, requests."""
