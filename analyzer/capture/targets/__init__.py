"""From the text that names a target to a step that can be called, with arguments and models."""
