"""The scan and what stands between matrix products in C++, for CPUs."""
