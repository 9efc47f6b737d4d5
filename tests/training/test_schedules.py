"""Schedules by name and the user's own: the learning rates of every step, and going on from any of them."""

import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from geomano_hpc.config import Recipe, TrainingConfig
from geomano_hpc.errors import ConfigError, GeomanoError
from geomano_hpc.training.engines.whole_state import check_goes_on
from geomano_hpc.training.loop import train
from geomano_hpc.training.optimizers import make_optimizer
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.schedules import Schedule, check_scheduler
from tests.support.training_runs import back_to, changed, step_losses, what_a_run_computed

OWN = """
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, MultiStepLR, ReduceLROnPlateau, SequentialLR

def two_phases(optimizer, total_steps, cut=0.1):
    # Recursive, and with a Counter inside: neither closed form nor JSON would bring it back.
    falling = CosineAnnealingLR(optimizer, T_max=total_steps)
    steps = MultiStepLR(optimizer, milestones=[1, 3], gamma=cut)
    return SequentialLR(optimizer, [falling, steps], milestones=[total_steps // 2])

def plateau(optimizer, total_steps):
    return ReduceLROnPlateau(optimizer)

def no_total(optimizer):
    return None

def fails(optimizer, total_steps):
    return LambdaLR(optimizer, lambda step: [1.0, 1.0][step])
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_schedules.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_schedules", raising=False)
    return "own_schedules"


def started(total: int, **keys: object) -> tuple[torch.optim.Optimizer, Schedule]:
    config = TrainingConfig.model_validate({"lr": 0.1, **keys})
    optimizer = make_optimizer([nn.Parameter(torch.ones(3))], config)
    return optimizer, Schedule(optimizer, config, total)


def rates(total: int, **keys: object) -> list[float]:
    optimizer, schedule = started(total, **keys)
    found = []
    for _ in range(total):
        found.append(schedule.lr)
        optimizer.step()
        schedule.step()
    return found


def test_constant_rises_along_a_line_and_stays() -> None:
    assert rates(10, scheduler="constant", warmup=0.4) == pytest.approx([0.025, 0.05, 0.075, *[0.1] * 7])
    assert rates(3, scheduler="constant") == pytest.approx([0.1] * 3)


def test_cosine_falls_from_its_peak_to_the_final_share() -> None:
    found = rates(10, scheduler="cosine", warmup=0.2, scheduler_options={"final": 0.1})
    expected = [0.1 * (0.1 + 0.9 * (1 + math.cos(math.pi * step / 8)) / 2) for step in range(8)]
    assert found == pytest.approx([0.05, 0.1, *expected])


def test_one_cycle_is_torchs_own_and_peaks_after_the_warm_up() -> None:
    plain = torch.optim.AdamW([nn.Parameter(torch.ones(3))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(plain, max_lr=0.1, total_steps=20)
    expected = []
    for _ in range(20):
        expected.append(scheduler.get_last_lr()[0])
        plain.step()
        scheduler.step()
    assert rates(20) == expected
    early = rates(20, warmup=0.1)
    assert early.index(max(early)) < expected.index(max(expected))


def test_one_cycle_gives_no_momentum_to_an_optimiser_without() -> None:
    optimizer, schedule = started(10, optimizer="sgd")
    schedule.step()
    assert optimizer.param_groups[0]["momentum"] == 0


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"scheduler": "cosin"}, "is not known; did you mean 'cosine'"),
        ({"scheduler": "cosine", "scheduler_options": {"peak": 1}}, "unexpected keyword argument 'peak'"),
        (
            {"scheduler": "own_schedules:two_phases", "warmup": 0.1},
            r"with \(optimizer, total_steps, warmup=, .*'warmup'",
        ),
        ({"scheduler": "own_schedules:no_total"}, "too many positional arguments"),
        ({"scheduler": "own_schedules:plateau"}, r"gave a ReduceLROnPlateau, expected .* step\(\) needs no arguments"),
        ({"scheduler": "own_schedules:plateu"}, "has no plateu; did you mean 'plateau'"),
        ({"warmup": 1.0}, "less than 1"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(keys: dict[str, object], words: str, own: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=words):
        check_scheduler(TrainingConfig.model_validate(keys))


def test_schedule_that_cannot_take_its_steps_is_refused_in_one_line(own: str) -> None:
    with pytest.raises(ConfigError, match=r"training.scheduler own_schedules:fails: step\(\) fails: IndexError"):
        check_goes_on(TrainingConfig(scheduler="own_schedules:fails"))


def test_run_goes_on_bit_by_bit_with_a_schedule_of_ones_own(tiny_recipe: Recipe, own: str, tmp_path: Path) -> None:
    keys = {"scheduler": "own_schedules:two_phases", "scheduler_options": {"cut": 0.5}}
    recipe = changed(
        tiny_recipe, engine="torch", figures_every=0, log_every=1, checkpoint_steps=2, keep_checkpoints=9, **keys
    )
    folder = RunFolder(tmp_path / "run")
    train(recipe, folder)
    undisturbed = what_a_run_computed(folder)
    rate = step_losses(folder, "lr")
    assert rate[1] > rate[4]
    assert rate[8] == pytest.approx(0.25 * rate[5])
    for step in (2, 6):
        back_to(step, folder)
        train(recipe, folder)
        assert what_a_run_computed(folder) == undisturbed


def test_schedule_that_changed_since_the_checkpoint_is_an_error() -> None:
    _, before = started(10, scheduler="cosine")
    before.step()
    _, after = started(20, scheduler="cosine")
    with pytest.raises(GeomanoError, match="it changed since the run was started; train in a new run folder"):
        after.restore(before.record())
