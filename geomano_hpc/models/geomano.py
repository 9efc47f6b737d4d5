"""GeoMaNO: encoder, T layers, decoder (section "Novel Method").

Axes: B batch, H x W grid, h x w patches, D embedding, C channels.
"""

import torch
from torch import nn

from geomano_hpc.config import ModelConfig
from geomano_hpc.models.encoder import Decoder, Encoder
from geomano_hpc.models.geomamba import GeoMambaKernel


class GeoMaNOLayer(nn.Module):
    """S = Z + GeoMambaKernel(LayerNorm(Z)); Z = S + Linear(LayerNorm(S)), where Linear is a two-layer MLP."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden = round(config.mlp_ratio * config.embedding)
        self.kernel_norm = nn.LayerNorm(config.embedding)
        self.kernel = GeoMambaKernel(config)
        self.mlp_norm = nn.LayerNorm(config.embedding)
        self.mlp = nn.Sequential(nn.Linear(config.embedding, hidden), nn.GELU(), nn.Linear(hidden, config.embedding))

    def forward(self, z_BhwD: torch.Tensor) -> torch.Tensor:
        s_BhwD = z_BhwD + self.kernel(self.kernel_norm(z_BhwD))
        return s_BhwD + self.mlp(self.mlp_norm(s_BhwD))


class GeoMaNO(nn.Module):
    """a -> encode -> T GeoMaNO layers -> decode -> u, channels last: [B, H, W, C_in] -> [B, H, W, C_out]."""

    def __init__(self, config: ModelConfig, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.encoder = Encoder(in_channels, config.embedding, config.patch, config.positional_encoding)
        self.layers = nn.ModuleList(GeoMaNOLayer(config) for _ in range(config.depth))
        self.decoder = Decoder(config.embedding, out_channels, config.patch)

    def forward(self, x_BHWC: torch.Tensor) -> torch.Tensor:
        _, height, width, _ = x_BHWC.shape
        z_BhwD = self.encoder(x_BHWC)
        for layer in self.layers:
            z_BhwD = layer(z_BhwD)
        return self.decoder(z_BhwD, height, width)


def build_model(config: ModelConfig, in_channels: int, out_channels: int) -> nn.Module:
    return GeoMaNO(config, in_channels, out_channels)
