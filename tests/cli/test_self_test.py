"""`geomano doctor --self-test` with the CPU in the GPU's place."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from geomano_hpc.bench.timers import WallTimer
from geomano_hpc.cli import self_test
from geomano_hpc.cli.app import main
from geomano_hpc.cli.self_test import SelfTest, SelfTestError, _jobs
from geomano_hpc.kernels import backends, geo_scan
from geomano_hpc.kernels.selftest import apart, cases
from geomano_hpc.kernels.selftest.apart import Job
from geomano_hpc.kernels.selftest.run import CaseResult, run_cases


def geomano(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(caught.value.code or 0)


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    backends.cpu_extension.load_library()  # from the user's cache
    monkeypatch.setenv("GEOMANO_CACHE", str(tmp_path / "cache"))
    yield
    backends._choose.cache_clear()


@pytest.fixture
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny cases, in this process."""

    def run(jobs: Sequence[Job], backend: str, ended: Callable[[Job, CaseResult], None]) -> list[list[CaseResult]]:
        return [
            run_cases(cases.tiny_cases(), torch.device("cpu"), "cpu", 1, lambda result: ended(job, result))  # noqa: B023
            for job in jobs
        ]

    monkeypatch.setattr(apart, "run_apart", run)


@pytest.mark.usefixtures("_here")
def test_doctor_shows_every_case_with_its_error_and_keeps_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert geomano("doctor", "--self-test") == 0
    shown = capsys.readouterr().out
    assert shown.count("\n  ok     cpu ") == len(cases.tiny_cases())
    assert "of 1e-04 (" in shown
    assert "builds Triton's launcher" in shown
    assert "one process computes on cpu" in shown
    (report,) = (tmp_path / "cache" / "self-test").glob("*.json")
    assert f"self-test        ok      {len(cases.tiny_cases())} cases on cpu in" in shown
    assert str(report) in shown
    assert json.loads(report.read_text())["packages"]["torch"]


@pytest.mark.usefixtures("_here")
def test_fault_gives_an_exit_code_and_a_line_that_says_what_failed_and_what_to_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def faulty(x: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        y = geo_scan(x, *arguments, **named)
        return y * 1.01 if x.dtype == torch.float32 and named["kind"] == "2d" else y

    monkeypatch.setattr(cases, "geo_scan", faulty)
    assert geomano("doctor", "--self-test") == 1
    shown = capsys.readouterr().out
    assert shown.count("\n  FAILED cpu scan 2d") == 1
    last = shown.splitlines()[-1]
    assert last.startswith("self-test failed: cpu scan 2d, batch 1, 5 x 4, E 6, N 2, dt of rank 2, equation fixed")
    assert "is wrong by 1.0e-02; go on with --set model.scan_backend=torch, and send us" in last
    report = Path(last.rpartition("send us ")[2])
    assert json.loads(report.read_text())["passed"] is False
    assert geomano("doctor", "--self-test", "--json") == 1
    found = json.loads(capsys.readouterr().out)["self_test"]
    assert found["report"] == str(report)
    assert [case["passed"] for case in found["cases"]].count(False) == 1


@pytest.mark.slow
def test_self_test_in_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "_jobs", lambda *asked: ("torch", [Job("cpu", "tiny", 1)]))
    written: list[str] = []
    test = SelfTest(written.append)
    (line,) = test._kernels()
    assert test.content is not None
    assert test.content["passed"]
    assert len(written) == len(test.content["cases"])
    assert line.startswith(f"{len(written)} cases on cpu")


def test_every_gpu_is_looked_at_and_each_rank_of_a_node_at_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _jobs("cuda:0", 3, 0) == (
        "triton",
        [Job("cuda:0", "full", 20), Job("cuda:1", "tiny", 2), Job("cuda:2", "tiny", 2)],
    )
    assert _jobs("cuda:1", 3, 1) == ("triton", [Job("cuda:1", "tiny", 2)])
    assert _jobs("cpu", 0, 0) == ("cpu", [Job("cpu", "quick", 3)])
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert _jobs("cpu", 0, 0) == ("triton", [Job("cpu", "tiny", 1)])


def test_rank_without_a_gpu_of_its_own_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    test = SelfTest(print)
    assert test._ranks() == ["one process computes on cuda:0; torch sees 2 GPUs, CUDA_VISIBLE_DEVICES=4,5"]
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    with pytest.raises(SelfTestError, match="torch sees 2 GPUs, but SLURM_GPUS_ON_NODE=4"):
        test._ranks()
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert test._ranks()[0].startswith("rank 3 of 4 (torchrun or deepspeed) computes on cuda:1")
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pytest.raises(SelfTestError, match="is number 3 of its node, which has 2 GPUs for torch"):
        test._ranks()


def test_without_a_gpu_the_self_test_runs_only_if_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert geomano("doctor") == 0
    assert "self-test" not in capsys.readouterr().out
    assert geomano("doctor", "--json") == 0
    assert json.loads(capsys.readouterr().out)["self_test"] is None


def test_bench_measures_the_gpu_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command's own way, up to where a GPU would be needed."""
    asked: list[tuple[int, torch.device]] = []
    gpu = {"gpu": "A GPU", "driver": "550", "self_test": "passed"}

    def measured(chosen: dict[str, Any], repeats: int, out: Path, device: torch.device, *rest: Any, **more: Any) -> Any:
        asked.append((repeats, device))
        return {"rows": [], "measurements": [], "gpu": gpu}

    monkeypatch.setattr("geomano_hpc.bench.gpu.measured_device", lambda name: torch.device(name or "cuda:0"))
    monkeypatch.setattr("geomano_hpc.bench.timers.timer_for", lambda device: WallTimer())
    monkeypatch.setattr("geomano_hpc.bench.kernels.device_speed.bench_on_device", measured)
    monkeypatch.setattr("geomano_hpc.bench.train.device_steps.bench_steps", measured)
    out = str(tmp_path / "bench.json")
    assert geomano("bench", "kernels", "--shape", "darcy", "--out", out) == 0
    assert "A GPU, driver 550; self-test: passed" in capsys.readouterr().out
    assert geomano("bench", "train", "--problem", "darcy", "--rounds", "7", "--device", "cuda:1", "--out", out) == 0
    assert "A GPU, driver 550; self-test: passed" in capsys.readouterr().out
    assert asked == [(30, torch.device("cuda", 0)), (7, torch.device("cuda", 1))]
    monkeypatch.undo()
    assert geomano("bench", "kernels", "--device", "cuda:5") == 2
    assert "torch sees 0 GPUs here" in capsys.readouterr().err
