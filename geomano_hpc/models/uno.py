"""U-NO, the U-shaped neural operator (Rahman et al., TMLR 2023), of the package neuraloperator."""

import contextlib
import io
from typing import Any, Literal

from pydantic import Field

from geomano_hpc.config import register_model
from geomano_hpc.models.parts.neuraloperator import ChannelsLast, SpectralConfig, neuraloperator


class UnoConfig(SpectralConfig):
    """U-NO, the U-shaped neural operator, of the package neuraloperator: five levels, the middle ones coarser."""

    name: Literal["uno"] = "uno"
    embedding: int = Field(default=32, gt=0)
    modes: int = Field(default=12, gt=1, description="frequencies that are kept on each side of zero")


@register_model
class UNO(ChannelsLast):
    """Channels last: [B, H, W, in_channels] -> [B, H, W, out_channels], on any grid. Keywords are those of UnoConfig.

    Five levels: the grid is halved before the third and doubled after it, with twice the channels in between.

    >>> import torch
    >>> from geomano_hpc.models.uno import UNO
    >>> model = UNO(in_channels=3, out_channels=1, embedding=8, modes=4)
    >>> model(torch.zeros(2, 16, 16, 3)).shape
    torch.Size([2, 16, 16, 1])
    """

    Config = UnoConfig

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        grid: tuple[int, int] | None = None,
        config: UnoConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__(in_channels, out_channels)
        config = UnoConfig.chosen(config, options)
        narrow, wide = config.embedding, 2 * config.embedding
        many, few = [2 * config.modes] * 2, [config.modes] * 2
        with contextlib.redirect_stdout(io.StringIO()):  # it prints its settings
            operator = neuraloperator().UNO(
                in_channels=in_channels,
                out_channels=out_channels,
                hidden_channels=narrow,
                lifting_channels=wide,
                projection_channels=wide,
                n_layers=5,
                uno_out_channels=[narrow, wide, wide, wide, narrow],
                uno_n_modes=[many, few, few, few, many],
                uno_scalings=[[1, 1], [0.5, 0.5], [1, 1], [2, 2], [1, 1]],
                channel_mlp_skip="linear",  # its default cannot change the number of channels
            )
        self.wrap(operator)
