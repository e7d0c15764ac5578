"""Where to invert: estimates from real orders, and the window that a share of delta needs.

Nothing here is a bound but log_total_moments; a bad guess makes a bracket wide, never wrong.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting import special
from accounting.events import Direction
from accounting.pld.contour.real_moments import LADDER, LOG_BEST_SHARE, log_moments
from accounting.pld.pairs import Pair
from accounting.rounding import UNIT_ROUNDOFF, Array

Units = Sequence[tuple[Pair, int]]

_GAPS: Final[Array] = np.diff(LADDER)
_SPREADS_MIN: Final = 0.2  # least order, in units of one over the tilted loss's spread


class NoDecayError(ArithmeticError):
    """The transform does not decay fast enough to be summed: use the lattice."""


def log_total_moments(units: Units, direction: Direction) -> Array:
    """Log M of the composition on LADDER. Upper, shape (116,)."""
    total, size = np.zeros_like(LADDER), np.zeros_like(LADDER)
    for pair, count in units:
        term = count * log_moments(pair, direction)
        total = total + term
        size = size + np.abs(term)
    return np.asarray(total + 2 * (len(units) + 2) * UNIT_ROUNDOFF * size)


@dataclass(frozen=True, slots=True)
class Guess:
    """An estimate, never a bound: where on the ladder to invert, and around which epsilon."""

    index: int
    epsilon: float
    log_delta: float
    spread: Array  # standard deviation of the tilted loss by order, (116,)


def _derivatives(log_total: Array) -> tuple[Array, Array]:
    # K' and K'' on the ladder, by the parabola through three neighbours.
    known = np.where(np.isfinite(log_total), log_total, np.nan)
    rises = np.diff(known) / _GAPS
    left, right = _GAPS[:-1], _GAPS[1:]
    slope, bend = np.full_like(known, np.nan), np.full_like(known, np.nan)
    slope[1:-1] = (rises[:-1] * right + rises[1:] * left) / (left + right)
    bend[1:-1] = 2 * np.diff(rises) / (left + right)
    return slope, np.where(bend > 0, bend, np.nan)  # elsewhere rounding hides the curvature


@dataclass(frozen=True, slots=True)
class _Saddle:
    """The tilted loss by order, estimated: all of shape (116,)."""

    mean: Array
    spread: Array  # standard deviation; NaN where rounding hides it
    log_delta: Array  # at epsilon = mean
    usable: npt.NDArray[
        np.bool_
    ]  # not so small an order that rounding decides, and the window would be too wide


def _saddle(log_total: Array) -> _Saddle:
    mean, bend = _derivatives(log_total)
    spread = np.sqrt(bend)
    half = math.sqrt(0.5)
    near, far = LADDER * spread * half, (LADDER + 1) * spread * half
    kernel = 0.5 * (special.erfcx(near) - special.erfcx(far))
    log_delta = log_total - LADDER * mean + np.log(np.maximum(kernel, 1e-300))
    return _Saddle(mean, spread, log_delta, LADDER * spread >= _SPREADS_MIN)


def guess_at_delta(log_total: Array, log_target: float) -> Guess:
    """Where the saddle point puts the epsilon of a delta.

    Raises:
        NoDecayError: nowhere on the ladder.
    """
    found = _saddle(log_total)
    reached = np.flatnonzero(found.usable & (found.log_delta <= log_target))
    if not len(reached):
        raise NoDecayError("The orders that are known do not reach this delta.")
    j = int(reached[0])
    epsilon = float(found.mean[j])
    if j and found.usable[j - 1]:
        before = found.log_delta[j - 1]
        part = float((log_target - before) / (found.log_delta[j] - before))
        epsilon = float(found.mean[j - 1]) + part * float(found.mean[j] - found.mean[j - 1])
    return Guess(j, max(0.0, epsilon), log_target, found.spread)


def guess_at_epsilon(log_total: Array, epsilon: float) -> Guess:
    """Where the saddle point puts the delta of an epsilon.

    Raises:
        NoDecayError: nowhere on the ladder.
    """
    found = _saddle(log_total)
    beyond = np.flatnonzero(found.usable & (found.mean >= epsilon))
    if not len(beyond):
        raise NoDecayError("The orders that are known do not reach this epsilon.")
    j = int(beyond[0])
    away = float(LADDER[j] * (found.mean[j] - epsilon))
    return Guess(j, epsilon, min(-1e-3, float(found.log_delta[j]) + away), found.spread)


def guess_near(log_total: Array, epsilon: float, log_delta: float) -> Guess:
    """Where to invert around an epsilon whose delta is about known.

    The order is the one at which M e^(-lam epsilon) is least.
    """
    found = _saddle(log_total)
    exponents = np.where(found.usable, log_total - LADDER * epsilon, np.inf)
    return Guess(int(np.argmin(exponents)), epsilon, log_delta, found.spread)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the transform is inverted."""

    index: int  # of LADDER
    window: float  # W


def place(log_total: Array, guess: Guess, *, share: float, steps: int) -> Placement:
    """The order that needs the fewest nodes while rounding stays small.

    For each order the window is the least for which the terms it wraps around are below a share of
    delta, by closed form from the other orders.

    Raises:
        NoDecayError: no order has one.
    """
    low, high = max(0, guess.index - 14), min(len(LADDER), guess.index + 22)
    orders, logs = LADDER[low:high], log_total[low:high] + LOG_BEST_SHARE[low:high]
    goal = guess.log_delta + math.log(share / 8) + orders * guess.epsilon
    gap = orders[None, :] - orders[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        widths = (logs[None, :] - goal[:, None]) / np.abs(gap)
    above = np.min(np.where(gap > 0, widths, np.inf), axis=1, initial=np.inf) - guess.epsilon
    below = np.min(np.where(gap < 0, widths, np.inf), axis=1, initial=np.inf)
    windows = np.maximum(above, guess.epsilon + np.minimum(below, -goal / orders))
    amplified = log_total[low:high] - orders * guess.epsilon - guess.log_delta
    with np.errstate(invalid="ignore"):
        lengths = windows * np.sqrt(np.maximum(amplified, 0.0) - math.log(share))
        nodes = lengths / guess.spread[low:high]
    usable = np.isfinite(windows) & (windows > 0) & np.isfinite(amplified) & np.isfinite(nodes)
    if not np.any(usable):
        raise NoDecayError("The orders that are known do not bound the window.")
    # The errors of the moments grow with the steps and with how far M e^(-lam epsilon) is above
    # delta.
    least = float(np.min(amplified[usable]))
    limit = max(least + 1.0, math.log(share / (steps * 1e-13)))
    best = int(np.argmin(np.where(usable & (amplified <= limit), nodes, np.inf)))
    window = float(windows[best]) * 1.01
    return Placement(low + best, 2.0 ** (math.ceil(8 * math.log2(window)) / 8))
