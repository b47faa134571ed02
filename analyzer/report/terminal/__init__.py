"""The document as tables in the terminal."""
