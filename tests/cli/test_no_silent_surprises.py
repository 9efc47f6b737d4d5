"""What a command does not use, cuts, or takes from elsewhere is said, and what it does not understand is an error."""

import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from geomano_hpc.config import load_recipe
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.training.distributed.ranks import Ranks
from geomano_hpc.training.distributed.world import join
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.setup import set_up
from tests.support.told import PLANES, good, random

TINY = ("model.depth=1", "model.embedding=8", "model.dstate=2", "training.epochs=1", "training.engine=torch")
TINY_WORDS = [word for change in (*TINY, "training.figures_every=0") for word in ("--set", change)]


pytestmark = pytest.mark.usefixtures("planes")


# (1) What is cut, left out or strided


def test_every_point_of_own_data_is_kept_and_the_line_says_so(geomano: Any) -> None:
    told = good(geomano(*PLANES, "--out", "s.zarr"))
    assert open_store("s.zarr").grid == (11, 9)
    assert "10 of 10 samples" in told.used
    assert "11 x 9 of 11 x 9 points" in told.used
    assert "every" not in told.used
    assert "not used" not in told.used


def test_points_and_samples_that_are_left_out_are_counted(geomano: Any) -> None:
    told = good(geomano(*PLANES, "--stride", 2, "--train", 3, "--test", 2, "--out", "s.zarr"))
    assert "5 of 10 samples" in told.used
    assert "6 x 5 of 11 x 9 points (every 2.)" in told.used


def test_stride_of_the_benchmark_is_said(geomano: Any) -> None:
    np.savez("darcy.npz", coeff=random(6, 21, 21), sol=random(6, 21, 21, seed=1))
    told = good(geomano("data", "convert", "darcy.npz", "--problem", "darcy", "--train", 4, "--test", 2, "--out", "s"))
    assert "5 x 5 of 21 x 21 points (every 5.)" in told.used


def test_frames_that_no_window_has_are_counted(geomano: Any) -> None:
    np.savez("r.npz", u=random(4, 23, 6, 5))
    words = ("data", "convert", "r.npz", "--problem", "rollout", "--field", "u", "--axes", "sample t x y")
    windows = ("--frames-in", 3, "--frames-out", 2)
    told = good(geomano(*words, *windows, "--window-stride", 4, "--out", "a.zarr"))
    assert "4 of 4 trajectories" in told.used
    assert "21 of 23 frames" in told.used  # 0 to 4, 4 to 8, ..., 16 to 20
    assert "5 windows of 3 + 2" in told.used
    told = good(geomano(*words, *windows, "--time-stride", 3, "--out", "b.zarr"))
    assert "7 of 23 frames (every 3.)" in told.used  # of the eight that are kept
    assert "2 windows of 3 + 2" in told.used


def test_frames_that_a_steady_problem_leaves_out_are_counted(geomano: Any) -> None:
    np.savez("t.npz", u=random(6, 8, 5, 4), k=random(6, 5, 4))
    words = ("--axes", "sample x y,sample t x y", "--out", "s.zarr")
    told = good(geomano("data", "convert", "t.npz", "--problem", "steady", "--input", "k", "--target", "u", *words))
    assert "the last of 8 frames" in told.used


# (7) What is not used of a file


def test_variables_that_nothing_asks_for_are_listed(geomano: Any) -> None:
    np.savez("planes.npz", k=random(10, 4, 5), p=random(10, 4, 5, seed=1), T=random(10, 4, 5), Re=np.arange(10))
    assert good(geomano(*PLANES, "--out", "a.zarr")).used.endswith("variables not used: T, Re")
    assert good(geomano(*PLANES, "--constant", "Re", "--out", "b.zarr")).used.endswith("variables not used: T")
    assert "not used: T" in good(geomano(*PLANES, "--constant", "Re", "--out", "b.zarr")).used  # when it is reused, too


def test_variables_of_deep_groups_and_of_every_file_are_listed(geomano: Any) -> None:
    for number in range(2):
        with h5py.File(f"{number}.h5", "w") as file:
            file["a/k"], file["p"] = random(5, 4, 3), random(5, 4, 3, seed=1)
            file["b/k"] = random(5, 4, 3, seed=2)
            if number == 1:
                file["more"] = random(5, 4, 3, seed=3)
    np.savez("own.npz", f=random(10, 11, 9), g=random(10, 11, 9))
    fields = ("--problem", "steady", "--input", "k=a/k", "--target", "p")
    told = good(geomano("data", "convert", "0.h5", "1.h5", *fields, "--out", "a.zarr"))
    assert "b/k" in told.used
    assert "more" in told.used
    own = ("--problem", "steady", "--input", "f=own.npz:f", "--target", "p")
    assert re.search(r"not used: .*\bg\b", good(geomano("data", "convert", "planes.npz", *own, "--out", "b")).used)


