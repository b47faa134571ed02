"""A program's own steps: what tells of them, which calls they are, those traced, readings after each."""
