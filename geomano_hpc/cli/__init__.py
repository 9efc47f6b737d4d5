"""The `geomano` command. Modules here import nothing heavy at the top, so that help and completion answer at once."""
