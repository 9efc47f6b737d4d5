import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

from geomano_hpc.data_prep import convert as convert_module
from geomano_hpc.data_prep.convert import convert
from geomano_hpc.data_prep.problems import problem
from geomano_hpc.data_prep.store import StoreCard, open_store, read_manifest
from geomano_hpc.data_prep.verify import describe, verify
from geomano_hpc.errors import DataError

DARCY = problem("darcy", train_samples=10, test_samples=4, stride=2)


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_store_holds_the_raw_fields(darcy_raw: Path, darcy_store: Path) -> None:
    store = open_store(darcy_store)
    with h5py.File(darcy_raw) as raw:
        expected = np.concatenate([raw["sol"][:10], raw["sol"][-4:]])[:, ::2, ::2, None]
    assert np.array_equal(store.read("target", slice(0, 14)), expected)
    assert store.array("input").metadata.to_dict()["dimension_names"] == ("sample", "x", "y", "channel")
    assert (store.card.split("train"), store.card.split("test")) == (slice(0, 10), slice(10, 14))


def test_statistics_are_of_the_training_split_only(darcy_raw: Path, darcy_store: Path) -> None:
    with h5py.File(darcy_raw) as raw:
        values = raw["coeff"][:10, ::2, ::2].astype(np.float64)
    normaliser = open_store(darcy_store).card.normalisers["input"]
    assert (normaliser.mean, normaliser.std) == pytest.approx((values.mean(), values.std()))


def test_two_files_train_on_the_first_and_test_on_the_second(darcy_raw: Path, tmp_path: Path) -> None:
    settings = problem("darcy", train_samples=3, test_samples=2, stride=1)
    convert([darcy_raw, darcy_raw], settings, tmp_path / "two.zarr")
    store = open_store(tmp_path / "two.zarr")
    values = store.read("target", slice(0, 5))
    assert np.array_equal(values[3:], values[:2])  # both take the first samples of their file


def test_rollout_splits_the_frames(navier_stokes_store: Path) -> None:
    store = open_store(navier_stokes_store)
    assert store.array("input").shape == (4, 8, 8, 10)
    assert store.array("target").shape == (4, 8, 8, 10)
    assert store.card.normalisers["input"].std == 1.0


