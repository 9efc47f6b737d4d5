"""The base of all models: channels last on a regular grid of any size.

Axes: B batch, H x W grid, C channels.
"""

from typing import ClassVar

import torch
from torch import nn

from geomano_hpc.config import ModelConfig
from geomano_hpc.errors import ConfigError


class GridModel(nn.Module):
    """[B, H, W, in_channels] -> [B, H, W, out_channels].

    A model is constructed as Model(in_channels, out_channels, grid=(H, W), config=Config(...)), or with the keys of its
    configuration as keywords. `grid` is for the few models whose parameters depend on it.
    """

    Config: ClassVar[type[ModelConfig]]

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        for key, value in (("in_channels", in_channels), ("out_channels", out_channels)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{type(self).__name__}: {key} is a number of 1 or more (found {value!r})")
        self.in_channels, self.out_channels = in_channels, out_channels

    def check_input(self, x_BHWC: torch.Tensor) -> None:
        if x_BHWC.ndim != 4 or x_BHWC.shape[-1] != self.in_channels:
            raise ConfigError(
                f"{type(self).__name__} takes [batch, height, width, {self.in_channels}], channels last; found "
                f"{list(x_BHWC.shape)}"
            )
