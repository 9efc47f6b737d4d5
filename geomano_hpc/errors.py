"""Errors that speak to the user: one line with what was found, where, and what to do."""


class GeomanoError(Exception):
    """Something outside the program is wrong. `geomano` prints it in one line and exits with `exit_code`."""

    exit_code = 1


class ConfigError(GeomanoError):
    """The user asked for something that is not valid: a key, a value, an argument."""

    exit_code = 2


class DataError(GeomanoError):
    """A file or a store does not hold what it should."""


class FolderInUseError(GeomanoError):
    """Another process is training in the run folder."""


class DivergedError(GeomanoError):
    """A training met a loss or a gradient that is no number, and cannot go on."""


class BackendError(GeomanoError):
    """A backend that was asked for by name cannot be used here."""


class PreemptedError(GeomanoError):
    """A signal asked the training to stop. Its state is on disk: started again, it goes on as if nothing had happened.

    Raised on every rank, by the same step; rank 0 is the one that speaks. The exit code is EX_TEMPFAIL of sysexits.h,
    "try again later", so that a script can tell "requeue me" from "failed".
    """

    exit_code = 75

    def __init__(self, message: str, rank: int = 0) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple[type["PreemptedError"], tuple[str, int]]:
        return type(self), (str(self), self.rank)  # submitit hands errors over pickled


class InterruptedRunError(PreemptedError):
    """Ctrl-C asked the training to stop, and its state is on disk too. The exit code is a shell's for SIGINT."""

    exit_code = 130


def in_one_line(error: BaseException) -> str:
    """An error of another library, to be told within one of ours."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
