"""A part of one's own by its place in Python: `package.module:name` in a recipe stands for what the module calls so."""

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from geomano_hpc.config.explain import closest
from geomano_hpc.errors import ConfigError, in_one_line

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def is_reference(text: str) -> bool:
    """Whether the text has the form `package.module:name`."""
    return _REFERENCE.fullmatch(text) is not None


def resolve(reference: str, what: str) -> Any:
    """What `package.module:name` stands for. `what` is the key of the recipe, for errors.

    Modules of installed packages are found, and those of the folder where geomano was started.
    """
    if not is_reference(reference):
        raise ConfigError(f"{what}: {reference!r} is not of the form package.module:name")
    module_name, _, name = reference.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last: nothing that lies here takes the place of an installed package
        importlib.invalidate_caches()
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _failed(reference, what, error) from error
        raise ConfigError(
            f"{what}: no module {error.name} for {reference}; install it, or start geomano in the folder that holds it "
            f"(looked at the installed packages and in {here})"
        ) from None
    except Exception as error:
        raise _failed(reference, what, error) from error
    for part in name.split("."):
        if not hasattr(found, part):
            hint = closest(part, (known for known in dir(found) if not known.startswith("_")))
            raise ConfigError(f"{what}: {module_name} ({_place(found)}) has no {name}{hint}")
        found = getattr(found, part)
    return found


def resolve_callable(
    reference: str, what: str, called_with: str, *arguments: Any, **options: Any
) -> Callable[..., Any]:
    """The same for something that is called: checked to take these arguments, which `called_with` says in words."""
    found = resolve(reference, what)
    if not callable(found):
        raise ConfigError(f"{what}: {reference} is a {type(found).__name__}, which cannot be called with {called_with}")
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # written in C without a signature: the call itself will tell
        return found
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        raise ConfigError(f"{what}: {reference} cannot be called with {called_with}: {error}") from None
    return found


def _failed(reference: str, what: str, error: Exception) -> ConfigError:
    return ConfigError(f"{what}: {reference} cannot be imported: {in_one_line(error)}")


def _place(found: Any) -> str:
    return str(getattr(found, "__file__", None) or type(found).__name__)
