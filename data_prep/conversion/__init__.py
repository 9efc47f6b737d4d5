"""From raw files to a prepared store."""
