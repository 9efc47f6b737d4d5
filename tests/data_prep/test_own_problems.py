"""Fields of one's own become a store that says all there is to know of the problem: each number is the raw one."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from geomano_hpc.data import Signature, load_split
from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.conversion.splits import SplitRule
from geomano_hpc.data_prep.problems import Problem, own_problem, problem
from geomano_hpc.data_prep.store import Store, open_store
from geomano_hpc.data_prep.verify import verify
from geomano_hpc.errors import ConfigError, DataError

N, H, W = 12, 5, 6
HALVES = SplitRule(train=6, test=6)


def random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    values: np.ndarray = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return values


def steady(inputs: list[str], targets: list[str], constants: tuple[str, ...] = (), **settings: Any) -> Problem:
    splits = settings.pop("splits", HALVES)
    return own_problem("steady", settings.pop("name", "mine"), inputs, targets, list(constants), splits, **settings)


def rollout(fields: list[str], statics: tuple[str, ...] = (), constants: tuple[str, ...] = (), **more: Any) -> Problem:
    settings = {"frames_in": 2, "frames_out": 2, "axes": "sample x y,sample t x y", "splits": HALVES, **more}
    splits = settings.pop("splits")
    return own_problem("rollout", "mine", list(statics), fields, list(constants), splits, **settings)


def stored(settings: Problem, folder: Path, **raw: np.ndarray) -> Store:
    """Of arrays in one .npz file."""
    file = folder / "raw.npz"
    np.savez(file, **raw)  # type: ignore[arg-type]
    convert([file], settings, folder / "store.zarr")
    return open_store(folder / "store.zarr")


def values(store: Store, name: str) -> np.ndarray:
    return store.read(name, slice(None))


def test_several_fields_stand_side_by_side_in_the_order_in_which_they_are_named(tmp_path: Path) -> None:
    raw = {name: random(N, H, W, seed=seed) for seed, name in enumerate("abuv")}
    store = stored(steady(["b", "a"], ["v", "u"]), tmp_path, **raw)
    assert np.array_equal(values(store, "input"), np.stack([raw["b"], raw["a"]], axis=-1))
    assert np.array_equal(values(store, "target"), np.stack([raw["v"], raw["u"]], axis=-1))
    card = store.card
    assert [field.name for field in (*card.inputs, *card.targets)] == ["b", "a", "v", "u"]
    assert verify(store.path) == []


def test_field_may_have_another_name_than_its_variable(tmp_path: Path) -> None:
    raw = {"coeff": random(N, H, W), "deep": random(N, H, W, seed=1)}
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file["coeff"], file["group/deep"] = raw["coeff"], raw["deep"]
    convert([tmp_path / "raw.h5"], steady(["k=coeff"], ["group/deep"]), tmp_path / "store.zarr")
    store = open_store(tmp_path / "store.zarr")
    assert (store.card.inputs[0].name, store.card.targets[0].name) == ("k", "deep")
    assert np.array_equal(values(store, "target")[..., 0], raw["deep"])


def test_fields_may_have_files_of_their_own(tmp_path: Path) -> None:
    k, f, p = (random(N, H, W, seed=seed) for seed in range(3))
    np.save(tmp_path / "coeff.npy", k)
    np.savez(tmp_path / "more.npz", force=f, other=p)
    np.savez(tmp_path / "raw.npz", p=p)
    own = [f"k={tmp_path}/coeff.npy", f"f={tmp_path}/more.npz:force"]
    convert([tmp_path / "raw.npz"], steady(own, ["p"]), tmp_path / "one.zarr")
    convert([], steady(own, [f"p={tmp_path}/raw.npz"]), tmp_path / "none.zarr")
    for name in ("one.zarr", "none.zarr"):
        store = open_store(tmp_path / name)
        assert np.array_equal(values(store, "input"), np.stack([k, f], axis=-1))
        assert np.array_equal(values(store, "target")[..., 0], p)
        sources = {source["name"] for source in store.card.provenance["sources"]}
        assert sources == {"raw.npz", "coeff.npy", "more.npz"}


def test_file_of_its_own_with_another_number_of_samples_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "k.npy", random(N - 1, H, W))
    np.save(tmp_path / "p.npy", random(N, H, W))
    settings = steady([f"k={tmp_path}/k.npy"], [f"p={tmp_path}/p.npy"])
    with pytest.raises(DataError, match="'k' has 11 samples but 'p' has 12"):
        convert([], settings, tmp_path / "store.zarr")
    with pytest.raises(ConfigError, match=r"no such file .*not_there\.npy"):
        steady([f"k={tmp_path}/not_there.npy"], ["p"])
    np.savez(tmp_path / "two.npz", a=random(N, H, W), b=random(N, H, W))
    with pytest.raises(DataError, match="holds 2 variables and none called 'k': say which"):
        convert([tmp_path / "two.npz"], steady([f"k={tmp_path}/two.npz"], ["a"]), tmp_path / "store.zarr")


def test_channels_of_the_last_axis_are_fields_and_one_of_them_may_be_picked(tmp_path: Path) -> None:
    raw = {"w": random(N, H, W, 3), "k": random(N, H, W, seed=1)}
    axes = "sample x y,sample x y c"
    store = stored(steady(["k"], ["w"], axes=axes), tmp_path, **raw)
    assert [field.name for field in store.card.targets] == ["w.0", "w.1", "w.2"]
    assert np.array_equal(values(store, "target"), raw["w"])
    (tmp_path / "one").mkdir()
    store = stored(steady(["k"], ["v=w[2]", "w[0]"], axes=axes), tmp_path / "one", **raw)
    assert [field.name for field in store.card.targets] == ["v", "w.0"]
    assert np.array_equal(values(store, "target"), raw["w"][..., [2, 0]])


def test_complex_field_is_two_fields(tmp_path: Path) -> None:
    psi = (random(N, H, W) + 1j * random(N, H, W, seed=1)).astype(np.complex64)
    store = stored(steady(["k"], ["psi"], units={"psi": "V"}), tmp_path, psi=psi, k=random(N, H, W, seed=2))
    assert [(field.name, field.units) for field in store.card.targets] == [("psi.real", "V"), ("psi.imag", "V")]
    assert np.array_equal(values(store, "target"), np.stack([psi.real, psi.imag], axis=-1))
    for field, part in zip(store.card.targets, (psi.real, psi.imag), strict=True):
        assert field.std == pytest.approx(part[:6].astype(np.float64).std())


def test_axes_may_stand_in_any_order(tmp_path: Path) -> None:
    k, p = random(N, H, W), random(N, H, W, seed=1)
    settings = steady(["k"], ["p"], axes="y sample x,x y sample")
    store = stored(settings, tmp_path, k=k.transpose(2, 0, 1), p=p.transpose(1, 2, 0))
    assert np.array_equal(values(store, "input")[..., 0], k)
    assert np.array_equal(values(store, "target")[..., 0], p)


def test_lines_are_stored_as_grids_of_one_row(tmp_path: Path) -> None:
    raw = {"a": random(N, W), "u": random(N, W, seed=1)}
    store = stored(steady(["a"], ["u"], boundary={"x": "open"}, spacing={"*": 0.5}), tmp_path, **raw)
    assert store.grid == (1, W)
    assert np.array_equal(values(store, "target")[:, 0, :, 0], raw["u"])
    (axis,) = store.card.axes
    assert (axis.name, axis.points, axis.spacing, axis.boundary) == ("x", W, 0.5, "open")
    assert store.card.boundary == ("unknown", "open")


def test_volumes_are_stored_verified_and_loaded(tmp_path: Path) -> None:
    raw = {"k": random(N, 4, H, W), "u": random(N, 4, H, W, seed=1)}
    walls = {"x": "wall", "y": "periodic", "z": "open"}
    store = stored(steady(["k"], ["u"], axes="sample x y z", boundary=walls), tmp_path, **raw)
    assert (store.grid, store.card.boundary) == ((4, H, W), ("wall", "periodic", "open"))
    assert np.array_equal(values(store, "target")[..., 0], raw["u"])
    assert verify(store.path) == []
    split = load_split(store, "test")
    assert np.array_equal(split.target_SHWC[:2].numpy()[..., 0], raw["u"][6:8])  # type: ignore[index]


def test_volumes_in_time_keep_all_their_frames(tmp_path: Path) -> None:
    u = random(4, 5, 3, 4, 2)
    settings = rollout(["u"], axes="sample t x y z", splits=SplitRule(train=3, test=1))
    store = stored(settings, tmp_path, u=u)
    assert np.array_equal(values(store, "frames")[..., 0], u.reshape(20, 3, 4, 2))
    assert verify(store.path) == []


def test_every_nth_point_is_kept_and_the_spacing_says_so(tmp_path: Path) -> None:
    raw = {"k": random(N, 9, 7), "u": random(N, 9, 7, seed=1)}
    store = stored(steady(["k"], ["u"], stride=2, spacing={"x": 0.25, "y": 1.0}), tmp_path, **raw)
    assert np.array_equal(values(store, "target")[..., 0], raw["u"][:, ::2, ::2])
    assert [(axis.points, axis.spacing) for axis in store.card.axes] == [(5, 0.5), (4, 2.0)]


def test_all_points_are_kept_where_no_stride_is_named(tmp_path: Path) -> None:
    raw = {"k": random(N, 21, 21), "u": random(N, 21, 21, seed=1)}
    assert stored(steady(["k"], ["u"]), tmp_path, **raw).grid == (21, 21)


def test_constants_are_kept_for_each_sample_and_reach_the_model_as_constant_fields(tmp_path: Path) -> None:
    re = np.arange(N, dtype=np.float64) * 10
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file["k"], file["u"], file["reynolds"] = random(N, H, W), random(N, H, W, seed=1), re
        file.attrs["nu"] = 0.25
    settings = steady(["k"], ["u"], ("Re=reynolds", "@nu", "g=9.81"), units={"Re": "1"})
    convert([tmp_path / "raw.h5"], settings, tmp_path / "store.zarr")
    store = open_store(tmp_path / "store.zarr")
    expected = np.stack([re, np.full(N, 0.25), np.full(N, 9.81)], axis=1).astype(np.float32)
    found = store.constants()
    assert found is not None
    assert np.array_equal(found, expected)
    assert [field.name for field in store.card.constants] == ["Re", "nu", "g"]
    assert store.card.constants[0].mean == pytest.approx(re[:6].mean())
    assert store.card.constants[0].std == pytest.approx(re[:6].std())
    known = Signature.of(store.card)
    assert known.inputs == ("k", "Re", "nu", "g")
    split = load_split(store, "test")
    given = split.batch(np_numbers(1, 4)).input_BHWC.numpy()
    assert given.shape == (2, H, W, 4)
    assert (given[..., 1:] == expected[[7, 10], None, None]).all()
    encoded = known.input_normaliser.encode(given)
    assert np.isfinite(encoded).all()
    assert (encoded[..., 2:] == 0).all()  # the same in all samples: it tells nothing


def np_numbers(*numbers: int) -> Any:
    import torch

    return torch.tensor(numbers)


def test_constant_with_another_number_of_values_than_samples_is_refused(tmp_path: Path) -> None:
    raw = {"k": random(N, H, W), "u": random(N, H, W, seed=1), "c": np.arange(N - 1.0)}
    with pytest.raises(
        DataError, match=r"'c': has shape \(11,\); a constant is one real number, or one for each of 12"
    ):
        stored(steady(["k"], ["u"], ("c",)), tmp_path, **raw)
    raw["c"] = np.full(N, np.nan)
    with pytest.raises(DataError, match="'c': NaN or Inf in sample 0"):
        stored(steady(["k"], ["u"], ("c",)), tmp_path, **raw)


@pytest.mark.parametrize(
    ("inputs", "targets", "constants"),
    [(["k", "k"], ["u"], ()), (["k"], ["u", "u=k"], ()), (["k"], ["u"], ("c=1", "c=2")), (["k"], ["u"], ("k=1",))],
)
def test_two_fields_never_share_a_name(
    inputs: list[str], targets: list[str], constants: tuple[str, ...], tmp_path: Path
) -> None:
    """By its name, one of them would be dropped from every table."""
    raw = {"k": random(N, H, W), "u": random(N, H, W, seed=1)}
    with pytest.raises(ConfigError, match=r"called (k|u|c)\b"):
        stored(steady(inputs, targets, constants), tmp_path, **raw)


def test_rollout_keeps_frames_once_and_static_fields_beside_them(tmp_path: Path) -> None:
    raw = {name: random(N, 7, H, W, seed=seed) for seed, name in enumerate("uv")}
    mask, nu = random(N, H, W, seed=3), np.arange(N) / 4
    settings = rollout(["u", "v"], ("mask",), ("nu",), time_step=0.5, boundary={"*": "periodic", "y": "wall"})
    store = stored(settings, tmp_path, mask=mask, nu=nu, **raw)
    frames = values(store, "frames").reshape(N, 7, H, W, 2)
    assert np.array_equal(frames[..., 0], raw["u"])
    assert np.array_equal(frames[..., 1], raw["v"])
    assert np.array_equal(values(store, "static")[..., 0], mask)
    card = store.card
    assert (card.kind, card.boundary) == ("rollout", ("periodic", "wall"))
    assert [field.name for field in (*card.targets, *card.context)] == ["u", "v", "mask", "nu"]
    assert card.time == {"step": 0.5, "units": ""}
    assert verify(store.path) == []


def test_every_nth_frame_is_kept_and_the_time_step_says_so(tmp_path: Path) -> None:
    u = random(N, 9, H, W)
    store = stored(rollout(["u"], time_stride=2, time_step=0.1), tmp_path, u=u)
    assert store.card.windows is not None
    assert store.card.windows.frames == 5
    assert np.array_equal(values(store, "frames").reshape(N, 5, H, W), u[:, ::2])
    assert store.card.time["step"] == pytest.approx(0.2)


def test_field_that_changes_in_time_is_no_input_and_one_without_time_is_not_predicted(tmp_path: Path) -> None:
    raw = {"u": random(N, 5, H, W), "k": random(N, H, W)}
    with pytest.raises(DataError, match="a field that changes in time is predicted: name it with --field"):
        stored(rollout(["u"], ("u2=u",), axes="sample t x y"), tmp_path, **raw)
    with pytest.raises(DataError, match="a rollout needs an axis of time"):
        stored(rollout(["k"], axes="sample x y"), tmp_path, **raw)
    with pytest.raises(DataError, match="nothing says which axis is time; name the axes with --axes"):
        stored(rollout(["u"], axes=None), tmp_path, **raw)
    with pytest.raises(DataError, match="has 5 frames, 9 are needed"):
        stored(rollout(["u"], frames_in=4, frames_out=5), tmp_path, **raw)


def test_fields_of_different_lengths_in_time_are_never_paired(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'v': gives 6 frames, the first field gives 5"):
        stored(rollout(["u", "v"]), tmp_path, u=random(N, 5, H, W), v=random(N, 6, H, W))


def test_fields_on_different_grids_are_never_paired(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'k' gives a grid of \(6, 5\) but the target gives \(5, 6\)"):
        stored(steady(["k"], ["u"]), tmp_path, k=random(N, W, H), u=random(N, H, W))


def test_each_field_is_normalised_by_itself_over_the_training_split(tmp_path: Path) -> None:
    """Frames and static fields, too; what only the test split has does not count."""
    u, p, mask = random(N, 5, H, W), random(N, 5, H, W, seed=1) * 1e4 + 5e4, random(N, H, W, seed=2)
    u[6:] += 100
    store = stored(rollout(["u", "p"], ("mask",)), tmp_path, u=u, p=p, mask=mask)
    for field, raw in zip((*store.card.targets, *store.card.statics), (u, p, mask), strict=True):
        train = raw[:6].astype(np.float64)
        assert (field.mean, field.std) == pytest.approx((train.mean(), train.std()), rel=1e-9)
    (tmp_path / "as_it_is").mkdir()
    plain = stored(rollout(["u", "p"], normalise=False), tmp_path / "as_it_is", u=u, p=p)
    assert [(field.mean, field.std) for field in plain.card.targets] == [(0, 1), (0, 1)]


def test_outlier_of_one_field_is_seen_beside_one_in_large_units(tmp_path: Path) -> None:
    """A spike of u is lost among the numbers of p, if they are looked at together."""
    u, p = random(20, H, W, seed=1), random(20, H, W, seed=2) * 1e4
    u[3] *= 1e3
    store = stored(steady(["k"], ["u", "p"], splits=SplitRule()), tmp_path, k=random(20, H, W), u=u, p=p)
    problems = verify(store.path)
    assert problems
    assert all("sample 3 of" in line and "u" in line and "outlier" in line for line in problems)


def test_several_files_of_the_same_fields_follow_each_other(tmp_path: Path) -> None:
    raw = [{"k": random(4, H, W, seed=n), "u": random(4, H, W, seed=10 + n)} for n in range(3)]
    files = [tmp_path / f"{n}.npz" for n in range(3)]
    for file, one in zip(files, raw, strict=True):
        np.savez(file, **one)  # type: ignore[arg-type]
    convert(files, steady(["k"], ["u"]), tmp_path / "store.zarr")
    store = open_store(tmp_path / "store.zarr")
    assert np.array_equal(values(store, "target")[..., 0], np.concatenate([one["u"] for one in raw]))
    assert np.asarray(store.array("source_file")[:]).tolist() == [0] * 4 + [1] * 4 + [2] * 4
    np.savez(files[2], k=raw[2]["k"][:, :-1], u=raw[2]["u"][:, :-1])
    with pytest.raises(DataError, match=r"2\.npz"):
        convert(files, steady(["k"], ["u"]), tmp_path / "other.zarr")


def test_card_is_the_same_after_it_was_written(tmp_path: Path) -> None:
    settings = rollout(["u", "v"], ("mask",), ("nu=0.5",), units={"u": "m/s"}, window_stride=1)
    raw = {"u": random(N, 6, H, W), "v": random(N, 6, H, W, seed=1), "mask": random(N, H, W, seed=2)}
    card = stored(settings, tmp_path, **raw).card
    assert (card.problem, card.kind, card.protocol) == ("mine", "rollout", None)
    assert [field.units for field in card.targets] == ["m/s", ""]
    assert card.windows is not None
    assert (card.windows.frames_in, card.windows.frames_out, card.windows.stride) == (2, 2, 1)
    assert type(card).from_json(card.to_json(), lambda _: ()) == card


def test_own_problem_with_the_settings_of_the_benchmark_has_its_numbers(darcy_raw: Path, darcy_store: Path) -> None:
    """The three problems are cases like any other: only the protocol, which is compared with the paper, is theirs."""
    out = darcy_store.with_name("as_mine.zarr")
    own = steady(["coeff"], ["sol"], splits=SplitRule(train=10, test=4), stride=2, boundary={"*": "wall"})
    convert([darcy_raw], own, out)
    one, two = open_store(darcy_store), open_store(out)
    for name in ("input", "target"):
        assert np.array_equal(values(one, name), values(two, name))
    assert (one.card.inputs, one.card.targets) == (two.card.inputs, two.card.targets)
    assert one.card.boundary == two.card.boundary == ("wall", "wall")
    assert (one.card.protocol, two.card.protocol) == ("darcy", None)
    assert problem("darcy").stride == 5
    with pytest.raises(ConfigError, match="that is the benchmark's"):
        steady(["coeff"], ["sol"], name="darcy")
