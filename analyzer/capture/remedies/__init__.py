"""Changes of a step that lower its memory, made to the model before it is captured."""
