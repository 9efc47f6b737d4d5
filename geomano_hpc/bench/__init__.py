"""Benchmarks: correctness first, then speed, as ratios within one run."""
