"""Ledgers with very many distinct steps: rounded outward onto few, on both sides.

More noise tells less and a larger sampling probability tells more, so a step lies between the two whose
parameters are rounded down and up. A ledger whose every step is so replaced bounds the ledger from above,
and the other way round from below.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting.events import NeighboringRelation
from accounting.guarantees import Status
from accounting.numerics import Array
from accounting.pld.pairs import Pair, SampledGaussianPair
from accounting.theorem import theorem

DISTINCT_MAX: Final = 400  # pairs that are composed one by one
CELLS: Final = 1200  # what more are rounded to, about


@dataclass(frozen=True, slots=True)
class Rounded:
    """Units on each side of what was asked for."""

    upper: list[tuple[Pair, int]]
    lower: list[tuple[Pair, int]]


@theorem(
    id="outward-rounding",
    source="docs/theory/pld.md, Proposition 3; after Dong, Roth and Su 2022, JRSS B, "
    "arXiv:1905.02383v3, Theorem 2.10",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
)
def rounded_outward(units: Iterable[tuple[Pair, int]]) -> Rounded:
    """Few distinct pairs that bound the composition from above, and few that bound it from below.

    Sampled Gaussian pairs are gathered in groups of neighbours; each group is replaced by its least noise
    and largest probability above, and by the opposite below. Other pairs stay as they are.

    Args:
        units: distinct pairs and how often each counts.

    Returns:
        Units on both sides; the same on both where they were few enough to begin with.
    """
    sampled: list[tuple[SampledGaussianPair, int]] = []
    others: list[tuple[Pair, int]] = []
    for pair, count in units:
        if isinstance(pair, SampledGaussianPair):
            sampled.append((pair, count))
        else:
            others.append((pair, count))
    if len(sampled) + len(others) <= DISTINCT_MAX or not sampled:
        return Rounded([*others, *sampled], [*others, *sampled])
    noise = np.array([pair.noise_multiplier for pair, _ in sampled])
    rate = np.array([pair.sampling_probability for pair, _ in sampled])
    counts = np.array([count for _, count in sampled], dtype=object)
    groups = _groups(noise, rate)
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    upper, lower = list(others), list(others)
    total = np.add.reduceat(counts[order], starts)
    least = np.minimum.reduceat(noise[order], starts)
    most = np.maximum.reduceat(noise[order], starts)
    rarest = np.minimum.reduceat(rate[order], starts)
    likeliest = np.maximum.reduceat(rate[order], starts)
    for i, count in enumerate(total):
        upper.append((_pair(least[i], likeliest[i]), int(count)))
        lower.append((_pair(most[i], rarest[i]), int(count)))
    return Rounded(upper, lower)


def _pair(noise: float, rate: float) -> SampledGaussianPair:
    return SampledGaussianPair(noise_multiplier=float(noise), sampling_probability=float(rate))


def _groups(noise: Array, rate: Array) -> Array:
    """A group number for each pair; groups are cells of a grid on which a step's cost is even.

    A step costs about its standard deviation, log(rate) + log(e^(1/noise^2) - 1)/2. Along the noise, cells
    are even in that; along the rate, even in its logarithm. If only one of the two varies it
    gets all the cells.
    """
    inverse = 1 / np.square(noise)
    cost = 0.5 * np.where(inverse < 30, np.log(np.expm1(np.minimum(inverse, 30.0))), inverse)
    log_rate = np.log(rate)
    spans = np.array([np.ptp(cost), np.ptp(log_rate)])
    if not np.any(spans > 0):
        return np.zeros(len(noise))
    # Occupied cells are counted: along a curve they are few, so the grid may be finer than square.
    size = float(np.sum(spans)) / CELLS
    while True:
        cells = np.floor((cost - np.min(cost)) / size) * (math.ceil(spans[1] / size) + 1)
        cells = cells + np.floor((log_rate - np.min(log_rate)) / size)
        if len(np.unique(cells)) <= CELLS:
            return np.asarray(cells)
        size *= 1.2


THEOREMS = (rounded_outward,)
