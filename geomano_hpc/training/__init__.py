"""Training of one run: losses, DeepSpeed engine, loop, checkpoints, evaluation, the run folder."""
