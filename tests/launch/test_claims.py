"""Two launches of one study at the same time, as real processes."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from geomano_hpc.config import Recipe, to_yaml
from geomano_hpc.launch import Study, plan
from geomano_hpc.launch.claims import Claim, claimed_runs, deciding
from geomano_hpc.launch.run import keep_plan
from geomano_hpc.launch.status import study_status
from geomano_hpc.training.records.run_folder import run_folders
from tests.support.training_runs import starts


@pytest.fixture
def recipe_file(tiny_recipe: Recipe, tmp_path: Path) -> Path:
    file = tmp_path / "tiny.yaml"
    file.write_text(to_yaml(tiny_recipe))
    return file


def _decide(study: Study, folder: Path, together: Any, answers: Any) -> None:
    together.wait()
    made = keep_plan(study, plan(study), folder, {})
    answers.put([run.path.name for run in made.to_start])
    together.wait()  # everybody has decided before the first claim ends
    made.claim.release()


def test_of_four_processes_that_decide_at_the_same_moment_one_starts_each_run(
    recipe_file: Path, tmp_path: Path
) -> None:
    study = Study(name="s", recipe=str(recipe_file), seeds=list(range(12)))
    fork = multiprocessing.get_context("fork")
    together, answers = fork.Barrier(4), fork.Queue()
    processes = [fork.Process(target=_decide, args=(study, tmp_path / "s", together, answers)) for _ in range(4)]
    for process in processes:
        process.start()
    taken = [name for _ in processes for name in answers.get(timeout=240)]
    for process in processes:
        process.join(240)
    assert sorted(taken) == sorted(run.name for run in plan(study))
    assert claimed_runs(tmp_path / "s") == set()
    assert {status.state for status in study_status(tmp_path / "s")} == {"pending"}


@pytest.mark.slow(20)
def test_two_people_launching_at_once_train_every_run_once(recipe_file: Path, tmp_path: Path) -> None:
    options = ["--seeds", "2", "--name", "mine", "--set", "training.epochs=1", "--runs", str(tmp_path / "runs")]
    command = [sys.executable, "-m", "geomano_hpc", "launch", str(recipe_file), *options]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=240) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    counts = sorted(out.rpartition("finished ")[2].split(" of ")[0] for out, _ in said)
    assert counts == ["0", "2"]
    (second,) = (out for out, _ in said if "finished 0 of" in out)
    known = re.findall(r"(\d+) (?:are running or queued already|were finished before)", second)
    assert sum(map(int, known)) == 2, second
    folders = run_folders(tmp_path / "runs" / "mine")
    assert [(len(starts(folder)), folder.is_finished) for folder in folders] == [(1, True), (1, True)]


def test_claims_of_a_killed_launch_are_free_again(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from geomano_hpc.launch.claims import Claim\n"
        "claim = Claim(Path(sys.argv[1]), ['one', 'two'])\n"
        "print('claimed', flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "claimed\n"
        assert claimed_runs(tmp_path) == {"one", "two"}
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert claimed_runs(tmp_path) == set()
    with deciding(tmp_path), Claim(tmp_path, ["one"]):
        assert len(list((tmp_path / ".launches").iterdir())) == 1  # what the killed one left is gone
        assert claimed_runs(tmp_path) == {"one"}
    assert list((tmp_path / ".launches").iterdir()) == []
