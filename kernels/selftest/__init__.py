"""The self-test of the GPU kernels on the GPU itself: its cases, how they are judged, and the verdict that is kept."""
