"""The search for rates: what it is judged on, how its grid is widened, and what is shown of it."""

import math
from pathlib import Path

import h5py
import numpy as np
import pytest

from geomano_hpc.bench.rate_views import rate_table
from geomano_hpc.bench.rates import Trial, best_of, held_out_store, next_rate, rate_beyond
from geomano_hpc.config import DataConfig
from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.problems import problem
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import DataError, GeomanoError


def trials(errors: dict[float, float]) -> list[Trial]:
    return [Trial(rate, error, Path("runs/s/run")) for rate, error in errors.items()]


def test_rates_go_on_by_the_same_factor() -> None:
    assert [next_rate(rate, up=True) for rate in (3e-4, 1e-3, 1e-1, 3e-1, 1.0)] == [1e-3, 3e-3, 3e-1, 1.0, 3.0]
    assert [next_rate(rate, up=False) for rate in (3.0, 1.0, 3e-4, 1e-4)] == [1.0, 3e-1, 1e-4, 3e-5]


def test_grid_is_widened_until_the_best_rate_has_worse_ones_on_both_sides() -> None:
    assert rate_beyond("fno", trials({1e-3: 0.3, 3e-3: 0.2, 1e-2: 0.25})) is None
    assert rate_beyond("fno", trials({1e-3: 0.3, 3e-3: 0.2, 1e-2: 0.1})) == 3e-2
    assert rate_beyond("fno", trials({1e-3: 0.1, 3e-3: 0.2, 1e-2: 0.3})) == 3e-4
    assert rate_beyond("fno", trials({1e-3: 0.1, 3e-3: 0.2, 1e-2: 0.3, 3e-4: 0.2})) is None


def test_diverged_rate_is_worst_and_where_all_diverge_lower_ones_are_tried() -> None:
    assert rate_beyond("fno", trials({1e-3: 0.9, 3e-3: 0.2, 1e-2: math.inf})) is None
    assert best_of(trials({1e-3: 0.9, 3e-3: math.inf})).lr == 1e-3
    assert rate_beyond("fno", trials({3e-3: math.inf, 1e-2: math.inf})) == 1e-3


def test_search_that_finds_no_best_rate_ends_and_says_so() -> None:
    everything = {float(f"{digit}e{power}"): math.inf for power in range(-7, 0) for digit in (1, 3)}
    with pytest.raises(GeomanoError, match=r"fno: no rate between 1e-07 and 0\.3 is better than those on both sides"):
        rate_beyond("fno", trials(everything))


def test_last_fifth_of_the_training_samples_that_a_recipe_uses_is_held_out(darcy_raw: Path, tmp_path: Path) -> None:
    path = tmp_path / "darcy.zarr"
    convert([darcy_raw], problem("darcy", train_samples=10, test_samples=4, stride=2), path)
    found = held_out_store(DataConfig(store=path))
    assert found.path.name == "darcy_held_out_2_of_10.zarr"
    store = open_store(path)
    assert np.array_equal(found.rows("input", found.split("train")), store.rows("input", np.arange(8)))
    assert np.array_equal(found.rows("input", found.split("test")), store.rows("input", np.array([8, 9])))
    fewer = held_out_store(DataConfig(store=path, train_samples=6, test_samples=1))
    assert np.array_equal(fewer.rows("target", fewer.split("test")), store.rows("target", np.array([5])))
    with pytest.raises(DataError, match="has one training sample"):
        held_out_store(DataConfig(store=path, train_samples=1))


def test_search_is_the_same_whatever_the_test_samples_are(darcy_raw: Path, tmp_path: Path) -> None:
    hashes = []
    for name in ("one", "other"):
        raw = tmp_path / name / "darcy.h5"
        raw.parent.mkdir()
        raw.write_bytes(darcy_raw.read_bytes())
        if name == "other":
            with h5py.File(raw, "r+") as file:
                for field in ("coeff", "sol"):
                    file[field][10:] = 7.0 + np.random.default_rng(0).random(file[field][10:].shape)
        store = raw.with_suffix(".zarr")
        convert([raw], problem("darcy", train_samples=10, test_samples=4, stride=2), store)
        held = held_out_store(DataConfig(store=store))
        hashes.append((open_store(store).content_hash(), held.content_hash(), held.card.inputs, held.card.targets))
    assert hashes[0][0] != hashes[1][0]
    assert hashes[0][1:] == hashes[1][1:]


def test_validation_split_of_a_store_is_what_is_held_out(validated_store: Path) -> None:
    store = open_store(validated_store)
    found = held_out_store(DataConfig(store=validated_store))
    assert found.card.splits == {"train": 8, "test": 3}
    assert np.array_equal(found.rows("input", found.split("test")), store.rows("input", store.split("validation")))


def test_table_has_every_rate_of_every_model_and_marks_the_chosen_one() -> None:
    search = {"epochs": 20, "seed": 0, "train_samples": 320, "held_out_samples": 80}
    rows = [
        {"model": "ours", "lr": 1e-2, "rates": [{"lr": 3e-3, "error": 0.2}, {"lr": 1e-2, "error": 0.1}]},
        {"model": "fno", "lr": 1e-2, "rates": [{"lr": 1e-2, "error": 0.15}, {"lr": 3e-2, "error": None}]},
    ]
    assert rate_table("darcy", search, rows) == [
        "darcy: rel-L2 on 80 of 400 training samples, held out, by rate (* chosen)",
        "  20 epochs on the other 320, seed 0",
        "  model                 0.003       0.01       0.03",
        "  ours                0.20000   *0.10000",
        "  fno                           *0.15000   diverged",
    ]
