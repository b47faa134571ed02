"""Who in the user's program holds what, and the line that puts it there."""
