"""The document (the JSON) and its renderings."""
