"""What an op's kernel allocates, forwards, aliases and holds: one table per device."""
