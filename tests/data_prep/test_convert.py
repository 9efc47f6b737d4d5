import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr
from scipy.io import savemat

from geomano_hpc.cli.app import main
from geomano_hpc.data_prep import shards as shards_module
from geomano_hpc.data_prep.conversion import convert as convert_module
from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.conversion.statistics import combine, moments
from geomano_hpc.data_prep.conversion.unfinished import Unfinished
from geomano_hpc.data_prep.problems import problem
from geomano_hpc.data_prep.store import open_store, read_manifest
from geomano_hpc.data_prep.verify import verify
from geomano_hpc.errors import DataError
from tests.support.raw_files import read_field

DARCY = problem("darcy", train_samples=10, test_samples=4, stride=2)


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_store_holds_the_raw_fields(darcy_raw: Path, darcy_store: Path) -> None:
    store = open_store(darcy_store)
    with h5py.File(darcy_raw) as raw:
        expected = np.concatenate([raw["sol"][:10], raw["sol"][-4:]])[:, ::2, ::2, None]
    assert np.array_equal(store.read("target", slice(0, 14)), expected)
    assert store.array("input").metadata.to_dict()["dimension_names"] == ("sample", "x", "y", "channel")
    assert [store.split(name).tolist() for name in ("train", "test")] == [list(range(10)), list(range(10, 14))]


def test_statistics_are_of_the_training_split_only(darcy_raw: Path, darcy_store: Path) -> None:
    with h5py.File(darcy_raw) as raw:
        values = raw["coeff"][:10, ::2, ::2].astype(np.float64)
    normaliser = open_store(darcy_store).card.inputs[0]
    assert (normaliser.mean, normaliser.std) == pytest.approx((values.mean(), values.std()))


def test_two_files_train_on_the_first_and_test_on_the_second(darcy_raw: Path, tmp_path: Path) -> None:
    settings = problem("darcy", train_samples=3, test_samples=2, stride=1)
    convert([darcy_raw, darcy_raw], settings, tmp_path / "two.zarr")
    store = open_store(tmp_path / "two.zarr")
    values = store.read("target", slice(0, 5))
    assert np.array_equal(values[3:], values[:2])  # both take the first samples of their file


@pytest.mark.parametrize(
    ("name", "fields", "shape", "stride"),
    [
        ("darcy", ("coeff", "sol"), (3, 21, 21), 5),
        ("burgers", ("a", "u"), (3, 21), 1),
        ("navier_stokes", ("u",), (3, 8, 8, 20), 1),
    ],
)
def test_points_that_the_benchmark_keeps_where_no_stride_is_named(
    name: str, fields: tuple[str, ...], shape: tuple[int, ...], stride: int, tmp_path: Path
) -> None:
    """Every fifth point of a Darcy file, so that 421 x 421 become 85 x 85; every point of the others."""
    rng = np.random.default_rng(0)
    raw = {field: rng.standard_normal(shape, dtype=np.float32) for field in fields}
    np.savez(tmp_path / "raw.npz", **raw)  # type: ignore[arg-type]
    sizes = ["--problem", name, "--train", "2", "--test", "1", "--out", str(tmp_path / "s.zarr")]
    with pytest.raises(SystemExit) as ended:
        main(["data", "convert", str(tmp_path / "raw.npz"), *sizes])
    assert not ended.value.code
    found = open_store(tmp_path / "s.zarr").read("target", slice(0, 3))
    kept = raw[fields[-1]][:, ::stride]
    kept = kept if name == "burgers" else kept[:, :, ::stride]
    assert np.array_equal(found.squeeze(), kept[..., 10:] if name == "navier_stokes" else kept)


def test_rollout_splits_the_frames(navier_stokes_store: Path) -> None:
    store = open_store(navier_stokes_store)
    assert store.array("input").shape == (4, 8, 8, 10)
    assert store.array("target").shape == (4, 8, 8, 10)
    assert store.card.inputs[0].std == 1.0


def test_same_store_is_reused_and_another_is_never_overwritten(darcy_raw: Path, darcy_store: Path) -> None:
    before = files_of(darcy_store)
    assert not convert([darcy_raw], DARCY, darcy_store).made
    with pytest.raises(DataError, match="was converted from other files or settings"):
        convert([darcy_raw], problem("darcy", train_samples=10, test_samples=4, stride=1), darcy_store)
    assert files_of(darcy_store) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_samples": 11}, "14 samples are there, 15 are needed"),
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


def test_many_samples_make_few_files(darcy_raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_module, "SHARD_BYTES", 5 * 9 * 9 * 4)
    convert([darcy_raw], DARCY, tmp_path / "store.zarr")
    assert len(read_manifest(tmp_path / "store.zarr")) == 6  # 14 samples, 5 in a shard, two arrays
    assert verify(tmp_path / "store.zarr") == []


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
    assert not convert([darcy_raw], DARCY, darcy_store).made


