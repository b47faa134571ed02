"""From events to a recording: pairing, steps, checks and attribution."""
