"""geomano_hpc: train GeoMaNO, the Geometric Mamba Neural Operator, from a laptop to a cluster.

Importing the package loads nothing heavy: torch, DeepSpeed and MPI come in where they are used.
"""

__version__ = "0.1.0"
