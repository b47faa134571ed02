"""The supervised child process that captures a step, and its run folder or typed error."""
