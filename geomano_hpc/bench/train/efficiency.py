"""Benchmark of training: GeoMaNO against Transolver, each in the paper's configuration, in one run.

The paper's table "Efficiency comparison" with columns of our own: seconds of an epoch of training and of inference, and
peak memory of a training step. Models take turns, so that a busy machine is so for both; the best round counts. An
epoch is so many equal steps, so a few of them are timed and multiplied. Axes: B batch, H x W grid, C channels.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from geomano_hpc.bench import recipes
from geomano_hpc.bench.measurement import Measurement, seconds_of
from geomano_hpc.bench.record import make_record, write_record
from geomano_hpc.bench.train import loop as train_loop
from geomano_hpc.bench.train.bare_step import BareStep
from geomano_hpc.bench.train.memory import step_memory
from geomano_hpc.config import ModelConfig
from geomano_hpc.errors import GeomanoError
from geomano_hpc.models import build_model, count_parameters
from geomano_hpc.models.transolver import TransolverConfig
from geomano_hpc.progress import progress
from geomano_hpc.report.published import EFFICIENCY, PUBLISHED_TRANSOLVER
from geomano_hpc.training.engines.heap import keep_freed_memory

TOLERANCE = 1e-3  # of a gradient, float32 against the reference scan, relative to its largest value


@dataclass(frozen=True)
class Case:
    """A problem at the size of the paper, with the optimiser's step once for all frames of a rollout."""

    recipe: str
    size: recipes.Size
    transolver: TransolverConfig
    train_bar: float  # ours / Transolver's
    infer_bar: float
    memory_bar: float

    def to_json(self) -> dict[str, Any]:
        size = {**asdict(self.size), "grid": list(self.size.grid)}
        return {**self.__dict__, "size": size, "transolver": self.transolver.model_dump(mode="json")}

    @staticmethod
    def from_json(content: dict[str, Any]) -> "Case":
        size = recipes.Size(**{**content["size"], "grid": tuple(content["size"]["grid"])})
        return Case(**{**content, "size": size, "transolver": TransolverConfig(**content["transolver"])})


# Ours over Transolver's: time of training, time of inference, memory.
_BARS = {"darcy": (0.25, 0.25, 0.4), "navier_stokes": (0.45, 0.45, 0.8)}


def cases() -> dict[str, Case]:
    transolver = {name: TransolverConfig(**PUBLISHED_TRANSOLVER[name]) for name in recipes.NAMES}
    return {name: Case(name, recipes.size(name), transolver[name], *_BARS[name]) for name in recipes.NAMES}


def configurations(case: Case) -> dict[str, ModelConfig]:
    return {"GeoMaNO": recipes.recipe(case.recipe).model, "Transolver": case.transolver}


def step_of(case: Case, config: ModelConfig, device: torch.device | str = "cpu") -> BareStep:
    weight = recipes.recipe(case.recipe).loss.gradient_weight
    return BareStep.of(config, case.size.batch, case.size.grid, (case.size.in_channels, 1), weight, device)


def bench_train(
    cases: dict[str, Case],
    rounds: int,
    out: Path | None,
    loop: Callable[[], list[Measurement]] = train_loop.measure,
    show_progress: bool = False,
) -> dict[str, Any]:
    keep_freed_memory()  # as a training does
    rows: list[dict[str, Any]] = []
    measurements: list[Measurement] = []
    with progress("bench", len(cases) * rounds, shown=show_progress) as advance:
        for problem, case in cases.items():
            check_gradients(case)
            found = _rows(problem, case, rounds, advance)
            rows += found.values()
            measurements += ratios(problem, case, found)
    measurements += loop()
    settings = {"cases": {problem: case.to_json() for problem, case in cases.items()}, "rounds": rounds}
    content = make_record("train", settings, rows, measurements)
    write_record(out, content)
    return content


