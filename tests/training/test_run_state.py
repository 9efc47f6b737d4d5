"""The names and states of a run are known to one place."""

import re
from pathlib import Path

import pytest

import geomano_hpc
from geomano_hpc.errors import DataError
from geomano_hpc.training.records.run_folder import RunFolder, run_folders
from geomano_hpc.training.records.run_state import ACTIVE, ENDED, STATES, TO_START, JobState, State, state_of

ROOT = Path(geomano_hpc.__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


@pytest.mark.parametrize(
    ("files", "claimed", "job", "state"),
    [
        ((), False, None, "pending"),
        ((), True, None, "queued"),
        ((), False, "queued", "queued"),
        ((), False, "running", "running"),
        ((), False, "failed", "failed"),
        ((), False, "ended", "stopped"),
        ((), False, "cancelled", "cancelled"),
        (("metrics.jsonl",), False, None, "stopped"),
        (("metrics.jsonl",), True, None, "queued"),
        (("metrics.jsonl", "failure.json"), False, None, "failed"),
        (("failure.json",), False, "running", "running"),  # requeued: the failure is of the start before
        (("failure.json", "cancelled.json"), False, "cancelled", "failed"),
        (("metrics.jsonl", "cancelled.json"), True, None, "cancelled"),
        (("metrics.jsonl", "failure.json", "cancelled.json", "result.json"), True, "running", "done"),
    ],
)
def test_state_is_told_from_files_claims_and_the_job(
    files: tuple[str, ...], claimed: bool, job: JobState | None, state: State, folder: RunFolder
) -> None:
    for name in files:
        (folder.path / name).write_text('{"error": "x"}\n')
    assert state_of(folder, claimed, job) == state


def test_folder_that_is_held_is_running(folder: RunFolder) -> None:
    folder.write_failure("of the start before")
    with folder.held():
        assert state_of(folder) == "running"
    assert state_of(folder) == "failed"
    folder.clear_marks()
    assert state_of(folder) == "pending"


def test_every_state_is_active_or_to_be_started_or_done() -> None:
    assert set(STATES) == {*ACTIVE, *TO_START, "done"}
    assert set(STATES) == {*ACTIVE, *ENDED, "pending"}


def test_starts_are_kept_in_order(folder: RunFolder) -> None:
    assert folder.starts() == []
    folder.add_start({"host": "a"})
    folder.add_start({"host": "b"})
    assert [start["host"] for start in folder.starts()] == ["a", "b"]


@pytest.mark.parametrize("content", ['{"rel_l2": 0.1', "", "[1]", "null", "\udcff"])
def test_damaged_file_of_a_run_is_named(content: str, folder: RunFolder) -> None:
    folder.result_file.write_text(content, errors="surrogateescape")
    with pytest.raises(DataError, match=r"/result\.json is damaged \(.+\); bring it back from a copy, or remove it$"):
        folder.result()


def test_stops_are_counted_anew_after_each_checkpoint(folder: RunFolder) -> None:
    counted = [folder.count_requeue(), folder.count_requeue()]
    (folder.checkpoints / "step_000000001-epoch_000000").mkdir(parents=True)
    assert [*counted, folder.count_requeue()] == [1, 2, 1]


def test_only_folders_with_a_recipe_are_runs(tmp_path: Path) -> None:
    for name in ("b", "a", "jobs"):
        (tmp_path / name).mkdir()
    for name in ("b", "a"):
        RunFolder(tmp_path / name).config_file.write_text("name: x\n")
    assert [run.path.name for run in run_folders(tmp_path)] == ["a", "b"]


def test_no_other_module_spells_out_the_file_names_of_a_run() -> None:
    names = r"config\.yaml|environment\.json|metrics\.jsonl|result\.json|failure\.json|cancelled\.json|train\.log"
    parts = [ROOT / part for part in ("geomano_hpc", "launch", "slurm")]
    if not parts[1].is_dir():
        pytest.skip("installed without its sources side by side")
    spelled = [
        file.relative_to(ROOT).as_posix()
        for part in parts
        for file in part.rglob("*.py")
        if re.search(rf"[\"'/]({names})[\"']", file.read_text(encoding="utf-8"))
    ]
    assert spelled == ["geomano_hpc/training/records/run_folder.py"]
