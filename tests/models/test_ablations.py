"""Each row of the paper's ablation tables builds, trains, and computes something else than its neighbours."""

import itertools

import pytest
import torch

from geomano_hpc.models import build_model
from geomano_hpc.models.geomano import GeomanoConfig
from geomano_hpc.report.published import ABLATION
from geomano_hpc.training.losses import relative_l2

ROWS = [(problem, row) for problem, rows in ABLATION.items() for row in rows]


def two_steps(problem: str, row: tuple[str, bool, str], grid: int = 6) -> tuple[list[float], torch.Tensor]:
    """The loss before and after two optimiser steps from the same seed on the same data, and the prediction then."""
    kind, position, correction = row
    domain, channels = ("2d", 1) if problem == "darcy" else ("3d", 10)
    names = {"domain": domain, "kind": kind, "positional_encoding": position, "correction": correction}
    config = GeomanoConfig.model_validate({"depth": 2, "embedding": 8, "dstate": 3, **names})
    torch.manual_seed(0)
    model = build_model(config, channels, 1).double()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, grid, grid, channels, generator=generator, dtype=torch.float64)
    y = torch.randn(2, grid, grid, 1, generator=generator, dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(2):
        loss = relative_l2(model(x), y).sum()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    prediction = model(x).detach()
    return [*losses, relative_l2(prediction, y).sum().item()], prediction


@pytest.mark.parametrize("problem", ABLATION)
def test_every_row_trains_and_differs_from_every_other(problem: str) -> None:
    found = {row: two_steps(problem, row) for row in ABLATION[problem]}
    for row, (losses, _) in found.items():
        assert losses[2] < losses[0], row
    for one, other in itertools.combinations(found, 2):
        assert (found[one][1] - found[other][1]).abs().max() > 1e-6, (one, other)


def test_rows_are_those_of_the_paper() -> None:
    assert len(ROWS) == 24
    assert torch.equal(two_steps(*ROWS[0])[1], two_steps(*ROWS[0])[1])  # what differs is the row, not the chance
