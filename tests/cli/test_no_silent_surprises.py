"""What a command does not use, cuts, or takes from elsewhere is said, and what it does not understand is an error."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import typer
from typer.core import TyperCommand

from geomano_hpc.cli.app import app, main
from geomano_hpc.config import load_recipe
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.training.distributed.ranks import Ranks
from geomano_hpc.training.distributed.world import join
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.setup import set_up

TINY = ("model.depth=1", "model.embedding=8", "model.dstate=2", "training.epochs=1", "training.engine=torch")
TINY_WORDS = [word for change in (*TINY, "training.figures_every=0") for word in ("--set", change)]
PLANES = ("data", "convert", "planes.npz", "--problem", "steady", "--input", "k", "--target", "p")


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("planes.npz", k=random(10, 11, 9), p=random(10, 11, 9, seed=1))


def random(*shape: int, seed: int = 0) -> np.ndarray:
    values: np.ndarray = np.random.default_rng(seed).standard_normal(shape)
    return values


class Told:
    """Exit code and words of one command."""

    def __init__(self, capsys: pytest.CaptureFixture[str], words: tuple[object, ...]) -> None:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        self.code = int(ended.value.code or 0)
        self.out, self.err = capsys.readouterr()

    @property
    def used(self) -> str:
        """The one line that says what is used of what is there."""
        (line,) = [line for line in self.out.splitlines() if line.startswith("used: ")]
        return line

    @property
    def error(self) -> str:
        """The one line of an error."""
        (line,) = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert self.code
        assert "not expected" not in line
        return line


@pytest.fixture
def geomano(capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda *words: Told(capsys, words)


def good(told: Told) -> Told:
    assert told.code == 0, told.err
    return told


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


# Options


def options() -> list[tuple[str, Any]]:
    """Each option of each command."""

    def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        for word, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, f"{name} {word}".strip())
        if not hasattr(command, "commands"):
            yield from ((name, one) for one in command.params if one.param_type_name == "option")

    return list(walk(typer.main.get_command(app), ""))


ONCE = [(name, one) for name, one in options() if not one.multiple]


def test_every_option_of_every_command_is_looked_at() -> None:
    commands = {
        "train",
        "eval",
        "predict",
        "data convert",
        "data inspect",
        "launch",
        "report",
        "bench kernels",
        "status",
    }
    assert commands <= {name for name, _ in options()}
    assert len(ONCE) > 80


@pytest.mark.parametrize("where", sorted({name for name, _ in ONCE}))
def test_option_that_stands_twice_is_an_error(where: str, geomano: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of them would be taken without a word."""
    monkeypatch.setattr(TyperCommand, "invoke", None)  # no command is to begin
    for name, option in ONCE:
        if name != where:
            continue
        value = [] if option.is_flag else ["1"] * option.nargs
        spellings = [*option.opts, *option.secondary_opts]
        told = geomano(*name.split(), spellings[0], *value, spellings[-1], *value)
        assert told.code == 2
        assert "is given twice; once is meant" in told.error
        assert any(spelling in told.error for spelling in spellings)


LISTS = {
    "data convert": {"input_", "target", "field", "constant", "units", "boundary", "spacing", "axes"}
    | {"validation_file", "test_file"},
    "train": {"set_"},
    "launch": {"set_", "vary"},
}


def test_options_that_are_lists_are_known() -> None:
    """One that is added has to say what its repetition means: see the tests below."""
    found = {name: {one.name for one in some} for name, some in _lists().items()}
    for name, known in LISTS.items():
        assert found[name] - {"_grid"} == known


def _lists() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, one in options():
        if one.multiple:
            found.setdefault(name, []).append(one)
    return found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*PLANES, "--input", "k", "--out", "s"), "two fields are called k"),
        ((*PLANES, "--input", "k=p", "--out", "s"), "two fields are called k"),
        ((*PLANES, "--constant", "a=1", "--constant", "a=2", "--out", "s"), "called a"),
        ((*PLANES, "--units", "p=Pa", "--units", "p=bar", "--out", "s"), "--units: p is given twice"),
        (
            (*PLANES, "--boundary", "wall", "--boundary", "open", "--out", "s"),
            "that of all is given twice",
        ),
        ((*PLANES, "--boundary", "x=wall", "--boundary", "x=open", "--out", "s"), "--boundary: x is given twice"),
        ((*PLANES, "--spacing", "y=1", "--spacing", "y=2", "--out", "s"), "--spacing: y is given twice"),
        ((*PLANES, "--test-file", "planes.npz", "--out", "s"), "twice"),
        (("train", "steady", "--set", "model.depth=1", "--set", "model.depth=2"), "--set model.depth: is given twice"),
        (("launch", "steady", "--dry-run", "--set", "model.depth=1", "--set", "model.depth=2"), "model.depth"),
        (("launch", "steady", "--dry-run", "--vary", "model.depth=1", "--vary", "model.depth=2,3"), "model.depth"),
    ],
)
def test_thing_that_is_said_twice_is_an_error(words: tuple[str, ...], message: str, geomano: Any) -> None:
    told = geomano(*words)
    assert message in told.error
    assert not Path("s").exists()
    assert not Path("runs").exists()


