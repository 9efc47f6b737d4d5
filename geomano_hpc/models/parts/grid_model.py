"""The base of all models: channels last on a regular grid of any size.

Axes: B batch, H x W grid, C channels.
"""

import functools
import inspect
from collections.abc import Callable
from numbers import Integral
from typing import Any, ClassVar

import torch
from torch import nn

from geomano_hpc.config import ModelConfig
from geomano_hpc.config.explain import closest
from geomano_hpc.errors import ConfigError
from geomano_hpc.models.parts.sampling import Sampling


class GridModel(nn.Module):
    """[B, H, W, in_channels] -> [B, H, W, out_channels].

    A model is constructed as Model(in_channels, out_channels, grid=(H, W), config=Config(...)), or with the keys of its
    configuration as keywords. `grid` is for the few models whose parameters depend on it.
    """

    Config: ClassVar[type[ModelConfig]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__init__ = _in_our_words(cls.__init__)  # type: ignore[method-assign]

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        for key, value in (("in_channels", in_channels), ("out_channels", out_channels)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{type(self).__name__}: {key} is a number of 1 or more (found {value!r})")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.sampling = Sampling()

    def place(self, sampling: Sampling) -> None:
        """Say where the points of the next grids lie. A model may make use of it; it is no part of its state."""
        self.sampling = sampling

    def check_input(self, x_BHWC: torch.Tensor) -> None:
        if x_BHWC.ndim != 4 or x_BHWC.shape[-1] != self.in_channels:
            raise ConfigError(
                f"{type(self).__name__} takes [batch, height, width, {self.in_channels}], channels last; found "
                f"{list(x_BHWC.shape)}"
            )


def _in_our_words(construct: Callable[..., None]) -> Callable[..., None]:
    """Python's error for a misspelt `in_channels` would not name the closest key, as the configuration's errors do."""
    signature = inspect.signature(construct)

    @functools.wraps(construct)
    def checked(self: GridModel, *arguments: Any, **keywords: Any) -> None:
        try:
            signature.bind(self, *arguments, **keywords)
        except TypeError as error:
            named = [name for name, one in signature.parameters.items() if one.kind is not one.VAR_KEYWORD][1:]
            known = [*named, *self.Config.model_fields]
            unknown = next((key for key in keywords if key not in known), None)
            what = str(error) if unknown is None else f"unknown key {unknown}{closest(unknown, known)}"
            raise ConfigError(f"{type(self).__name__}: {what}") from None
        _check_grid(type(self).__name__, keywords.get("grid"))
        construct(self, *arguments, **keywords)

    return checked


def _check_grid(model: str, grid: object) -> None:
    fits = (
        isinstance(grid, (tuple, list))
        and len(grid) == 2
        and all(isinstance(side, Integral) and int(side) > 0 for side in grid)
    )
    if grid is not None and not fits:
        raise ConfigError(f"{model}: grid is (height, width), two numbers of 1 or more (found {grid!r})")
