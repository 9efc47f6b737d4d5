"""What a user sees of runs that failed, wait or train."""

import json
import os
import signal
import stat
from pathlib import Path

import pytest

from geomano_hpc.cli.app import main
from geomano_hpc.cli.runs import duration
from geomano_hpc.config import Recipe
from geomano_hpc.launch import Study
from geomano_hpc.launch.claims import Claim
from geomano_hpc.launch.status import run_status
from geomano_hpc.training.records.run_folder import RunFolder
from tests.support.written_runs import write_study


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def geomano(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(caught.value.code or 0)


def test_status_shows_each_state_with_what_belongs_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    study = Study(name="s", recipe="darcy", seeds=[0, 1, 2, 3])
    error = "Traceback ...\nRuntimeError: CUDA [out] of memory"
    done, failed, training, waiting = write_study(study, Path("runs/s"), failed={1: error}, pending={2: "", 3: ""})
    run = RunFolder(Path("runs/s") / training)
    line = {"epoch": 100, "train_loss": 0.125, "test_rel_l2": 0.25, "seconds": 9.0}
    run.metrics_file.write_text(json.dumps(line) + "\n")
    with run.held(), Claim(Path("runs/s"), [waiting]):
        assert geomano("status", "s") == 0
        lines = capsys.readouterr().out.splitlines()
        assert geomano("status", "s", "--state", "failed") == 0
        only = capsys.readouterr().out
    row = {name: next(line for line in lines if name in line) for name in (done, failed, training, waiting)}
    assert "runs/s: 1 running, 1 queued, 1 failed, 1 done" in lines[0]
    assert "done" in row[done]
    assert "RuntimeError: CUDA [out] of memory" in row[failed]
    assert f"runs/s/{failed}/logs/train.log" in "".join(lines).replace(" ", "").replace("│", "")
    assert [word in row[training] for word in ("running", "100/500", "1 h 00 min", "0.125", "0.25000")] == [True] * 5
    assert "queued" in row[waiting]
    assert failed in only
    assert done not in only


@pytest.mark.parametrize(
    ("seconds", "words"), [(7, "7 s"), (600, "10 min"), (5000, "1 h 23 min"), (1_000_000, "11.6 days")]
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_ctrl_c_is_the_way_to_end_a_watch(
    form: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (waiting,) = write_study(Study(name="s", recipe="darcy", seeds=[0]), Path("runs/s"), pending={0: ""})

    def interrupt(_: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("geomano_hpc.cli.runs.time.sleep", interrupt)
    with Claim(Path("runs/s"), [waiting]):
        assert geomano("status", "s", "--watch", *form) == 0
    shown = capsys.readouterr()
    assert waiting in shown.out
    assert shown.err == ""


def test_cancel_of_a_run_on_slurm_calls_scancel_with_its_job(
    tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(Path("runs/s/run"))
    folder.write_recipe(tiny_recipe)
    (folder.path / "job.json").write_text(json.dumps({"cluster": "slurm", "job_id": "7_1", "folder": str(tmp_path)}))
    monkeypatch.setattr("submitit.SlurmJob.state", "PENDING")
    scancel = tmp_path / "bin" / "scancel"
    scancel.parent.mkdir()
    monkeypatch.setenv("PATH", f"{scancel.parent}:/usr/bin:/bin")
    scancel.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\nexit 1\n')
    scancel.chmod(scancel.stat().st_mode | stat.S_IXUSR)
    assert geomano("cancel", "s") == 1
    assert "run goes on: scancel 7_1 failed" in capsys.readouterr().err
    scancel.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
    assert geomano("cancel", "s") == 0
    assert "cancelled 1 of 1 runs" in capsys.readouterr().out
    assert (tmp_path / "called").read_text() == "7_1\n7_1\n"
    monkeypatch.setattr("submitit.SlurmJob.state", "CANCELLED by 0")
    assert run_status(folder).state == "cancelled"


def test_logs_of_a_run_that_died_before_it_had_a_log_are_those_of_its_job(
    tiny_recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(Path("runs/s/run"))
    folder.write_recipe(tiny_recipe)
    assert geomano("logs", "s/run") == 1
    assert "no log yet; the run is pending" in capsys.readouterr().err
    (folder.path / "job.json").write_text(json.dumps({"cluster": "local", "job_id": "9", "folder": str(tmp_path)}))
    (tmp_path / "9_0_log.err").write_text("ImportError: no torch\n")
    assert geomano("logs", "s/run") == 0
    assert capsys.readouterr().out == "ImportError: no torch\n"
