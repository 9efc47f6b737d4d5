"""Every engine gives the same bits, and a damaged shard is an error that names it."""

import logging
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

from geomano_hpc.config import DataConfig
from geomano_hpc.data import engines, load_splits, shards
from geomano_hpc.data.engines import ENGINES, choose_engine, open_reader
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import BackendError, DataError
from tests.support.stores import make_store


def read(engine: str, path: Path, name: str, sample: int) -> np.ndarray:
    reader = open_reader(engine, open_store(path), name)
    out = np.full(reader.array.shape[1:], np.nan, np.float32)
    reader.read_into(sample, out)
    return out


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_reads_every_sample_from_several_threads(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eleven samples in shards of four, the last one not full; fewer shards may be open than there are."""
    monkeypatch.setattr(shards, "_MOST_OPEN_SHARDS", 1)
    values = make_store(tmp_path / "s.zarr")
    store = open_store(tmp_path / "s.zarr")
    for name, expected in values.items():
        reader = open_reader(engine, store, name)
        found = np.full_like(expected, np.nan)
        order = np.random.default_rng(1).permutation(len(expected)).tolist()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda sample: reader.read_into(sample, found[sample]), order))  # noqa: B023
        assert np.array_equal(found, expected)


def places_to_flip(shard: Path, per_shard: int) -> list[int]:
    """Bytes of chunk 1 (start, middle, checksum) and of the index (its entry, the checksum)."""
    content = shard.read_bytes()
    index = len(content) - 16 * per_shard - 4
    offset, length = struct.unpack_from("<QQ", content, index + 16)
    return [offset, offset + length // 2, offset + length - 1, index + 16, index + 24, len(content) - 1]


@pytest.mark.parametrize("engine", ENGINES)
def test_flipped_bit_is_an_error_that_names_store_shard_and_sample(engine: str, tmp_path: Path) -> None:
    make_store(tmp_path / "s.zarr")
    shard = tmp_path / "s.zarr" / "target" / "c" / "1" / "0" / "0" / "0"
    good = shard.read_bytes()
    for place in places_to_flip(shard, 4):
        for bit in (0, 7):
            damaged = bytearray(good)
            damaged[place] ^= 1 << bit
            shard.write_bytes(damaged)
            with pytest.raises(DataError, match=r"s\.zarr: sample 5 of 'target' in shard target/c/1/0/0/0 cannot be"):
                read(engine, tmp_path / "s.zarr", "target", 5)
    shard.write_bytes(good)
    assert np.isfinite(read(engine, tmp_path / "s.zarr", "target", 5)).all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kept", [0, 10, 200, -4])
def test_truncated_shard_is_an_error(engine: str, kept: int, tmp_path: Path) -> None:
    make_store(tmp_path / "s.zarr")
    shard = tmp_path / "s.zarr" / "input" / "c" / "0" / "0" / "0" / "0"
    shard.write_bytes(shard.read_bytes()[:kept])
    with pytest.raises(DataError, match="sample 1 of 'input' in shard input/c/0/0/0/0 cannot be read"):
        read(engine, tmp_path / "s.zarr", "input", 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_shard_that_goes_missing_is_an_error_and_never_zeros(engine: str, tmp_path: Path) -> None:
    make_store(tmp_path / "s.zarr")
    reader = open_reader(engine, open_store(tmp_path / "s.zarr"), "input")
    (tmp_path / "s.zarr" / "input" / "c" / "2" / "0" / "0" / "0").unlink()
    with pytest.raises(DataError, match=r"sample 9 .* in shard input/c/2/0/0/0 .*the shard is missing"):
        reader.read_into(9, np.empty((12, 12, 1), np.float32))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("loading", ["memory", "stream"])
def test_damaged_sample_stops_whoever_loads_it(engine: str, loading: str, tmp_path: Path) -> None:
    """The error of the thread that reads reaches the loop, in its own words."""
    make_store(tmp_path / "s.zarr")
    shard = tmp_path / "s.zarr" / "input" / "c" / "1" / "0" / "0" / "0"
    content = bytearray(shard.read_bytes())
    content[places_to_flip(shard, 4)[1]] ^= 4
    shard.write_bytes(content)
    config = DataConfig.model_validate({"store": tmp_path / "s.zarr", "loading": loading, "engine": engine})
    with pytest.raises(DataError, match="sample 5 of 'input' in shard input/c/1/0/0/0 cannot be read"):
        list(load_splits(open_store(config.store), config).splits["train"].batches(torch.arange(8).split(2)))


def test_auto_takes_the_fastest_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_store(tmp_path / "s.zarr")
    with caplog.at_level(logging.INFO, "geomano_hpc"):
        assert choose_engine("auto", open_store(tmp_path / "s.zarr")) == "direct"
    assert "engine direct, the fastest here (data.engine auto)" in caplog.text


def test_engine_that_is_not_installed_is_an_error_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path / "s.zarr")
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r"data\.engine tensorstore cannot .* pip install 'geomano_hpc\[fast-io\]'"):
        choose_engine("tensorstore", open_store(tmp_path / "s.zarr"))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("no shards", "has no shards"), ("other codecs", "has other codecs"), ("half a sample", "not one whole sample")],
)
def test_store_that_the_direct_engine_cannot_read_is_warned_of_or_refused(
    kind: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s.zarr"
    values = make_store(path)["target"]
    settings = {
        "no shards": {"chunks": (1, 12, 12, 1)},
        "other codecs": {"chunks": (1, 12, 12, 1), "shards": (4, 12, 12, 1), "compressors": [BloscCodec()]},
        "half a sample": {
            "chunks": (1, 6, 12, 1),
            "shards": (4, 12, 12, 1),
            "compressors": [ZstdCodec(), Crc32cCodec()],
        },
    }[kind]
    group = zarr.open_group(path, mode="r+")
    group.create_array("target", data=values, overwrite=True, **settings)  # type: ignore[arg-type]
    store = open_store(path)
    with pytest.raises(BackendError, match=reason):
        choose_engine("direct", store)
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    assert choose_engine("auto", store) == "zarr"
    assert reason in caplog.text
    assert caplog.records[-1].levelno == logging.WARNING
    assert np.array_equal(read("zarr", path, "target", 7), values[7])