def test_options_that_are_lists_keep_every_entry(geomano: Any) -> None:
    np.savez("planes.npz", **{name: random(10, 4, 5, seed=seed) for seed, name in enumerate("abuv")})  # type: ignore[arg-type]
    words = ["data", "convert", "planes.npz", "--problem", "steady"]
    words += [
        "--input",
        "a",
        "--input",
        "b",
        "--target",
        "u",
        "--target",
        "v",
        "--constant",
        "c=1",
        "--constant",
        "d=2",
    ]
    words += ["--units", "a=m", "--units", "v=Pa", "--boundary", "x=wall", "--boundary", "y=open"]
    words += ["--spacing", "0.5", "--spacing", "y=0.25", "--out", "s.zarr"]
    good(geomano(*words))
    card = open_store("s.zarr").card
    assert [field.name for field in (*card.inputs, *card.constants, *card.targets)] == ["a", "b", "c", "d", "u", "v"]
    assert [field.units for field in (*card.inputs, *card.targets)] == ["m", "", "", "Pa"]
    assert [(axis.boundary, axis.spacing) for axis in card.axes] == [("wall", 0.5), ("open", 0.25)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--units", "q=Pa"), "q"),
        (("--channel", "1"), "--channel"),
        (("--time-step", "0.1"), "--time-step"),
        (("--frames-in", "2"), "--frames-in"),
        (("--window-stride", "2"), "--window-stride"),
        (("--boundary", "z=wall"), "no axis z"),
        (("--spacing", "t=0.1"), "no axis t"),
        (("--boundary", "solid"), "choose one of periodic, wall, open, unknown"),
        (("--field", "p"), "--field"),
        (("--constant", "nu=@nu"), "no attribute @nu"),
    ],
)
def test_option_that_means_nothing_for_the_data_is_an_error(words: tuple[str, ...], message: str, geomano: Any) -> None:
    told = geomano(*PLANES, *words, "--out", "s.zarr")
    assert message in told.error
    assert not Path("s.zarr").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--constant", "c=nan"),
        ("--constant", "c=inf"),
        ("--spacing", "0"),
        ("--spacing", "x=-1"),
        ("--spacing", "nan"),
        ("--time-step", "0"),
        ("--time-step", "-1"),
        ("--time-step", "nan"),
        ("--train", "nan"),
        ("--train", "-1"),
    ],
)
def test_number_that_makes_no_sense_is_an_error(words: tuple[str, ...], geomano: Any) -> None:
    np.savez("r.npz", u=random(4, 6, 5, 4))
    fields = ("--problem", "rollout", "--field", "u", "--axes", "sample t x y", "--frames-in", 2, "--frames-out", 2)
    assert words[0] in geomano("data", "convert", "r.npz", *fields, *words, "--out", "s.zarr").error
    assert not Path("s.zarr").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--name", "mine"),
        ("--frames-in", "3"),
        ("--validation", "1"),
        ("--constant", "nu=1"),
        ("--boundary", "wall"),
        ("--shuffle-seed", "0"),
        ("--units", "sol=m"),
    ],
)
def test_option_that_the_benchmark_does_not_have_is_an_error(words: tuple[str, ...], geomano: Any) -> None:
    """It would be dropped, or the result would no longer be the benchmark's."""
    np.savez("darcy.npz", coeff=random(6, 9, 9), sol=random(6, 9, 9, seed=1))
    counts = ("--train", 4, "--test", 2, "--stride", 1)
    told = geomano("data", "convert", "darcy.npz", "--problem", "darcy", *counts, *words, "--out", "s.zarr")
    assert words[0] in told.error
    assert not Path("s.zarr").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--problem", "stokes"), "--problem 'stokes'"),
        (("--problem", "steady", "--target", "p"), "name the fields, such as --input k --target p"),
        (("--problem", "steady", "--input", "k"), "name the fields, such as --input k --target p"),
        (("--problem", "rollout", "--frames-in", "1", "--frames-out", "1"), "name the fields to predict with --field"),
        (("--problem", "rollout", "--field", "p"), "--frames-in, --frames-out"),
        (("--problem", "rollout", "--target", "p"), "name the fields to predict with --field, not --target"),
        (("--problem", "steady", "--input", "kk", "--target", "p"), "no variable 'kk'; did you mean 'k'?"),
    ],
)
def test_what_is_not_said_of_a_problem_is_asked_for(words: tuple[str, ...], message: str, geomano: Any) -> None:
    told = geomano("data", "convert", "planes.npz", *words, "--out", "s.zarr")
    assert message in told.error
    assert not Path("s.zarr").exists()
