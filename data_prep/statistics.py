"""Mean and standard deviation of the training split, the same bits for any number of ranks and any order of the work.

Every sample gives its mean and the sum of its squared deviations, in float64. They are combined by the formula of Chan,
Golub and LeVeque (1983), which does not subtract large numbers from each other, with sums that are exact (math.fsum).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from geomano_hpc.data_prep.store import Normaliser


@dataclass(frozen=True)
class Moments:
    """Of one sample: the number of its values, their mean, and the sum of the squared deviations from it."""

    count: int
    mean: float
    squares: float


def moments(sample: np.ndarray) -> Moments:
    values = sample.astype(np.float64).ravel()
    mean = float(values.mean())
    with np.errstate(invalid="ignore"):  # a sample with Inf is refused elsewhere
        values -= mean
    np.square(values, out=values)
    return Moments(values.size, mean, float(values.sum()))  # not np.dot: BLAS adds in an order that depends on threads


def combine(samples: Sequence[Moments]) -> Normaliser:
    count = sum(one.count for one in samples)
    mean = math.fsum(one.count * one.mean for one in samples) / count
    squares = math.fsum(one.squares for one in samples)
    between = math.fsum(one.count * (one.mean - mean) ** 2 for one in samples)
    return Normaliser(mean, math.sqrt((squares + between) / count))