def test_same_store_is_reused_and_another_is_never_overwritten(darcy_raw: Path, darcy_store: Path) -> None:
    before = files_of(darcy_store)
    assert convert([darcy_raw], DARCY, darcy_store) is False
    with pytest.raises(DataError, match="was converted from other files or settings"):
        convert([darcy_raw], problem("darcy", train_samples=10, test_samples=4, stride=1), darcy_store)
    assert files_of(darcy_store) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_samples": 11}, "'coeff' has 14 samples, 15 are needed"),
        ({"input_key": "k"}, "no variable 'k'; found: coeff, sol"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_left(
    changes: dict[str, int | str], message: str, darcy_raw: Path, tmp_path: Path
) -> None:
    settings = problem("darcy", **{"train_samples": 10, "test_samples": 4, **changes})
    with pytest.raises(DataError, match=message):
        convert([darcy_raw], settings, tmp_path / "bad.zarr")
    assert list(tmp_path.iterdir()) == []


def test_wrong_number_of_axes_is_named(darcy_raw: Path, tmp_path: Path) -> None:
    settings = problem("navier_stokes", input_key="sol", target_key="sol", train_samples=2, test_samples=1)
    with pytest.raises(DataError, match=r"'sol': expected 4 axes \(samples, x, y, time\), found shape"):
        convert([darcy_raw], settings, tmp_path / "bad.zarr")


def test_killed_conversion_has_no_name_and_the_next_one_succeeds(
    darcy_raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "store.zarr"
    with monkeypatch.context() as patch:
        patch.setattr(convert_module, "write_json", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            convert([darcy_raw], DARCY, out)
    assert not out.exists()
    assert convert([darcy_raw], DARCY, out)
    assert verify(out) == []


def test_many_samples_make_few_files(darcy_raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert_module, "SHARD_BYTES", 5 * 9 * 9 * 4)
    convert([darcy_raw], DARCY, tmp_path / "store.zarr")
    assert len(read_manifest(tmp_path / "store.zarr")) == 6  # 14 samples, 5 in a shard, two arrays
    assert verify(tmp_path / "store.zarr") == []


def test_flipped_bit_is_found_by_verify_and_by_reading(darcy_store: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy.zarr"
    shutil.copytree(darcy_store, path)
    shard = path / "target" / "c" / "0" / "0" / "0" / "0"
    content = bytearray(shard.read_bytes())
    content[20] ^= 1
    shard.write_bytes(content)
    assert verify(path) == [f"{shard}: shard does not match its checksum in the manifest"]
    with pytest.raises(DataError, match=r"copy.zarr: samples 0 to 14 of 'target' cannot be read"):
        open_store(path).read("target", slice(0, 14))


def test_verify_names_files_that_do_not_belong(darcy_store: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy.zarr"
    shutil.copytree(darcy_store, path)
    shard = path / "input" / "c" / "0" / "0" / "0" / "0"
    shutil.copy(shard, shard.with_name("1"))
    assert verify(path) == [f"{shard.with_name('1')}: file is not in the manifest"]


def test_variables_with_different_numbers_of_samples_are_never_paired(darcy_raw: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw.h5"
    with h5py.File(darcy_raw) as good, h5py.File(raw, "w") as file:
        file["coeff"], file["sol"] = good["coeff"][()], good["sol"][:12]
    with pytest.raises(DataError, match="'coeff' has 14 samples but 'sol' has 12"):
        convert([raw], problem("darcy", train_samples=6, test_samples=3), tmp_path / "bad.zarr")


def test_field_without_variation_cannot_be_normalised(darcy_raw: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw.h5"
    with h5py.File(darcy_raw) as good, h5py.File(raw, "w") as file:
        file["coeff"], file["sol"] = good["coeff"][()] * 0 + 3, good["sol"][()]
    with pytest.raises(DataError, match="'input' has the same value everywhere"):
        convert([raw], DARCY, tmp_path / "bad.zarr")
    assert [path.name for path in tmp_path.iterdir()] == ["raw.h5"]


def test_store_of_another_version_of_the_package_is_reused(
    darcy_raw: Path, darcy_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert_module, "__version__", "99.0.0")
    assert convert([darcy_raw], DARCY, darcy_store) is False


def test_verify_names_samples_that_cannot_be_right(darcy_raw: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw.h5"
    shutil.copy(darcy_raw, raw)
    with h5py.File(raw, "r+") as file:
        file["sol"][2] = 0.5
    convert([raw], DARCY, tmp_path / "store.zarr")
    assert verify(tmp_path / "store.zarr") == [
        f"{tmp_path / 'store.zarr'}: 'target' has the same value everywhere in samples [2]"
    ]


def test_card_is_readable_and_complete(darcy_store: Path) -> None:
    lines = describe(darcy_store)
    assert lines["samples"] == "10 train, 4 test"
    assert "grid 17" in lines["source darcy.h5"]
    card = open_store(darcy_store).card
    assert StoreCard.from_json(card.to_json()) == card


def test_what_is_not_a_store_is_refused(tmp_path: Path, darcy_store: Path) -> None:
    with pytest.raises(DataError, match="no such store"):
        open_store(tmp_path / "none.zarr")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="not a store of this package"):
        open_store(tmp_path / "empty")
    shutil.copytree(darcy_store, tmp_path / "old.zarr")
    attributes = zarr.open_group(tmp_path / "old.zarr").attrs
    attributes["geomano"] = {**attributes["geomano"], "format": 0}  # type: ignore[dict-item]
    with pytest.raises(DataError, match="store format 0, this version reads 1"):
        open_store(tmp_path / "old.zarr")
    shutil.copytree(darcy_store, tmp_path / "partial.zarr")
    (tmp_path / "partial.zarr" / "manifest.json").unlink()
    with pytest.raises(DataError, match="not complete"):
        open_store(tmp_path / "partial.zarr")


mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine")
AS_ROOT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def mpi_convert(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        "mpirun",
        "-n",
        "2",
        "--oversubscribe",
        sys.executable,
        "-m",
        "geomano_hpc",
        "data",
        "convert",
        *arguments,
    ]
    return subprocess.run(command, env=AS_ROOT, capture_output=True, text=True, timeout=120, check=False)


@mpirun
def test_two_mpi_ranks_write_the_same_bytes_as_one(darcy_raw: Path, darcy_store: Path, tmp_path: Path) -> None:
    out = tmp_path / "mpi.zarr"
    sizes = ("--problem", "darcy", "--train", "10", "--test", "4", "--stride", "2")
    done = mpi_convert(str(darcy_raw), *sizes, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert files_of(out) == files_of(darcy_store)


@mpirun
def test_an_error_ends_all_mpi_ranks(tmp_path: Path) -> None:
    done = mpi_convert("missing.mat", "--problem", "darcy", "--out", str(tmp_path / "x.zarr"))
    assert done.returncode == 1
    assert "missing.mat: no such file" in done.stderr


def test_ranks_that_mpi_does_not_see_are_an_error() -> None:
    """The wrong launcher gives several worlds of size 1 and exit code 0."""
    program = "from geomano_hpc.data_prep.ranks import communicator; communicator()"
    environment = {**os.environ, "SLURM_STEP_NUM_TASKS": "2"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    if shutil.which("mpirun"):
        assert "the launcher started 2 processes (SLURM_STEP_NUM_TASKS) but MPI sees 1" in done.stderr