def test_samples_that_are_not_finite_are_numbered_and_nothing_is_left(darcy_raw: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw.h5"
    shutil.copy(darcy_raw, raw)
    with h5py.File(raw, "r+") as file:
        file["sol"][11, 1, 1], file["sol"][3, 2, 2] = np.nan, np.inf  # the first is at a point that is not kept
    with pytest.raises(DataError, match=r"raw.h5: 'sol': NaN or Inf in 2 samples \(samples 3, 11\)"):
        convert([raw], DARCY, tmp_path / "bad.zarr")
    savemat(tmp_path / "raw.mat", {"coeff": read_field(raw, "coeff"), "sol": read_field(raw, "sol")})
    with pytest.raises(DataError, match=r"raw.mat: 'sol': NaN or Inf in 2 samples \(samples 3, 11\)"):
        convert([tmp_path / "raw.mat"], DARCY, tmp_path / "bad.zarr")
    np.savez(tmp_path / "large.npz", coeff=read_field(raw, "coeff"), sol=np.full((14, 17, 17), 1e300))
    with pytest.raises(DataError, match=r"large.npz: 'sol': NaN or Inf in 14 samples \(samples 0, 1, .*7, ...\)"):
        convert([tmp_path / "large.npz"], DARCY, tmp_path / "bad.zarr")
    assert {path.name for path in tmp_path.iterdir()} == {"raw.h5", "raw.mat", "large.npz"}


@pytest.mark.parametrize("name", ["v5.mat", "v73.mat", "c.npz", "f.npz"])
def test_every_format_gives_the_same_shards(darcy_raw: Path, darcy_store: Path, tmp_path: Path, name: str) -> None:
    keys = ("coeff", "sol")
    fields = {key: read_field(darcy_raw, key) for key in keys}
    raw = tmp_path / name
    if name == "v5.mat":
        savemat(raw, fields, do_compression=True)
    elif name == "v73.mat":
        with h5py.File(raw, "w") as file:
            for key in keys:
                file.create_dataset(key, data=fields[key].transpose(), chunks=(4, 4, 14), compression="gzip")
                file[key].attrs["MATLAB_class"] = np.bytes_("single")
    else:
        turn = np.asfortranarray if name == "f.npz" else np.ascontiguousarray
        np.savez(raw, **{key: turn(field) for key, field in fields.items()})  # type: ignore[arg-type]
    convert([raw], DARCY, tmp_path / "store.zarr")
    assert read_manifest(tmp_path / "store.zarr") == read_manifest(darcy_store)
    found, expected = (open_store(path).card.targets for path in (tmp_path / "store.zarr", darcy_store))
    assert found == expected


def test_statistics_do_not_suffer_from_a_large_mean() -> None:
    values = (np.random.default_rng(0).standard_normal((20, 8, 8)) + 1e4).astype(np.float32)
    exact = values.astype(np.longdouble)
    found = combine(np.array([moments(sample) for sample in values]))
    assert found.mean == pytest.approx(float(exact.mean()), rel=1e-15)
    assert found.std == pytest.approx(float(exact.std()), rel=1e-13)
    assert combine(np.array([moments(sample) for sample in values[::-1]])) == found


def test_store_says_which_sample_came_from_where(darcy_raw: Path, darcy_store: Path, tmp_path: Path) -> None:
    settings = problem("darcy", train_samples=3, test_samples=2, stride=1)
    convert([darcy_raw, darcy_raw], settings, tmp_path / "two.zarr")
    one, two = open_store(darcy_store), open_store(tmp_path / "two.zarr")
    assert one.array("train")[:].tolist() == list(range(10))  # type: ignore[union-attr]
    assert one.array("test")[:].tolist() == list(range(10, 14))  # type: ignore[union-attr]
    assert two.array("source_file")[:].tolist() == [0, 0, 0, 1, 1]  # type: ignore[union-attr]
    assert two.array("source_sample")[:].tolist() == [0, 1, 2, 0, 1]  # type: ignore[union-attr]
    assert one.card.provenance["sources"][0]["generation"]["problem"] == "darcy"


def test_other_process_at_work_and_other_unfinished_work(
    darcy_raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    work = Unfinished(tmp_path / "store.zarr")
    with work.begin({"another": "job"}):
        (work.store / "left.txt").write_text("over")
        with pytest.raises(DataError, match="another process is converting to this store"):
            convert([darcy_raw], DARCY, tmp_path / "store.zarr")
    assert convert([darcy_raw], DARCY, tmp_path / "store.zarr").made
    assert "an unfinished conversion of other files or settings" in caplog.text
    assert verify(tmp_path / "store.zarr") == []
    assert [path.name for path in tmp_path.iterdir()] == ["store.zarr"]


def test_what_is_not_a_store_is_refused(tmp_path: Path, darcy_store: Path) -> None:
    with pytest.raises(DataError, match="no such store"):
        open_store(tmp_path / "none.zarr")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="not a store of this package"):
        open_store(tmp_path / "empty")
    shutil.copytree(darcy_store, tmp_path / "old.zarr")
    attributes = zarr.open_group(tmp_path / "old.zarr").attrs
    attributes["geomano"] = {**attributes["geomano"], "format": 0}  # type: ignore[dict-item]
    with pytest.raises(DataError, match="store format 0, this version reads 1 and 2 and 3"):
        open_store(tmp_path / "old.zarr")
    shutil.copytree(darcy_store, tmp_path / "partial.zarr")
    (tmp_path / "partial.zarr" / "manifest.json").unlink()
    with pytest.raises(DataError, match="not complete"):
        open_store(tmp_path / "partial.zarr")
