"""What a module compiled by XLA asks the allocator for, and what lies inside of it."""
