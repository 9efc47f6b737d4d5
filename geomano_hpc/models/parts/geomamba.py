"""GeoMamba kernel (Algorithm 1): the four-way scan with its projections, convolution and gate.

What is ours and not the paper's is off by default: larger convolutions, a spectral branch, B and C with a bias, other
ways out, other time steps to begin with, and axes that are rings. So is the exact zero-order hold of the appendix.

Axes: B batch, h x w patch grid, D embedding, E = expand * D channels of the scan, K directions, N dstates, r rank of
the time step.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import nn

from geomano_hpc.kernels import geo_scan, negative_exp, order_set, split_rows
from geomano_hpc.models.parts.local import DepthwiseConv
from geomano_hpc.models.parts.sampling import AS_TRAINED, Sampling
from geomano_hpc.models.parts.spectral import SpectralBranch
from geomano_hpc.models.parts.stack import keeping_inputs
from geomano_hpc.models.parts.way_out import WayOut, WithWayOut


class GeoMambaKernel(WithWayOut):
    """Algorithm 1. Mamba's initialisation of dt, A and D; the correction R is absent, a fixed mask, or learnable."""

    R: torch.Tensor | None
    dt_weight: nn.Parameter | None

    def __init__(
        self,
        embedding: int,
        *,
        dstate: int = 16,
        expand: int = 1,
        kind: str = "2d",
        orders: str = "paper",
        correction: str = "0011",
        correction_form: str = "equation",
        dt_rank: int | Literal["auto", "full"] = "auto",
        dt_range: tuple[float, float] = (1e-3, 1e-1),
        conv_size: int = 3,
        scan_bias: bool = False,
        exact_hold: bool = False,
        spectral_modes: int = 0,
        way_out: WayOut = "gated",
        activation: str = "silu",
        backend: str = "auto",
    ) -> None:
        """The keys are those of GeomanoConfig."""
        super().__init__(way_out, backend)
        self.kind = kind
        self.correction_form = correction_form
        self.exact_hold = exact_hold
        self.orders = order_set(orders)
        K, N = len(self.orders), dstate
        D = embedding
        E = expand * D
        is_full = dt_rank == "full"  # Algorithm 1 read literally: one Linear gives Delta, B and C
        self.dt_rank = E if is_full else math.ceil(D / 16) if dt_rank == "auto" else int(dt_rank)
        self.dstate = N

        self.in_projection = nn.Linear(D, E)
        self.convolution = DepthwiseConv(E, conv_size, activation=activation, backend=backend)
        self.scan_projection = nn.Linear(E, K * (self.dt_rank + 2 * N), bias=scan_bias)
        self.dt_weight = None if is_full else nn.Parameter(_dt_weight(K, E, self.dt_rank))
        self.dt_bias = nn.Parameter(_dt_bias(K, E, *dt_range))
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, N + 1)).expand(K, E, N).clone())
        self.skip = nn.Parameter(torch.ones(K, E))
        if correction == "learnable":
            self.R = nn.Parameter(torch.zeros(K, E, N))  # zero is the vanilla SSM
        elif correction == "none":
            self.R = None
        else:
            mask_K = torch.tensor([float(digit) for digit in correction])
            self.register_buffer("R", mask_K[:, None, None].expand(K, E, N).clone(), persistent=False)
        self.add_way_out(E, D)
        self.spectral = SpectralBranch(E, spectral_modes) if spectral_modes else None

    def forward(
        self,
        z_BhwD: torch.Tensor,
        pre_norm: Callable[[torch.Tensor], torch.Tensor] | None = None,
        where: Sampling = AS_TRAINED,
    ) -> torch.Tensor:
        """`pre_norm` of a layer is computed again in the backward, like what else costs little."""
        z_BhwE = keeping_inputs(lambda z: self.in_projection(z if pre_norm is None else pre_norm(z)), z_BhwD)
        x_BhwE, projected = keeping_inputs(lambda z: self._scan_inputs(z, where), z_BhwE)
        kind, rings = self._kind_and_rings(z_BhwE, where)

        per_direction = projected.unflatten(-1, (len(self.orders), -1))
        dt, B, C = split_rows(per_direction, (self.dt_rank, self.dstate, self.dstate), self.backend)
        y_BhwE = geo_scan(
            x_BhwE,
            dt,
            negative_exp(self.A_log, self.backend),
            B,
            C,
            D=self.skip,
            R=self.R,
            dt_bias=self.dt_bias,
            dt_weight=self.dt_weight,
            orders=self.orders,
            kind=kind,
            correction=self.correction_form,
            spacing=where.spacing,
            periodic=rings,
            exact_hold=self.exact_hold,
            backend=self.backend,
        )
        if self.spectral is not None:
            y_BhwE = y_BhwE + self.spectral(x_BhwE)
        return self.out(y_BhwE, z_BhwE)

    def _kind_and_rings(self, z_BhwE: torch.Tensor, where: Sampling) -> tuple[str, tuple[bool, bool]]:
        """A 1d scan of a plane is closed nowhere; that of a line is a 2d scan of one row, and that can be closed."""
        if self.kind == "2d":
            return "2d", where.periodic
        is_closed_line = where.periodic[1] and z_BhwE.shape[1] == 1
        return ("2d", where.periodic) if is_closed_line else ("1d", (False, False))

    def _scan_inputs(self, z_BhwE: torch.Tensor, where: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
        x_BhwE = self.convolution(z_BhwE, where.spacing, where.periodic)
        return x_BhwE, self.scan_projection(x_BhwE)


def _dt_weight(K: int, E: int, rank: int) -> torch.Tensor:
    return torch.empty(K, E, rank).uniform_(-(rank**-0.5), rank**-0.5)


def _dt_bias(K: int, E: int, smallest: float, largest: float) -> torch.Tensor:
    """softplus(bias) is log-uniform between the smallest and the largest time step, as in Mamba."""
    dt = torch.exp(torch.empty(K, E).uniform_(math.log(smallest), math.log(largest)))
    return dt + torch.log(-torch.expm1(-dt))  # inverse of softplus
