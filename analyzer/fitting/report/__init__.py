"""The answer of ``analyze fit`` as text and as a page."""
