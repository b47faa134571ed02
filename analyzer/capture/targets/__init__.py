"""What the user named, made a step that can be called."""
