"""Binomial laws: windows of probabilities around the mode, and tails, each with its error."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting import special
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, Array

_U: Final = UNIT_ROUNDOFF
TRIALS_MAX: Final = 10**8  # a window is at most 80 sqrt(trials) wide: a million numbers
LEAST: Final = 1e-290  # of what is kept, relative to the mode: products stay normal numbers
# Relative error of one step from a probability to the next: the odds, four operations.
_STEP: Final = (2 * LIBRARY_ULPS + 8) * _U
# Relative error of a fair binomial's tail, as an incomplete beta function of up to TRIALS_FAIR
# trials; tests hold it against mpmath, where it is below 1e-12.
TAIL: Final = 1e-11
TRIALS_FAIR: Final = 10**7


@dataclass(frozen=True, slots=True)
class Window:
    """Probabilities of the counts first, first + 1, ...; the others are unlikely."""

    first: int
    masses: Array
    error: float  # relative, of each
    left_out: float  # chance of all other counts; upper


def window(trials: int, *, odds: float, cut: float) -> Window:
    """The law of a binomial where it is at least `cut` times its largest probability.

    From the mode outwards each probability is the one before times (n - x) odds / (x + 1) or its
    inverse; they are then divided by their sum. Only products: no logarithm of a factorial, and an
    error that grows with the distance from the mode alone. Beyond the window the ratios fall
    further, so that what is left out is below a geometric series.

    Args:
        trials: n, in [0, TRIALS_MAX].
        odds: p / (1-p), >= 0 and finite; known to a few roundoffs.
        cut: in [LEAST, 1e-3].

    Returns:
        The window. Its error takes in what is left out.

    Raises:
        ValueError: an argument is out of range.
    """
    if not (0 <= trials <= TRIALS_MAX and 0 <= odds < math.inf and LEAST <= cut <= 1e-3):
        raise ValueError(
            f"trials lie in [0, {TRIALS_MAX}], odds in [0, inf), cut in [1e-290, 1e-3]"
        )
    p = odds / (1 + odds)
    mode = min(trials, int((trials + 1) * p))
    depth = -math.log(cut)
    reach = math.ceil(math.sqrt(2 * depth * (trials * p * (1 - p) + 1)) + depth)
    up = np.arange(mode, min(trials, mode + reach), dtype=np.float64)
    down = np.arange(mode, max(0, mode - reach), -1, dtype=np.float64)
    with np.errstate(under="ignore"):
        rising = np.cumprod((trials - up) / (up + 1) * odds)
        # Where the odds are zero the mode is zero, and nothing is below it.
        falling = np.cumprod(down / ((trials - down + 1) * odds)) if len(down) else down
    # Monotone on either side of the mode, so that what is kept is without gaps.
    rising, falling = rising[rising >= cut], falling[falling >= cut]
    masses = np.concatenate((falling[::-1], [1.0], rising))
    masses /= np.sum(masses)
    first, last = mode - len(falling), mode + len(rising)
    error = len(masses) * (_STEP + _U) + 8 * _U
    left_out = float(masses[-1]) * _series((trials - last) / (last + 1) * odds)
    if first:
        left_out += float(masses[0]) * _series(first / ((trials - first + 1) * odds))
    left_out *= 1 + 2 * error
    return Window(first, np.asarray(masses, dtype=np.float64), error + 2 * left_out, left_out)


def _series(ratio: float) -> float:
    """Sum of ratio^j over j >= 1. Upper; infinite where it does not converge."""
    ratio *= 1 + 2 * _STEP
    return ratio / (1 - ratio) * (1 + 4 * _U) if ratio < 1 else math.inf


def sum_window(first: Window, second: Window) -> Window:
    """The law of the sum of two independent counts: a convolution of positive numbers."""
    masses = np.convolve(first.masses, second.masses)
    shorter = min(len(first.masses), len(second.masses))
    error = (first.error + second.error) * (1 + first.error) + (shorter + 2) * _U
    left_out = (first.left_out + second.left_out) * (1 + _U)
    # Sums at which a left-out count takes part are missing: their masses are too small by that.
    return Window(first.first + second.first, masses, error, left_out)


def fair_tails(trials: Array, least: Array) -> Array:
    """P(Bin(trials, 1/2) >= least), elementwise; relative error at most TAIL.

    Args:
        trials: in [0, TRIALS_FAIR], whole numbers, shape (k,).
        least: whole numbers, shape (k,).
    """
    inside = (least > 0) & (least <= trials)
    a = np.where(inside, least, 1.0)
    tails = special.betainc(a, np.where(inside, trials - least + 1, 1.0), 0.5)
    return np.asarray(np.where(inside, tails, np.where(least <= 0, 1.0, 0.0)), dtype=np.float64)
