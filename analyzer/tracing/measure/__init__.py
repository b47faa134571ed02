"""Events to allocations: pairing, steps, attribution."""
