"""The public Python API, one subject per file. `geomano_hpc` offers its names and loads them when they are used."""
