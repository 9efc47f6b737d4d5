"""Entry point of the `geomano` command: the commands, and one-line errors with exit codes 0, 1, 2, 75 and 130."""

import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

import typer

from geomano_hpc import __version__
from geomano_hpc.cli import bench, data, doctor, export, report, runs, study, train
from geomano_hpc.cli.once import Once
from geomano_hpc.errors import GeomanoError, InterruptedRunError, PreemptedError
from geomano_hpc.launchers import speaks_for_all
from geomano_hpc.progress import be_quiet

_ANYWHERE = ("--debug", "--quiet", "-q")  # in the line
INTERRUPTED = InterruptedRunError.exit_code  # also what typer returns for Ctrl-C

app = typer.Typer(
    name="geomano",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train GeoMaNO, the Geometric Mamba Neural Operator, on this machine or on a cluster.",
    epilog="Try it: geomano train darcy_smoke makes its own data and trains in about a minute on a CPU. "
    "Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 75 stopped by a signal with everything saved: "
    "start it again, 130 stopped by Ctrl-C.",
)
app.add_typer(data.app, name="data")
app.command("train", cls=Once)(train.train)
app.command("eval", cls=Once)(train.evaluate)
app.command("predict", cls=Once)(train.predict)
app.command("export", cls=Once)(export.export)
app.command("launch", cls=Once)(study.launch)
app.command("status", cls=Once)(runs.status)
app.command("retry", cls=Once)(runs.retry)
app.command("cancel", cls=Once)(runs.cancel)
app.command("logs", cls=Once)(runs.logs)
app.command("report", cls=Once)(report.report)
app.add_typer(bench.app, name="bench")
app.command("monitor", cls=Once)(study.monitor)
app.command("doctor", cls=Once)(doctor.doctor)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"geomano_hpc {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
    quiet: bool = typer.Option(
        False, "--quiet", "-q", help="Only warnings, errors and the result. May stand anywhere in the line."
    ),
    debug: bool = typer.Option(
        False, "--debug", help="Show the traceback of an error. May stand anywhere in the line."
    ),
) -> None:
    pass


class _StderrHandler(logging.Handler):
    """Writes to whatever sys.stderr is at the time, so that lines appear above a progress bar and do not tear it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


class _CtrlC:
    """Raises KeyboardInterrupt as Python does, and remembers it: a library that is just being imported may swallow it
    and break later, in a way that says nothing."""

    def __init__(self) -> None:
        self.came = False
        handler = signal.getsignal(signal.SIGINT)
        if handler is signal.default_int_handler or isinstance(handler, _CtrlC):  # in the background it is ignored
            signal.signal(signal.SIGINT, self)

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.came = True
        raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words or _is_on("GEOMANO_DEBUG")
    # The deepspeed launcher puts --local_rank=N in front of what it was given; the environment says the same.
    quiet = "--quiet" in words or "-q" in words or _is_on("GEOMANO_QUIET")
    words = [word for word in words if word not in _ANYWHERE and not word.startswith("--local_rank=")]
    be_quiet(quiet)
    logger = logging.getLogger("geomano_hpc")
    if not logger.handlers:
        logger.addHandler(_StderrHandler())
        logger.setLevel(logging.INFO)
    for handler in logger.handlers:
        if isinstance(handler, _StderrHandler):  # the log of a run gets every line
            handler.setLevel(logging.WARNING if quiet else logging.INFO)
    ctrl_c = _CtrlC()
    try:
        exit_code = app(words, prog_name="geomano", standalone_mode=False)
    except PreemptedError as error:
        if isinstance(error, InterruptedRunError):
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it may come once more, from the launcher of the ranks
        if error.rank:  # rank 0 speaks for all
            sys.exit(error.exit_code)
        _fail(str(error), error.exit_code, debug)
    except GeomanoError as error:
        _fail(str(error), error.exit_code, debug)
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's own: an unknown option, a missing argument
            _wrong_usage(error, debug)
        if ctrl_c.came:
            _interrupted()
        _fail(f"{type(error).__name__}: {error} (not expected: --debug shows where)", 1, debug)
    if exit_code == INTERRUPTED:
        _interrupted()
    sys.exit(exit_code if isinstance(exit_code, int) else 0)


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() not in ("", "0", "false", "no", "off")


def _interrupted() -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it may come once more, from the launcher of the ranks
    if not speaks_for_all(os.environ):
        sys.exit(INTERRUPTED)
    _fail("interrupted; what was finished is kept", INTERRUPTED, debug=False)


def _wrong_usage(error: Any, debug: bool) -> NoReturn:
    command = error.ctx.command_path if getattr(error, "ctx", None) else "geomano"
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.ctx.get_help())
        sys.exit(2)
    _fail(f"{error.format_message().rstrip('.')} (see {command} -h)", 2, debug)


def _fail(message: str, exit_code: int, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    print("error: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(exit_code)
