"""Which thread of a program holds which element of a tensor, by Triton's layouts.

A thread is its lane plus its warp times the lanes of a warp. A tensor with fewer elements than the program has threads
is held several times over: then every holder loads it, and only the first of them stores it.
"""

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import NamedTuple

import numpy as np

MANY = -2  # an element that several threads load


@dataclass(frozen=True)
class Blocked:
    """Triton's blocked layout: the elements of an axis go to the registers of a thread (`size`), then to lanes, then to
    warps, then round again. `order` has the fastest axis first."""

    size: tuple[int, ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class Slice:
    """What a layout of one more axis leaves when that axis is taken away: all its threads hold the same."""

    axis: int
    parent: "Layout"


@dataclass(frozen=True)
class Linear:
    """The layout by bits: each bit of the register, lane or warp that is set moves the element by its base."""

    register: tuple[tuple[int, ...], ...]
    lane: tuple[tuple[int, ...], ...]
    warp: tuple[tuple[int, ...], ...]


Layout = Blocked | Slice | Linear


class Holders(NamedTuple):
    first: np.ndarray  # the thread that stores each element
    lanes: bool  # others of its warp hold it, too, and load it
    warps: bool  # as do other warps


def default_layout(shape: tuple[int, ...], warps: int, lanes: int) -> Blocked:
    """What Triton gives a tensor whose pointers promise nothing: one element a thread, lanes along the last axis first,
    then warps, and what is left along the first axis."""
    rank = len(shape)
    lane_axes, warp_axes = [1] * rank, [1] * rank
    threads_left, lanes_left, warps_left = warps * lanes, lanes, warps
    for axis in range(rank - 1, 0, -1):
        threads = min(threads_left, max(1, shape[axis]))
        lane_axes[axis] = max(1, min(threads, lanes_left))
        warp_axes[axis] = max(1, min(threads // lane_axes[axis], warps_left))
        warps_left //= warp_axes[axis]
        lanes_left //= lane_axes[axis]
        threads_left //= threads
    lane_axes[0] = lanes // prod(lane_axes[1:])
    warp_axes[0] = warps // prod(warp_axes[1:])
    return Blocked((1,) * rank, tuple(lane_axes), tuple(warp_axes), tuple(reversed(range(rank))))


@cache
def holders(shape: tuple[int, ...], layout: Layout) -> Holders:
    """Who holds the elements of a tensor [*shape]."""
    if isinstance(layout, Slice):
        inner = holders((*shape[: layout.axis], 1, *shape[layout.axis :]), layout.parent)
        return inner._replace(first=inner.first.reshape(shape))
    if isinstance(layout, Linear):
        return _holders_by_bits(shape, layout)
    lane, warp = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    lane_stride = warp_stride = 1
    several_lanes = several_warps = False
    for axis in layout.order:
        size, lanes, warps = layout.size[axis], layout.lanes[axis], layout.warps[axis]
        index = np.arange(shape[axis], dtype=np.int32).reshape([-1 if a == axis else 1 for a in range(len(shape))])
        lane += index // size % lanes * lane_stride
        warp += index // (size * lanes) % warps * warp_stride
        lane_stride, warp_stride = lane_stride * lanes, warp_stride * warps
        several_lanes |= lanes > 1 and shape[axis] < size * lanes
        several_warps |= warps > 1 and shape[axis] < size * lanes * warps
    return Holders(lane + warp * lane_stride, several_lanes, several_warps)


def _holders_by_bits(shape: tuple[int, ...], layout: Linear) -> Holders:
    places = np.zeros((1, len(shape)), np.int64)
    for bases in (layout.register, layout.lane, layout.warp):  # the register is the fastest
        for base in bases:
            places = np.concatenate([places, places ^ np.array(base, np.int64)])
    thread = np.arange(len(places)) >> len(layout.register)
    first = np.full(shape, np.iinfo(np.int32).max, np.int32)
    last = np.full(shape, -1, np.int32)
    np.minimum.at(first, tuple(places.T), thread)
    np.maximum.at(last, tuple(places.T), thread)
    assert (last >= 0).all(), "a layout that leaves out elements"
    lane_bits = len(layout.lane)
    return Holders(first, bool((first != last).any()), bool((first >> lane_bits != last >> lane_bits).any()))
