"""The self-test of the GPU kernels, with the CPU in the GPU's place: what it finds, what is kept, who asks."""

import json
import multiprocessing
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from geomano_hpc.config import Recipe
from geomano_hpc.errors import BackendError
from geomano_hpc.kernels import backends, choose_backend, geo_scan, ready_backend
from geomano_hpc.kernels.selftest import apart, cases, compiler, verdict
from geomano_hpc.kernels.selftest.apart import Job, cases_of, run_apart
from geomano_hpc.kernels.selftest.cases import (
    OPERATORS,
    DenseCase,
    ScanCase,
    full_cases,
    geometry_cases,
    quick_cases,
    tiny_cases,
)
from geomano_hpc.kernels.selftest.run import CaseResult, check_device, run_cases
from geomano_hpc.training.loop import train
from geomano_hpc.training.records.run_folder import RunFolder

CPU = torch.device("cpu")
SMALL = ScanCase("2d", 2, 5, 7, channels=17, dstate=3, rank=2)


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    compiled = backends.cpu_extension.load_library()  # from the user's cache
    assert compiled
    monkeypatch.setenv("GEOMANO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GEOMANO_SELF_TEST", raising=False)
    backends._choose.cache_clear()
    yield
    backends._choose.cache_clear()


def plant(monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A fault in the kernel; the judge, which computes in float64, stays right."""

    def faulty(x: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        y = geo_scan(x, *arguments, **named)
        return y if x.dtype == torch.float64 else change(y)

    monkeypatch.setattr(cases, "geo_scan", faulty)


def test_right_kernels_pass_with_small_errors_and_the_same_bits() -> None:
    check_device(CPU)
    others = [ScanCase("1d", 1, 3, 5, channels=4, dstate=2, rank=0, correction="none", orders="all")]
    results = run_cases([*tiny_cases(), SMALL, *others, *geometry_cases()], CPU, "cpu")
    assert all(result.passed for result in results), [result.line for result in results]
    assert {result.same_bits for result in results} == {20}
    float32 = [result for result in results if "float32" in result.name]
    assert all(result.error is not None and result.error < 2e-6 for result in float32)
    assert "error " in results[0].line
    assert "20 of 20 repeats bit-equal" in results[0].line


def test_large_scans_are_judged_by_the_chunked_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same answer as that of the reference."""
    inputs = SMALL.inputs(CPU)
    by_reference = SMALL.judge(inputs)
    monkeypatch.setattr(cases, "_STATES_OF_THE_LOOP", 0)
    chunked = SMALL.judge(inputs)
    assert all(torch.allclose(chunked[name], right, rtol=1e-9, atol=1e-9) for name, right in by_reference.items())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda y: y * 1.001, r"is wrong by 1\.0e-03"),
        (lambda y: y + 1e-2 * torch.nn.functional.one_hot(torch.tensor(0), y.shape[-1]), "y is wrong by"),
        (lambda y: torch.where(y == y.max(), torch.nan, y), "y is wrong by nan"),
        (lambda y: y * (1 + 1e-6 * torch.rand(())), r"\d+ of 20 repeats gave other bits"),
        (lambda y: y.detach() + 0 * y + (y - y.detach()) * 2, "gradient of [a-z_A-Z]+ is wrong by"),
    ],
)
def test_fault_is_found_and_named(change: Any, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, change)
    (result,) = run_cases([SMALL], CPU, "cpu")
    assert not result.passed
    assert re.search(reason, result.reason), result.reason


