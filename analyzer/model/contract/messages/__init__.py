"""What a command and its children tell each other: typed records, read and written here."""
