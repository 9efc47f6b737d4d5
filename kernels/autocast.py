"""torch's autocast, asked about any device: torch itself refuses to answer for those that have none, such as meta."""

from contextlib import AbstractContextManager, nullcontext

import torch


def autocast_dtype(device: str) -> torch.dtype | None:
    """The precision that autocast asks for on a device, or None where it is off."""
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None


def without_autocast(device: str) -> AbstractContextManager[object]:
    available = torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if available else nullcontext()
