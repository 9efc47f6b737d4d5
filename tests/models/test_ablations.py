"""Each row of the paper's ablation tables builds, trains, and computes something else than its neighbours."""

import itertools

import pytest
import torch

from geomano_hpc.config import GeomanoConfig
from geomano_hpc.models import build_model
from geomano_hpc.report.published import ABLATION
from geomano_hpc.training.losses import relative_l2

ROWS = [(problem, row) for problem, rows in ABLATION.items() for row in rows]


def two_steps(problem: str, row: tuple[str, bool, str], grid: int = 6) -> list[float]:
    """The loss before, between and after two optimiser steps from the same seed on the same data."""
    kind, position, correction = row
    domain, channels = ("2d", 1) if problem == "darcy" else ("3d", 10)
    names = {"domain": domain, "kind": kind, "positional_encoding": position, "correction": correction}
    config = GeomanoConfig.model_validate({"depth": 2, "embedding": 8, "dstate": 3, **names})
    torch.manual_seed(0)
    model = build_model(config, channels, 1)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, grid, grid, channels, generator=generator)
    y = torch.randn(2, grid, grid, 1, generator=generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        loss = relative_l2(model(x), y).sum()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


@pytest.mark.parametrize("problem", ABLATION)
def test_every_row_trains_and_differs_from_every_other(problem: str) -> None:
    losses = {row: two_steps(problem, row) for row in ABLATION[problem]}
    for row, curve in losses.items():
        assert curve[2] < curve[0], row
    for one, other in itertools.combinations(losses, 2):
        assert abs(losses[one][2] - losses[other][2]) > 1e-6, (one, other)


def test_rows_are_those_of_the_paper() -> None:
    assert len(ROWS) == 24
    assert two_steps(*ROWS[0]) == two_steps(*ROWS[0])  # what differs is the row, not the chance
