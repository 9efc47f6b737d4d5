"""The scan in Triton, for NVIDIA and AMD GPUs."""
