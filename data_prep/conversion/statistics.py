"""Mean and standard deviation of the training split, the same bits for any number of ranks and any order of the work.

Every sample gives its mean and the sum of its squared deviations, in float64. They are combined by the formula of Chan,
Golub and LeVeque (1983), which does not subtract large numbers from each other, with sums that are exact (math.fsum).
"""

import math

import numpy as np

from geomano_hpc.data_prep.store_card import Normaliser

Moments = list[float]  # of a field in one sample: number of values, their mean, sum of squared deviations from it


def moments(values: np.ndarray) -> Moments:
    values = values.astype(np.float64).ravel()
    mean = float(values.mean())
    with np.errstate(invalid="ignore"):  # a sample with Inf is refused elsewhere
        values -= mean
    np.square(values, out=values)
    return [values.size, mean, float(values.sum())]  # not np.dot: BLAS adds in an order that depends on threads


def combine(samples: np.ndarray) -> Normaliser:
    """[sample, 3]: the moments of each."""
    counts, means, squared = (samples[:, column].tolist() for column in range(3))
    total = sum(counts)
    mean = math.fsum(count * one for count, one in zip(counts, means, strict=True)) / total
    squares = math.fsum(squared)
    between = math.fsum(count * (one - mean) ** 2 for count, one in zip(counts, means, strict=True))
    return Normaliser(mean, math.sqrt((squares + between) / total))
