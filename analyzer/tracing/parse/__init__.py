"""Bytes to raw records, without TensorFlow."""
