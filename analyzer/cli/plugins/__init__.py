"""The analyzer inside other people's tools: pytest's marks and IPython's magics."""
