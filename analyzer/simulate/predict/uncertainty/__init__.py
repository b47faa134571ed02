"""How far a prediction may be off, and what that comes from."""
