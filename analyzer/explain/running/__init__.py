"""What a program's own steps leave behind: a recording with its note in, findings out."""
