"""What a pass of balls and bins attains where a record is replaced by its opposite.

The record contributes 1 and its replacement -1, the others nothing. Of the answers only a sum of
step functions is told: its law is a convolution of masses, in which every term is positive.
docs/theory/allocation.md, section 5, has the proof.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting.pld.dense_pairs import cell_masses
from accounting.pld.pairs import DensePair, GaussianPair, ReplacedGaussianPair
from accounting.pld.profiles import replaced_loss
from accounting.rounding import UNIT_ROUNDOFF, Array
from accounting.work_limit import cached_with_cost, spend

PAIRS_KEPT: Final = 64  # of 0.07 MB each
STEPS_MAX: Final = 10**6  # beyond, rounding of as many sums takes too much from the masses
_HALF: Final = 2000  # values on either side of zero that a sum may take; others are one value
_FAR: Final = 6.0  # standard deviations of a step's noise that its value grows with
_SPREAD: Final = 7.0  # standard deviations of the sum that its values take in
_TINY: Final = 1e-290  # what products that underflow may add up to


@dataclass(frozen=True, slots=True)
class _Law:
    """Masses of the values -k, ..., k of a sum, and of all others together. Both sides bounded."""

    lower: Array
    upper: Array
    others: float  # upper

    def plus(self, other: "_Law") -> "_Law":
        """The law of the sum with an independent one."""
        spend(len(self.lower) * len(other.lower) // 2)
        lower, upper = (
            np.convolve(one, two)
            for one, two in ((self.lower, other.lower), (self.upper, other.upper))
        )
        lost = self.others + other.others
        cut = (len(upper) - 1) // 2 - _HALF
        if cut > 0:
            lost += float(np.sum(upper[:cut]) + np.sum(upper[-cut:]))
            lower, upper = lower[cut:-cut], upper[cut:-cut]
        return _Law(lower, upper, lost)

    def times(self, count: int) -> "_Law":
        """The law of the sum of so many independent ones, count >= 0."""
        if count == 0:
            return _Law(np.ones(1), np.ones(1), 0.0)
        half = self.times(count // 2)
        both = half.plus(half)
        return both.plus(self) if count % 2 else both


@cached_with_cost(maxsize=PAIRS_KEPT)
def mirrored_lower_pair(
    *, noise_multiplier: float, steps_per_pass: int, steps: int
) -> DensePair | GaussianPair:
    """What balls and bins attain where `steps` of a pass were released and a record is replaced.

    Args:
        noise_multiplier: sigma, > 0; the largest of the pass.
        steps_per_pass: T, >= 1.
        steps: s, in [1, T], at most STEPS_MAX.

    Returns:
        A pair that the pass dominates, in both orders alike. Lower: the masses of P are rounded
        down and those of Q up.
    """
    sigma = noise_multiplier
    if steps_per_pass == 1:
        return GaussianPair(noise_multiplier=sigma / 2)
    edges = _edges(sigma, steps_per_pass, steps)
    nothing, moved = (_cells(sigma, mean, edges) for mean in (0.0, 1.0))
    rest = nothing.times(steps - 1)
    here, absent = rest.plus(moved), rest.plus(nothing)
    share = steps / steps_per_pass
    # Each of the s masses of a product may be off by the roundoffs of as many sums.
    off = 2 * steps * (2 * _HALF + 8) * UNIT_ROUNDOFF
    first = (share * here.lower + (1 - share) * absent.lower) * (1 - off)
    second = (share * here.upper + (1 - share) * absent.upper)[::-1] * (1 + off)
    lost = max(here.others, absent.others) * (1 + off) + _TINY
    return DensePair(
        first=(*np.maximum(first - _TINY, 0.0).tolist(), 0.0),
        second=(*(second + _TINY).tolist(), lost),
    )


def _edges(sigma: float, length: int, steps: int) -> Array:
    """Where a step's value changes: it is about its loss if the other steps tell nothing."""
    pair = ReplacedGaussianPair(noise_multiplier=sigma, sampling_probability=1 / length)
    reach = 1 + _FAR * sigma
    x = np.linspace(-reach, reach, 1001)
    log_rest = math.log(length - 1)
    exponents = (x - 0.5) / (sigma * sigma)
    values = np.logaddexp(log_rest, exponents) - np.logaddexp(log_rest, exponents[::-1])
    density = np.exp(-0.5 * (x / sigma) ** 2)
    spread = math.sqrt(float(values**2 @ density) / float(np.sum(density)))
    width = (_SPREAD * math.sqrt(steps) * spread + float(values[-1])) / _HALF
    count = max(1, int(values[-1] / width))
    values = np.asarray(width * (np.arange(-count, count) + 0.5), dtype=np.float64)
    return np.asarray(sigma * sigma * replaced_loss(pair, values)[0])


def _cells(sigma: float, mean: float, edges: Array) -> _Law:
    mass, error = cell_masses([(1.0, mean)], edges, sigma)
    return _Law(np.maximum(mass - error, 0.0), mass + error + _TINY, 0.0)
