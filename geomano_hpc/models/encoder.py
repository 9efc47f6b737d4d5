"""Geometry-aware encoder and decoder (section "Geometry-Aware Encoder and Decoder").

Axes: B batch, H x W grid points, h x w patches, P = patch * patch points of a patch, D embedding.
The input-adaptive weights W are a softmax over the points of each patch, per feature; with patch 1 they are one and
are left out. (Our reading: the paper's literal W mixes the whole domain into every patch.)
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    """Y = Linear(X), W = Softmax(Linear(Y)), Z = LayerNorm(W^T Y), with positional encoding where asked for."""

    def __init__(self, in_channels: int, embedding: int, patch: int, positional_encoding: bool) -> None:
        super().__init__()
        self.patch = patch
        self.lift = nn.Sequential(nn.Linear(in_channels, embedding), nn.GELU(), nn.Linear(embedding, embedding))
        self.weights = nn.Linear(embedding, embedding) if patch > 1 else None
        self.position = PositionalEncoding(embedding) if positional_encoding else None
        self.norm = nn.LayerNorm(embedding)

    def forward(self, x_BHWC: torch.Tensor) -> torch.Tensor:
        z_BhwD = self.lift(x_BHWC)
        if self.weights is not None:
            y_BhwPD = to_patches(z_BhwD, self.patch)
            z_BhwD = (self.weights(y_BhwPD).softmax(dim=-2) * y_BhwPD).sum(dim=-2)
        if self.position is not None:
            z_BhwD = z_BhwD + self.position(z_BhwD)
        return self.norm(z_BhwD)


class Decoder(nn.Module):
    """W = Softmax(Linear(Z)), Y = W^T Z, X = Linear(LayerNorm(Y)).

    (Our reading: a LayerNorm last, as printed, would return a constant for one output channel.)
    """

    def __init__(self, embedding: int, out_channels: int, patch: int) -> None:
        super().__init__()
        self.patch = patch
        self.weights = nn.Linear(embedding, patch * patch * embedding) if patch > 1 else None
        self.norm = nn.LayerNorm(embedding)
        self.project = nn.Linear(embedding, out_channels)

    def forward(self, z_BhwD: torch.Tensor, height: int, width: int) -> torch.Tensor:
        y_BHWD = z_BhwD
        if self.weights is not None:
            w_BhwPD = self.weights(z_BhwD).unflatten(-1, (self.patch**2, -1)).softmax(dim=-2)
            y_BHWD = from_patches(w_BhwPD * z_BhwD.unsqueeze(-2), self.patch)[:, :height, :width]
        return self.project(self.norm(y_BHWD))


def to_patches(y_BHWD: torch.Tensor, patch: int) -> torch.Tensor:
    """Cut into patches of patch x patch points, [B, h, w, P, D]; a grid that does not divide repeats its last line."""
    _, height, width, _ = y_BHWD.shape
    bottom, right = -height % patch, -width % patch
    if bottom or right:
        y_BHWD = F.pad(y_BHWD.movedim(-1, 1), (0, right, 0, bottom), mode="replicate").movedim(1, -1)
    rows = y_BHWD.unflatten(1, (-1, patch)).unflatten(3, (-1, patch))  # B, h, p, w, p, D
    return rows.transpose(2, 3).flatten(3, 4)


def from_patches(y_BhwPD: torch.Tensor, patch: int) -> torch.Tensor:
    rows = y_BhwPD.unflatten(3, (patch, patch)).transpose(2, 3)  # B, h, p, w, p, D
    return rows.flatten(3, 4).flatten(1, 2)


class PositionalEncoding(nn.Module):
    """Sines and cosines of the coordinates of the patch centres in the unit square, projected to the embedding.

    Coordinates are relative to the domain, so no parameter depends on the size of the grid.
    """

    frequencies: torch.Tensor

    def __init__(self, embedding: int, n_frequencies: int = 8) -> None:
        super().__init__()
        self.register_buffer("frequencies", math.pi * 2.0 ** torch.arange(n_frequencies) / 2, persistent=False)
        self.project = nn.Linear(4 * n_frequencies, embedding)

    def forward(self, z_BhwD: torch.Tensor) -> torch.Tensor:
        _, h, w, _ = z_BhwD.shape
        along = [(torch.arange(n, device=z_BhwD.device) + 0.5) / n for n in (h, w)]
        centres = torch.meshgrid(*along, indexing="ij")
        angles = torch.stack(centres, dim=-1)[..., None].to(z_BhwD.dtype) * self.frequencies
        features = torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return self.project(features)
