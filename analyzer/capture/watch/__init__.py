"""Programs that run by themselves: their steps found, a few of them traced, what stays noted."""
