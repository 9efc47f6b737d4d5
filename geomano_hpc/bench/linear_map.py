"""Benchmark of what a layer can say: vorticity to velocity on the torus, a linear map whose exact form is known.

w -> (d psi / d y, -d psi / d x) with -Laplace psi = w: an integral over the whole domain, which is what a scan is for.
Fields are drawn afresh for every step, so nothing is learnt by heart, and the error is that of fields never seen. Every
variant has the same steps, and the best rate of a grid that is widened until no best lies at its edge.
"""

import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from geomano_hpc.atomic import replacing
from geomano_hpc.bench.rates import Trial, best_of, rate_beyond
from geomano_hpc.bench.record import make_record, write_record
from geomano_hpc.bench.remembered import Remembered
from geomano_hpc.bench.trainings import spread, spread_in_words
from geomano_hpc.config.models import model_section
from geomano_hpc.models import build_model
from geomano_hpc.models.parts.grid_model import GridModel
from geomano_hpc.models.parts.sampling import Sampling
from geomano_hpc.progress import progress
from geomano_hpc.training.losses import relative_l2

POINTS, BATCH, TEST_FIELDS = 32, 8, 64
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
_TORUS = Sampling(periodic=(True, True))

_OURS = {"name": "geomano", "depth": 2, "embedding": 32, "dstate": 16}
_CORNERS = {**_OURS, "kind": "2d", "orders": "corners"}
_RINGS = {**_CORNERS, "periodic": "auto"}

VARIANTS: dict[str, dict[str, Any]] = {
    "without the scan": {**_OURS, "scan": False},
    "1d, paper's orders": {**_OURS, "kind": "1d"},
    "2d, paper's orders": {**_OURS, "kind": "2d"},
    "2d, corners": _CORNERS,
    "corners, bias of B and C": {**_CORNERS, "scan_bias": True},
    "corners, linear way out": {**_CORNERS, "way_out": "linear"},
    "corners, longer reach": {**_CORNERS, "dt_range": [1e-4, 1e-2]},
    "corners, shorter reach": {**_CORNERS, "dt_range": [1e-2, 1.0]},
    "rings": _RINGS,
    "rings, bias": {**_RINGS, "scan_bias": True},
    "rings, product with the gate": {**_RINGS, "way_out": "product"},
    "rings, linear way out": {**_RINGS, "way_out": "linear"},
    "rings, linear way out, bias": {**_RINGS, "way_out": "linear", "scan_bias": True},
    "rings, linear, bias, shorter reach": {
        **_RINGS,
        "way_out": "linear",
        "scan_bias": True,
        "dt_range": [1e-2, 1.0],
    },
    "4 modes without the scan": {**_OURS, "scan": False, "spectral_modes": 4, "periodic": "auto"},
    "fno": {"name": "fno", "depth": 2, "embedding": 16, "modes": 8},
}