def test_output_that_nobody_writes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of an earlier call may hold the right answer."""
    plant(monkeypatch, lambda y: torch.cat([y[:1], torch.empty_like(y[1:]) * 0 + y[1:].detach()]) + 0 * y)
    (result,) = run_cases([SMALL], CPU, "cpu", repeats=1)
    assert "is wrong by nan" in result.reason


def test_kernel_that_does_not_run_fails_and_a_lost_device_ends_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(y: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    results = run_cases([SMALL], CPU, "triton", repeats=1)
    assert "'triton' is not available: needs a GPU" in results[0].reason
    plant(monkeypatch, lost)
    heard: list[CaseResult] = []
    results = run_cases([SMALL, *tiny_cases()], CPU, "cpu", repeats=1, ended=heard.append)
    assert heard == results
    assert "illegal memory access" in results[0].line
    assert all(result.reason.startswith("not run: the device was lost in scan 2d") for result in results[1:])


def test_full_memory_says_nothing_about_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(y: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    plant(monkeypatch, full)
    with pytest.raises(BackendError, match="cpu has too little free memory for the self-test"):
        run_cases([SMALL], CPU, "cpu", repeats=1)


def test_device_is_checked_before_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ScanCase.judge
    answers = iter([2.0, 1.0])
    monkeypatch.setattr(
        ScanCase,
        "judge",
        lambda case, given: {k: t * factor for factor in [next(answers)] for k, t in right(case, given).items()},
    )
    with pytest.raises(BackendError, match=r"plain torch on cpu is wrong by 1\.0e\+00"):
        check_device(CPU)
    with pytest.raises(BackendError, match="cuda:0 cannot be used"):
        check_device(torch.device("cuda", 0))


def test_the_state_of_torch_is_left_as_it_was() -> None:
    random, deterministic = torch.get_rng_state(), torch.are_deterministic_algorithms_enabled()
    tf32 = torch.backends.cudnn.allow_tf32
    run_cases(tiny_cases()[:2], CPU, "cpu", repeats=1)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    assert torch.backends.cudnn.allow_tf32 == tf32


def test_full_test_has_every_kernel_in_it() -> None:
    full = full_cases()
    scans = [case for case in full if isinstance(case, ScanCase)]
    for kind in ("1d", "2d"):
        of_kind = [case for case in scans if case.kind == kind]
        assert {case.dtype for case in of_kind} == {"float32", "bfloat16", "float16"}
        assert {case.dstate for case in of_kind} == {16, 32}
        assert {bool(case.rank) for case in of_kind} == {True, False}
        assert {case.correction for case in of_kind} >= {
            "none",
            "equation fixed",
            "equation learnable",
            "state learnable",
        }
        assert {(1, 300), (300, 1), (70, 33), (9, 130)} <= {(case.height, case.width) for case in of_kind}
        assert {case.batch for case in of_kind} >= {1, 96}
        # Each is a set of kernels to compile: seconds.
        compiled = {(case.dtype, case.dstate, case.rank, case.correction) for case in of_kind}
        assert len(compiled) == 5
    geometries = {(any(case.periodic), case.spacing != (1.0, 1.0)) for case in scans if case.kind == "2d"}
    assert geometries == {(False, False), (True, False), (False, True), (True, True)}
    dense = {(case.operator, case.dtype) for case in full if isinstance(case, DenseCase)}
    assert dense == {(name, dtype) for name in OPERATORS for dtype in ("float32", "bfloat16", "float16")}
    assert {"conv_silu", "norm_gate", "gate", "gelu"} <= set(OPERATORS)
    assert set(geometry_cases()) <= set(full)
    assert len({case.name for case in full}) == len(full)
    assert not any(case.dtype == "float16" for case in cases_of("full", "cpu"))
    assert len(cases_of("full", "triton")) == len(full)
    assert len(quick_cases()) == 3 + len(OPERATORS)


def test_compiler_of_tritons_launcher_is_found_and_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    assert compiler.check_compiler().endswith("builds Triton's launcher")
    for given, reason in (
        (str(tmp_path / "none"), "does not start: .*; set CC to the path of gcc"),
        ("/bin/false", "/bin/false cannot build Triton's launcher: no words; set CC to another"),
    ):
        monkeypatch.setenv("CC", given)
        with pytest.raises(BackendError, match=reason):
            compiler.check_compiler()
    monkeypatch.setenv("CC", "/bin/true")  # says that it did
    with pytest.raises(BackendError, match="a compiled launcher does not load"):
        compiler.check_compiler()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match="no C compiler for Triton's launcher: install gcc"):
        compiler.check_compiler()
    monkeypatch.undo()
    monkeypatch.setattr(compiler, "_include", lambda: tmp_path)
    with pytest.raises(BackendError, match=r"no Python.h in .*install the headers"):
        compiler.check_compiler()


@pytest.fixture
def _cpu_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training on this machine asks as it would on a GPU, and the C++ kernel answers."""
    short = partial(verdict.asked_verdict, backend="cpu", cases=lambda: [SMALL], repeats=1)
    monkeypatch.setattr(verdict, "asked_verdict", short)
    monkeypatch.setattr(verdict, "current_device", lambda: CPU)


