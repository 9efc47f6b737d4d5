"""What the adjoints of the 1d and the 2d scan share: the gradients of a tile from its states and adjoint states.

The equations are in triton_backward. A tile is [P, BE], P positions and a block of channels.
"""
# mypy: disable-error-code="no-untyped-def"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.tiles import only_if, softplus_slope


@triton.jit
def correct(h, mu, bx, dy_tile, C_p, R_e, CORRECTION: tl.constexpr):
    """What C reads of the states, and the gradient of Bx: h and mu with the correction of one dstate."""
    read = h
    direct = mu
    if CORRECTION == 1:
        direct = mu - R_e[None, :] * dy_tile
    if CORRECTION == 2:
        direct = mu - C_p[:, None] * R_e[None, :] * dy_tile
        read = h - R_e[None, :] * bx
    return read, direct


@triton.jit
def correction_gradient(bx, dy_tile, C_p, CORRECTION: tl.constexpr):
    """dR [BE] of one dstate."""
    corrected = bx * dy_tile
    if CORRECTION == 2:
        corrected *= C_p[:, None]
    return -tl.sum(corrected, axis=0)


@triton.jit
def write_gradients(
    dx, ddt, D, offset, ddt_offset, channel, is_channel, is_element, first, x_tile, dy_tile, delta, du, ddelta,
    FULL_DT: tl.constexpr,
):  # fmt: skip
    """Add to dx what a block's d(delta x) and d(delta) mean for it, and return the gradient of the time step before
    the softplus, which is that of a full dt."""
    skip_e = tl.load(D + channel, mask=is_channel, other=0.0)
    before = tl.load(dx + offset, mask=only_if(is_element, 1 - first), other=0.0)
    tl.store(dx + offset, before + du * delta + skip_e[None, :] * dy_tile, mask=is_element)
    draw = (ddelta + du * x_tile) * softplus_slope(delta)
    if FULL_DT:
        tl.store(ddt + ddt_offset, draw, mask=is_element)
    return draw
