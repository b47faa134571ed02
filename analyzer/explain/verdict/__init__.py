"""Whether the step fits a card or a limit: worked out once."""