def check_gradients(case: Case, device: torch.device | str = "cpu") -> None:
    """Our model with the scan that is timed, against the one with the reference scan, on a small grid."""
    config = configurations(case)["GeoMaNO"]
    gradients = []
    for backend in (config.backend(), "reference"):
        small = config.model_copy(update={"scan_backend": backend, "depth": 1})
        torch.manual_seed(0)
        model = build_model(small, case.size.in_channels, 1, (9, 7)).to(device)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # convolutions of float32, not of TF32
            model(torch.randn(1, 9, 7, case.size.in_channels).to(device)).square().sum().backward()
        gradients.append({name: one.grad for name, one in model.named_parameters()})
    for name, expected in gradients[1].items():
        found = gradients[0][name]
        assert expected is not None
        assert found is not None
        error = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-6))
        if not error < TOLERANCE:
            raise GeomanoError(f"the gradient of {name} is wrong by {error:.1e}: no speed is reported")


def _rows(problem: str, case: Case, rounds: int, advance: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    models = configurations(case)
    steps = {name: step_of(case, config) for name, config in models.items()}
    best = {name: dict.fromkeys(("train", "update", "infer"), math.inf) for name in models}
    for _ in range(rounds):
        for name, step in steps.items():
            for part, work in (("train", step.train), ("update", step.update), ("infer", step.infer)):
                best[name][part] = min(best[name][part], seconds_of(work))
        advance(problem)
    return {
        name: row_of(problem, name, case, config, steps[name].model, best[name], step_memory(case.to_json(), name))
        for name, config in models.items()
    }


def row_of(
    problem: str,
    name: str,
    case: Case,
    config: ModelConfig,
    model: nn.Module,
    seconds: dict[str, float],
    memory_mib: float,
) -> dict[str, Any]:
    """A row of the table, from the seconds of a call by part: train, update and infer."""
    size = case.size
    batches, test_batches = size.train_samples / size.batch, size.test_samples / size.batch
    published = EFFICIENCY[problem][name]
    return {
        "problem": problem,
        "model": name,
        "parameters": count_parameters(model),
        "train_s": batches * (size.frames * seconds["train"] + seconds["update"]),
        "infer_s": test_batches * size.frames * seconds["infer"],
        "memory_mib": memory_mib,
        "published_train_s": published["train"][0],
        "published_infer_s": published["infer"][0],
        "published_memory_mb": published["memory"][0],
        "config": config.model_dump(mode="json"),
    }


def ratios(problem: str, case: Case, rows: dict[str, dict[str, Any]], bars: bool = True) -> list[Measurement]:
    parts = (("train_s", case.train_bar), ("infer_s", case.infer_bar), ("memory_mib", case.memory_bar))
    published = {"train_s": "train", "infer_s": "infer", "memory_mib": "memory"}
    found = []
    for part, bar in parts:
        ours, other = (rows[name][part] for name in ("GeoMaNO", "Transolver"))
        paper = [EFFICIENCY[problem][name][published[part]][0] for name in ("GeoMaNO", "Transolver")]
        detail = f"GeoMaNO over Transolver, batch {case.size.batch}; the paper's GPU: {paper[0] / paper[1]:.2f}"
        found.append(
            Measurement(f"{problem} {published[part]}", ours / other, "x", detail, at_most=bar if bars else None)
        )
    return found


def efficiency_table(content: dict[str, Any]) -> list[str]:
    """The paper's table with what was measured beside what was published."""
    lines = [
        f"{'':25}  {'':>11}  {'train, s per epoch':^19}  {'inference, s':^19}  {'memory':^19}",
        f"{'problem':13}  {'model':10}  {'parameters':>11}" + 3 * f"  {'measured':>9} {'paper':>9}",
    ]
    for row in content["rows"]:
        line = f"{row['problem']:13}  {row['model']:10}  {row['parameters']:11,}"
        for measured, paper in (
            ("train_s", "published_train_s"),
            ("infer_s", "published_infer_s"),
            ("memory_mib", "published_memory_mb"),
        ):
            line += f"  {row[measured]:9.1f} {row[paper]:9.2f}"
        lines.append(line)
    return lines
