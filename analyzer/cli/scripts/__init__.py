"""``analyze trace script.py``: a whole script, run unchanged."""
