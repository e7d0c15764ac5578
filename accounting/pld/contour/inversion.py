"""The inversion of one composition: where it is done, what is read there, and every error it has.

An estimate from real orders says on which vertical line to invert, and the window that a share of
delta needs: a bad guess makes a bracket wide, never wrong. Each error of what is read is a function
of its own, derived in docs/theory/contour.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting import special
from accounting.events import Direction
from accounting.pld.contour.real_moments import LADDER, LOG_BEST_SHARE, log_moments
from accounting.pld.pairs import Units
from accounting.rounding import UNIT_ROUNDOFF, Array, ComplexArray

_GAPS: Final[Array] = np.diff(LADDER)
_SPREADS_MIN: Final = 0.2  # least order, in units of one over the tilted loss's spread
_NEWTON_STEPS: Final = 60
_OUTWARD_STEPS: Final = 60
_NEAR_ENOUGH: Final = 1e-6  # Newton then is within about its square
_LOG_SCALE_MAX: Final = 600.0


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


# What is read on the line, and its errors


def log_alias(log_total: Array, index: int, *, window: float, epsilon: float) -> float:
    """Log of sum over m != 0 of e^(lam (epsilon + m W)) delta(epsilon + m W). Upper.

    delta(x) is at most c(l) M(l) e^(-l x) for any order l, and at most one. A larger order bounds
    the terms with m > 0 by a geometric series, a smaller one or one itself those with m < 0.
    """
    order = LADDER[index]
    window = window * (1 - 8 * UNIT_ROUNDOFF)
    gaps = LADDER - order
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # at the order itself
        logs = log_total + LOG_BEST_SHARE - np.abs(gaps) * window - gaps * epsilon
        logs = logs - np.log(-np.expm1(-np.abs(gaps) * window))
    above = np.min(logs[index + 1 :], initial=np.inf)
    certain = order * (epsilon - window) - math.log(-math.expm1(-order * window))
    below = min(certain, float(np.min(logs[:index], initial=np.inf)))
    size = np.abs(np.array([above, below])) + order * (abs(epsilon) + window) + 8
    return float(np.logaddexp(above, below) + 64 * UNIT_ROUNDOFF * np.max(size) + 1e-6)


def log_truncations(log_moduli: Array, thetas: Array, spacing: float) -> Array:
    """Log of what the nodes from thetas[i] on add, as a share of M(lam) e^(-lam epsilon). Upper.

    Node n adds at most spacing/pi |phi(t_n)| / t_n^2. Between grid points |phi| is at most its
    bound at the left one and the sum over nodes at most the integral plus one node.
    """
    inverse = 1 / thetas
    spans = inverse - np.append(inverse[1:], 0.0) + spacing * inverse * inverse
    with np.errstate(under="ignore"):
        parts = np.exp(np.maximum(log_moduli, -745.0)) * spans
    sums = np.cumsum(parts[::-1])[::-1]
    with np.errstate(divide="ignore"):  # nothing is left out where it underflows
        return np.asarray(np.log(sums / math.pi) + 1e-9)


def moment_errors(log_values: Array, slack: Array, kernel: Array, spacing: float) -> float:
    """What errors of the moments may change, relative to M(lam) e^(-lam epsilon). Upper.

    The product of the phi, each to its count, is off by at most e^(log_values) (e^slack - 1) at a
    node.
    """
    with np.errstate(over="ignore"):
        near = np.exp(log_values) * np.expm1(np.minimum(slack, 1.0))
        far = np.exp(np.minimum(log_values + slack, 700.0))
    errors = np.where(slack <= 1.0, near, far)
    return float(spacing / math.pi * (kernel @ errors)) * 1.01


def summation_rounding(terms: Array, thetas: Array, epsilon: float, spacing: float) -> float:
    """Rounding of the sum over nodes, relative to M(lam) e^(-lam epsilon). Upper.

    Each term is an exponential whose phase is off by roundoffs of theta epsilon; the sum of N terms
    is off by N roundoffs of their moduli.
    """
    roundoffs = 8 * thetas * abs(epsilon) + (len(terms) + 32)
    return float(spacing / math.pi * (terms @ roundoffs)) * UNIT_ROUNDOFF * 1.01


def scale_rounding(log_sizes: float, log_errors: float, order: float, epsilon: float) -> float:
    """Relative error of M(lam) e^(-lam epsilon). Upper; infinite when it is not small."""
    error = log_errors + 16 * UNIT_ROUNDOFF * (log_sizes + order * abs(epsilon) + 4)
    return math.expm1(error) if error < 1 else math.inf


@dataclass(frozen=True, slots=True)
class Inversion:
    """A composition in one direction, to be read at any epsilon near the one it was made for."""

    index: int
    order: float
    window: float
    spacing: float
    thetas: Array  # (nodes,)
    points: ComplexArray  # lam + i t, (nodes,)
    log_terms: ComplexArray  # log of phi over the kernel's denominator, (nodes,)
    log_moment: float
    log_sizes: float  # sum of |count log M| over the units, times their number
    log_errors: float
    moments_off: float  # moment_errors
    truncated: float  # exp of log_truncations at the last node
    log_total: Array
    failure: tuple[float, float]

    def _terms(self, epsilon: float) -> ComplexArray:
        with np.errstate(under="ignore"):
            return np.asarray(np.exp(self.log_terms - 1j * self.thetas * epsilon))

    def _sum(self, terms: ComplexArray) -> float:
        # Nodes at -t are the conjugates of those at t.
        return self.spacing / (2 * math.pi) * (2 * float(np.sum(terms.real)) - float(terms[0].real))

    def estimate(self, epsilon: float) -> tuple[float, float]:
        """(delta, its derivative) as the sum has them, for a search."""
        terms = self._terms(epsilon)
        log_scale = self.log_moment - self.order * epsilon
        if not log_scale <= _LOG_SCALE_MAX:
            return math.nan, math.nan
        scale = math.exp(log_scale)
        slope = -scale * self._sum(terms * self.points)
        return scale * self._sum(terms) + self.failure[1], slope

    def read(self, epsilon: float) -> tuple[float, float]:
        """(lower, upper) delta."""
        log_scale = self.log_moment - self.order * epsilon
        if not log_scale <= _LOG_SCALE_MAX:
            return 0.0, 1.0
        terms = self._terms(epsilon)
        scale = math.exp(log_scale)
        value = scale * self._sum(terms)
        rounding = summation_rounding(np.abs(terms), self.thetas, epsilon, self.spacing)
        off = scale_rounding(self.log_sizes, self.log_errors, self.order, epsilon)
        error = scale * (self.moments_off + self.truncated + rounding) * (1 + off)
        error = (error + abs(value) * off) * (1 + 1e-12)
        if not (math.isfinite(value) and error < math.inf):
            return 0.0, 1.0
        log_wrapped = log_alias(self.log_total, self.index, window=self.window, epsilon=epsilon)
        wrapped = math.exp(min(700.0, log_wrapped - self.order * epsilon)) * (1 + 1e-12)
        lower = max(0.0, value - error - wrapped) * (1 - 4 * UNIT_ROUNDOFF)
        upper = max(0.0, value + error) * (1 + 4 * UNIT_ROUNDOFF) + 5e-324
        # The moments are of the finite losses alone; an infinite one adds its probability.
        return min(1.0, lower + self.failure[0]), min(1.0, upper + self.failure[1])


def epsilon_of(inversion: Inversion, *, delta: float, start: float) -> tuple[float, float, float]:
    """(lower, upper, estimate) of epsilon at a delta, in nats; the ends have been evaluated.

    A bracket end that cannot be certified is zero or infinite.
    """
    middle, slope = _newton(inversion, delta=delta, start=start)
    lower, upper = inversion.read(middle)
    if not math.isfinite(middle + slope):
        return 0.0, math.inf, start
    size = max(-slope, 1e-300)
    # Where delta hardly falls the first step is only a guess; the search doubles it.
    most = 1 + middle
    below = min(1.2 * abs(delta - lower) / size, most)
    above = min(1.2 * abs(upper - delta) / size, most)
    return (
        _outward(lambda e: inversion.read(e)[0] >= delta, middle, -below),
        _outward(lambda e: inversion.read(e)[1] <= delta, middle, above),
        middle,
    )


def _newton(inversion: Inversion, *, delta: float, start: float) -> tuple[float, float]:
    """(epsilon, slope) where the sum itself equals delta; zero when it is below delta there."""
    # Below this the scale would overflow.
    least = (inversion.log_moment - 0.9 * _LOG_SCALE_MAX) / inversion.order
    epsilon = max(start, least)
    for _ in range(_NEWTON_STEPS):
        value, slope = inversion.estimate(epsilon)
        if not (value > 0 and slope < 0):
            return epsilon, slope
        step = math.log(value / delta) * value / -slope
        moved = min(max(epsilon + step, 0.25 * epsilon - 1e-9, least), 2 * epsilon + 1)
        if moved <= 0:
            if epsilon == 0:
                return 0.0, slope
            moved = 0.0
        if abs(moved - epsilon) <= _NEAR_ENOUGH * epsilon:
            return moved, slope
        epsilon = moved
    return epsilon, slope


def _outward(holds: Callable[[float], bool], start: float, step: float) -> float:
    """The first point outward from `start`, by doubling steps, at which a condition holds."""
    least = 4 * UNIT_ROUNDOFF * max(abs(start), 1e-6)
    step = math.copysign(max(abs(step), least), step)
    if start == 0 and holds(start):
        return start
    for _ in range(_OUTWARD_STEPS):
        point = max(0.0, start + step)
        if holds(point):
            return point
        if point == 0 and step < 0:
            return 0.0  # a lower end is never below zero
        step *= 2
    return 0.0 if step < 0 else math.inf
