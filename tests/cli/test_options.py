"""An option that stands twice is a list or an error, and one that means nothing for the data is an error."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.core import TyperCommand

from geomano_hpc.cli.app import app
from geomano_hpc.data_prep.store import open_store
from tests.support.told import PLANES, good, random

pytestmark = pytest.mark.usefixtures("planes")


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
