"""`python -m geomano_hpc`, for launchers that start a module: torchrun -m geomano_hpc train darcy"""

from geomano_hpc.cli.app import main

main()
