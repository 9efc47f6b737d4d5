"""The store is what docs/store.md says: other programs open it, and its card and picture describe it."""

import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import torch
import xarray
import zarr
from matplotlib.image import imread
from numcodecs.zstd import Zstd

from geomano_hpc.atomic import sha256
from geomano_hpc.data import load_split
from geomano_hpc.data_prep.card import describe
from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.problems import problem
from geomano_hpc.data_prep.shards import MOST_SHARDS, create_arrays, shards_of, write_shard
from geomano_hpc.data_prep.sheet import draw
from geomano_hpc.data_prep.store import StoreCard, open_store
from geomano_hpc.data_prep.store_card import Axis
from geomano_hpc.data_prep.verify import verify

BURGERS = problem("burgers", train_samples=6, test_samples=2)


@pytest.fixture(scope="module")
def burgers_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("burgers")
    lines = np.random.default_rng(0).standard_normal((8, 32)).cumsum(axis=1)
    np.savez(folder / "raw.npz", a=lines, u=lines**2)
    convert([folder / "raw.npz"], BURGERS, folder / "burgers.zarr")
    return folder / "burgers.zarr"


def test_burgers_lines_are_grids_of_one_row(burgers_store: Path) -> None:
    store = open_store(burgers_store)
    assert store.array("input").shape == (8, 1, 32, 1)
    assert store.card.targets[0].std != 1.0


def test_xarray_opens_the_store(darcy_store: Path) -> None:
    store = open_store(darcy_store)
    with xarray.open_zarr(darcy_store, consolidated=False) as data:
        assert dict(data.sizes) == {"sample": 14, "x": 9, "y": 9, "channel": 1, "train_sample": 10, "test_sample": 4}
        test = data.target.isel(sample=data.test.values).values
        assert data.attrs["geomano"]["problem"] == "darcy"
    assert np.array_equal(test, store.rows("target", store.split("test")))


def test_stranger_reads_a_sample_by_the_specification_alone(darcy_store: Path) -> None:
    """docs/store.md, "A shard": no zarr."""
    shape = json.loads((darcy_store / "input" / "zarr.json").read_text())["shape"]
    content = (darcy_store / "input" / "c" / "0" / "0" / "0" / "0").read_bytes()
    index, crc = content[-14 * 16 - 4 : -4], struct.unpack("<I", content[-4:])[0]
    assert google_crc32c.value(index) == crc
    offset, size = struct.unpack_from("<QQ", index, 5 * 16)
    chunk = content[offset : offset + size]
    assert google_crc32c.value(chunk[:-4]) == struct.unpack("<I", chunk[-4:])[0]
    sample = np.frombuffer(Zstd().decode(chunk[:-4]), "<f4").reshape(shape[1:])
    assert np.array_equal(sample, open_store(darcy_store).read("input", slice(5, 6))[0])


def test_zarr_reads_our_shard_in_place_of_its_own_of_the_same_size(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((5, 6, 4, 1)).astype(np.float32)
    write_shard(tmp_path / "ours", values, 5)
    group = zarr.create_group(tmp_path / "theirs.zarr", zarr_format=3)
    create_arrays(group, {"input": values.shape, "target": values.shape})
    group["input"][:] = values  # type: ignore[index]
    theirs = tmp_path / "theirs.zarr" / "input" / "c" / "0" / "0" / "0" / "0"
    assert (tmp_path / "ours").stat().st_size == theirs.stat().st_size  # zarr may order chunks otherwise
    (tmp_path / "ours").rename(theirs)
    np.testing.assert_array_equal(group["input"][:], values)  # type: ignore[index]


def test_whole_benchmark_and_anything_larger_has_fewer_than_100_files() -> None:
    for shape in ((1200, 421, 421, 1), (100_000, 512, 512, 20)):
        shards = shards_of({"input": shape, "target": shape})
        assert len(shards) <= 2 * MOST_SHARDS
        assert [shard.start for shard in shards[1:] if shard.start] == [
            shard.stop for shard in shards[:-1] if shard.stop < shape[0]
        ]


def test_card_is_readable_and_complete(darcy_store: Path) -> None:
    lines = describe(darcy_store)
    assert lines["samples"] == "10 train, 4 test"
    assert "grid 17" in lines["source darcy.h5"]
    assert "'coeff' as input, 'sol' as target" in lines["taken from it"]
    card = open_store(darcy_store).card
    assert StoreCard.from_json(json.loads(json.dumps(card.to_json())), lambda _: ()) == card
    assert (card.kind, card.boundary) == ("steady", ("wall", "wall"))


@pytest.mark.parametrize("name", ["darcy_store", "navier_stokes_store", "burgers_store"])
@pytest.mark.slow
def test_picture_shows_samples_of_every_kind_of_store(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    draw(request.getfixturevalue(name), tmp_path / "picture.png")
    picture = imread(tmp_path / "picture.png")
    assert min(picture.shape[:2]) > 300
    assert len(np.unique(picture.reshape(-1, picture.shape[-1]), axis=0)) > 50


def as_older(store: Path, old: Path, format_number: int) -> Path:
    """The store as earlier versions wrote it. Format 1 had no splits of its own, and a manifest of the shards only."""
    shutil.copytree(store, old)
    card = open_store(store).card
    named = {"input": card.inputs[0], "target": card.targets[0]}
    attributes = zarr.open_group(old).attrs
    attributes["geomano"] = {
        "problem": card.problem,
        "task": card.kind,
        **{f"{name}_samples": size for name, size in card.splits.items()},
        "normalisers": {name: {"mean": one.mean, "std": one.std} for name, one in named.items()},
        "provenance": {key: value for key, value in card.provenance.items() if key not in ("settings", "roles")},
        "format": format_number,
    }
    if format_number == 1:
        for name in ("train", "test", "source_file", "source_sample"):
            shutil.rmtree(old / name)
    manifest = json.loads((old / "manifest.json").read_text())
    metadata = manifest["metadata"] | {"zarr.json": sha256(old / "zarr.json")}
    manifest = {"format": format_number, "sha256": manifest["sha256"]}
    (old / "manifest.json").write_text(json.dumps(manifest | ({"metadata": metadata} if format_number == 2 else {})))
    return old


@pytest.mark.parametrize("format_number", [1, 2])
@pytest.mark.parametrize("name", ["darcy_store", "navier_stokes_store", "burgers_store"])
def test_stores_of_older_formats_are_still_read(
    name: str, format_number: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    new: Path = request.getfixturevalue(name)
    old = as_older(new, tmp_path / "old.zarr", format_number)
    assert verify(old) == []
    assert (open_store(old).content_hash() != open_store(new).content_hash()) == (format_number == 1)
    was, now = (open_store(path).card for path in (old, new))
    assert (was.kind, was.splits, was.protocol, was.normalised) == (now.kind, now.splits, now.protocol, now.normalised)
    assert was.boundary == now.boundary
    assert was.windows == now.windows
    for split in ("train", "test"):
        one, other = (load_split(open_store(path), split) for path in (old, new))
        without_places = [Axis(a.name, a.points, boundary=a.boundary) for a in other.signature.axes]  # which are new
        assert one.signature == replace(other.signature, axes=tuple(without_places))
        assert torch.equal(one.batch(torch.arange(1)).target_BHWC, other.batch(torch.arange(1)).target_BHWC)
