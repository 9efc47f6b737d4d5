"""Benchmarks measure what the recipes train."""

from geomano_hpc.bench import recipes
from geomano_hpc.bench.kernels.problem import Scan
from geomano_hpc.bench.recipes import Size


def test_scans_have_the_sizes_of_the_papers_recipes() -> None:
    """Tables "Training configurations" and "Model configurations": E = embedding, r = E / 16."""
    assert recipes.scan("darcy") == Scan(4, 85, 85, 64, 16, 4, "2d", "paper", "0011")
    assert recipes.scan("navier_stokes") == Scan(2, 64, 64, 256, 16, 16, "1d", "paper", "learnable")
    assert not recipes.scan("darcy").learnable_correction
    assert recipes.scan("navier_stokes").learnable_correction


def test_problems_have_the_samples_and_frames_of_the_benchmark() -> None:
    assert recipes.size("darcy") == Size((85, 85), 1, 1, 4, 1000, 200)
    assert recipes.size("navier_stokes") == Size((64, 64), 10, 10, 2, 1000, 200)