def vorticity_and_velocity(generator: torch.Generator, fields: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[fields, n, n, 1] and [fields, n, n, 2], each with a variance of about one; float32 of float64 transforms."""
    waves = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64)
    along_x, along_y = torch.meshgrid(waves, waves, indexing="ij")
    square = along_x**2 + along_y**2
    inverse = 1.0 / square.masked_fill(square == 0, 1.0)
    drawn = torch.randn(fields, n, n, generator=generator, dtype=torch.float64)
    strength = (square + 49.0) ** -1.25  # the field that the Navier-Stokes benchmark starts with
    strength[(square == 0) | (along_x.abs() * 2 == n) | (along_y.abs() * 2 == n)] = 0.0  # waves without a derivative
    w = torch.fft.fft2(drawn) * (strength * (n / strength.square().sum().sqrt()))
    psi = w * inverse
    u, v = torch.fft.ifft2(1j * along_y * psi).real, torch.fft.ifft2(-1j * along_x * psi).real
    velocity = torch.stack([u, v], dim=-1)
    size = ((strength.square() * inverse).sum() / strength.square().sum() / 2).sqrt()  # of a component of it
    return torch.fft.ifft2(w).real[..., None].float(), (velocity / size).float()


def trained_error(keys: Mapping[str, Any], rate: float, seed: int, steps: int) -> float:
    """Relative L2 of the velocity of fields never seen, after so many steps."""
    torch.manual_seed(seed)
    model = build_model(model_section(dict(keys)), 1, 2, grid=(POINTS, POINTS))
    assert isinstance(model, GridModel)
    model.place(_TORUS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=steps)
    drawn = torch.Generator().manual_seed(1000 + seed)
    for _ in range(steps):
        w, velocity = vorticity_and_velocity(drawn, BATCH, POINTS)
        relative_l2(model(w), velocity).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    w, velocity = vorticity_and_velocity(torch.Generator().manual_seed(0), TEST_FIELDS, POINTS)
    with torch.no_grad():
        error = relative_l2(model.eval()(w), velocity).mean().item()
    return error if math.isfinite(error) else math.inf


def bench_linear_map(
    variants: Mapping[str, Mapping[str, Any]], steps: int, seeds: int, runs: Path, out: Path | None
) -> dict[str, Any]:
    """Each variant at each rate with the first seed, and at its best rate with the others."""
    known = Remembered(runs / "linear_map.json")
    rows = []

    def trial(keys: Mapping[str, Any], rate: float, seed: int) -> Trial:
        key = json.dumps([dict(keys), rate, seed, steps], sort_keys=True)
        return Trial(rate, known.error(key, partial(trained_error, keys, rate, seed, steps)), runs)

    with progress("train", len(variants) * (len(RATES) + seeds - 1)) as advance:
        for name, keys in variants.items():
            trials = []
            for rate in RATES:
                trials.append(trial(keys, rate, 0))
                advance(name)
            while (farther := rate_beyond(name, trials)) is not None:
                trials.append(trial(keys, farther, 0))
            best = best_of(trials)
            errors = [best.error]
            for seed in range(1, seeds):
                errors.append(trial(keys, best.lr, seed).error)
                advance(name)
            by_rate = {one.lr: one.error for one in trials}
            rows.append({"variant": name, "model": dict(keys), "by_rate": by_rate, "rate": best.lr, **spread(errors)})
    settings = {"points": POINTS, "batch": BATCH, "steps": steps, "seeds": seeds, "rates": list(RATES)}
    content = make_record("linear_map", settings, rows)
    write_record(out, content)
    return content


def linear_map_table(content: Mapping[str, Any]) -> list[str]:
    """Errors and the rates they were found at, for people."""
    settings = content["settings"]
    lines = [
        f"vorticity to velocity, {POINTS} x {POINTS} torus, {settings['steps']} steps of {BATCH} fields",
        f"  {'variant':36}  {'rel-L2':>19}  {'lr':>6}",
    ]
    lines += [f"  {row['variant']:36}  {spread_in_words(row):>19}  {row['rate']:>6g}" for row in content["rows"]]
    return lines


def draw_linear_map(content: Mapping[str, Any], file: Path) -> None:
    """A bar for each variant."""
    from matplotlib.figure import Figure

    rows = list(content["rows"])[::-1]
    figure = Figure(figsize=(6.4, 0.9 + 0.28 * len(rows)), layout="constrained")
    axes = figure.subplots()
    spread = [row["std"] or 0.0 for row in rows]
    bars = axes.barh([row["variant"] for row in rows], [row["mean"] for row in rows], xerr=spread, capsize=2)
    axes.bar_label(bars, labels=[f"{row['mean']:.3f}" for row in rows], padding=4, fontsize=8)
    axes.margins(x=0.15)
    axes.set(xlabel="relative L2 of the velocity", title="what a layer can say: vorticity to velocity on a torus")
    axes.title.set_fontsize(10)
    axes.tick_params(labelsize=8)
    with replacing(file) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
