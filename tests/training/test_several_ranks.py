"""Two real processes, started by each launcher that is here, disturbed in each way that a cluster knows."""

import json
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from geomano_hpc.config import Recipe, to_yaml
from geomano_hpc.slurm.testbed.configuration import unused_ports
from tests.support.forked_ranks import Farm
from tests.support.training_runs import back_to, changed, curve, run, step_losses, two_ranks

pytestmark = pytest.mark.ranks

TRAIN = ("-m", "geomano_hpc", "train", "recipe.yaml", "--out", "run")
TWO_HERE = ("--num_gpus", "2", "--master_port", str(unused_ports(1)[0]))
LAUNCHERS = {
    "deepspeed": (sys.executable, "-m", "deepspeed.launcher.runner", *TWO_HERE, "--module", *TRAIN[1:]),
    "mpirun": ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, *TRAIN),
}


@pytest.fixture
def endless(tiny_recipe: Recipe) -> Recipe:
    """Longer than any test waits."""
    return changed(tiny_recipe, engine="torch", epochs=100_000, evaluate_every=100_000, checkpoint_every=100_000)


@pytest.mark.parametrize(
    ("lost", "how", "words"),
    [
        (1, signal.SIGKILL, r"gave no sign of life for \d+ s"),
        (1, signal.SIGSTOP, r"gave no sign of life for \d+ s"),
        (0, signal.SIGSTOP, r"did not answer for|gave no sign of life for \d+ s"),
        (0, signal.SIGKILL, "is gone|gave no sign of life for"),
    ],
)
def test_dead_or_stopped_rank_ends_the_job_in_time_and_is_named(
    lost: int, how: signal.Signals, words: str, ranks: Farm, endless: Recipe, tmp_path: Path
) -> None:
    both = ranks.start_training(changed(endless, rank_timeout=12), tmp_path / "run")
    both[lost].kill(how)
    started = time.monotonic()
    assert both[1 - lost].wait() == 1, both[1 - lost].said()
    assert time.monotonic() - started < 180  # 12 s, on a busy machine
    assert re.search(rf"rank {lost}[ ,].*({words})", both[1 - lost].said())
    both[lost].kill(signal.SIGKILL)
    both[lost].wait()
    if lost == 1:
        assert "rank 1 of 2" in (tmp_path / "run" / "logs" / "train.log").read_text()


def test_ctrl_c_on_one_rank_saves_and_stops_both_and_the_same_command_goes_on(
    ranks: Farm, endless: Recipe, tmp_path: Path
) -> None:
    both = ranks.start_training(endless, tmp_path / "run")
    both[1].kill(signal.SIGINT)
    assert [rank.wait() for rank in both] == [130, 130], [rank.said() for rank in both]
    assert re.search(r"error: .*run: stopped by Ctrl-C after step \d+ of .*the same command goes on", both[0].said())
    assert "error: " not in both[1].said()
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    both = ranks.start(endless, tmp_path / "run")
    log = tmp_path / "run" / "logs" / "train.log"
    while f"steps {int(saved.name[5:14]) + 1} to 300000" not in log.read_text():
        time.sleep(0.1)
    for rank in both:  # as a terminal and the launcher do
        rank.kill(signal.SIGINT)
        rank.kill(signal.SIGINT)
    assert [rank.wait() for rank in both] == [130, 130], [rank.said() for rank in both]


def test_signal_on_one_rank_saves_and_stops_both(ranks: Farm, endless: Recipe, tmp_path: Path) -> None:
    both = ranks.start_training(endless, tmp_path / "run")
    both[1].kill(signal.SIGUSR2)  # submitit's handler would run on rank 0 only
    assert [rank.wait() for rank in both] == [75, 75], [rank.said() for rank in both]
    assert re.search(r"error: .*run: stopped by a signal on another rank after step \d+ of 300000", both[0].said())
    assert "error: " not in both[1].said()
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert int(saved.name[5:14]) > 0


