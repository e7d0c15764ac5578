"""What is known of interpolated steps from the two pairs that they lie between.

With A and B the moments of near and far, a step of share s has s A + (1 - s) B.
docs/theory/interpolated_noises.md has the proofs.
"""

import math
from typing import Final

import numpy as np

from accounting.pld.pairs import (
    InterpolatedSteps,
    MixturePair,
)
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, Array

_U: Final = 16 * LIBRARY_ULPS * UNIT_ROUNDOFF
_EXPONENT_MAX: Final = 600.0


def density_ratio(near: MixturePair, far: MixturePair) -> float:
    """The most that far's density of a loss may be, over near's at the same loss. Upper.

    It is (sigma'/sigma) e^((1/sigma^2 - 1/sigma'^2)/2), sigma' the larger noise, in either order of
    the pairs; infinite where it exceeds what a double holds.
    """
    one, other = near.noise_multiplier, far.noise_multiplier
    exponent = 0.5 * (1 / one - 1 / other) * (1 / one + 1 / other)
    return other / one * math.exp(exponent) * (1 + _U) if exponent < _EXPONENT_MAX else math.inf


def log_moments_of_coins(coins: InterpolatedSteps, near: Array, far: Array) -> Array:
    """Log of the product of the steps' moments, by order, of shares in [0, 1]. Upper, shape (k,).

    Args:
        coins: the steps.
        near: upper log moments of the pair of that name, shape (k,); they may be infinite.
        far: the same of the other.
    """
    shares, counts = _columns(coins)
    known = np.isfinite(near) & np.isfinite(far)
    low, high = np.where(known, far, 0.0), np.where(known, near, 0.0)
    gap = np.minimum(high - low, _EXPONENT_MAX)
    logs = np.where(high - low > gap, high, low + np.log1p(shares * np.expm1(gap)))
    sizes = np.sum(counts * (np.abs(logs) + np.abs(low) + np.abs(high)), axis=0)
    total = np.sum(counts * logs, axis=0) + (_U + 4 * len(counts) * UNIT_ROUNDOFF) * sizes
    return np.asarray(np.where(known, total, np.inf), dtype=np.float64)


def log_modulus_of_steps(
    pair: InterpolatedSteps, near: Array, far: Array, log_moment: float
) -> Array:
    """Log |phi| of the product of the steps. Upper, shape (k,).

    A coin between two laws has a transform of at most the larger modulus. A prolonged line leaves
    near a density of at least kept times its own, so a law of at least that mass, over its moment.

    Args:
        pair: the steps.
        near: upper log moduli of the pair of that name, <= 0, shape (k,).
        far: the same of the other.
        log_moment: of near at the order. Upper.
    """
    total = np.zeros_like(near)
    ratio = density_ratio(pair.near, pair.far)
    missing = -np.expm1(near)  # at least what a transform of near lacks to one
    for share, count in zip(pair.shares, pair.counts, strict=True):
        if share <= 1:
            total += count * np.maximum(near, far)
            continue
        kept = share - (share - 1) * ratio
        # (s A - (s - 1) B) / A is at most s - (s - 1) / A, for no moment is below one.
        mass = kept / (share - (share - 1) * math.exp(-log_moment)) * (1 - 2 * _U)
        total += count * np.log1p(-min(max(mass, 0.0), 1.0) * missing)
    return np.asarray(np.minimum(total * (1 - 1e-9), 0.0), dtype=np.float64)


def _columns(pair: InterpolatedSteps) -> tuple[Array, Array]:
    """(shares, counts), of shape (steps, 1)."""
    shares = np.array(pair.shares, dtype=np.float64)
    return shares[:, None], np.array(pair.counts, dtype=np.float64)[:, None]