@pytest.mark.usefixtures("_cpu_for_a_gpu")
def test_training_tests_once_and_keeps_the_verdict(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="geomano_hpc")
    found = ready_backend("auto", "cuda")
    assert (found.name, found.reason.endswith("kernels, self-test passed (quick, 1 cases)")) == ("triton", True)
    file = verdict.identify(CPU).file
    content = json.loads(file.read_text())
    assert content["passed"]
    assert content["identity"]["torch"] == torch.__version__
    assert content["cases"][0]["name"] == SMALL.name
    monkeypatch.setattr(verdict, "run_cases", lambda *arguments: pytest.fail("tested again"))
    backends._choose.cache_clear()
    assert ready_backend("auto", "cuda").name == "triton"
    assert "passed (quick, 1 cases), known from" in caplog.text
    assert caplog.text.count("short self-test of the scan kernels") == 1


@pytest.mark.usefixtures("_cpu_for_a_gpu")
def test_failed_verdict_refuses_auto_and_warns_where_a_name_was_given(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plant(monkeypatch, lambda y: 2 * y)
    refusal = (
        r"failed their self-test on CPU .* is wrong by 1\.0e\+00; go on with model.scan_backend=torch, and send us /"
    )
    assert choose_backend("auto", "cuda") == "triton"  # nobody has tested it
    with pytest.raises(BackendError, match=refusal):
        ready_backend("auto", "cuda")
    with pytest.raises(BackendError, match=refusal):  # in every scan from now on
        choose_backend("auto", "cuda")
    assert ready_backend("triton", "cuda").name == "triton"
    assert "triton was asked for by name, though its self-test failed: scan 2d" in caplog.text
    assert ready_backend("torch", "cuda").name == "torch"
    assert choose_backend("auto", "cpu") == "cpu"
    monkeypatch.setenv("GEOMANO_SELF_TEST", "0")
    assert ready_backend("auto", "cuda").name == "triton"
    assert "GEOMANO_SELF_TEST=0: the Triton kernels are used without a self-test" in caplog.text


@pytest.mark.usefixtures("_cpu_for_a_gpu")
def test_training_with_a_failed_verdict_does_not_start(
    tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "default_device", lambda: "cuda")
    plant(monkeypatch, lambda y: 2 * y)
    with pytest.raises(BackendError, match=r"go on with model.scan_backend=torch, and send us .*\.json"):
        train(tiny_recipe, RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("_cpu_for_a_gpu")
@pytest.mark.parametrize("text", ["", "{", "[]", '{"identity": {}}', "ß", "wrong", "torn"])
def test_damaged_verdict_is_as_if_it_were_not_there(text: str, caplog: pytest.LogCaptureFixture) -> None:
    ready_backend("auto", "cuda")
    file = verdict.identify(CPU).file
    whole = file.read_text()
    given = {"wrong": whole.replace("true,", "false,"), "torn": whole[: len(whole) // 2]}.get(text, text)
    file.write_bytes(given.encode("latin-1"))
    backends._choose.cache_clear()
    assert ready_backend("auto", "cuda").name == "triton"
    assert "not a verdict of the self-test" in caplog.text
    assert json.loads(file.read_text())["passed"]


def test_another_driver_or_kernel_has_a_verdict_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = verdict.identify(CPU)
    for name in ("gpu", "capability", "driver", "torch", "triton", "kernels"):
        assert verdict.Identity(**{**vars(identity), name: "other"}).file != identity.file
    other = verdict.Identity(**{**vars(identity), "gpu": "NVIDIA A100-SXM4-80GB"})
    assert other.file.name.startswith("NVIDIA-A100-SXM4-80GB-")


def test_gpu_is_known_by_name_capability_and_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="NVIDIA H100", major=9, minor=0, gcnArchName="gfx942:sramecc+")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    said = tmp_path / "version"
    said.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5\nGCC version: gcc 12.3.0\n")
    monkeypatch.setattr(verdict, "_DRIVERS", (str(tmp_path / "none"), str(said)))
    verdict._driver.cache_clear()
    found = verdict.identify(torch.device("cuda", 0))
    assert (found.gpu, found.capability, found.driver) == ("NVIDIA H100", "9.0", "550.54.15")
    monkeypatch.setattr(torch.version, "hip", "6.3")
    assert verdict.identify(torch.device("cuda", 0)).capability == "gfx942:sramecc+"
    monkeypatch.setattr(verdict, "_DRIVERS", ())
    verdict._driver.cache_clear()
    assert verdict.identify(CPU).driver == "unknown"
    verdict._driver.cache_clear()
    assert verdict.current_device() is None


def test_verdict_that_cannot_be_kept_holds_for_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GEOMANO_CACHE", str(tmp_path / "file"))
    found = verdict.asked_verdict(CPU, "cpu", lambda: [SMALL], repeats=1)
    assert found is not None
    assert found.passed
    assert "cannot be kept in" in caplog.text


def _ask(count: Path, answers: Any) -> None:
    torch.set_num_threads(1)
    right = verdict.run_cases

    def counted(*arguments: Any) -> list[CaseResult]:
        with count.open("a") as file:
            file.write("tested\n")
        time.sleep(0.5)
        return right(*arguments)

    verdict.run_cases = counted  # type: ignore[assignment]
    found = verdict.asked_verdict(CPU, "torch", lambda: [SMALL], repeats=1)
    answers.put(found is not None and found.passed)


def test_of_two_processes_one_tests_and_the_other_waits(tmp_path: Path) -> None:
    forks = multiprocessing.get_context("fork")
    answers = forks.Queue()
    both = [forks.Process(target=_ask, args=(tmp_path / "count", answers)) for _ in range(2)]
    for one in both:
        one.start()
    assert [answers.get(timeout=60) for _ in both] == [True, True]
    for one in both:
        one.join()
    assert (tmp_path / "count").read_text() == "tested\n"


def child(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else in place of the process of the self-test."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(apart.sys, "executable", str(program))


def test_process_that_crashes_or_hangs_is_a_failure_with_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [case.name for case in tiny_cases()]
    good = CaseResult(names[0], True, 1e-7, 1e-4, "y", 2, 2, 0.1, "")
    said = json.dumps(["ended", 0, good.to_json()])
    child(f"echo noise; echo '{said}'; echo 'LLVM ERROR: no' >&2; kill -SEGV $$", tmp_path, monkeypatch)
    (results,) = run_apart([Job("cuda:0", "tiny", 2)], "triton")
    assert [result.name for result in results] == names
    assert results[0] == good
    assert results[1].reason == "the process of the self-test was ended by SIGSEGV: LLVM ERROR: no"
    assert results[2].reason == f"not run: see {names[1]}"
    child("exec sleep 60", tmp_path, monkeypatch)
    (results,) = run_apart([Job("cuda:0", "tiny", 2)], "triton", seconds=0.3)
    assert results[0].reason == "the process of the self-test did not end within 0.3 s"
    child("""echo '["refused", "cuda:0 cannot be used: busy"]'""", tmp_path, monkeypatch)
    with pytest.raises(BackendError, match="cuda:0 cannot be used: busy"):
        run_apart([Job("cuda:0", "tiny", 2)], "triton")
    child("kill -KILL $$", tmp_path, monkeypatch)
    with pytest.raises(BackendError, match="was ended by SIGKILL, which says nothing about kernels"):
        run_apart([Job("cuda:0", "tiny", 2)], "triton")
    child("echo 'ImportError: no triton' >&2; exit 1", tmp_path, monkeypatch)
    with pytest.raises(BackendError, match="did not start: it ended with code 1: ImportError: no triton"):
        run_apart([Job("cuda:0", "tiny", 2)], "triton")


@pytest.mark.slow
def test_in_a_process_of_its_own() -> None:
    heard: list[str] = []
    jobs = [Job("cpu", "tiny", 2), Job("cpu", "tiny", 1)]
    found = run_apart(jobs, "torch", lambda job, result: heard.append(result.name))
    assert [len(results) for results in found] == [len(tiny_cases())] * 2
    assert all(result.passed for results in found for result in results)
    assert heard == [case.name for case in tiny_cases()] * 2
    with pytest.raises(BackendError, match="cuda:7 cannot be used"):
        run_apart([Job("cuda:7", "tiny", 1)], "triton")


@pytest.mark.interpreter
@pytest.mark.slow(60)
def test_triton_kernels_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    (results,) = run_apart([Job("cpu", "tiny", 1)], "triton")
    assert all(result.passed for result in results), [result.line for result in results]
