"""The command as a user meets it: exit codes, one-line errors, help."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from geomano_hpc.cli.app import main
from geomano_hpc.config import Recipe, load_recipe, recipe_names, to_yaml
from geomano_hpc.slurm.testbed.configuration import unused_ports
from geomano_hpc.training.records.run_folder import RunFolder

GROUPS = ("", "data", "bench")
COMMANDS = [
    "data generate",
    "data convert",
    "data verify",
    "data info",
    "train",
    "eval",
    "predict",
    "export",
    "launch",
    "status",
    "retry",
    "cancel",
    "logs",
    "report",
    "bench kernels",
    "bench accuracy",
    "monitor",
    "doctor",
]


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the command changes it, and ends with its process


def geomano(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(caught.value.code or 0)


@pytest.mark.parametrize("command", [*GROUPS, *COMMANDS])
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert geomano(*command.split(), "-h") == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: geomano {command}".rstrip())
    if command in COMMANDS:
        assert re.search(rf"Examples?:\n +.*geomano {command}", shown)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (("frobnicate",), 2, "error: No such command 'frobnicate' (see geomano -h)"),
        (("train",), 2, "error: Missing argument"),
        (
            ("train", "darcy", "--set", "model.dept=4"),
            2,
            "error: recipe darcy: unknown key model.dept; did you mean 'depth'?",
        ),
        (("train", "darcy"), 1, "error: data/darcy.zarr: no such store; convert your raw file with"),
        (("train", "darcy_smoke", "--set", "model.scan_backend=cuda"), 2, "unknown scan backend 'cuda'"),
        (("train", "darcy_smoke", "--set", "model.scan_backend=triton"), 1, "'triton' is not available: needs a GPU"),
        (("bench", "accuracy", "--problem", "heat"), 2, "error: unknown problem 'heat'; choose from darcy"),
        (("bench", "accuracy", "--set", "model.depth=2"), 2, "model.depth: the benchmark chooses the models"),
        (("train", "darcy", "--print-model"), 1, "the grid is not known; give it with --shape H W C"),
        (("train", "darcy_smoke", "--profile"), 2, "error: train has no --profile: --trace shows where the time goes"),
        (("train", "darcy_smoke", "--profile", "a100"), 2, "launch --profile names a cluster"),
        (("eval", "nowhere"), 2, "error: nowhere: not a run folder"),
        (("launch", "darcy", "--cluster", "pbs", "--dry-run"), 2, "--cluster 'pbs' is not known"),
        (("launch", "nothing"), 2, "error: no study, recipe or file 'nothing'"),
        (("launch", "darcy", "--vary", "model.depth"), 2, "write it as key=value,value"),
        (("launch", "darcy", "--grid", "model.depth=2,4"), 2, "write --vary model.depth=2,4"),
        (("launch", "darcy_smoke", "--cluster", "slurm"), 2, "no sbatch on this machine"),
        (("status", "nothing"), 2, "error: no study 'nothing' under runs; there are none yet"),
        (("status", "nothing", "--state", "lost"), 2, "--state 'lost' is not known; choose one of running"),
        (("report", "nothing"), 2, "error: no study 'nothing'"),
        (("report", "nothing", "--format", "pdf"), 2, "--format 'pdf' is not known; choose one of terminal, markdown"),
        (("report", "nothing", "--table", "mian"), 2, "--table 'mian' is not known; choose one of main"),
        (("retry", "nothing"), 2, "error: no study 'nothing'"),
        (("cancel", "nothing"), 2, "error: no study 'nothing'"),
        (("logs", "nothing"), 2, "error: no run 'nothing' under runs"),
        (("launch", "darcy_mian"), 2, "did you mean 'darcy_main'?"),
        (("data", "info", "nothing.zarr"), 1, "error: nothing.zarr: no such store"),
        (("data", "generate", "heat", "--out", "x.h5"), 2, "error: --problem 'heat' is not known"),
        (("data", "convert", "a", "b", "c", "--problem", "darcy", "--out", "x"), 2, "give one file, or two"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(
    arguments: tuple[str, ...],
    exit_code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "slurm" in arguments:
        monkeypatch.setenv("PATH", "/nowhere")
    assert geomano(*arguments) == exit_code
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert len([line for line in shown.splitlines() if line.startswith("error: ")]) == 1
    assert list(Path.cwd().iterdir()) == []  # neither data nor an empty run folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("data.store={folder}/missing.zarr",), "missing.zarr: no such store"),
        (("data.train_samples=99",), "data.train_samples is 99"),
        (("model.scan_backend=triton",), "'triton' is not available"),
    ],
)
def test_failed_start_leaves_no_run_folder_but_keeps_what_was_there(
    changes: tuple[str, ...], message: str, tiny_recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("tiny.yaml").write_text(to_yaml(tiny_recipe))
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("of the user")
    words = [word for change in changes for word in ("--set", change.format(folder=tmp_path))]
    for out in ("runs/deep/run", "mine", "mine/run"):
        assert geomano("train", "tiny.yaml", *words, "--out", out) == 1
        assert message in capsys.readouterr().err
    assert sorted(str(path) for path in Path().rglob("*")) == ["mine", "mine/notes.txt", "tiny.yaml"]
    log = Path("mine/logs/train.log")
    log.parent.mkdir()
    log.write_text("of the user\n")
    assert geomano("train", "tiny.yaml", *words, "--out", "mine") == 1
    assert sorted(path.name for path in Path("mine").rglob("*")) == ["logs", "notes.txt", "train.log"]
    assert log.read_text() == "of the user\n"
    run = RunFolder(Path("planned"))
    run.write_recipe(load_recipe("tiny.yaml", [change.format(folder=tmp_path) for change in changes]))
    assert geomano("train", "tiny.yaml", *words, "--out", "planned") == 1
    assert run.config_file.is_file()
    assert message in run.log_file.read_text()


@pytest.mark.parametrize(("out", "file"), [("mine", "mine"), ("mine/deep/run", "mine"), (".", "logs")])
def test_run_where_a_file_is_in_the_way_is_refused_in_one_line(
    out: str, file: str, tiny_recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("tiny.yaml").write_text(to_yaml(tiny_recipe))
    Path(file).write_text("of the user")
    assert geomano("train", "tiny.yaml", "--out", out) == 2
    told = f"error: {file} is a file, and a run needs a folder there; choose another --out, or move the file\n"
    assert capsys.readouterr().err == told
    assert sorted(path.name for path in Path().rglob("*")) == sorted([file, "tiny.yaml"])


def test_traceback_only_with_debug(capsys: pytest.CaptureFixture[str]) -> None:
    assert geomano("data", "info", "nothing.zarr", "--debug") == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.splitlines()[-1].startswith("error: nothing.zarr: no such store")


def test_unexpected_error_is_one_line_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geomano_hpc.data_prep.card.describe", lambda _: 1 / 0)
    assert geomano("data", "info", "x") == 1
    assert capsys.readouterr().err == "error: ZeroDivisionError: division by zero (not expected: --debug shows where)\n"


def test_interrupt_is_quiet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("geomano_hpc.data_prep.card.describe", interrupted)
    assert geomano("data", "info", "x") == 130
    assert capsys.readouterr().err == "error: interrupted; what was finished is kept\n"


def test_interrupt_that_a_library_swallowed_and_broke_over_is_still_an_interrupt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Path) -> None:
        with contextlib.suppress(KeyboardInterrupt):  # as numpy's import inside of torch's
            os.kill(os.getpid(), signal.SIGINT)
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr("geomano_hpc.data_prep.card.describe", broken)
    assert geomano("data", "info", "x") == 130
    assert capsys.readouterr().err == "error: interrupted; what was finished is kept\n"


def test_help_and_import_load_nothing_heavy() -> None:
    program = (
        "import sys, geomano_hpc\n"
        "from geomano_hpc.cli.app import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'deepspeed', 'mpi4py', 'numpy', 'zarr', 'h5py', 'submitit', 'matplotlib', 'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert geomano("--version") == 0
    assert re.fullmatch(r"geomano_hpc \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize("name", recipe_names())
def test_print_config_prints_the_resolved_recipe(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert geomano("train", name, "--print-config", "--set", "model.depth=3") == 0
    assert "\n  depth: 3\n" in capsys.readouterr().out
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "parameters"),
    [(("darcy", "--shape", "85", "85", "1"), "330,753"), (("navier_stokes_smoke",), "8,721")],
)
def test_print_model_shows_parameters_and_flops_by_part(
    arguments: tuple[str, ...], parameters: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert geomano("train", *arguments, "--print-model") == 0
    shown = capsys.readouterr().out.splitlines()
    assert {"encoder", "layers: kernel", "layers: mlp", "scan", "decoder"} <= {line.split("  ")[0] for line in shown}
    assert shown[-1].split()[:2] == ["total", parameters]
    assert list(Path.cwd().iterdir()) == []


def test_doctor_says_that_training_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert geomano("doctor") == 0
    shown = capsys.readouterr().out
    assert "auto takes: cpu" in shown
    assert "training can run here" in shown


def test_doctor_fails_where_training_cannot_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    assert geomano("doctor") == 1
    shown = capsys.readouterr().out
    assert re.search(r"DeepSpeed +MISSING", shown)
    assert "training cannot run here" in shown


def test_dry_run_shows_runs_and_submission_file_and_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--seeds", "2", "--vary", "model.depth=2,4", "--cluster", "slurm", "--partition", "gpu", "--dry-run")
    assert geomano("launch", "darcy", *arguments) == 0
    shown = capsys.readouterr().out
    assert shown.count("to run") == 4
    assert "#SBATCH --array=0-3%4" in shown
    assert "#SBATCH --partition=gpu" in shown
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.slow(30)
def test_whole_chain_by_commands(tiny_recipe: Recipe, darcy_raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--problem", "darcy", "--train", "10", "--test", "4", "--stride", "2")
    assert geomano("data", "convert", str(darcy_raw), *sizes, "--out", "data/tiny.zarr") == 0
    assert geomano("data", "convert", str(darcy_raw), *sizes, "--out", "data/tiny.zarr") == 0
    assert "already there, reused: data/tiny.zarr" in capsys.readouterr().out
    assert geomano("data", "verify", "data/tiny.zarr") == 0
    assert geomano("data", "info", "data/tiny.zarr") == 0
    assert "10 train, 4 test" in capsys.readouterr().out
    Path("tiny.yaml").write_text(to_yaml(tiny_recipe))
    options = ("--set", "data.store=data/tiny.zarr", "--set", "training.epochs=1")
    assert geomano("launch", "tiny.yaml", "--seeds", "2", "--name", "mine", *options) == 0
    assert "finished 2 of 2 runs: runs/mine" in capsys.readouterr().out
    assert geomano("status", "mine", "--watch") == 0  # all have ended: it does not wait
    shown = capsys.readouterr().out
    assert "runs/mine: 2 done" in shown
    assert shown.count("1/1") == 2
    assert geomano("retry", "mine") == 0
    assert "nothing to retry" in capsys.readouterr().out
    assert geomano("retry", "mine", "seed-0") == 2
    assert "is done: nothing to retry" in capsys.readouterr().err
    assert geomano("cancel", "mine") == 0
    assert "cancelled 0 of 2 runs; 2 were not queued or training" in capsys.readouterr().out
    assert geomano("logs", "mine/seed-1", "-n", "1", "-f") == 0
    assert re.search(r"finished: rel-L2 0\.\d+ on 4 test samples", capsys.readouterr().out)
    assert geomano("logs", "mine/seed-") == 2
    assert "is the beginning of 2 runs" in capsys.readouterr().err
    assert geomano("report", "mine", "--format", "markdown", "--no-figures") == 0
    table = capsys.readouterr().out
    run = sorted(Path("runs/mine").glob("seed-0_*"))[0]
    assert geomano("eval", str(run)) == 0
    assert re.search(r"test rel-L2 \d\.\d+ on 4 samples of data/tiny.zarr, 9 x 9 points", capsys.readouterr().out)
    assert geomano("eval", str(run), "--resolution", "5") == 0
    assert "of data/tiny.zarr, 5 x 5 points" in capsys.readouterr().out
    assert geomano("eval", str(run), "--resolution", "17") == 1
    assert "name it with --store" in capsys.readouterr().err
    assert "- 2 of 2 runs are done" in table
    for form, beginning in (("html", "file:///"), ("csv", "study,run,"), ("latex", "% mine"), ("terminal", "mine")):
        assert geomano("report", "mine", "--no-figures", "--format", form) == 0
        assert capsys.readouterr().out.startswith(beginning)
    assert geomano("bench", "kernels", "--size", "4", "4", "3", "2", "--repeats", "1", "--out", "bench.json") == 0
    assert "reference" in capsys.readouterr().out
    assert geomano("train", "tiny.yaml", *options, "--runs", "other") == 0
    assert "test rel-L2" in capsys.readouterr().out


def test_monitor_serves_the_study_on_loopback_only(tmp_path: Path) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (port,) = unused_ports(1)
    command = [sys.executable, "-m", "geomano_hpc", "monitor", "mine", "--port", str(port)]
    with subprocess.Popen(
        command,
        start_new_session=True,
        # As in a terminal: a shell starts its background jobs with Ctrl-C ignored, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            page = _wait_for_page(f"http://127.0.0.1:{port}/", process)
            assert b"TensorBoard" in page
            listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            assert f"0100007F:{port:04X}" in listening
            assert f"00000000:{port:04X}" not in listening
            os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C does
            assert process.wait(timeout=240) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _wait_for_page(address: str, process: "subprocess.Popen[bytes]") -> bytes:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 (loopback)
                return bytes(answer.read())
        except OSError:
            assert process.poll() is None, "the monitor ended"
            time.sleep(0.25)
    raise AssertionError("the monitor did not answer")


def test_recipes_and_studies_complete_in_the_shell() -> None:
    environment = {
        **os.environ,
        "_GEOMANO_COMPLETE": "complete_bash",
        "COMP_WORDS": "geomano train darcy_",
        "COMP_CWORD": "2",
    }
    program = "from geomano_hpc.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert "darcy_smoke" in done.stdout
