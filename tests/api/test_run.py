"""A trained run from Python: what it says of itself, and its predictions."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import geomano_hpc as gm
from geomano_hpc.training.evaluate import load_trained
from geomano_hpc.training.records.run_folder import RunFolder

CPU = torch.device("cpu")


@pytest.fixture
def darcy(home: Path) -> gm.Run:
    return gm.load(home / "runs" / "darcy" / "seed-0")


@pytest.fixture
def navier_stokes(home: Path) -> gm.Run:
    return gm.load(str(home / "runs" / "navier_stokes" / "seed-0"))


def expected(run: gm.Run) -> tuple[torch.Tensor, torch.Tensor]:
    """Input and prediction of the test split, as the evaluation of the training computes them."""
    model, task = load_trained(RunFolder(run.path))
    samples = torch.arange(len(task.split))
    return task.split.batch(samples).input_BHWC, task.predict(model, samples, CPU)


def close(found: object, wanted: torch.Tensor) -> None:
    assert tuple(found.shape) == tuple(wanted.shape)  # type: ignore[attr-defined]
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-4, atol=1e-5)


def test_a_run_says_what_it_is(darcy: gm.Run, navier_stokes: gm.Run) -> None:
    assert (darcy.kind, darcy.grid, darcy.in_channels, darcy.out_channels, darcy.frames) == ("steady", (9, 9), 1, 1, 1)
    assert (navier_stokes.kind, navier_stokes.in_channels, navier_stokes.frames) == ("rollout", 10, 10)
    assert isinstance(darcy.model, gm.GeoMaNO)
    assert darcy.device == CPU
    assert darcy.recipe is not None
    assert darcy.recipe.model.name == "geomano"
    assert darcy.result is not None
    assert darcy.result.rel_l2 == RunFolder(darcy.path).metrics()[-1]["test_rel_l2"]
    assert navier_stokes.result is not None
    assert len(navier_stokes.result.rel_l2_by_frame or []) == 10


def test_predictions_are_those_of_the_evaluation_whatever_the_axes(darcy: gm.Run) -> None:
    a_BHWC, u_BHWC = expected(darcy)
    for batch_size in (1, 3, 16):
        close(darcy.predict(a_BHWC, batch_size=batch_size), u_BHWC)
    close(darcy.predict(a_BHWC[..., 0]), u_BHWC[..., 0])
    close(darcy.predict(a_BHWC[1]), u_BHWC[1])
    close(darcy.predict(a_BHWC[1, ..., 0]), u_BHWC[1, ..., 0])
    reversed_in_double = a_BHWC.numpy().astype(np.float64)[::-1]
    close(darcy.predict(reversed_in_double), u_BHWC.flip(0))


def test_numpy_gives_numpy_and_torch_gives_torch_without_gradients(darcy: gm.Run) -> None:
    a_BHWC, _ = expected(darcy)
    from_numpy = darcy.predict(a_BHWC.numpy())
    assert isinstance(from_numpy, np.ndarray)
    assert from_numpy.dtype == np.float32
    darcy.model.train()
    from_torch = darcy.predict(a_BHWC.double().requires_grad_())
    assert isinstance(from_torch, torch.Tensor)
    assert (from_torch.dtype, from_torch.device, from_torch.requires_grad) == (torch.float32, CPU, False)
    assert darcy.model.training
    np.testing.assert_array_equal(from_numpy, from_torch)


def test_a_rollout_gives_as_many_frames_as_asked(navier_stokes: gm.Run) -> None:
    frames_BHWC, u_BHWC = expected(navier_stokes)
    close(navier_stokes.predict(frames_BHWC), u_BHWC)
    close(navier_stokes.predict(frames_BHWC[0].numpy(), steps=3), u_BHWC[0, ..., :3])
    assert navier_stokes.predict(frames_BHWC, steps=12).shape == (1, 8, 8, 12)


def test_weights_alone_predict_the_same_anywhere(darcy: gm.Run, navier_stokes: gm.Run, tmp_path: Path) -> None:
    for run in (darcy, navier_stokes):
        file = shutil.copy(run.path / "model.safetensors", tmp_path / "handed_on.safetensors")
        alone = gm.load(str(file))
        assert (alone.recipe, alone.result, alone.kind) == (None, None, run.kind)
        given, _ = expected(run)
        assert torch.equal(alone.predict(given), run.predict(given))


def test_the_same_run_writes_the_same_bytes_with_one_entry(home: Path, darcy: gm.Run, tmp_path: Path) -> None:
    assert darcy.recipe is not None
    again = gm.train(darcy.recipe, {"training.checkpoint_every": 2}, out=tmp_path / "again")
    name = "model.safetensors"
    assert (again.folder / name).read_bytes() == (darcy.path / name).read_bytes()
    with safe_open(darcy.path / "model.safetensors", framework="pt") as opened:
        assert list(opened.metadata()) == ["geomano_hpc"]


def test_weights_of_an_older_version_load_from_their_run_folder(darcy: gm.Run, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(darcy.path, tmp_path / "old"))
    file = folder / "model.safetensors"
    with safe_open(file, framework="pt") as opened:
        entry = json.loads(opened.metadata()["geomano_hpc"])
    del entry["model"], entry["precision"]
    save_file(load_file(file), file, metadata={"geomano_hpc": json.dumps(entry)})
    a = np.ones((9, 9))
    np.testing.assert_array_equal(gm.load(folder).predict(a), darcy.predict(a))
    with pytest.raises(gm.ConfigError, match=r"does not say which model it is .*; load the whole run folder"):
        gm.load(file)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (np.zeros((2, 9, 9, 3)), r"has shape \(2, 9, 9, 3\); the model takes 1 channel: \(H, W\), \(samples, H, W\)"),
        (np.zeros((9, 9, 3)), r"has shape \(9, 9, 3\); the model takes 1 channel"),  # no nine samples of 9 x 3
        (torch.zeros(9), r"has shape \(9,\)"),
        (np.zeros((0, 9, 9)), r"its shape is \(0, 9, 9\)"),
        (np.array(["a"]), "takes an array of real numbers, found ndarray of <U1"),
        (torch.zeros(9, 9, dtype=torch.complex64), "the tensor is complex"),
        (
            (np.zeros((9, 9, 1)), np.zeros((9, 9, 1))),
            "found a tuple; of a data set give the input only",
        ),
        (np.ma.masked_array(np.zeros((9, 9)), np.eye(9, dtype=bool)), "has a mask, which the model cannot see"),
        ([[1.0, 2.0], [3.0]], "not an array"),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields: Any, words: str, darcy: gm.Run) -> None:
    with pytest.raises(gm.DataError, match=words):
        darcy.predict(fields)


def test_model_that_is_tied_to_its_grid_does_not_give_another_one(darcy: gm.Run) -> None:
    tied = torch.ones(1, 9, 9, 1)
    darcy.model.forward = lambda x: tied.double() * x
    assert darcy.predict(torch.zeros(2, 9, 9, 1)).dtype == torch.float32
    with pytest.raises(gm.DataError, match=r"the model gives \[1, 9, 9, 1\] for fields of \[1, 1, 9, 1\]"):
        darcy.predict(np.zeros((1, 9)))
    with pytest.raises(gm.DataError, match=r"the model fails on fields of \[1, 5, 7, 1\] \(RuntimeError: The size of"):
        darcy.predict(np.zeros((5, 7)))


def test_wishes_that_cannot_be_met_are_refused(darcy: gm.Run, navier_stokes: gm.Run, tmp_path: Path) -> None:
    with pytest.raises(gm.ConfigError, match="solves a steady problem, which has no frames"):
        darcy.predict(np.zeros((9, 9)), steps=2)
    with pytest.raises(gm.ConfigError, match="0 frames of a rollout"):
        navier_stokes.predict(np.zeros((8, 8, 10)), steps=0)
    with pytest.raises(gm.DataError, match=r"the model takes 10 channels: \(H, W, 10\) or \(samples, H, W, 10\)"):
        navier_stokes.predict(np.zeros((8, 8)))
    for wrong in (0, 2.5, None):
        with pytest.raises(gm.ConfigError, match=f"batch_size is {wrong}, expected a whole number of at least 1"):
            darcy.predict(np.zeros((9, 9)), batch_size=wrong)  # type: ignore[arg-type]
    with pytest.raises(gm.ConfigError, match="device 'warp' cannot be used here"):
        gm.load(darcy.path, device="warp")
    with pytest.raises(gm.ConfigError, match="nowhere: no such run folder"):
        gm.load(tmp_path / "nowhere")
    with pytest.raises(gm.ConfigError, match="not a run folder"):
        gm.load(tmp_path)
    with pytest.raises(gm.ConfigError, match=r"w\.safetensors: no such file"):
        gm.load(tmp_path / "w.safetensors")
    with pytest.raises(gm.ConfigError, match="this is one file"):
        gm.load(darcy.path / "model.safetensors", best=True)
