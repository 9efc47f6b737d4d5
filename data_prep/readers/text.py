"""Attributes of files as plain values of Python: numbers, text, and lists of them."""

from collections.abc import Iterable
from typing import Any

import h5py
import numpy as np


def plain(value: Any) -> Any:
    """None for what is neither a number nor text, such as a reference to another object of the file."""
    if isinstance(value, bytes | np.bytes_):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.ndarray):
        return plain(value.reshape(-1)[0]) if value.size == 1 and value.ndim == 0 else [plain(one) for one in value]
    if isinstance(value, np.generic):
        return plain(value.item()) if not isinstance(value, np.void) else None
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    return value if isinstance(value, str | bool | int | float | complex) else None


def plain_attributes(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A list of one number is the number: NetCDF writes no others."""
    found = {}
    for name, value in items:
        if isinstance(value, h5py.Empty):
            continue
        one = plain(value)
        if isinstance(one, list) and len(one) == 1 and isinstance(one[0], int | float):
            one = one[0]
        if one is not None and not (isinstance(one, list) and any(part is None for part in one)):
            found[name] = one
    return found
