"""Renyi curves of passes in which each record's steps are drawn uniformly.

With S the ratio of a pass, J(p) = E[S^p] - 1 and K(p) = J(p) / (p (p-1)): where the record is
removed p is the order, where it is added one minus the order. Whole orders are sums, negative
powers an integral, and what lies between them is found from the convexity of log K.
docs/theory/allocation.md has the formulas and every error term.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting import special
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.renyi.moments import log_sum
from accounting.renyi.orders import checked_orders
from accounting.renyi.poisson import curve_of, gaussian_rdp
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, Array
from accounting.work_limit import spend

_U: Final = UNIT_ROUNDOFF
# Outside, grids would be too fine, or gains too small: a pass costs at most one Gaussian release.
NOISE_MIN: Final = 0.25
NOISE_MAX: Final = 1e6
# Orders above ORDER_LOW matter only to small losses, so not to little noise.
ORDER_LOW: Final = 64.0
NOISE_HIGH_ORDERS: Final = 2.0
# The ratio of one step, on a grid of z: its angle and the logarithms of what is left out.
_ANGLE: Final = 1.4  # radians, below pi/2, by which the ratio may be turned
_SHIFT_MAX: Final = 14.0  # of z off the real line
_STRIP: Final = 95.0
_CUT: Final = 13.5  # standard deviations
_DIRECT: Final = 300.0  # y from which on the transform itself is summed, not its excess
_SERIES: Final = 0.05  # |u| below which e^u - 1 - u would cancel
# The integral over log x.
_CHUNK: Final = 64  # nodes at a time
_LEFT: Final = 28.0  # of the logarithm of the integrand, where it starts
_DROP: Final = 60.0  # of the logarithm of the integrand, where it may stop
_LOG_LEAST: Final = -69.0  # of the transform, far above what the grid of z leaves out
_SPAN: Final = 8  # nodes over which its slope is taken
_SURE: Final = 1e-8  # share of its logarithm that it may be off by


def _log_whole(whole: Sequence[int], sigma: float, steps: int) -> Array:
    """Log J at whole orders n >= 2, rising. Upper, shape (k,).

    As a power series, log E[e^(xY)] = sum l_j x^j has l_(n+1) = E_n / (n+1), where
    sum E_n x^n = exp(sum (r^j - 1) l_j x^j) and r = e^(1/sigma^2); S has T^(1-j) l_j for l_j. With
    sum C_j x^j = exp of its terms from j = 2 on, J(n) = sum_(j>=2) n!/(n-j)! C_j. No term is
    negative.
    """
    last = whole[-1]
    spend((2 * last + len(whole)) * (1500 + last))
    index = np.arange(last + 1, dtype=np.float64)
    with np.errstate(divide="ignore"):
        log_index = np.log(index)
    growth = log_index + _log_expm1(index / (sigma * sigma))
    series, sums = np.full_like(index, -np.inf), np.zeros_like(index)
    for n in range(1, last + 1):
        series[n] = sums[n - 1] - log_index[n]
        sums[n] = _log_total(growth[1 : n + 1] + series[1 : n + 1] + sums[n - 1 :: -1])
        sums[n] -= log_index[n]
    rates = log_index + series + (1 - index) * math.log(steps)
    central = np.where(index == 0, 0.0, -np.inf)
    for n in range(2, last + 1):
        central[n] = _log_total(rates[2 : n + 1] + central[n - 2 :: -1]) - log_index[n]
    factorials = special.gammaln(index + 1)
    found = [
        _log_total(factorials[n] - factorials[n - 2 :: -1] + central[2 : n + 1]) for n in whole
    ]
    # Each logarithm is off by its own rounding, and by those of at most n factors before it.
    known = np.abs(np.stack((growth, series, sums, rates, central, factorials)))
    size = np.maximum.accumulate(np.max(known, axis=0, where=np.isfinite(known), initial=0.0))
    off = 4 * index * _U * (last + 4 * LIBRARY_ULPS * (size + 2))
    return np.asarray(np.array(found) + off[list(whole)], dtype=np.float64)


def _log_total(terms: Array) -> float:
    top = float(terms.max())
    return top + math.log(float(np.exp(terms - top).sum()))


def _log_expm1(x: Array) -> Array:
    """log(e^x - 1) without overflow."""
    with np.errstate(divide="ignore"):
        small = np.log(np.expm1(np.minimum(x, 38.0)))
    return np.asarray(np.where(x > 37, x, small), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Step:
    """One step's ratio Y = e^(z/sigma - 1/(2 sigma^2)) on a grid of z, with weights."""

    ratio: Array  # Y
    excess: Array  # Y - 1
    weights: Array
    strip: float  # what the sum over z is off by, for an integrand of modulus one
    tail: float  # chance of a z beyond either end, at most; under the shifted laws, too
    variance: float  # of Y
    off: float  # roundoffs of Y


