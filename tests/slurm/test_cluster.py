"""Studies on a real Slurm of two nodes: to the report, and through everything that a cluster does to a run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from geomano_hpc.cli.app import main
from geomano_hpc.config import Recipe, to_yaml
from geomano_hpc.errors import ConfigError
from geomano_hpc.launch.status import study_status
from geomano_hpc.slurm import snapshot_code
from geomano_hpc.slurm.testbed import Testbed
from geomano_hpc.training.loop import train
from geomano_hpc.training.records.run_folder import RunFolder
from tests.support.slurm_jobs import SubmittedRun, full_speed, profile, submit_study, wait_for
from tests.support.training_runs import changed, curve, starts


def assert_undisturbed(run: SubmittedRun, undisturbed: RunFolder) -> None:
    """Bit-equal to a run in this process, which nobody stopped."""
    if not undisturbed.is_finished:
        train(run.folder.recipe(), undisturbed)
    assert curve(run.folder) == curve(undisturbed)
    assert run.folder.weights_file.read_bytes() == undisturbed.weights_file.read_bytes()


def test_five_seeds_go_as_an_array_to_the_report_and_an_edit_of_the_code_does_not_change_them(
    cluster: Testbed, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    Path("five.yaml").write_text(to_yaml(tiny_recipe))
    Path("small.yaml").write_text("{gpus: 0, cpus: 1, time: '10', at_once: 3, sbatch: {begin: now+3}}")
    checkout = snapshot_code(tmp_path / "checkout")
    launch = [sys.executable, "-m", "geomano_hpc", "launch", "five.yaml", "--cluster=slurm", "--profile=small.yaml"]
    subprocess.run(launch, check=True, env={**os.environ, "PYTHONPATH": str(checkout)})
    (checkout / "geomano_hpc" / "training" / "loop.py").write_text("raise RuntimeError('edited')")
    Path("geomano_hpc").symlink_to(checkout / "geomano_hpc")  # as in the folder of a checkout
    folder = Path("runs/five")
    (array,) = {json.loads(file.read_text())["job_id"].split("_")[0] for file in folder.glob("*/job.json")}
    assert "ArrayTaskThrottle=3" in cluster.run("scontrol", "show", "job", array)
    report = folder / "report" / "report.md"
    wait_for(report.is_file, lambda: cluster.run("squeue"))
    assert re.search(r"0\.\d+ ± 0\.\d+.*\| 5 \|", report.read_text())
    assert [status.state for status in study_status(folder)] == ["done"] * 5


def test_preempted_and_requeued_runs_end_bit_equal_to_undisturbed_ones(
    cluster: Testbed, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    recipe = changed(tiny_recipe, epochs=40)
    chosen = profile(1.0, partition="low", gpus=1)  # no other test asks for a GPU
    preempted, requeued = submit_study(cluster, recipe, 2, chosen)
    for run in (preempted, requeued):
        run.wait_until_training()
    cluster.run("scontrol", "requeue", requeued.job)  # sends SIGTERM and no USR2
    # Both GPUs of the node, for a job of a higher priority.
    urgent = ["sbatch", "--parsable", "--partition=main", "--nodelist=node1", "--gpus-per-node=2", "--output=/dev/null"]
    job = cluster.run(*urgent, "--wrap", "sleep 1").strip()
    wait_for(lambda: "COMPLETED" in cluster.run("sacct", "-X", "-n", "-j", job, "-o", "State"))
    assert not preempted.folder.is_finished
    full_speed()
    for number, run in enumerate((preempted, requeued)):
        run.wait_until_finished()
        assert len(starts(run.folder)) == 2
        assert_undisturbed(run, RunFolder(tmp_path / f"undisturbed-{number}"))


def test_runs_of_an_array_that_reach_their_time_limit_requeue_themselves_and_lose_nothing(
    cluster: Testbed, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    """Slurm looks at limits every 30 s: where a minute is left, the signal comes after 15 to 45 s."""
    runs = submit_study(cluster, changed(tiny_recipe, epochs=40), 2, profile(1.0, stop_seconds=15), name="limit")
    for run in runs:  # a limit from the beginning on would be used up by the start of Python on a slow machine
        run.wait_until_training()
        cluster.run("scontrol", "update", f"JobId={run.job}", "EndTime=now+1minutes")
    wait_for(lambda: all(len(starts(run.folder)) >= 2 for run in runs), lambda: [run.told() for run in runs])
    assert not any(run.folder.is_finished for run in runs)
    full_speed()
    for run in runs:
        run.wait_until_finished()
        assert_undisturbed(run, RunFolder(tmp_path / run.folder.path.name))


def test_run_on_two_nodes_survives_a_preemption_and_then_the_loss_of_a_node(
    cluster: Testbed, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    recipe = changed(tiny_recipe, epochs=25, engine="deepspeed", zero=1)
    (run,) = submit_study(cluster, recipe, 1, profile(1.0, nodes=2, sbatch={}), name="two")
    run.wait_until_training()
    cluster.run("scancel", "--signal=USR2", run.job)  # what Slurm sends before a preemption or the end of the time
    wait_for(lambda: len(starts(run.folder)) == 2, run.told)
    run.wait_until_training(epochs=len(run.folder.metrics()) + 2)
    cluster.cut_power("node2")
    full_speed()
    wait_for(lambda: "down" in cluster.node_states()["node2"])  # Slurm finds out by itself
    cluster.start_node("node2")
    undisturbed = RunFolder(tmp_path / "undisturbed")
    Path("two_ranks.yaml").write_text(to_yaml(run.folder.recipe()))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    command = [*torchrun, "geomano_hpc", "train", "two_ranks.yaml", "--out", str(undisturbed.path)]
    subprocess.run(command, check=True, capture_output=True)
    run.wait_until_finished()
    # A node that comes back may get the order to end the start that it lost, which then ends the next start once more.
    assert [start["world_size"] for start in starts(run.folder)][:3] == [2, 2, 2]
    assert_undisturbed(run, undisturbed)


def test_failed_run_and_cancelled_run_are_told_apart_and_not_started_again(
    cluster: Testbed, tiny_recipe: Recipe
) -> None:
    # More samples than there are: that run fails when it starts.
    slow = profile(1.0, at_once=2)
    axes = {"data.train_samples": [10, 99]}
    cancelled, failed = submit_study(
        cluster, changed(tiny_recipe, epochs=40), 1, slow, name="ends", report=True, axes=axes
    )
    cancelled.wait_until_training()
    cluster.run("scancel", cancelled.job)
    wait_for(lambda: cancelled.state == "CANCELLED", cancelled.told)
    wait_for(lambda: failed.state == "FAILED", failed.told)
    folder = failed.folder.path.parent
    wait_for((folder / "report" / "report.md").is_file, lambda: cluster.run("squeue"))  # though both ended badly
    states = {status.name: status for status in study_status(folder)}
    assert states[cancelled.folder.path.name].state == "cancelled"
    assert states[failed.folder.path.name].state == "failed"
    assert "data.train_samples is 99, the store has 10" in states[failed.folder.path.name].note
    assert (len(starts(cancelled.folder)), cancelled.folder.is_finished) == (1, False)


def test_what_sbatch_refuses_is_an_error_in_its_words_and_the_run_can_be_launched_again(
    cluster: Testbed, tiny_recipe: Recipe
) -> None:
    with pytest.raises(ConfigError, match=r"sbatch refused the job: .*invalid partition specified: nowhere"):
        submit_study(cluster, tiny_recipe, 2, profile(partition="nowhere"), name="refused")
    assert [status.state for status in study_status(Path("runs/refused"))] == ["pending"] * 2


def test_conversion_as_an_mpi_job_writes_the_same_store(cluster: Testbed, darcy_raw: Path, darcy_store: Path) -> None:
    sizes = ["--train", "10", "--test", "4", "--stride", "2"]
    options = ["--cluster", "slurm", "--ranks", "4", "--nodes", "2", "--profile", "cpu"]
    command = ["data", "convert", str(darcy_raw), "--problem", "darcy", *sizes, "--out", "data/darcy.zarr", *options]
    with pytest.raises(SystemExit, match="0"):
        main(command)
    manifest = Path("data/darcy.zarr/manifest.json")

    def told() -> str:
        return "\n".join(file.read_text() for file in Path("data/jobs").glob("*_log.*")) + cluster.run("squeue")

    wait_for(manifest.is_file, told)
    files = sorted(file.relative_to(darcy_store) for file in darcy_store.rglob("*") if file.is_file())
    for name in files:
        assert (manifest.parent / name).read_bytes() == (darcy_store / name).read_bytes(), name


def test_mpi_under_the_wrong_plugin_writes_nothing(cluster: Testbed, darcy_raw: Path) -> None:
    Path("wrong.yaml").write_text("gpus: 0\nmpi: none\n")
    command = ["data", "convert", str(darcy_raw), "--problem", "darcy", "--train", "10", "--test", "4"]
    with pytest.raises(SystemExit, match="0"):
        main([*command, "--out", "data/d.zarr", "--cluster", "slurm", "--ranks", "2", "--profile", "wrong.yaml"])
    (job,) = {file.name.split("_")[0] for file in Path("data/jobs").glob("*_submitted.pkl")}
    wait_for(lambda: "FAILED" in cluster.run("sacct", "-X", "-n", "-j", job, "-o", "State"))
    assert not Path("data/d.zarr").exists()
