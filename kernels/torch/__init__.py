"""The scan in plain torch, in chunks."""