def _step(sigma: float) -> _Step:
    shift = min(_ANGLE * sigma, _SHIFT_MAX)
    h = 2 * math.pi * shift / (_STRIP + 0.5 * shift * shift)
    z = h * np.arange(math.floor(-_CUT / h), math.ceil((_CUT + 2 / sigma) / h) + 1)
    return _Step(
        ratio=np.exp((z - 0.5 / sigma) / sigma),
        excess=np.expm1((z - 0.5 / sigma) / sigma),
        weights=h / math.sqrt(2 * math.pi) * np.exp(-0.5 * z * z),
        strip=2.1 * math.exp(0.5 * shift * shift - 2 * math.pi * shift / h),
        tail=float(special.ndtr(-_CUT)) * (1 + 1e-9),
        variance=math.expm1(1 / (sigma * sigma)) * (1 + 16 * _U),
        off=16 + 8 * (_CUT + 2 / sigma) / sigma,
    )


def _log_transforms(y: Array, step: _Step) -> tuple[Array, Array]:
    """Log E[e^(-yY)] + y and log E[e^(-yY)]: whichever of them keeps its digits is exact.

    Returns:
        Upper, shape (k,) each; the first is infinite where y is above _DIRECT.
    """
    spend(4 * len(y) * len(step.weights))
    first, second = np.full_like(y, np.inf), np.empty_like(y)
    near = y <= _DIRECT
    u = np.multiply.outer(-y[near], step.excess)
    bregman = np.expm1(u) - u
    small = np.abs(u) < _SERIES
    x = u[small]
    series = np.ones_like(x)
    for j in range(9, 2, -1):
        series = 1 + series * x / j
    bregman[small] = 0.5 * x * x * series
    found, low = bregman @ step.weights, y[near]
    grown = np.exp(low)
    square = 0.5 * low * low
    missed = step.strip * np.minimum(square * grown * (step.variance + 4), grown + 1 + 2 * low)
    missed += step.tail * np.minimum(square, 1.0) * grown
    missed += step.tail * np.minimum(square * (step.variance + 1), low)
    slack = _U * (len(step.weights) + 512 + 4 * (low + 4) * step.off)
    first[near] = np.log1p(found * (1 + slack) + missed * (1 + 1e-9))
    second[near] = first[near] - low
    far = y[~near]
    sums = np.exp(np.multiply.outer(-far, step.ratio)) @ step.weights
    sums *= 1 + _U * (len(step.weights) + 512 + 3000 * step.off)
    second[~near] = np.log(sums + step.strip + 2 * step.tail)
    return first, second


def _nodes(
    step: _Step, *, h: float, start: float, power: float, steps: int
) -> tuple[Array, Array, Array]:
    """Nodes log x from `start` on, log G there from above, and log phi(x/T).

    It stops where x^power phi^T has fallen for good, or where phi is hardly above its error.
    """
    parts: list[Array] = []  # each of three rows
    highest = -math.inf
    while True:
        t = start + h * np.arange(len(parts) * _CHUNK, (len(parts) + 1) * _CHUNK)
        x = np.exp(t)
        excess, log_phi = _log_transforms(x / steps, step)
        # G = e^-x (e^(T excess) - 1), or where that would overflow at most phi^T.
        direct = np.isinf(excess)
        log_g = np.where(direct, steps * log_phi, _log_expm1(steps * excess) - x)
        rounded = np.where(direct, -steps * log_phi, x)
        parts.append(np.stack((t, log_g + 16 * _U * (rounded + np.abs(t) + 64), log_phi)))
        height = power * t + steps * log_phi
        highest = max(highest, float(np.max(height)))
        if height[-1] < highest - _DROP or log_phi[-1] < _LOG_LEAST:
            found = np.concatenate(parts, axis=1)
            t, log_g, log_phi = found[:, found[2] >= _LOG_LEAST]
            return t, log_g, log_phi


