"""The stated range of a prediction, and alternatives of decisions."""
