"""Commands that look at files load no torch: they answer at once, and run where none is installed."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from geomano_hpc.config import Recipe
from geomano_hpc.data_prep.generate import Generation, generate
from geomano_hpc.training.records.predictions import Predictions
from geomano_hpc.training.records.run_folder import RunFolder

PROGRAM = """
import json, sys
from geomano_hpc.cli.app import main

for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as end:
        heavy = sorted({"torch", "deepspeed", "triton"} & set(sys.modules))
        print("ENDED", json.dumps([words[:2], end.code or 0, heavy]), flush=True)
"""


@pytest.fixture
def run(tiny_recipe: Recipe, tmp_path: Path) -> RunFolder:
    """A finished run of the study s, written by hand."""
    folder = RunFolder(tmp_path / "runs" / "s" / "seed-0")
    folder.write_recipe(tiny_recipe)
    line = {"epoch": 1, "train_loss": 0.5, "test_rel_l2": 0.25, "seconds": 1.0, "test_seconds": 0.1, "memory_gib": 0.1}
    folder.metrics_file.write_text(json.dumps(line) + "\n")
    fields = np.random.default_rng(0).random((3, 2, 9, 9, 1)).astype(np.float32)
    Predictions("steady", *fields).write(folder.predictions_file)
    folder.log_file.parent.mkdir()
    folder.log_file.write_text("a line\n")
    folder.write_result({"rel_l2": 0.25, "problem": "darcy", "parameters": 7, "epochs": 1, "train_seconds": 1.0})
    return folder


@pytest.mark.slow
def test_report_status_logs_and_data_commands_load_no_torch(run: RunFolder, tmp_path: Path) -> None:
    generate(Generation("darcy", samples=4, grid=9), tmp_path / "raw.h5")
    convert = ["data", "convert", "raw.h5", "--problem", "darcy", "--train", "3", "--test", "1", "--stride", "1"]
    commands = [
        ["report", "s"],
        ["status", "s"],
        ["logs", "s/seed-0"],
        ["cancel", "s"],
        [*convert, "--out", "own.zarr"],
        ["data", "info", "own.zarr"],
        ["data", "verify", "own.zarr"],
    ]
    command = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    ended = [json.loads(line.removeprefix("ENDED ")) for line in done.stdout.splitlines() if line.startswith("ENDED ")]
    assert ended == [[words[:2], 0, []] for words in commands], done.stderr
    assert (tmp_path / "runs" / "s" / "report" / "prediction.png").is_file()  # drawn, not left out
