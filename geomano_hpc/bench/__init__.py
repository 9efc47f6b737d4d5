"""Benchmarks: correctness first, then speed, as ratios within one run.

`kernels/`, `train/`, `data/` and `accuracy.py` measure. They share `recipes.py` (the sizes of the paper's recipes),
`child.py` (work in a process of its own), `memory.py` (peak memory), `measurement.py` (a figure and its bar) and
`record.py` (the JSON file of a benchmark).
"""
