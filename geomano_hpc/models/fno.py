"""FNO, the Fourier Neural Operator (Li et al., ICLR 2021), of the package neuraloperator."""

from typing import Any, Literal

from pydantic import Field

from geomano_hpc.config import register_model
from geomano_hpc.models.parts.neuraloperator import ChannelsLast, SpectralConfig, neuraloperator


class FnoConfig(SpectralConfig):
    """FNO, the Fourier Neural Operator, of the package neuraloperator. The defaults are the FNO paper's in 2D."""

    name: Literal["fno"] = "fno"
    depth: int = Field(default=4, gt=0)
    embedding: int = Field(default=32, gt=0)
    modes: int = Field(default=12, gt=0, description="frequencies that are kept on each side of zero")


@register_model
class FNO(ChannelsLast):
    """Channels last: [B, H, W, in_channels] -> [B, H, W, out_channels], on any grid. Keywords are those of FnoConfig.

    >>> import torch
    >>> from geomano_hpc.models.fno import FNO
    >>> model = FNO(in_channels=3, out_channels=1, depth=1, embedding=8, modes=4)
    >>> model(torch.zeros(2, 16, 16, 3)).shape
    torch.Size([2, 16, 16, 1])
    """

    Config = FnoConfig

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        grid: tuple[int, int] | None = None,
        config: FnoConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__(in_channels, out_channels)
        config = FnoConfig.chosen(config, options)
        self.wrap(
            neuraloperator().FNO(
                n_modes=(2 * config.modes, 2 * config.modes),
                in_channels=in_channels,
                out_channels=out_channels,
                hidden_channels=config.embedding,
                n_layers=config.depth,
            )
        )
