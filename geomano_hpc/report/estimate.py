"""What a study will cost, before it is started: node hours, and what the estimate is taken from."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from geomano_hpc.config import Recipe
from geomano_hpc.launch import PlannedRun
from geomano_hpc.launch.logs import last_lines
from geomano_hpc.report.published import EFFICIENCY, PUBLISHED_SIZE, name_in_paper
from geomano_hpc.slurm import ClusterProfile
from geomano_hpc.training.records.run_folder import RunFolder, run_folders


def estimate(runs: Sequence[PlannedRun], folder: Path, profile: ClusterProfile | None) -> list[str]:
    """Lines for people. The time of an epoch is taken from runs of this study that have trained, or else from the
    paper's efficiency table for its own configurations, scaled by the size of the scan; or there is none."""
    if not runs:
        return ["0 runs to start"]
    nodes = 1 if profile is None else profile.nodes
    measured = _measured(folder)
    seconds: list[float] = []
    sources: dict[str, int] = {}
    for run in runs:
        found, source = _seconds_per_epoch(run.recipe, measured)
        sources[source] = sources.get(source, 0) + 1
        if found is not None:
            seconds.append(found * run.recipe.training.epochs)
    epochs = sum(run.recipe.training.epochs for run in runs)
    lines = [f"{len(runs)} runs to start, {epochs} epochs in all, {nodes} node{'s' if nodes > 1 else ''} each"]
    if seconds:
        hours = sum(seconds) / 3600 * nodes
        known = "" if len(seconds) == len(runs) else f" for {len(seconds)} of them"
        lines.append(f"estimate: {hours:.1f} node hours{known}, {max(seconds) / 3600:.1f} hours for the longest run")
    else:
        lines.append("estimate: none")
    lines += [f"  {count} run{'s' if count > 1 else ''}: {source}" for source, count in sources.items()]
    if profile is not None:
        most = len(runs) * profile.node_hours
        lines.append(f"time limits allow {most:.1f} node hours, if no run is started more than once")
    return lines


def _measured(folder: Path) -> list[tuple[dict[str, Any], float]]:
    """Configuration without the seed, and the seconds of an epoch, of every run of the study that has trained."""
    found = []
    for run in run_folders(folder) if folder.is_dir() else []:
        seconds = _last_seconds(run)
        if seconds is not None:
            found.append((_cost_keys(run.recorded_recipe()), seconds))
    return found


def _last_seconds(run: RunFolder) -> float | None:
    if not run.metrics_file.is_file():
        return None
    seconds = []
    for line in last_lines(run.metrics_file, 20):
        try:
            seconds.append(float(json.loads(line)["seconds"]))
        except (ValueError, KeyError):  # cut off, or not the line of an epoch
            continue
    return statistics.median(seconds) if seconds else None


def _cost_keys(recipe: Recipe) -> dict[str, Any]:
    """What the time of an epoch depends on."""
    training = {"batch_size": recipe.training.batch_size}
    return {
        **recipe.model_dump(mode="json", include={"data", "model", "compute", "loss", "rollout"}),
        "training": training,
    }


def _seconds_per_epoch(recipe: Recipe, measured: Sequence[tuple[dict[str, Any], float]]) -> tuple[float | None, str]:
    wanted = _cost_keys(recipe)
    same = [seconds for keys, seconds in measured if keys == wanted]
    if same:
        return statistics.fmean(same), "from runs of this study with the same configuration, where they were trained"
    problem, model = recipe.name, recipe.model
    name = name_in_paper(model.name)
    if problem in PUBLISHED_SIZE and name in EFFICIENCY[problem] and recipe.data.train_samples is None:
        depth, embedding, dstate = PUBLISHED_SIZE[problem]
        published, _ = EFFICIENCY[problem][name]["train"]
        source = f"{published} s an epoch, the paper's {name} on {problem} on one Quadro RTX 8000"
        if model.name == "transolver":
            return published, f"{source}; your GPU differs"
        size = model.model_dump()
        ratio = size["depth"] / depth * size["embedding"] / embedding * size["dstate"] / dstate
        scaled = "" if ratio == 1 else ", scaled by depth x embedding x dstate"
        return published * ratio, f"{source}{scaled}; your GPU differs"
    return (
        None,
        "nothing to go by: no run of this configuration has trained here, and the paper has no time for it",
    )
