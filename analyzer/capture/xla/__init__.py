"""What XLA compiles of a step: modules, plans, and what lowering asks the allocator for."""
