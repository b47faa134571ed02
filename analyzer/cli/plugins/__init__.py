"""Plugins: pytest marks and IPython magics."""
