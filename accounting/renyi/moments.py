"""Moments of the likelihood ratio of a subsampled Gaussian, as certified upper bounds.

With x ~ N(0, sigma^2), the ratio of the mixture (1-q) N(0, sigma^2) + q N(1, sigma^2) to N(0,
sigma^2) is S = 1-q + q e^((2x-1)/(2 sigma^2)). For a power beta above 1 or below 0,

    J(beta) = E[S^beta - 1 - beta (S - 1)] = E[S^beta] - 1,

because E[S] = 1. The integrand is never negative, so nothing cancels however small q is.
docs/theory/renyi.md derives every bound used here.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from accounting import special
from accounting.renyi.orders import ORDER_MAX
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, Array
from accounting.work_limit import spend

# How far below the answer the discretisation error is aimed, in nats (e^-40 = 4e-18).
_TARGET: Final = 40.0
# Where the integral is cut, in standard deviations beyond the last possible peak. The tail's bound
# is added: e^(-14^2/2) = 3e-43, far below J unless q and 1/sigma are both near 1e-9 or less.
_CUT: Final = 14.0
# Half-width of the strip of analyticity, as a phase: below pi for the zero of S, less for
# negative powers, which grow like cos(phase/2)^beta.
_PHASE_POSITIVE: Final = 2.6
_PHASE_NEGATIVE: Final = 1.0
# Below this noise the grid would need too many points; closed forms serve instead.
NOISE_MIN: Final = 0.1
# Nor may a grid have more points than this: an answer takes a quarter of a second then.
POINTS_MAX: Final = 2**20
# Exponents from here on are handled in logarithms, below the overflow of exp.
_LARGE: Final = 600.0
# log(q e^a) beyond which nothing but the last term of an integer moment is seen in a double.
_LAST_TERM: Final = 40.0
# Orders up to which integer moments are summed together, as a matrix.
_SHORT: Final = 64
# |beta (S - 1)| below which the direct form of the integrand would cancel.
_SERIES: Final = 0.05
_SERIES_TERMS: Final = 12
# The largest exponent with which terms are added as doubles, which hold e^708 and e^-708.
_EXPONENT_MAX: Final = 700.0


@lru_cache(maxsize=int(ORDER_MAX))
def _log_comb(order: int) -> Array:
    # Exact integers first, so that each logarithm is right to its last digits.
    return np.array([math.log(math.comb(order, k)) for k in range(2, order + 1)])


@lru_cache(maxsize=1)
def _short_combs() -> Array:
    """Row n: log C(n, k) for k = 2, ..., _SHORT; -inf beyond n."""
    rows = np.full((_SHORT + 1, _SHORT - 1), -math.inf)
    for order in range(2, _SHORT + 1):
        rows[order, : order - 1] = _log_comb(order)
    return rows


def log_sum(terms: Array) -> Array:
    """log(sum(exp(terms))) over the last axis, where some term is finite."""
    top = np.max(terms, axis=-1, keepdims=True)
    total = np.log(np.sum(np.exp(terms - top), axis=-1))
    return np.asarray(total + top[..., 0], dtype=np.float64)


def log_integer_moments(orders: Sequence[int], *, q: float, sigma: float) -> Array:
    """Log J(order) for integer orders >= 2. Upper, shape (k,).

    J = sum_{k>=2} C(order,k) (1-q)^(order-k) q^k expm1(k(k-1) / (2 sigma^2)): the binomial
    weights sum to one and the exponent vanishes at k = 0, 1. Every term is positive.

    With a = (order-1) / (2 sigma^2), k(k-1) / (2 sigma^2) is at most k a, so that J is at most
    sum_k C(order,k) (1-q)^(order-k) (q e^a)^k = (1-q + q e^a)^order: where q e^a is large, the last
    term is nearly all on both sides.

    Args:
        orders: rising.
        q: in (0, 1).
        sigma: > 0.
    """
    n = np.array(orders, dtype=np.float64)
    ratio = 1 / sigma
    with np.errstate(over="ignore"):  # to infinity
        a = (n - 1) * (0.5 * ratio * ratio)
        size = n * (a - math.log(q) + 1)
        bounds = n * (a + np.log(q + (1 - q) * np.exp(-a))) + 32 * UNIT_ROUNDOFF * size
    # a rises with the order: the first ones are summed, short sums together.
    summed = orders[: int(np.count_nonzero(a + math.log(q) <= _LAST_TERM))]
    short = bisect_right(summed, _SHORT)
    if short:
        bounds[:short] = _integer_moments(summed[:short], q=q, sigma=sigma)
    for i in range(short, len(summed)):
        bounds[i : i + 1] = _integer_moments(summed[i : i + 1], q=q, sigma=sigma)
    return np.asarray(bounds, dtype=np.float64)


def _integer_moments(orders: Sequence[int], *, q: float, sigma: float) -> Array:
    """The sums, shape (k,): of short ones, or of a single one."""
    # Short ones are padded to the same length: each is the same whatever is asked beside it.
    log_weight = _short_combs()[orders] if orders[-1] <= _SHORT else _log_comb(orders[0])[None, :]
    spend(4000 + 4 * log_weight.size)
    n, k = np.array(orders, dtype=np.float64), np.arange(2.0, log_weight.shape[1] + 2)
    log_rest, log_q = math.log1p(-q), math.log(q)
    exponent = k * (k - 1) / (2 * sigma * sigma)
    left = np.subtract.outer(n, k) * log_rest
    grown = _log_expm1(exponent)
    terms = log_weight + (left + (k * log_q + grown))
    # Of what is rounded; where the exponent is small its logarithm is what is large.
    drawn = np.max(log_weight + (k * abs(log_q) + np.maximum(exponent, np.abs(grown))), axis=-1)
    slack = UNIT_ROUNDOFF * (4 * LIBRARY_ULPS * (1 + drawn + n * abs(log_rest)) + 4 * n)
    return np.asarray(log_sum(terms) + slack, dtype=np.float64)


def _log_expm1(x: Array) -> Array:
    # log(e^x - 1) without overflow: beyond 37 the one is below the rounding of e^x.
    return np.where(x > 37, x, np.log(np.expm1(np.minimum(x, 38.0))))


def log_bregman(beta: Array, d: Array, log_s: Array) -> Array:
    """log(s^beta - 1 - beta (s - 1)) elementwise, where d = s - 1 and log_s = log(s)."""
    power, linear = beta * log_s, beta * d
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        direct = np.log(np.expm1(power) - linear)
    # expm1 is exact enough but for a large power, relative to which the rest is subtracted.
    if np.any(large := power > 30):
        top = power[large]
        direct[large] = top + np.log1p(-(1 + linear[large]) * np.exp(-top))
    near = np.maximum(np.abs(beta), 1.0) * np.abs(d) < _SERIES
    if not np.any(near):
        return direct
    b, x = np.broadcast_to(beta, d.shape)[near], d[near]
    tail = np.ones_like(x)
    for j in range(_SERIES_TERMS, 2, -1):
        tail = 1 + tail * x * (b - j + 1) / j
    with np.errstate(divide="ignore"):
        direct[near] = np.log(0.5 * b * (b - 1) * tail) + 2 * np.log(np.abs(x))
    return direct


def _bregman(betas: Array, d: Array, log_s: Array) -> Array:
    """s^beta - 1 - beta (s - 1), shape (k, n), where d = s - 1 rises; no number beyond doubles."""
    beta = betas[:, None]
    found: Array = np.expm1(beta * log_s) - beta * d
    # Where it would cancel: x^2 times the sum of C(beta, j) x^(j-2), the first factors taken out.
    inside = slice(*np.searchsorted(d, [-_SERIES, _SERIES]))
    x, j = d[inside], np.arange(3, _SERIES_TERMS + 1)
    tail = np.cumprod((beta - j + 1) / j, axis=1) @ x ** (j - 2)[:, None]
    series = 0.5 * beta * (beta - 1) * (1 + tail) * (x * x)
    near = np.maximum(np.abs(beta), 1.0) * np.abs(x) < _SERIES
    found[:, inside] = np.where(near, series, found[:, inside])
    return found


@dataclass(frozen=True, slots=True)
class _Line:
    """The points at which the integrand of some powers is summed."""

    phase: float  # half the width of the strip that bounds the error, over sigma^2
    h: float  # between two points
    left: float  # beyond these ends the integrand only falls (docs/theory/renyi.md)
    right: float


def _line(reach: float, *, positive: bool, q: float, sigma: float) -> _Line:
    """The points for powers of at most `reach`, above 1 or below 0."""
    log_q, variance = math.log(q), sigma * sigma
    # The discretisation error, as the strip theorem bounds it, with phase = |Im x| / sigma^2:
    # log error = log(2 M) - 2 pi phase sigma^2 / h.
    goal = _TARGET + max(reach, 2.0) * -log_q + 2 * math.log(max(sigma, 1.0))
    bend = 0.5 * variance + (0.0 if positive else reach / 6)
    phase = min(_PHASE_POSITIVE if positive else _PHASE_NEGATIVE, math.sqrt(goal / bend))
    h = 2 * math.pi * phase * variance / (goal + phase * phase * bend)

    weight_at_zero = 1 / (1 + math.exp(min(700.0, math.log1p(-q) - log_q + 0.5 / variance)))
    left = -_CUT * sigma - (0.0 if positive else reach * weight_at_zero)
    right = _CUT * sigma + (reach if positive else 1.0)
    return _Line(phase=phase, h=h, left=left, right=right)


def is_too_fine(power: float, *, q: float, sigma: float) -> bool:
    """Whether the moment of a power above 1 or below 0 would need too many points.

    So it is, too, where an argument is no number.
    """
    if sigma < NOISE_MIN:
        return True
    line = _line(abs(power), positive=power > 0, q=q, sigma=sigma)
    return not (line.right - line.left) / line.h < POINTS_MAX


def log_real_moments(betas: Array, *, q: float, sigma: float) -> Array:
    """Log J(beta) for real powers, all above 1 or all below 0. Upper, shape (k,).

    Trapezoidal sum on a line, which converges geometrically: the integrand is analytic where
    |Im x| < pi sigma^2. Added to the sum are the bound on the discretisation error, the tails
    beyond the cut and the rounding of every term.

    Args:
        betas: shape (k,); beta > 1 gives the divergence of the mixture from N(0, sigma^2), and
            beta = 1 - alpha < 0 the reverse one.
        q: in (0, 1).
        sigma: at least NOISE_MIN; no power is too fine.
    """
    positive = bool(betas[0] > 0)
    reach = float(np.max(np.abs(betas)))
    log_q, log_rest, variance = math.log(q), math.log1p(-q), sigma * sigma
    line = _line(reach, positive=positive, q=q, sigma=sigma)
    phase, h = line.phase, line.h
    x = h * np.arange(math.floor(line.left / h), math.ceil(line.right / h) + 1)
    left, right = float(x[0]), float(x[-1])

    u = (2 * x - 1) / (2 * variance)
    d = q * np.expm1(np.minimum(u, _LARGE))
    # Near d = -1, where q is near one, log1p would magnify the rounding of d.
    near = np.where(d < -0.5, np.logaddexp(log_rest, log_q + np.minimum(u, _LARGE)), np.log1p(d))
    log_s = np.where(u < _LARGE, near, log_q + u)  # beyond, 1 - q is below the rounding
    # The density, times the distance between two points.
    log_weights = math.log(h / (sigma * math.sqrt(2 * math.pi))) - 0.5 * (x / sigma) ** 2

    spend(30_000 + 9 * len(betas) * len(x))
    largest = float(np.max(np.abs(log_s)))
    size = 0.5 * max(left * left, right * right) / variance + np.abs(betas) * largest
    if np.max(size) < _EXPONENT_MAX:
        log_integral = np.log(_bregman(betas, d, log_s) @ np.exp(log_weights))
    else:
        shape = (len(betas), len(x))
        d, log_s = np.broadcast_to(d, shape).copy(), np.broadcast_to(log_s, shape)
        log_integral = log_sum(log_bregman(betas[:, None], d, log_s) + log_weights)

    # Each term is off by its exponents' rounding, magnified where the integrand's difference is
    # small against its parts: by 1/_SERIES, and by 1/(beta-1) for powers near one.
    cancelling = _SERIES * np.minimum(1.0, np.abs(betas - 1))
    slack = UNIT_ROUNDOFF * (8 * LIBRARY_ULPS * (size + 2) / cancelling + len(x))
    tails = _log_tails(betas, left=left, right=right, q=q, sigma=sigma)
    total = np.logaddexp(log_integral + slack, tails)
    error = _log_strip_error(betas, total, q=q, variance=variance, phase=phase, h=h)
    bounds = np.logaddexp(total, error)
    return np.asarray(bounds, dtype=np.float64)


def _log_ratio(x: float, *, q: float, variance: float) -> float:
    u = (2 * x - 1) / (2 * variance)
    return float(np.logaddexp(math.log1p(-q), math.log(q) + u))


def _log_tails(betas: Array, *, left: float, right: float, q: float, sigma: float) -> Array:
    """What the sum leaves out beyond both ends, in logarithms. Upper, shape (k,)."""
    variance = sigma * sigma
    size = np.abs(betas)
    if betas[0] > 0:
        # Left: the integrand is at most |beta| times the density. Right: at most density S^beta,
        # whose logarithm falls with slope at least (x - beta)/sigma^2 >= _CUT/sigma.
        low = np.log(size) + special.log_ndtr(left / sigma)
        log_end = -0.5 * (right / sigma) ** 2 + betas * _log_ratio(right, q=q, variance=variance)
        return np.asarray(np.logaddexp(low, log_end - math.log(_CUT)), dtype=np.float64)
    # Left: at most density S^beta, with the same slope. Right: at most |beta| S times the density.
    log_end = -0.5 * (left / sigma) ** 2 + betas * _log_ratio(left, q=q, variance=variance)
    high = np.log(size) + np.logaddexp(
        special.log_ndtr(-right / sigma), math.log(q) + special.log_ndtr((1 - right) / sigma)
    )
    return np.asarray(np.logaddexp(log_end - math.log(_CUT), high), dtype=np.float64)


def _log_strip_error(
    betas: Array, log_total: Array, *, q: float, variance: float, phase: float, h: float
) -> Array:
    """The trapezoidal sum's distance from the integral, in logarithms. Upper, shape (k,).

    At most 2 M / (e^(2 pi a / h) - 1) when the integrand is analytic in |Im x| < a and its modulus
    integrates to at most M on every line there. Here a = phase sigma^2 and
    M <= e^(a^2 / (2 sigma^2)) (c E[S^beta] + 1 + 2 |beta| q), c = 1 for positive powers and
    cos(phase/2)^beta for negative ones. E[S^beta] is itself one plus the integral; solving for the
    error costs the factor 2 below as long as the error's share of it stays under a quarter.

    Raises:
        ArithmeticError: the grid is too coarse to bound its own error.
    """
    log_c = betas * (0.0 if betas[0] > 0 else math.log(math.cos(0.5 * phase)))
    log_factor = (
        math.log(2) + 0.5 * phase * phase * variance - 2 * math.pi * phase * variance / h + 1e-12
    )
    if not np.all(log_factor + log_c < -math.log(4)):
        raise ArithmeticError("The grid is too coarse for its own error bound.")
    log_modulus = np.logaddexp(
        log_c + np.logaddexp(0.0, log_total), np.log1p(2 * np.abs(betas) * q)
    )
    return np.asarray(math.log(2) + log_factor + log_modulus, dtype=np.float64)
