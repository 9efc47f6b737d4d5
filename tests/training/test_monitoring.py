"""What a run shows: curves, figures and hyperparameters in TensorBoard, in a real browser; a trace."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from geomano_hpc.cli.app import main
from geomano_hpc.config import Recipe, load_recipe, to_yaml
from geomano_hpc.errors import ConfigError
from geomano_hpc.slurm.testbed.configuration import unused_ports
from geomano_hpc.training.loop import train
from geomano_hpc.training.records.pictures import energy_spectrum
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.traced import trace
from tests.support.browser import browser
from tests.support.training_runs import changed


@pytest.fixture(scope="module")
def flow(navier_stokes_store: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    keys = {"model.depth": 2, "model.embedding": 8, "training.epochs": 2, "training.engine": "torch"}
    changes = [f"data.store={navier_stokes_store}", "data.generate=null", "training.log_every=1"]
    recipe = load_recipe("navier_stokes_smoke", [*changes, *(f"{key}={value}" for key, value in keys.items())])
    folder = RunFolder(tmp_path_factory.mktemp("flow") / "run")
    torch.set_num_threads(1)
    train(recipe, folder)
    return folder


def test_curves_figures_and_hyperparameters_are_in_the_events_of_the_run(flow: RunFolder) -> None:
    assert [path.is_dir() for path in flow.tensorboard.iterdir()] == [False]  # one event file, no run inside the run
    events = EventAccumulator(str(flow.tensorboard)).Reload()
    tags = events.Tags()
    training = {"lr", "gradient_norm", "samples_per_second", "data_wait_share", "memory_gib"}
    expected = {f"training/{name}" for name in training} | {"loss/train", "loss/train_rel_l2", "rel_l2/test"}
    assert expected | {"steps/loss", "steps/gradient_norm", "rel_l2_by_frame/test/10"} <= set(tags["scalars"])
    assert set(tags["images"]) == {"fields", "spectra", "correction_R"}
    assert events.Images("correction_R")[-1].encoded_image_string.startswith(b"\x89PNG")
    assert "_hparams_/session_start_info" in events.summary_metadata


@pytest.mark.parametrize(("every", "steps"), [(0, None), (2, [6, 9]), (50, [9])])
def test_figures_come_every_so_many_epochs_and_after_the_last_or_not_at_all(
    every: int, steps: list[int] | None, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    train(changed(tiny_recipe, engine="torch", figures_every=every), folder)
    events = EventAccumulator(str(folder.tensorboard)).Reload()
    assert events.Tags()["images"] == ([] if steps is None else ["fields"])
    if steps is not None:
        assert [event.step for event in events.Images("fields")] == steps


def test_spectrum_of_a_wave_is_in_its_shell() -> None:
    x = np.arange(16) * 2 * np.pi / 16
    wave = np.broadcast_to(np.sin(3 * x)[None, :, None], (1, 16, 16))
    spectrum = energy_spectrum(wave)
    assert spectrum.argmax() == 3
    assert spectrum.sum() == pytest.approx(0.5)  # Parseval: the mean square


@contextmanager
def monitored(study: Path, runs: int) -> Iterator[str]:
    """The address of a TensorBoard that shows so many runs."""
    (port,) = unused_ports(1)
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "geomano_hpc", "monitor", study.name, "--runs", "..", "--port", str(port)]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=study, start_new_session=True, **silent) as process:  # type: ignore[call-overload]
        try:
            deadline = time.monotonic() + 240
            shown: list[str] = []
            while len(shown) < runs:
                assert process.poll() is None, "the monitor ended"
                assert time.monotonic() < deadline, f"it shows {shown}"
                time.sleep(0.2)
                with suppress(OSError), urlopen(f"{address}/data/runs", timeout=10) as answer:  # noqa: S310 (loopback)
                    shown = json.load(answer)
            yield address
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.browser
def test_hparams_tab_compares_the_runs_of_a_sweep_in_a_browser(tiny_recipe: Recipe, tmp_path: Path) -> None:
    study = tmp_path / "sweep"
    errors = []
    for seed, lr in enumerate((0.001, 0.0047)):
        folder = RunFolder(study / f"lr-{lr}")
        errors.append(train(changed(tiny_recipe, lr=lr, seed=seed, epochs=1, engine="torch"), folder)["rel_l2"])
    with monitored(study, runs=2) as address, browser(tmp_path / "profile") as page:
        page.open(f"{address}/#hparams")
        text = page.wait_for("lr-0.001/tensorboard", "lr-0.0047/tensorboard", "training.lr", "rel_l2/test", "0.0047000")
        for error in errors:
            assert f"{error:.5g}"[:6] in text
        picture = os.environ.get("GEOMANO_SCREENSHOT")
        if picture:
            page.screenshot(Path(picture))


def test_trace_prints_where_the_time_goes_and_writes_a_trace(
    tiny_recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(to_yaml(changed(tiny_recipe, engine="torch", epochs=20)))
    with pytest.raises(SystemExit) as ended:
        main(["train", "tiny.yaml", "--out", "run", "--trace"])
    assert not ended.value.code
    shown = capsys.readouterr().out
    shares = [
        float(share) for share in re.findall(r"^(?:data|forward|backward|agreement|optimizer) .* (\S+)%", shown, re.M)
    ]
    assert len(shares) == 5
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert "geo_scan" in shown
    written = json.loads(gzip.decompress(Path("run/trace/trace_rank0.json.gz").read_bytes()))
    assert "geomano: backward" in {event.get("name") for event in written["traceEvents"]}
    assert [path.name for path in Path("run").iterdir()] == ["trace"]  # not a run that `geomano status` would list


def test_trace_leaves_a_run_that_was_there_as_it_was(
    tiny_recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, folder = changed(tiny_recipe, engine="torch"), RunFolder(tmp_path / "run")
    train(recipe, folder)
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    trace(recipe, folder, print)
    after = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    assert after.keys() - before.keys() == {folder.trace / "trace_rank0.json.gz"}
    assert {path: after[path] for path in before} == before
    assert "wrote " in capsys.readouterr().out


def test_trace_of_a_short_training_counts_the_steps_that_it_has(tiny_recipe: Recipe, tmp_path: Path) -> None:
    recipe = changed(tiny_recipe, engine="torch")  # 3 steps an epoch
    scans = []
    for epochs in (2, 3):  # 3 and 6 measured
        said: list[str] = []
        trace(changed(recipe, epochs=epochs), RunFolder(tmp_path / "run"), said.append)
        scans += [line.split()[-1] for line in said if "geo_scan_backward " in line]
    assert scans == ["1", "1"]  # of one step
    with pytest.raises(ConfigError, match=r"after 3 to warm up, and this training has 3; it needs at least 4"):
        trace(changed(recipe, epochs=1), RunFolder(tmp_path / "other"), said.append)
    assert not (tmp_path / "other").exists()
