"""The buffers of a step that is played: who holds them, and when they are born and freed."""
