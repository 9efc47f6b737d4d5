"""Predictions from files of one's own."""

from pathlib import Path

import numpy as np
import pytest
import torch

from geomano_hpc.cli.app import main
from geomano_hpc.config import load_recipe
from geomano_hpc.data import load_split
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import ConfigError, DataError, GeomanoError
from geomano_hpc.training.evaluate import load_trained
from geomano_hpc.training.loop import train
from geomano_hpc.training.predict import predict_file
from geomano_hpc.training.records.run_folder import RunFolder

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def darcy_run(darcy_store: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = RunFolder(tmp_path_factory.mktemp("darcy") / "run")
    changes = [f"data.store={darcy_store}", "data.generate=null", "model.depth=1", "model.embedding=8"]
    changes += ["training.figures_every=0"]
    torch.set_num_threads(1)
    train(load_recipe("darcy_smoke", [*changes, "training.epochs=1", "training.engine=torch"]), folder)
    return folder


def test_prediction_of_a_file_is_that_of_the_evaluation(
    darcy_run: RunFolder, darcy_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = load_split(open_store(darcy_store), "test").input_SHWC
    assert isinstance(inputs, torch.Tensor)
    model, task = load_trained(darcy_run)
    expected = task.predict(model, torch.arange(len(inputs)), CPU).numpy()
    np.save(tmp_path / "a.npy", inputs.numpy())
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(darcy_run.path), "--input", str(tmp_path / "a.npy")])
    assert not ended.value.code
    assert f"wrote {tmp_path}/a_prediction.npy: 4 x 9 x 9 x 1" in capsys.readouterr().out
    np.testing.assert_allclose(np.load(tmp_path / "a_prediction.npy"), expected, rtol=1e-4, atol=1e-6)
    # One field without axes for samples and channels, in double precision: one field comes out.
    np.save(tmp_path / "one.npy", inputs.numpy()[2, ..., 0].astype(np.float64))
    assert predict_file(darcy_run, tmp_path / "one.npy", tmp_path / "out.npy") == (9, 9)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected[2, ..., 0], rtol=1e-4, atol=1e-6)


def test_prediction_needs_no_data_of_the_training_and_takes_another_grid(
    darcy_run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("geomano_hpc.data_prep.store.open_store", None)
    np.save(tmp_path / "a.npy", np.random.default_rng(0).uniform(3, 12, (2, 13, 11)))
    assert predict_file(darcy_run, tmp_path / "a.npy", tmp_path / "out.npy") == (2, 13, 11)
    assert np.isfinite(np.load(tmp_path / "out.npy")).all()


def test_rollout_goes_on_for_as_many_frames_as_asked(navier_stokes_store: Path, tmp_path: Path) -> None:
    changes = [f"data.store={navier_stokes_store}", "data.generate=null", "model.depth=1", "model.embedding=8"]
    changes += ["training.figures_every=0"]
    recipe = load_recipe("navier_stokes_smoke", [*changes, "training.epochs=1", "training.engine=torch"])
    folder = RunFolder(tmp_path / "run")
    train(recipe, folder)
    model, task = load_trained(folder)
    first = task.split.batch(torch.tensor([0])).input_BHWC
    expected = task.predict(model, torch.tensor([0]), CPU).numpy()
    np.save(tmp_path / "frames.npy", first[0].numpy())
    assert predict_file(folder, tmp_path / "frames.npy", tmp_path / "out.npy") == (8, 8, 10)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected[0], rtol=1e-4, atol=1e-5)
    assert predict_file(folder, tmp_path / "frames.npy", tmp_path / "out.npy", frames=12) == (8, 8, 12)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (np.zeros((2, 9, 9, 3)), r"has shape \(2, 9, 9, 3\); the model takes 1 channel:"),
        (np.zeros(4), r"has shape \(4,\)"),
        (np.array(["a"]), "not an array of real numbers"),
        (np.array([{}]), "cannot be read as a .npy file"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    content: np.ndarray, words: str, darcy_run: RunFolder, tmp_path: Path
) -> None:
    np.save(tmp_path / "a.npy", content)
    with pytest.raises(DataError, match=words):
        predict_file(darcy_run, tmp_path / "a.npy", tmp_path / "out.npy")
    assert not (tmp_path / "out.npy").exists()


def test_wishes_that_make_no_sense_are_refused(darcy_run: RunFolder, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((9, 9)))
    with pytest.raises(ConfigError, match="a steady problem, which has no frames"):
        predict_file(darcy_run, tmp_path / "a.npy", tmp_path / "out.npy", frames=3)
    unfinished = RunFolder(tmp_path / "unfinished")
    unfinished.write_recipe(darcy_run.recipe())
    with pytest.raises(GeomanoError, match="no trained weights yet"):
        predict_file(unfinished, tmp_path / "a.npy", tmp_path / "out.npy")