@pytest.mark.slow(20)
def test_world_size_may_change_between_starts(ranks: Farm, tiny_recipe: Recipe, tmp_path: Path) -> None:
    """2 -> 1 -> 2 ranks with ZeRO 1 and 2, stopped in mid-epoch: the curve of an undisturbed run."""
    base = changed(tiny_recipe, epochs=4, batch_size=4, log_every=1, keep_checkpoints=99, checkpoint_steps=4)
    whole = ranks.train(base, tmp_path / "whole", ranks=1)
    for zero in (1, 2):
        recipe = changed(base, zero=zero)
        folder = ranks.train(recipe, tmp_path / f"zero{zero}")
        for step, world in ((4, 1), (8, 2)):
            back_to(step, folder)
            ranks.train(recipe, folder.path, ranks=world)
        log = folder.log_file.read_text()
        assert [int(step) for step in re.findall(r"resumed from .*: epoch \d+, step (\d+)", log)] == [4, 8]
        starts = json.loads(folder.environment_file.read_text())["starts"]
        assert [start["world_size"] for start in starts] == [2, 1, 2]
        expected = list(step_losses(whole).values())
        assert list(step_losses(folder).values()) == pytest.approx(expected, rel=1e-5)
        assert curve(folder)[-1] == pytest.approx(curve(whole)[-1], rel=1e-5)


@pytest.mark.slow(20)
def test_runs_that_go_on_twice_are_bit_equal_to_undisturbed_ones(
    ranks: Farm, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    """A state that was loaded is gathered again: what one rank calls a moment must be the same on the other."""
    base = changed(tiny_recipe, epochs=4, log_every=1, keep_checkpoints=99, checkpoint_steps=4)
    for zero in (1, 3):  # 2 gathers as 1 does
        recipe = changed(base, zero=zero)
        folder = ranks.train(recipe, tmp_path / f"zero{zero}")
        losses, weights = step_losses(folder), folder.weights_file.read_bytes()
        for step in (4, 8):
            back_to(step, folder)
            ranks.train(recipe, folder.path)
        assert step_losses(folder) == losses
        assert folder.weights_file.read_bytes() == weights


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_other_launchers_start_the_ranks_too(launcher: str, tiny_recipe: Recipe, tmp_path: Path) -> None:
    recipe = changed(tiny_recipe, epochs=1, engine="torch")
    (tmp_path / "recipe.yaml").write_text(to_yaml(recipe))
    done = run(LAUNCHERS[launcher], tmp_path, DS_ACCELERATOR="cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"world_size": 2' in (tmp_path / "run" / "environment.json").read_text()
    assert done.stdout.count("test rel-L2") == 1


def test_evaluation_over_ranks_gives_the_same_number(ranks: Farm, tiny_recipe: Recipe, tmp_path: Path) -> None:
    """Four samples over two ranks; three over two, in test_same_numbers."""
    ranks.train(changed(tiny_recipe, epochs=1), tmp_path / "run")
    both, (alone,) = (ranks.run(["eval", "run"], tmp_path / f"eval_on_{n}", n) for n in (2, 1))
    assert [rank.wait() for rank in (*both, alone)] == [0, 0, 0]
    (found,), (expected,) = (re.findall("^test rel-L2 0.*$", rank.said(), re.MULTILINE) for rank in (both[0], alone))
    assert found == expected
    assert "test rel-L2" not in both[1].said()


def test_failed_start_ends_both_ranks_with_one_error(tmp_path: Path) -> None:
    done = two_ranks(tmp_path, "darcy")
    assert done.returncode == 1
    assert done.stderr.count("error: data/darcy.zarr: no such store") == 1


def test_missing_data_is_made_once_for_both_ranks_and_a_finished_run_is_reported_once(
    ranks: Farm, tmp_path: Path
) -> None:
    sizes = ("data.generate.train_samples=4", "data.generate.test_samples=2", "data.generate.grid=12")
    small = ("model.depth=1", "model.embedding=8", "training.epochs=1", *sizes)
    arguments = ("darcy_smoke", "--out", "run", *(word for size in small for word in ("--set", size)))
    done = two_ranks(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test rel-L2") == 1
    again = ranks.run(["train", *arguments], tmp_path / "again")
    assert [rank.wait() for rank in again] == [0, 0], [rank.said() for rank in again]
    assert [rank.said().count("test rel-L2") for rank in again] == [1, 0]
