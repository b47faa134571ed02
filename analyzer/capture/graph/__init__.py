"""The graph that the executor would run, taken without running it."""
