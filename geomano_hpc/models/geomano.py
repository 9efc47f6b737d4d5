"""GeoMaNO: encoder, T layers, decoder (section "Novel Method").

Axes: B batch, H x W grid, h x w patches, D embedding, C channels. A 1D domain is a 1 x L grid; a 3D domain (x, y, t) is
an H x W grid whose frames are channels ("we treat the time dimension as an additional feature dimension").
"""

from collections.abc import Callable

import torch
from torch import nn

from geomano_hpc.config import GeomanoConfig
from geomano_hpc.kernels import gelu
from geomano_hpc.models.parts.encoder import Decoder, Encoder, Grid
from geomano_hpc.models.parts.geomamba import GeoMambaKernel
from geomano_hpc.models.parts.stack import LayerStack, keeping_inputs


class MLP(nn.Sequential):
    """Linear, GELU, Linear."""

    def __init__(self, features: int, hidden: int, backend: str) -> None:
        super().__init__(nn.Linear(features, hidden), nn.GELU(), nn.Linear(hidden, features))
        self.backend = backend

    def forward(self, x: torch.Tensor, pre_norm: Callable[[torch.Tensor], torch.Tensor] | None = None) -> torch.Tensor:
        """`pre_norm` of a layer is computed again in the backward, like what else costs little."""
        widen, _, narrow = self
        hidden = keeping_inputs(lambda x: widen(x if pre_norm is None else pre_norm(x)), x)
        return keeping_inputs(lambda hidden: narrow(gelu(hidden, self.backend)), hidden)


class GeoMaNOLayer(nn.Module):
    """S = Z + GeoMambaKernel(LayerNorm(Z)); Z = S + Linear(LayerNorm(S)), where Linear is a two-layer MLP."""

    def __init__(self, config: GeomanoConfig) -> None:
        super().__init__()
        self.kernel_norm = nn.LayerNorm(config.embedding)
        self.kernel = GeoMambaKernel(config)
        self.mlp_norm = nn.LayerNorm(config.embedding)
        self.mlp = MLP(config.embedding, round(config.mlp_ratio * config.embedding), config.scan_backend)

    def forward(self, z_BhwD: torch.Tensor) -> torch.Tensor:
        s_BhwD = z_BhwD + self.kernel(z_BhwD, self.kernel_norm)
        return s_BhwD + self.mlp(s_BhwD, self.mlp_norm)


class GeoMaNO(nn.Module):
    """a -> encode -> T GeoMaNO layers -> decode -> u, channels last: [B, H, W, C_in] -> [B, H, W, C_out].

    `grid` is needed by the `global` encoder only: nothing else depends on the size of the grid.
    """

    def __init__(self, config: GeomanoConfig, in_channels: int, out_channels: int, grid: Grid | None = None) -> None:
        super().__init__()
        self.is_line = config.domain == "1d"
        self.encoder = Encoder(config, in_channels, grid)
        self.layers = LayerStack(GeoMaNOLayer(config) for _ in range(config.depth))
        self.decoder = Decoder(config, out_channels, grid)

    def forward(self, x_BHWC: torch.Tensor) -> torch.Tensor:
        _, height, width, _ = x_BHWC.shape
        if self.is_line and height != 1:
            raise ValueError(f"domain 1d takes a 1 x L grid, found {height} x {width}; set model.domain to 2d or 3d")
        return self.decoder(self.layers(self.encoder(x_BHWC)), height, width)

    def dense_parts(self) -> list[nn.Module]:
        """What a compiler can fuse: all but the GeoMamba kernel."""
        return [self.encoder, *(layer.get_submodule("mlp") for layer in self.layers), self.decoder]
