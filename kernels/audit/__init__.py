"""What can be known of the Triton kernels without a GPU: compilation and memory traffic."""
