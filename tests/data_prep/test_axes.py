"""Raw axes of every order and kind become [sample, x, y, channel]."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from geomano_hpc.data_prep.conversion.convert import convert, read_fields
from geomano_hpc.data_prep.problems import Problem, problem
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import ConfigError, DataError
from tests.support.real_data import FOLDER, needs_real_data

RNG = np.random.default_rng(0)
FRAMES = RNG.standard_normal((6, 8, 5, 4)).astype(np.float32)  # sample x y t


def rollout(**changes: int | str | None) -> Problem:
    sizes = {"train_samples": 4, "test_samples": 2, "frames_in": 1, "frames_out": 3}
    return problem("navier_stokes", **{**sizes, **changes})


def steady(**changes: int | str | None) -> Problem:
    return problem("darcy", **{"train_samples": 4, "test_samples": 2, "stride": 1, **changes})


@pytest.mark.parametrize("axes", ["sample x y t", "x y t sample", "t x y sample", "time N y x", "y sample t x"])
@pytest.mark.parametrize("suffix", [".npz", ".h5", ".npy"])
def test_axes_in_any_order_give_the_same_store(tmp_path: Path, axes: str, suffix: str) -> None:
    names = [{"time": "t", "n": "sample"}.get(word, word) for word in axes.lower().split()]
    turned = FRAMES.transpose([["sample", "x", "y", "t"].index(name) for name in names])
    raw = tmp_path / f"u{suffix}"
    if suffix == ".npz":
        np.savez_compressed(raw, u=turned)
    elif suffix == ".npy":
        np.save(raw, turned)
    else:
        with h5py.File(raw, "w") as file:
            file["u"] = turned
    convert([raw], rollout(axes=axes, stride=2), tmp_path / "store.zarr")
    store = open_store(tmp_path / "store.zarr")
    assert np.array_equal(store.read("input", slice(0, 6)), FRAMES[:, ::2, ::2, :1])
    assert np.array_equal(store.read("target", slice(0, 6)), FRAMES[:, ::2, ::2, 1:])


def test_input_and_target_may_have_axes_of_their_own(tmp_path: Path) -> None:
    np.savez(tmp_path / "raw.npz", a=FRAMES[..., 0].transpose(1, 2, 0), u=FRAMES)
    settings = steady(input_key="a", target_key="u", axes="x y sample, sample x y t")
    fields = read_fields([tmp_path / "raw.npz"], settings)
    assert np.array_equal(fields["input"], FRAMES[..., :1])
    assert np.array_equal(fields["target"], FRAMES[..., -1:])  # a steady problem maps the first frame to the last


def test_pdebench_darcy_is_known_by_its_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with h5py.File(tmp_path / "2D_DarcyFlow.hdf5", "w") as file:
        file["nu"], file["tensor"] = FRAMES[..., 0], FRAMES[..., 1][:, None]
        file["x-coordinate"] = np.arange(8)
    convert([tmp_path / "2D_DarcyFlow.hdf5"], steady(), tmp_path / "store.zarr")
    store = open_store(tmp_path / "store.zarr")
    assert np.array_equal(store.read("target", slice(0, 6))[..., 0], FRAMES[..., 1])
    assert store.card.provenance["keys"] == {"input": "nu", "target": "tensor"}
    assert "taking 'nu' and 'tensor'" in caplog.text


@pytest.mark.parametrize("layout", ["lines", "fields", "channels", "seeds"])
def test_pdebench_in_time_is_known_by_its_names(tmp_path: Path, layout: str) -> None:
    frames = FRAMES[:, :1] if layout == "lines" else FRAMES
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        if layout == "lines":
            file["tensor"] = frames[:, 0].transpose(0, 2, 1)
        elif layout == "fields":
            file["tensor"] = frames.transpose(0, 3, 1, 2)
        elif layout == "channels":
            file["tensor"] = frames.transpose(0, 3, 1, 2)[..., None]
        else:
            for number, sample in enumerate(frames):
                file[f"{number:04}/data"] = sample.transpose(2, 0, 1)[..., None]
    fields = read_fields([tmp_path / "raw.h5"], rollout())
    assert np.array_equal(fields["input"], frames[..., :1])
    assert np.array_equal(fields["target"], frames[..., 1:])


def test_one_of_several_channels_is_chosen(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file["tensor"] = np.stack([FRAMES, FRAMES + 1], -1).transpose(0, 3, 1, 2, 4)
    assert np.array_equal(read_fields([tmp_path / "raw.h5"], rollout(channel=1))["input"], FRAMES[..., :1] + 1)
    with pytest.raises(DataError, match="a frame has 2 channels, one is expected; choose it with --channel"):
        read_fields([tmp_path / "raw.h5"], rollout())
    with pytest.raises(DataError, match="has 2 channels, --channel 2 is not among them"):
        read_fields([tmp_path / "raw.h5"], rollout(channel=2))


@needs_real_data
def test_neuraloperators_files_are_converted(tmp_path: Path) -> None:
    folder = FOLDER / "neuralop"
    sources = [folder / "darcy_train_16.pt", folder / "darcy_test_16.pt"]
    convert(sources, problem("darcy", test_samples=50, stride=1), tmp_path / "darcy.zarr")
    values = open_store(tmp_path / "darcy.zarr").read("input", slice(0, 1050))
    assert values.shape == (1050, 16, 16, 1)
    assert values.dtype == np.float32
    assert set(np.unique(values)) == {0.0, 1.0}
    burgers = [folder / "burgers_train_16.pt", folder / "burgers_test_16.pt"]
    settings = problem("burgers", train_samples=800, test_samples=400, axes="sample x, sample t x")
    assert read_fields(burgers, settings)["target"].shape == (1200, 1, 16, 1)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ("sample x w", "'w' is not an axis"),
        ("sample x x", "an axis appears twice"),
        ("sample y t", "'x' must be among the axes"),
        ("sample x,sample x,sample x", "one list of axes, or two"),
    ],
)
def test_axes_that_mean_nothing_are_refused(tmp_path: Path, axes: str, message: str) -> None:
    np.savez(tmp_path / "raw.npz", u=FRAMES)
    with pytest.raises(ConfigError, match=message):
        read_fields([tmp_path / "raw.npz"], rollout(axes=axes))


def test_axes_that_do_not_fit_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "raw.npz", u=FRAMES, v=FRAMES[:, :4])
    raw = [tmp_path / "raw.npz"]
    with pytest.raises(
        DataError, match=r"raw.npz: 'u': --axes names 3 axes \(sample x y\), found shape \(6, 8, 5, 4\)"
    ):
        read_fields(raw, rollout(axes="sample x y"))
    with pytest.raises(DataError, match="a rollout needs an axis of time, found sample x y c"):
        read_fields(raw, rollout(axes="sample x y c"))
    with pytest.raises(DataError, match="has 4 frames, 14 are needed"):
        read_fields(raw, rollout(frames_in=4, frames_out=10))
    with pytest.raises(DataError, match=r"'u' gives a grid of \(8, 5\) but the target gives \(4, 5\)"):
        read_fields(raw, steady(input_key="u", target_key="v", axes="sample x y c"))
    np.savez(tmp_path / "other.npz", u=FRAMES[:, :, :3], v=FRAMES[:, :, :3])
    with pytest.raises(DataError, match=r"other.npz: 'u' gives a grid of \(8, 3\) but the target gives \(8, 5\)"):
        read_fields([*raw, tmp_path / "other.npz"], rollout())
