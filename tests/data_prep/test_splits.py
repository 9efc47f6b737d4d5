"""Which samples train, validate and test. No sample is ever in two splits, and none is left out without a word."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.conversion.splits import SplitRule, parse_size
from geomano_hpc.data_prep.problems import own_problem
from geomano_hpc.data_prep.store import Store, open_store
from geomano_hpc.errors import ConfigError, DataError, GeomanoError


def sizes(rule: SplitRule, samples: int) -> list[int]:
    found = rule.indices(samples)
    return [len(found.get(name, ())) for name in ("train", "validation", "test")]


def lists(rule: SplitRule, samples: int) -> dict[str, list[int]]:
    return {name: numbers.tolist() for name, numbers in rule.indices(samples).items()}


def write(file: Path, *numbers: int) -> Path:
    file.write_text("".join(f"{number}\n" for number in numbers))
    return file


def raw_file(folder: Path, samples: int = 10, name: str = "raw.npz") -> Path:
    """Sample i of `u` is i everywhere but in one point."""
    u = np.repeat(np.arange(samples, dtype=np.float32), 12).reshape(samples, 3, 4)
    u[:, 0, 0] += 0.5
    np.savez(folder / name, k=np.random.default_rng(0).random((samples, 3, 4)), u=u)
    return folder / name


def made(rule: SplitRule, files: list[Path], out: Path, roles: tuple[str, ...] = ()) -> Store:
    convert(files, own_problem("steady", "mine", ["k"], ["u"], [], rule), out, roles=roles)
    return open_store(out)


def numbers_in(store: Store, split: str) -> list[int]:
    """By what the samples of a split hold, not by what the store says of them."""
    rows = store.rows("target", store.split(split))
    return [int(row[1, 1, 0]) for row in rows]


def test_a_tenth_each_validates_and_tests_where_nothing_is_said() -> None:
    assert sizes(SplitRule(), 20) == [16, 2, 2]
    assert sizes(SplitRule(), 5) == [3, 1, 1]
    assert sizes(SplitRule(), 2) == [1, 0, 1]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (SplitRule(train=6), [6, 0, 4]),
        (SplitRule(test=3), [7, 0, 3]),
        (SplitRule(validation=2, test=3), [5, 2, 3]),
        (SplitRule(train=4, validation=2), [4, 2, 4]),
        (SplitRule(train=0.5, validation=0.2), [5, 2, 3]),
        (SplitRule(train=3, validation=0.2, test=1), [3, 2, 1]),
    ],
)
def test_what_is_not_said_has_what_is_left(rule: SplitRule, expected: list[int]) -> None:
    assert sizes(rule, 10) == expected


def test_training_samples_come_first_and_test_samples_last() -> None:
    found = lists(SplitRule(3, 2, 2), 10)
    assert found == {"train": [0, 1, 2], "validation": [6, 7], "test": [8, 9]}


@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.1), (0.5, 0.25, 0.25), (0.7, 0.2, 0.1), (0.5, None, 0.5)])
def test_shares_of_one_whole_hold_every_sample_once(shares: tuple[Any, ...]) -> None:
    for samples in range(10, 41):
        found = lists(SplitRule(*shares), samples)
        assert sorted(number for numbers in found.values() for number in numbers) == list(range(samples))
        for name, share in zip(("train", "validation", "test"), shares, strict=True):
            assert abs(len(found.get(name, [])) - (share or 0) * samples) <= 1


@pytest.mark.parametrize(
    "rule",
    [SplitRule(train=8, test=0), SplitRule(train=0, test=5), SplitRule(0.8, 0.2), SplitRule(0.99, 0.0, 0.01)],
)
def test_split_to_train_or_test_is_never_empty(rule: SplitRule) -> None:
    """Without a test split there would be no result; said at once, not when the training ends."""
    with pytest.raises(GeomanoError):
        rule.indices(10)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (SplitRule(train=8, test=3), r"10 samples are there, 11 are needed \(--train 8, --test 3\)"),
        (SplitRule(train=1000, test=200), "10 samples are there, 1200 are needed"),
        (SplitRule(train=10), "10 samples are there"),
    ],
)
def test_more_samples_than_there_are_is_an_error_with_both_numbers(rule: SplitRule, message: str) -> None:
    with pytest.raises(DataError, match=message):
        rule.indices(10)


@pytest.mark.parametrize("size", [-1, -0.5, 1.5])
def test_size_that_is_neither_count_nor_share_is_refused(size: float) -> None:
    with pytest.raises(ConfigError, match="give a count, a share between 0 and 1, or a file of numbers"):
        SplitRule(train=size).indices(10)


def test_words_of_the_command_line(tmp_path: Path) -> None:
    file = write(tmp_path / "numbers.txt", 1)
    given = [parse_size(text, "--train") for text in ("100", "0.8", "80%", str(file))]
    assert given == [100, 0.8, 0.8, file]
    assert [type(one) for one in given[:3]] == [int, float, float]
    assert parse_size(None, "--train") is None
    with pytest.raises(
        ConfigError, match=r"--test much: neither a count such as 100, a share such as 0\.8 or 80%, nor"
    ):
        parse_size("much", "--test")


def test_drawn_splits_follow_their_seed_only() -> None:
    one, same, other = (lists(SplitRule(12, 4, 4, seed), 24) for seed in (3, 3, 4))
    assert one == same != other
    drawn = [number for numbers in one.values() for number in numbers]
    assert len(set(drawn)) == len(drawn) == 20
    assert one["train"] != list(range(12))
    assert all(numbers == sorted(numbers) for numbers in one.values())


def test_files_of_numbers_name_the_samples(tmp_path: Path) -> None:
    train, test = write(tmp_path / "train.txt", 9, 0, 4), tmp_path / "test.npy"
    np.save(test, np.array([7, 2]))
    store = made(SplitRule(train=train, test=test), [raw_file(tmp_path)], tmp_path / "s.zarr")
    assert {name: numbers_in(store, name) for name in store.card.splits} == {"train": [0, 4, 9], "test": [2, 7]}
    assert np.asarray(store.array("source_sample")[:]).tolist() == [0, 2, 4, 7, 9]
    kept = np.array([0, 4, 9]) + 0.5 / 12
    assert store.card.targets[0].mean == pytest.approx(kept.mean())


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ((0, 1, 2), (2, 3), "test.txt: sample 2 is in train already"),
        ((0, 1, 1), (2, 3), "train.txt: sample 1 is in train already"),
        ((0, 10), (2,), "train.txt: sample 10 is not there; the raw files have 10, counted from 0"),
        ((-1, 3), (2,), "train.txt: sample -1 is not there"),
    ],
)
def test_file_of_numbers_with_a_sample_twice_or_not_there_is_refused(
    train: tuple[int, ...], test: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    rule = SplitRule(train=write(tmp_path / "train.txt", *train), test=write(tmp_path / "test.txt", *test))
    with pytest.raises(DataError, match=message):
        rule.indices(10)


def test_what_is_no_file_of_numbers_is_refused(tmp_path: Path) -> None:
    numbers, floats = write(tmp_path / "numbers.txt", 1), tmp_path / "floats.npy"
    np.save(floats, np.array([0.5]))
    with pytest.raises(DataError, match="expected whole numbers of samples, found float64"):
        SplitRule(train=numbers, test=floats).indices(10)
    (tmp_path / "words.txt").write_text("one two\n")
    with pytest.raises(DataError, match="cannot be read as numbers of samples"):
        SplitRule(train=numbers, test=tmp_path / "words.txt").indices(10)
    with pytest.raises(ConfigError, match="give files of numbers for all of them, or for none"):
        SplitRule(train=numbers, test=3).indices(10)
    with pytest.raises(ConfigError, match="--test: give a file of numbers for it, too"):
        SplitRule(train=numbers).indices(10)


def test_files_may_be_splits(tmp_path: Path) -> None:
    files = [raw_file(tmp_path, samples, f"{samples}.npz") for samples in (6, 3, 2)]
    store = made(SplitRule(), files, tmp_path / "s.zarr", ("train", "validation", "test"))
    assert store.card.splits == {"train": 6, "validation": 3, "test": 2}
    assert [len(numbers_in(store, name)) for name in store.card.splits] == [6, 3, 2]
    assert np.asarray(store.array("source_file")[:]).tolist() == [0] * 6 + [1] * 3 + [2] * 2
    fewer = made(SplitRule(train=4, test=1), files, tmp_path / "fewer.zarr", ("train", "validation", "test"))
    assert fewer.card.splits == {"train": 4, "validation": 3, "test": 1}
    with pytest.raises(DataError, match="6 samples are there to train, 7 are needed"):
        made(SplitRule(train=7), files, tmp_path / "more.zarr", ("train", "validation", "test"))


@pytest.mark.parametrize("roles", [(), ("train", "test")])
def test_same_raw_file_twice_is_refused(roles: tuple[str, ...], tmp_path: Path) -> None:
    """Each of its samples would be there twice, once to train and once to test."""
    file = raw_file(tmp_path)
    with pytest.raises(GeomanoError, match=r"raw\.npz.*twice"):
        made(SplitRule(), [file, file], tmp_path / "s.zarr", roles)
    (tmp_path / "deep").mkdir()
    with pytest.raises(GeomanoError, match=r"raw\.npz.*twice"):
        made(SplitRule(), [file, tmp_path / "deep" / ".." / "raw.npz"], tmp_path / "s.zarr", roles)


def test_trajectories_are_split_as_a_whole(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).random((6, 9, 3, 4)) + np.arange(6)[:, None, None, None]
    np.savez(tmp_path / "raw.npz", u=frames)
    settings = own_problem(
        "rollout",
        "mine",
        [],
        ["u"],
        [],
        SplitRule(3, 1, 2, seed=1),
        axes="sample t x y",
        frames_in=2,
        frames_out=1,
        window_stride=1,
    )
    convert([tmp_path / "raw.npz"], settings, tmp_path / "s.zarr")
    store = open_store(tmp_path / "s.zarr")
    assert store.card.splits == {"train": 3, "validation": 1, "test": 2}
    assert sorted(number for name in store.card.splits for number in store.split(name)) == list(range(6))
    with pytest.raises(DataError, match="6 trajectories are there, 7 are needed"):
        convert(
            [tmp_path / "raw.npz"],
            own_problem(
                "rollout", "mine", [], ["u"], [], SplitRule(5, 1, 1), axes="sample t x y", frames_in=2, frames_out=1
            ),
            tmp_path / "other.zarr",
        )


def test_other_numbers_in_the_same_file_are_another_store(tmp_path: Path) -> None:
    raw = raw_file(tmp_path)
    rule = SplitRule(train=write(tmp_path / "train.txt", 0, 1, 2), test=write(tmp_path / "test.txt", 3))
    made(rule, [raw], tmp_path / "s.zarr")
    assert numbers_in(made(rule, [raw], tmp_path / "s.zarr"), "test") == [3]
    write(tmp_path / "test.txt", 4)
    with pytest.raises(DataError, match="was converted from other files or settings"):
        made(rule, [raw], tmp_path / "s.zarr")


def test_other_seed_is_another_store(tmp_path: Path) -> None:
    raw = raw_file(tmp_path)
    made(SplitRule(6, 2, 2, seed=0), [raw], tmp_path / "s.zarr")
    with pytest.raises(DataError, match="was converted from other files or settings"):
        made(SplitRule(6, 2, 2, seed=1), [raw], tmp_path / "s.zarr")


PROGRAM = """
import sys
from pathlib import Path
from geomano_hpc.data_prep import shards
shards.SHARD_BYTES = 3 * 3 * 4 * 4
from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.problems import own_problem
from geomano_hpc.data_prep.ranks import communicator
from geomano_hpc.data_prep.conversion.splits import SplitRule
fields = (["k"], ["u", "v"], ["nu=@nu"])
frames = {"axes": "sample x y,sample t x y", "frames_in": 1, "frames_out": 2}
settings = own_problem("rollout", "mine", *fields, SplitRule(6, 2, 2, seed=5), **frames)
convert([Path(sys.argv[1])], settings, Path(sys.argv[2]), communicator())
"""


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine")
@pytest.mark.ranks
@pytest.mark.slow(4)
def test_two_ranks_write_the_same_bytes_of_drawn_splits_and_several_fields(tmp_path: Path) -> None:
    """Statistics of each field, indices, constants, shards: everything."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file["k"] = rng.random((10, 3, 4))
        for name in "uv":
            file[name] = rng.random((10, 5, 3, 4), dtype=np.float32)
        file.attrs["nu"] = 0.5
    as_root = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    for ranks in ("1", "2"):
        program = [sys.executable, "-c", PROGRAM, str(tmp_path / "raw.h5"), str(tmp_path / f"{ranks}.zarr")]
        command = ["mpirun", "-n", ranks, "--oversubscribe", "--bind-to", "none", *program]
        done = subprocess.run(command, env=as_root, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
    one, two = (
        {file.relative_to(store).as_posix(): file.read_bytes() for file in store.rglob("*") if file.is_file()}
        for store in (tmp_path / "1.zarr", tmp_path / "2.zarr")
    )
    assert one == two
    assert len(open_store(tmp_path / "2.zarr").card.targets) == 2
