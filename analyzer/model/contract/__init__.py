"""The records of run folders and of messages between processes, checked when they are read."""