def _log_low(powers: Array, sigma: float, steps: int) -> Array:
    """Log K at powers below two, by an integral of a positive function.

    K(p) = 1/Gamma(2-p) int x^(-p) G d log x,  G = phi(x/T)^T - e^-x,  phi(y) = E[e^(-yY)].

    Args:
        powers: p < 2, shape (k,).
        sigma: in [NOISE_MIN, NOISE_MAX].
        steps: T.

    Returns:
        Upper, shape (k,); infinite where the integrand does not fall within the nodes.
    """
    step = _step(sigma)
    most, least = max(1.0, -float(np.min(powers))), -float(np.max(powers))
    h = min(0.1, 0.44 / math.sqrt(most))
    log_share = math.log(step.variance) - math.log(2 * steps)  # G is at most share x^2
    # Left of where it would be largest the integrand falls as x^(2+least), or faster.
    start = math.log(max(1.0, least)) - 2
    start -= (_LEFT + max(0.0, log_share)) / max(1.0, 2 + least)
    t, log_g, log_phi = _nodes(step, h=h, start=start, power=most, steps=steps)
    inside = log_sum(log_g - powers[:, None] * t)
    left = log_share + (2 - powers) * t[0] - np.log(np.expm1(h * (2 - powers)))
    # log phi is concave in t: beyond the end it falls at least as fast as just before it.
    before = log_phi[-1 - _SPAN] * (1 + _SURE)
    fall = (log_phi[-1] - before) / (t[-1] - t[-1 - _SPAN])
    slope = h * np.minimum(steps * fall - powers, 0.0)
    with np.errstate(divide="ignore"):
        right = steps * log_phi[-1] - powers * t[-1] + slope - np.log(-np.expm1(slope))
    gamma = special.gammaln(2 - powers)
    size = np.abs(powers) * float(np.max(np.abs(t))) + np.abs(gamma)
    slack = _U * (len(t) + 64 + 8 * LIBRARY_ULPS * size)
    total = np.logaddexp(np.logaddexp(inside, left), right) + math.log(h) - gamma + slack
    return _with_strip(total, powers, h=h, log_share=log_share)


def _with_strip(log_k: Array, powers: Array, *, h: float, log_share: float) -> Array:
    """Log K with what sums over nodes h apart may fall short of their integrals. Upper.

    For p < 0, J is at most (J' + 2 k) / (1 - k), k = 2 cos(d)^p / (e^(2 pi d/h) - 1). For p >= 1,
    |G| is at most the lesser of share |x|^2 and 2.
    """
    d = np.linspace(0.05, 1.5, 146)
    lost = np.minimum(powers, 0.0)[:, None] * np.log(np.cos(d)) - np.log(
        np.expm1(2 * np.pi * d / h)
    )
    log_small = math.log(2) + np.min(lost, axis=1) + 1e-9
    if not np.all(log_small < -_DROP):
        raise ArithmeticError("The grid is too coarse for its own error bound.")
    p = np.maximum(powers, 1.0)
    near = 0.5 * p * log_share + (1 - 0.5 * p) * math.log(2) + np.log(1 / (2 - p) + 1 / p)
    near -= special.gammaln(2 - p)
    far = math.log(2) - np.log(np.maximum(powers * (powers - 1), 1e-300))
    added = log_small + np.where(powers < 0, far, near)
    return np.asarray(np.logaddexp(log_k, added) + 2 * np.exp(log_small) + 16 * _U)


def _log_removed(orders: Array, sigma: float, steps: int) -> Array:
    """Log J where the record is removed: chords of the convex function log K. Upper."""
    early = orders < 2
    one, *between = _log_low(np.append(1.0, orders[early]), sigma, steps)
    whole = sorted(
        {2} | {int(end(order)) for order in orders[~early] for end in (np.floor, np.ceil)}
    )
    knots = np.append(1.0, whole)
    log_k = np.append(one, _log_whole(whole, sigma, steps) - np.log(knots[1:] * (knots[1:] - 1)))
    found = np.interp(orders, knots, log_k)
    found[early] = np.minimum(found[early], between)
    found += np.log(orders) + np.log(orders - 1)
    return np.asarray(found + 16 * LIBRARY_ULPS * _U * (16 + np.abs(found)))


def _log_added(orders: Array, sigma: float, steps: int) -> Array:
    """Log J where the record is added. Upper; small and large orders on grids of their own.

    Where the integral does not serve, S is at least the geometric mean of the variables, and
    E[S^-b] <= e^(b (1 + b/T) / (2 sigma^2)).
    """
    found = np.empty_like(orders)
    for group in (orders <= ORDER_LOW, orders > ORDER_LOW):
        if np.any(group):
            found[group] = _log_low(1 - orders[group], sigma, steps)
    found += np.log(orders) + np.log(orders - 1)
    exponent = (orders - 1) * (1 + (orders - 1) / steps) / (2 * sigma * sigma)
    least = np.minimum(found, _log_expm1(exponent * (1 + 16 * _U)))
    return np.asarray(least + 16 * LIBRARY_ULPS * _U * 16)