def test_channels_that_nothing_asks_for_are_counted(geomano: Any) -> None:
    np.savez("planes.npz", k=random(10, 4, 5, 3), p=random(10, 4, 5, seed=1))
    words = (
        "data",
        "convert",
        "planes.npz",
        "--problem",
        "steady",
        "--target",
        "p",
        "--axes",
        "sample x y c,sample x y",
    )
    assert "1 of 3 channels of k" in good(geomano(*words, "--input", "k[1]", "--out", "a.zarr")).used
    assert "channels" not in good(geomano(*words, "--input", "k", "--out", "b.zarr")).used


# (2) A store that is missing


def test_missing_store_is_never_replaced_by_generated_data(geomano: Any) -> None:
    good(geomano(*PLANES, "--out", "data/wake.zarr"))
    before = sorted(Path().rglob("*"))
    for recipe in ("darcy_smoke", "navier_stokes_smoke", "steady"):
        told = geomano("train", recipe, *TINY_WORDS, "--set", "data.store=data/wkae.zarr", "--out", "run")
        assert "data/wkae.zarr: no such store; did you mean data/wake.zarr?" in told.error
    assert sorted(Path().rglob("*")) == before


@pytest.mark.slow(3)
def test_missing_store_at_the_own_path_of_a_recipe_is_generated(geomano: Any) -> None:
    how = "problem: darcy, train_samples: 4, test_samples: 2, grid: 9"
    Path("mine.yaml").write_text(f"name: mine\ndata:\n  store: data/own.zarr\n  generate: {{{how}}}\n")
    good(geomano("train", "mine.yaml", *TINY_WORDS, "--out", "run"))
    assert open_store("data/own.zarr").card.splits == {"train": 4, "test": 2}
    told = geomano("train", "mine.yaml", *TINY_WORDS, "--set", "data.store=data/other.zarr", "--out", "other")
    assert "data/other.zarr: no such store; did you mean data/own.zarr?" in told.error
    assert not Path("data/other.zarr").exists()


# (3) The name of a problem


@pytest.mark.slow(5)
def test_own_problem_is_never_called_darcy_and_never_compared_with_the_paper(geomano: Any) -> None:
    """Even with the benchmark's variables, sizes and recipe."""
    np.savez("planes.npz", coeff=random(10, 9, 9), sol=random(10, 9, 9, seed=1))
    fields = ("--problem", "steady", "--input", "coeff", "--target", "sol", "--train", 6, "--test", 4)
    good(geomano("data", "convert", "planes.npz", *fields, "--out", "my_stokes.zarr"))
    assert open_store("my_stokes.zarr").card.problem == "my_stokes"
    told = good(geomano("data", "info", "my_stokes.zarr", "--json", "--no-picture"))
    assert (json.loads(told.out)["problem"], json.loads(told.out)["protocol"]) == ("my_stokes", None)
    for recipe in ("steady", "darcy"):
        run = f"runs/of_{recipe[:2]}/seed-0"
        good(geomano("train", recipe, *TINY_WORDS, "--set", "data.store=my_stokes.zarr", "--out", run))
        assert json.loads(Path(run, "result.json").read_text())["problem"] == "my_stokes"
        shown = good(geomano("report", f"of_{recipe[:2]}", "--no-figures", "--format", "markdown")).out
        assert "Darcy" not in shown
        header, _, row = [[cell.strip() for cell in line.split("|")] for line in shown.splitlines() if line[:1] == "|"]
        assert row[header.index("paper")] == "-"
        assert all(
            cell == "-" or not re.search("paper|published|deviat", name) for name, cell in zip(header, row, strict=True)
        )


def test_benchmark_names_are_not_for_own_problems(geomano: Any) -> None:
    told = geomano(*PLANES, "--name", "darcy", "--out", "s.zarr")
    assert "that is the benchmark's" in told.error
    assert not Path("s.zarr").exists()


# (4) The gradient term


