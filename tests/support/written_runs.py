"""Run folders written by hand, as a training would leave them: a study of a thousand runs in seconds."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from geomano_hpc.config import to_yaml
from geomano_hpc.launch import Study, plan
from geomano_hpc.launch.manifest import keep_in_manifest
from geomano_hpc.training.records.run_folder import RunFolder

HARDWARE = {"host": "node1", "cpu": "a processor", "gpus": ["Quadro RTX 8000"]}


def write_study(
    study: Study, folder: Path, problem: str = "darcy", epochs: int = 4, **made: dict[int, str]
) -> list[str]:
    """Every run finished, but those whose number is in `failed` (with their error) or in `pending`.

    The error of a run is its number in the plan times 0.001 plus 0.01, so that the first variant is the best.
    """
    runs = plan(study)
    folder.mkdir(parents=True, exist_ok=True)
    keep_in_manifest(study, runs, folder, {"cluster": "local", "options": {"at_once": 2}})
    rng = np.random.default_rng(0)
    for number, run in enumerate(runs):
        target = RunFolder(folder / run.name)
        target.path.mkdir()
        target.config_file.write_text(to_yaml(run.recipe))
        if number in made.get("pending", {}):
            continue
        error = 0.01 + 0.001 * number
        curve = error * (1 + np.linspace(2, 0, epochs)) + 1e-4 * rng.random(epochs)
        lines: list[dict[str, Any]] = [
            {
                "epoch": epoch + 1,
                "train_loss": float(loss),
                "test_rel_l2": float(loss),
                "seconds": 60.0 if epoch == 0 else 20.0 + number % 5,
                "test_seconds": 1.0 + 0.1 * (number % 5),
                "memory_gib": 0.5,
            }
            for epoch, loss in enumerate(curve)
        ]
        target.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        start = {
            "hardware": HARDWARE,
            "world_size": 1,
            "threads": 1,
            "scan_backend": "triton",
            "git_revision": "a" * 40,
        }
        target.environment_file.write_text(json.dumps({"starts": [start]}))
        if number in made.get("failed", {}):
            target.failure_file.write_text(json.dumps({"error": made["failed"][number]}))
            continue
        seconds = sum(line["seconds"] for line in lines)
        result = {"rel_l2": error, "problem": problem, "parameters": 1000, "epochs": epochs, "train_seconds": seconds}
        target.result_file.write_text(json.dumps(result))
    return [run.name for run in runs]