def _curve(sigma: float, steps: int, orders: Array) -> Array:
    full = gaussian_rdp(noise_multiplier=sigma, sensitivity=1.0, orders=orders)
    reached = orders <= (ORDER_LOW if sigma < NOISE_HIGH_ORDERS else math.inf)
    if steps == 1 or not NOISE_MIN <= sigma <= NOISE_MAX or not np.any(reached):
        return full
    used = orders[reached]
    log_j = np.maximum(_log_removed(used, sigma, steps), _log_added(used, sigma, steps))
    full[reached] = np.minimum(full[reached], curve_of(log_j, used))
    return full


@theorem(
    id="balls-and-bins-rdp",
    source="Chua et al. 2025, AISTATS (Balls-and-Bins Sampling for DP-SGD), arXiv:2412.16802, "
    "Section 4; proof, and how the moments are evaluated, in docs/theory/allocation.md",
    status=Status.PUBLISHED,
    relations=(NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL),
    assumptions=(Assumption.BALLS_AND_BINS_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def allocation_rdp(*, noise_multiplier: float, steps_per_pass: int, orders: Array) -> Array:
    """RDP of one pass in which each record is in one step, uniformly.

    The larger of log E[S^alpha] and log E[S^(1-alpha)], over alpha - 1, where under Q

    S = (1/T) sum_t e^(z_t/sigma - 1/(2 sigma^2)),  z_t independent standard normal.

    E[S^p] - 1 is evaluated as a sum, or an integral, of positive terms: long passes lose no digits.

    Args:
        noise_multiplier: sigma, > 0; the least of the pass.
        steps_per_pass: T, >= 1.
        orders: alpha > 1, shape (k,).

    Returns:
        RDP of the whole pass in nats, shape (k,). Upper: relative excess below 1e-8 at whole orders
        and below two; between whole orders log K is a chord, which costs next to nothing, but up to
        about 1/(4 sigma^2 (alpha-1)) where alpha exceeds 2 sigma^2 log T. It is the curve of a
        Gaussian release, which is never below, for noise outside [0.25, 1e6], and at orders above
        64 for noise below 2.

    Raises:
        ValueError: an argument is out of range.
    """
    orders = checked_orders(orders)
    _check(noise_multiplier, steps_per_pass, 1)
    return _curve(noise_multiplier, steps_per_pass, orders)


@theorem(
    id="random-allocation-rdp",
    source="Feldman and Shenfeld 2025, NeurIPS (Privacy Amplification by Random Allocation), "
    "arXiv:2502.08202v4, Section 3; proof, and how the moments are evaluated, in "
    "docs/theory/allocation.md",
    status=Status.PUBLISHED,
    relations=(NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL),
    assumptions=(Assumption.RANDOM_ALLOCATION_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def random_allocation_rdp(
    *, noise_multiplier: float, steps_per_pass: int, participations: int, orders: Array
) -> Array:
    """RDP of one pass in which each record is in k steps of T, a uniform set of them.

    The pass is dominated by k passes of one participation, each of floor(T/k) steps, whose curves
    add.

    Args:
        noise_multiplier: sigma, > 0; the least of the pass.
        steps_per_pass: T, >= 1.
        participations: k, in [1, T].
        orders: alpha > 1, shape (k,).

    Returns:
        RDP of the whole pass in nats, shape (k,). Upper, as that of one participation.

    Raises:
        ValueError: an argument is out of range.
    """
    orders = checked_orders(orders)
    _check(noise_multiplier, steps_per_pass, participations)
    total = participations * _curve(noise_multiplier, steps_per_pass // participations, orders)
    return np.asarray(total * (1 + 4 * _U), dtype=np.float64)


def _check(noise_multiplier: float, steps_per_pass: int, participations: int) -> None:
    if not 0 < noise_multiplier < math.inf:
        raise ValueError("noise_multiplier is positive and finite.")
    if not steps_per_pass >= 1:
        raise ValueError("steps_per_pass is at least one.")
    if not 1 <= participations <= steps_per_pass:
        raise ValueError("participations lie in [1, steps_per_pass].")


THEOREMS = (allocation_rdp, random_allocation_rdp)
