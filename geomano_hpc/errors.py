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


class BackendError(GeomanoError):
    """A backend that was asked for by name cannot be used here."""
