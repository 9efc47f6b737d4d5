"""What a run leaves behind: its folder, checkpoints, weights, metrics, curves, pictures."""
