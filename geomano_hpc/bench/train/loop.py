"""What the training loop adds to a bare forward, backward and step, how long it waits for data, and two ranks over one.

Each training runs in processes of its own, with one thread a rank. Bare
steps are taken between those of the loop, so that a busy machine is so for both.
"""

import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from geomano_hpc.bench.child import ALONE, ONE_THREAD, run_in_child
from geomano_hpc.bench.measurement import Measurement
from geomano_hpc.bench.train.bare_step import BareStep
from geomano_hpc.config import GenerateConfig, Recipe, load_recipe
from geomano_hpc.data import Batch, GlobalBatch, ensure_store
from geomano_hpc.errors import GeomanoError
from geomano_hpc.launchers import read_ranks
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.steps import Steps, Taken

WARM_UP = 2  # steps that are not counted


def measure(depth: int = 2, steps: int = 10, grid: int = 85) -> list[Measurement]:
    """Recipe `darcy` with fewer layers: its steps are shorter, so that the loop's share is larger than at full size."""
    with TemporaryDirectory() as folder:
        recipe = _recipe(Path(folder), depth, steps, grid)
        ensure_store(recipe.data)
        text = recipe.model_dump_json()
        one, two = _train(text, Path(folder) / "one", 1), _train(text, Path(folder) / "two", 2)
    if not abs(one["loss"] - two["loss"]) < 1e-4 * abs(one["loss"]):
        raise GeomanoError(f"two ranks end at loss {two['loss']}, one at {one['loss']}: no speed is reported")
    size = f"recipe darcy with {depth} layers, {grid} x {grid}, batch {recipe.training.batch_size}, one thread a rank"
    return [
        Measurement("loop over bare steps", one["loop_s"] / one["bare_s"], "x", f"median step; {size}", at_most=1.03),
        Measurement("waiting for data", 100 * one["data_wait"], "%", "of a step", at_most=2.0),
        Measurement("two ranks over one", two["take_s"] / one["take_s"], "x", "median step, ZeRO 0", at_most=0.6),
    ]


def _recipe(folder: Path, depth: int, steps: int, grid: int) -> Recipe:
    recipe = load_recipe("darcy")
    samples = recipe.training.batch_size * (steps + WARM_UP)
    generate = GenerateConfig(problem="darcy", train_samples=samples, test_samples=2, grid=grid)
    return recipe.model_copy(
        update={
            "data": recipe.data.model_copy(update={"store": folder / "data.zarr", "generate": generate}),
            "model": recipe.model.model_copy(update={"depth": depth}),
            "training": recipe.training.model_copy(update={"epochs": 1}),
        }
    )


def _train(recipe: str, folder: Path, ranks: int) -> dict[str, float]:
    ranked = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    launcher = ranked if ranks > 1 else ALONE
    found: dict[str, float] = run_in_child(
        timed_training, recipe, str(folder), launcher=launcher, environment=ONE_THREAD
    )
    return found


def _bare_step(steps: Steps) -> BareStep:
    """The same model, batch and loss as those of the loop."""
    recipe, split = steps.recipe, steps.stages.own.split
    channels = (split.in_channels, split.out_channels)
    state = torch.get_rng_state()  # the loop's numbers are left as they are
    bare = BareStep.of(recipe.model, recipe.training.batch_size, split.plane, channels, recipe.loss.gradient_weight)
    torch.set_rng_state(state)
    return bare


def timed_training(recipe: str, path: str) -> dict[str, float] | None:
    """What the first rank measured."""
    from geomano_hpc.training.loop import train

    ranks = read_ranks(os.environ)
    times: list[dict[str, float]] = []
    bare: list[BareStep] = []
    take = Steps.take

    def timed(self: Steps, batch: GlobalBatch, loaded: Iterator[Batch]) -> Taken:
        started = time.perf_counter()
        taken = take(self, batch, loaded)
        ended = time.perf_counter()
        if ranks.world_size == 1:  # ranks would disturb each other
            bare[:] = bare or [_bare_step(self)]
            started_bare = time.perf_counter()
            bare[0].train()
            bare[0].update()
            times.append({"bare": time.perf_counter() - started_bare})
        else:
            times.append({"bare": 0.0})
        times[-1].update(started=started, take=ended - started, aside=time.perf_counter() - ended)
        return taken

    Steps.take = timed  # type: ignore[method-assign]
    folder = RunFolder(Path(path))
    train(Recipe.model_validate_json(recipe), folder)
    return _summary(times, folder.metrics()[-1]) if ranks.is_main else None


def _summary(times: list[dict[str, float]], line: dict[str, Any]) -> dict[str, float]:
    """Of the steps after the warm-up: the time from one to the next without the bare one in between, and so on."""
    counted = list(zip(times[WARM_UP:], times[WARM_UP + 1 :], strict=False))
    return {
        "loop_s": statistics.median(after["started"] - step["started"] - step["aside"] for step, after in counted),
        "bare_s": statistics.median(step["bare"] for step, _ in counted),
        "take_s": statistics.median(step["take"] for step, _ in counted),
        "data_wait": float(line["data_wait_share"]),
        "loss": float(line["train_loss"]),
    }
