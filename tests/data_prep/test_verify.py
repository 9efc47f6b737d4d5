"""What is wrong with a store is found, and the shard and the sample are named."""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.problems import problem
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.data_prep.verify import verify
from geomano_hpc.errors import DataError

DARCY = problem("darcy", train_samples=10, test_samples=4, stride=2)


@pytest.fixture
def copy(darcy_store: Path, tmp_path: Path) -> Path:
    shutil.copytree(darcy_store, tmp_path / "copy.zarr")
    return tmp_path / "copy.zarr"


def test_good_store_has_no_problems(darcy_store: Path, navier_stokes_store: Path) -> None:
    assert verify(darcy_store) == []
    assert verify(navier_stokes_store) == []


def test_flipped_bit_is_found_by_verify_and_by_reading(copy: Path) -> None:
    shard = copy / "target" / "c" / "0" / "0" / "0" / "0"
    content = bytearray(shard.read_bytes())
    content[20] ^= 1
    shard.write_bytes(content)
    assert verify(copy) == [f"{shard}: shard does not match its checksum in the manifest"]
    with pytest.raises(DataError, match=r"copy.zarr: samples 0 to 14 of 'target' cannot be read"):
        open_store(copy).read("target", slice(0, 14))


def test_changed_metadata_and_files_that_do_not_belong_are_named(copy: Path) -> None:
    card = copy / "zarr.json"
    card.write_text(card.read_text().replace('"mean": ', '"mean": 1'))
    shard = copy / "input" / "c" / "0" / "0" / "0" / "0"
    shutil.copy(shard, shard.with_name("1"))
    (copy / "test" / "c" / "0").unlink()
    assert verify(copy)[:3] == [
        f"{copy / 'test' / 'c' / '0'}: file is missing",
        f"{card}: file does not match its checksum in the manifest",
        f"{shard.with_name('1')}: file is not in the manifest",
    ]


def test_missing_shard_is_an_error_and_not_zeros(copy: Path) -> None:
    (copy / "input" / "c" / "0" / "0" / "0" / "0").unlink()
    with pytest.raises(DataError, match="shard input/c/0/0/0/0 is missing"):
        verify(copy)


def test_samples_that_cannot_be_right_are_named_with_their_shard(
    darcy_raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("geomano_hpc.data_prep.shards.SHARD_BYTES", 5 * 9 * 9 * 4)
    raw, store = tmp_path / "raw.h5", tmp_path / "store.zarr"
    shutil.copy(darcy_raw, raw)
    with h5py.File(raw, "r+") as file:
        file["sol"][2] = 0.5  # one value everywhere
        file["sol"][6] = file["sol"][6] * 40  # another unit
        file["sol"][12, 4, 4] = 1.0  # a spike
    convert([raw], DARCY, store)
    found = verify(store)
    assert found[0] == f"{store}/target/c/0/0/0/0: sample 2 of 'target' has the same value everywhere"
    named = {line.split(" is an outlier: its ")[0] for line in found[1:]}
    assert named == {
        f"{store}/target/c/1/0/0/0: sample 6 of 'target'",
        f"{store}/target/c/2/0/0/0: sample 12 of 'target'",
    }


@pytest.mark.parametrize("spread", ["normal", "lognormal", "one value"])
def test_ordinary_samples_are_not_called_outliers(tmp_path: Path, spread: str) -> None:
    rng = np.random.default_rng(0)
    size = {
        "normal": 1 + 0.1 * rng.standard_normal(400),
        "lognormal": rng.lognormal(0, 0.4, 400),
        "one value": np.ones(400),
    }
    fields = rng.standard_normal((400, 8, 8)) * size[spread][:, None, None]
    np.savez(tmp_path / "raw.npz", coeff=np.where(fields > 0, 12.0, 3.0), sol=fields)
    convert(
        [tmp_path / "raw.npz"], problem("darcy", train_samples=300, test_samples=100, stride=1), tmp_path / "s.zarr"
    )
    assert verify(tmp_path / "s.zarr") == []


def test_shape_that_the_card_does_not_say_is_named(copy: Path) -> None:
    metadata = copy / "target" / "zarr.json"
    text = metadata.read_text()
    metadata.write_text(text.replace("14,", "13,", 1))
    assert any("'target' has shape (13, 9, 9, 1) and type float32, the card says 14" in line for line in verify(copy))
    metadata.write_text(text.replace("9,", "8,"))
    assert any("'target' has (8, 8) points and 1 channels, the card says (9, 9) and 1" in line for line in verify(copy))
