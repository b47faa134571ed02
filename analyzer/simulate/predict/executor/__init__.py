"""The executor's order of ops, in one or several threads."""
