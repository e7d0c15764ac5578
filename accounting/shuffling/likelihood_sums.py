"""How small the sum of a pass's likelihood ratios may be: a certified Chernoff bound.

Each answer of a pass multiplies the density of "the record is here" by a ratio l with mean one. The
sum of these ratios is what an observer has learnt of where the record is not;
docs/theory/shuffled_batches.md, Lemma 3.
"""

from typing import Final

import numpy as np

from accounting import special
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, Array
from accounting.work_limit import cached_with_cost, spend

_CELLS: Final = 2**14  # of the normal law, from -END to END: sums lose about 1e-4 to their width
_END: Final = 9.0  # beyond lies 1e-19 on each side
# Exponents of the Chernoff bound. Any set is valid; one in eight off the best loses 1 % of what the
# sum lacks of its mean.
_THETAS: Final = np.geomspace(1e-5, 1e5, 96)
# What all roundings together may take from a moment, absolutely. Those of the normal distribution
# function move the sum by their largest, about 1e-15, as the values fall from one to zero.
_MOMENT_ERROR: Final = 1e-12
_EXPONENT_MAX: Final = 700.0  # less of a ratio is a larger moment
_KEPT: Final = 64  # noises


@cached_with_cost(maxsize=_KEPT)
def log_moments(noise_multiplier: float) -> Array:
    """Return log E exp(-theta l) at each exponent, l = e^(v z - v^2/2), v = 2/noise_multiplier.

    The ratio rises in z, so each cell's mass counts at the value of its left end.

    Returns:
        Upper, at most 0, read-only.
    """
    spend(2 * _CELLS * len(_THETAS))
    v = 2 / noise_multiplier
    half = np.diff(special.ndtr(np.linspace(-_END, 0.0, _CELLS // 2 + 1)))
    mass = np.concatenate([half, half[::-1]])
    tail = float(special.ndtr(-_END))
    places = np.linspace(-_END, _END, _CELLS + 1)
    with np.errstate(over="ignore", invalid="ignore"):
        exponents = v * (places - 0.5 * v)
    ratios = np.exp(np.clip(exponents, -_EXPONENT_MAX, _EXPONENT_MAX))
    ratios[exponents < -_EXPONENT_MAX] = 0.0
    found = np.empty_like(_THETAS)
    for place, theta in enumerate(_THETAS):
        values = np.exp(-theta * ratios)
        moment = float(mass @ values[:-1]) + tail * (1 + float(values[-1])) + _MOMENT_ERROR
        found[place] = min(0.0, np.log(moment) + 2 * LIBRARY_ULPS * UNIT_ROUNDOFF)
    found.flags.writeable = False
    return found


def least_sums(*, noise_multiplier: float, log_chance: float, steps: Array) -> Array:
    """Return what the sum of the ratios before each step is at least, up to a small chance.

    With p the chance and M the moment of one ratio, at most one of t ratios being left out,

    lambda_t = max(0, max over theta of (log p - (t-1) log M(theta)) / theta) for t >= 2, else 0.

    Args:
        noise_multiplier: the least sigma of the pass's steps, fixed before it begins.
        log_chance: log p, lower.
        steps: t = 0, 1, .., shape (k,), rising.

    Returns:
        Lower, at least 0, shape (k,).
    """
    spend(len(steps) * len(_THETAS))
    moments = log_moments(noise_multiplier)
    before = np.maximum(steps - 1, 0.0)
    found = np.zeros_like(steps)
    for theta, moment in zip(_THETAS, moments, strict=True):
        gained = -moment * before
        off = 8 * UNIT_ROUNDOFF * (gained + abs(log_chance))
        found = np.maximum(found, (log_chance + gained - off) / theta * (1 - 8 * UNIT_ROUNDOFF))
    return np.where(steps >= 2, found, 0.0)
