"""A trained run as a file for other programs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import geomano_hpc as gm
from geomano_hpc.api import export as export_module
from geomano_hpc.cli.app import main
from geomano_hpc.models.geomano import GeoMaNO


@pytest.fixture(scope="module")
def darcy(home: Path) -> gm.Run:
    return gm.load(home / "runs" / "darcy" / "seed-0")


@pytest.fixture(scope="module")
def archive(darcy: gm.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("exported") / "darcy.pt2"
    darcy.export(str(file), batch="dynamic", any_grid=True)
    return file


def fields(*shape: int) -> torch.Tensor:
    return 3 + 9 * torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def with_points_counted(run: gm.Run, given: torch.Tensor) -> torch.Tensor:
    """As a file for any grid does; on other grids than that of the training the run itself keeps its lengths."""
    assert isinstance(run.model, GeoMaNO)
    run.model.counts_points = True
    try:
        return run.predict(given)
    finally:
        run.model.counts_points = False


def load_in_another_process(archive: Path, imports: str) -> subprocess.CompletedProcess[str]:
    code = f"""{imports}
import numpy as np
card = {{"geomano_hpc.json": ""}}
network = torch.export.load("darcy.pt2", extra_files=card).module()
np.save("out.npy", network(torch.from_numpy(np.load("in.npy"))).numpy())
print(card["geomano_hpc.json"])"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=archive.parent, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("imports", ["import geomano_hpc, torch", "import torch, geomano_hpc"])
def test_an_archive_computes_the_same_where_the_package_is_imported(imports: str, archive: Path, darcy: gm.Run) -> None:
    given = fields(3, 7, 11, 1)
    np.save(archive.parent / "in.npy", given.numpy())
    done = load_in_another_process(archive, imports)
    assert done.returncode == 0, done.stderr
    expected = with_points_counted(darcy, given)
    np.testing.assert_allclose(np.load(archive.parent / "out.npy"), expected, rtol=1e-4, atol=1e-6)
    card = json.loads(done.stdout)
    assert (card["input"], card["output"]) == (["batch", "H", "W", 1], ["batch", "H", "W", 1])
    assert "`import geomano_hpc`" in card["needs"]


@pytest.mark.slow
def test_where_the_package_is_not_imported_the_error_says_so(archive: Path) -> None:
    done = load_in_another_process(archive, "import torch")
    assert done.returncode == 1
    assert "This model calls operators of geomano_hpc: `import geomano_hpc` before torch.export.load." in done.stderr


@pytest.mark.slow
def test_an_archive_tells_nothing_of_the_machine_that_wrote_it(archive: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(archive, tmp_path, "zip")
    content = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"geo_scan" in content
    assert str(Path(gm.__file__).parent).encode() not in content


@pytest.mark.slow
def test_a_rollout_exports_the_next_frame_or_as_many_as_asked(home: Path, tmp_path: Path) -> None:
    run = gm.load(home / "runs" / "navier_stokes" / "seed-0")
    given = torch.randn(1, 8, 8, 10, generator=torch.Generator().manual_seed(0))
    with pytest.raises(gm.ConfigError, match="0 frames of a rollout were asked for"):
        run.export(tmp_path / "none.pt2", steps=0)
    for steps, frames in ((None, 1), (3, 3)):
        card = run.export(tmp_path / "one.pt2", steps=steps)
        assert (card["frames"], card["input"], card["output"]) == (frames, [1, 8, 8, 10], [1, 8, 8, frames])
        found = torch.export.load(tmp_path / "one.pt2").module()(given)
        torch.testing.assert_close(found, run.predict(given, steps=frames), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_command_writes_beside_the_weights_and_says_what_is_needed(
    darcy: gm.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(darcy.path, tmp_path / "run"))
    with pytest.raises(SystemExit) as ended:
        main(["export", str(folder), "--batch", "2"])
    assert not ended.value.code
    assert capsys.readouterr().out.splitlines() == [
        f"wrote {folder}/model.pt2: 2 x 9 x 9 x 1 -> 2 x 9 x 9 x 1 in physical units",
        "this model calls operators of geomano_hpc: `import geomano_hpc` before torch.export.load",
    ]
    with pytest.raises(SystemExit) as ended:
        main(["export", str(folder), "--best"])
    assert "has no best weights: they are chosen on a validation split" in capsys.readouterr().err
    assert ended.value.code == 1
    with pytest.raises(SystemExit) as ended:
        main(["export", str(folder), "--batch", "many"])
    assert ended.value.code == 2


@pytest.mark.slow(60)
def test_onnx_computes_the_same_with_another_runtime(darcy: gm.Run, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    file = tmp_path / "darcy.onnx"
    darcy.export(file, any_grid=True)  # one sample; and what was exported before must not matter for the next
    given = fields(1, 7, 11, 1)
    (found,) = onnxruntime.InferenceSession(file).run(None, {"fields": given.numpy()})
    np.testing.assert_allclose(found, with_points_counted(darcy, given), rtol=1e-4, atol=1e-6)
    card = darcy.export(file, batch="dynamic", any_grid=True)
    assert card["needs"] is None
    session = onnxruntime.InferenceSession(file)
    assert json.loads(session.get_modelmeta().custom_metadata_map["geomano_hpc"]) == card
    for shape in ((1, 9, 9, 1), (3, 7, 11, 1)):
        given = fields(*shape)
        (found,) = session.run(None, {"fields": given.numpy()})
        np.testing.assert_allclose(found, with_points_counted(darcy, given), rtol=1e-4, atol=1e-6)
    assert str(Path(gm.__file__).parent).encode() not in file.read_bytes()


@pytest.mark.slow
def test_what_cannot_be_exported_is_said_in_one_line(
    darcy: gm.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(gm.ConfigError, match=r"x\.bin: format is 'bin'; choose pt2 or onnx"):
        darcy.export(tmp_path / "x.bin")
    with pytest.raises(gm.ConfigError, match="batch is 0, expected 'dynamic' or a number from 1 on"):
        darcy.export(tmp_path / "x.pt2", batch=0)
    with pytest.raises(gm.ConfigError, match="solves a steady problem"):
        darcy.export(tmp_path / "x.pt2", steps=2)
    monkeypatch.setattr(darcy.model.__class__, "forward", lambda self, x: x[: len(x)] if x.sum() > 0 else x)
    with pytest.raises(gm.BackendError, match=r"torch 2.* cannot export .*seed-0 as pt2 \(.*\)$"):
        darcy.export(tmp_path / "x.pt2")
    monkeypatch.setattr(darcy.model.__class__, "forward", lambda self, x: x.reshape(2, 9, 9, 1))
    with pytest.raises(gm.BackendError, match="the model's code is tied to one batch: give a number of samples"):
        darcy.export(tmp_path / "x.pt2", batch="dynamic")
    monkeypatch.setattr(export_module, "_FOR_ONNX", ("onnx", "not_installed"))
    with pytest.raises(gm.BackendError, match=r"ONNX needs not_installed, .* pip install 'geomano_hpc\[onnx\]'"):
        darcy.export(tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())
