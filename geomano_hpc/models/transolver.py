"""Transolver for structured 2D grids (Wu et al., "Transolver: A Fast Transformer Solver for PDEs on General
Geometries", ICML 2024), the strongest baseline of the paper. An implementation of our own with the published sizes.

Physics-Attention assigns the points to G slices, attends between the slices, and gives the result back to the points.
Axes: B batch, H x W grid (P points), D embedding, M heads, c = D / M channels of a head, G slices, C channels.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from geomano_hpc.config import ModelConfig, register_model
from geomano_hpc.models.parts.grid_model import GridModel
from geomano_hpc.models.parts.stack import LayerStack


class TransolverConfig(ModelConfig):
    """Transolver for structured 2D grids. The defaults are its published configuration for Darcy flow; that for
    Navier-Stokes has embedding 256 and 32 slices."""

    name: Literal["transolver"] = "transolver"
    depth: int = Field(default=8, gt=0)
    embedding: int = Field(default=128, gt=0)
    heads: int = Field(default=8, gt=0)
    slices: int = Field(default=64, gt=0, description="physical states that the points are assigned to")
    mlp_ratio: float = Field(default=1.0, gt=0)
    reference: int = Field(default=8, gt=0, description="positions are distances to a grid of so many points a side")

    def model_post_init(self, _context: Any) -> None:
        if self.embedding % self.heads:
            raise ValueError(f"embedding {self.embedding} is not a multiple of heads {self.heads}")


class PhysicsAttention(nn.Module):
    """Slice, attend, deslice. On structured grids the points are projected by 3 x 3 convolutions."""

    def __init__(self, config: TransolverConfig) -> None:
        super().__init__()
        D, self.heads = config.embedding, config.heads
        c = D // config.heads
        self.to_slices = nn.Conv2d(D, D, kernel_size=3, padding=1)
        self.to_values = nn.Conv2d(D, D, kernel_size=3, padding=1)
        self.slice_projection = nn.Linear(c, config.slices)
        self.temperature = nn.Parameter(torch.full((1, config.heads, 1, 1), 0.5))
        self.query = nn.Linear(c, c, bias=False)
        self.key = nn.Linear(c, c, bias=False)
        self.value = nn.Linear(c, c, bias=False)
        self.out_projection = nn.Linear(D, D)

    def forward(self, x_BHWD: torch.Tensor) -> torch.Tensor:
        height, width = x_BHWD.shape[1:3]
        x_BDHW = x_BHWD.movedim(-1, 1)
        logits_BMPG = self.slice_projection(self._heads(self.to_slices(x_BDHW)))
        # The temperature is kept where the softmax is neither a hard choice nor uniform.
        w_BMPG = (logits_BMPG / self.temperature.clamp(min=0.1, max=5.0)).softmax(dim=-1)
        # A slice's token is the mean of its points, weighted by how much they belong to it.
        token_BMGc = w_BMPG.mT @ self._heads(self.to_values(x_BDHW))
        token_BMGc = token_BMGc / (w_BMPG.sum(dim=2).unsqueeze(-1) + 1e-5)
        mixed_BMGc = F.scaled_dot_product_attention(
            self.query(token_BMGc), self.key(token_BMGc), self.value(token_BMGc)
        )
        y_BPD = (w_BMPG @ mixed_BMGc).transpose(1, 2).flatten(2)
        return self.out_projection(y_BPD).unflatten(1, (height, width))

    def _heads(self, x_BDHW: torch.Tensor) -> torch.Tensor:
        """[B, D, H, W] -> [B, M, P, c]"""
        return x_BDHW.flatten(2).unflatten(1, (self.heads, -1)).mT


class TransolverLayer(nn.Module):
    """Pre-norm attention and MLP, each with a residual."""

    def __init__(self, config: TransolverConfig) -> None:
        super().__init__()
        D, hidden = config.embedding, round(config.mlp_ratio * config.embedding)
        self.attention_norm = nn.LayerNorm(D)
        self.attention = PhysicsAttention(config)
        self.mlp_norm = nn.LayerNorm(D)
        self.mlp = nn.Sequential(nn.Linear(D, hidden), nn.GELU(), nn.Linear(hidden, D))

    def forward(self, x_BHWD: torch.Tensor) -> torch.Tensor:
        x_BHWD = x_BHWD + self.attention(self.attention_norm(x_BHWD))
        return x_BHWD + self.mlp(self.mlp_norm(x_BHWD))


@register_model
class Transolver(GridModel):
    """Channels last: [B, H, W, in_channels] -> [B, H, W, out_channels], on any grid. Keywords are those of
    TransolverConfig.

    >>> import torch
    >>> from geomano_hpc.models.transolver import Transolver
    >>> model = Transolver(in_channels=3, out_channels=1, depth=1, embedding=16, heads=2, slices=4)
    >>> model(torch.zeros(2, 9, 11, 3)).shape
    torch.Size([2, 9, 11, 1])
    """

    Config = TransolverConfig

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        grid: tuple[int, int] | None = None,
        config: TransolverConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__(in_channels, out_channels)
        config = TransolverConfig.chosen(config, options)
        D = config.embedding
        self.reference = config.reference
        self.lift = nn.Sequential(nn.Linear(in_channels + config.reference**2, 2 * D), nn.GELU(), nn.Linear(2 * D, D))
        self.offset = nn.Parameter(torch.rand(D) / D)  # the published model counts it, too
        self.layers = LayerStack(TransolverLayer(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(D)
        self.project = nn.Linear(D, out_channels)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x_BHWC: torch.Tensor) -> torch.Tensor:
        self.check_input(x_BHWC)
        position_BHWR = self._positions(x_BHWC).expand(len(x_BHWC), -1, -1, -1)
        z_BHWD = self.lift(torch.cat([position_BHWR, x_BHWC], dim=-1)) + self.offset
        return self.project(self.norm(self.layers(z_BHWD)))

    def _positions(self, x_BHWC: torch.Tensor) -> torch.Tensor:
        """The distance of each point to each point of a fixed reference grid in the unit square, [1, H, W, R * R]."""
        height, width = x_BHWC.shape[1:3]
        points_HW2 = _unit_square(height, width, x_BHWC.device)
        references_RR2 = _unit_square(self.reference, self.reference, x_BHWC.device)
        differences = points_HW2[:, :, None] - references_RR2.flatten(0, 1)
        return torch.linalg.vector_norm(differences, dim=-1)[None].to(x_BHWC.dtype)

    def dense_parts(self) -> list[nn.Module]:
        return [self.lift, *self.layers]


def _unit_square(height: int, width: int, device: torch.device) -> torch.Tensor:
    """Coordinates of a grid that includes the boundary, [H, W, 2]."""
    along = [torch.linspace(0, 1, n, device=device) for n in (height, width)]
    return torch.stack(torch.meshgrid(*along, indexing="ij"), dim=-1)
