"""Commands about programs that run: what they hold of a card."""
