"""What is in a raw file, and the command that would convert it."""