def expected_gradient_loss(boundary: str, store: Path) -> float:
    """Of the weights that a training starts from, with numpy."""
    ranks = Ranks(0, 1, 0)
    join(ranks)
    task = (made := set_up(load_recipe("steady", [f"data.store={store}", *TINY]), ranks)).task
    samples = torch.arange(len(task.split))
    predicted = task.predict(made.engine.model.eval(), samples, torch.device("cpu")).numpy()[..., 0].astype(np.float64)
    target = task.split.batch(samples).target_BHWC.numpy()[..., 0].astype(np.float64)

    def differences(field: np.ndarray, axis: int) -> np.ndarray:
        if boundary == "periodic":
            return np.roll(field, -1, axis) - np.roll(field, 1, axis)
        if boundary == "wall":
            field = np.pad(field, [(int(one == axis),) * 2 for one in range(3)])
        found: np.ndarray = np.diff(field, axis=axis)
        first, second = (np.delete(found, end, axis) for end in (0, -1))
        return first + second

    axes = [axis for axis in (1, 2) if target.shape[axis] > 1]
    if boundary == "wall":
        inside = np.zeros(target.shape[1:], bool)
        inside[tuple(slice(1, -1) if axis in axes else slice(None) for axis in (1, 2))] = True
        predicted = predicted * inside
    total = np.zeros(len(target))
    for axis in axes:
        one, other = differences(predicted, axis), differences(target, axis)
        total += np.sqrt(np.square(one - other).sum((1, 2)) / np.square(other).sum((1, 2)))
    return float(total.mean())


@pytest.mark.parametrize("points", [(7, 6), (12,)])
@pytest.mark.parametrize("boundary", ["wall", "periodic", "open", None])
def test_gradient_term_takes_the_border_as_the_card_says(
    boundary: str | None, points: tuple[int, ...], geomano: Any
) -> None:
    """One step on all samples; on lines, too. Where the boundary is not known, inner points count only."""
    np.savez("planes.npz", k=random(10, *points), p=random(10, *points, seed=1))
    words = () if boundary is None else ("--boundary", boundary)
    good(geomano(*PLANES, *words, "--out", "s.zarr"))
    assert {axis.boundary for axis in open_store("s.zarr").card.axes} == {boundary or "unknown"}
    more = ("--set", "loss.gradient_weight=0.1", "--set", "training.batch_size=8")
    good(geomano("train", "steady", *TINY_WORDS, *more, "--set", "data.store=s.zarr", "--out", "run"))
    (line,) = RunFolder(Path("run")).metrics()
    assert line["train_gradient_loss"] == pytest.approx(
        expected_gradient_loss(boundary or "", Path("s.zarr")), rel=1e-4
    )


@pytest.mark.parametrize("recipe", ["steady", "line", "rollout"])
def test_gradient_term_is_off_in_the_recipes_for_own_data(recipe: str, geomano: Any) -> None:
    assert "gradient_weight: 0.0" in good(geomano("train", recipe, "--print-config")).out


# (5) Counts of the benchmark


def test_counts_of_the_benchmark_are_not_those_of_own_data(geomano: Any) -> None:
    good(geomano(*PLANES, "--out", "s.zarr"))
    assert open_store("s.zarr").card.splits == {"train": 8, "validation": 1, "test": 1}
    np.savez("darcy.npz", coeff=random(10, 6, 6), sol=random(10, 6, 6, seed=1))
    told = geomano("data", "convert", "darcy.npz", "--problem", "darcy", "--out", "d.zarr")
    assert "10 samples are there, 1200 are needed (--train 1000, --test 200)" in told.error


# (6) A recipe and a store, and nothing else


def test_recipe_and_store_are_enough(geomano: Any) -> None:
    np.savez("planes.npz", k=random(10, 16), p=random(10, 16, seed=1))
    good(geomano(*PLANES, "--out", "s.zarr"))
    for recipe in ("steady", "line"):
        told = good(geomano("train", recipe, *TINY_WORDS, "--set", "data.store=s.zarr", "--out", recipe))
        assert re.search(r"test rel-L2 \d\.\d+ after 1 epochs, weights chosen on the validation split", told.out)


def test_volumes_are_converted_and_shown_but_not_trained(geomano: Any) -> None:
    np.savez("planes.npz", k=random(10, 3, 4, 5), p=random(10, 3, 4, 5, seed=1))
    good(geomano(*PLANES, "--axes", "sample x y z", "--out", "v.zarr"))
    assert good(geomano("data", "verify", "v.zarr")).out.strip() == "v.zarr: good"
    assert "3 x 4 x 5" in good(geomano("data", "info", "v.zarr")).out
    assert Path("v.png").is_file()
    before = sorted(Path().rglob("*"))
    for recipe in ("steady", "line", "rollout", "darcy"):
        told = geomano("train", recipe, *TINY_WORDS, "--set", "data.store=v.zarr", "--out", "run")
        assert "v.zarr: holds volumes" in told.error
        assert sorted(Path().rglob("*")) == before
