"""Integrals over the noise of a sampled Gaussian pair: a trapezoidal sum and what it leaves out.

Under N(0, sigma^2) the ratio of the pair is S(x) = 1-q + q e^u with u = (2x-1)/(2 sigma^2), and
every moment is an integral of density times S^e times e^(i theta log S) with a real power e: 1 +
lam where a record is removed, -lam where one is added. docs/theory/contour.md derives every term.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting import special
from accounting.pld.pairs import SampledGaussianPair
from accounting.rounding import UNIT_ROUNDOFF, Array
from accounting.work_limit import spend

# Half-widths of the strip that are tried, as phases; the ratio has its first zero at pi.
_PHASES: Final[Array] = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.4, 1.8, 2.2, 2.5])
# Where integrands are cut, in standard deviations beyond their last peak: the tails are added.
CUT: Final = 9.8
_FAR: Final = 600.0  # exponents from here on are handled in logarithms
_LOSS_ROUNDOFF: Final = 32 * UNIT_ROUNDOFF


@dataclass(frozen=True, slots=True)
class Losses:
    """The logarithm of the ratio at the points of a grid, all of shape (m,)."""

    loss: Array  # log S
    weight: Array  # d log S / du, in (0, 1): the posterior probability of the record
    error: Array  # bound on the rounding of loss, the displacement of grid points included


def losses_at(x: Array, pair: SampledGaussianPair) -> Losses:
    """Log S at equally spaced points."""
    spend(26_000 + 48 * len(x))
    q, variance = pair.sampling_probability, pair.noise_multiplier**2
    u = (2 * x - 1) / (2 * variance)
    near = np.minimum(u, _FAR)
    d = q * np.expm1(near)
    log_q = math.log(q)
    if q > 0.5:
        # Near d = -1 log1p would magnify the rounding of d.
        low = np.maximum(d, -0.5)
        loss = np.where(d < -0.5, np.logaddexp(math.log1p(-q), log_q + near), np.log1p(low))
    else:
        loss = np.log1p(d)
    loss = np.where(u < _FAR, loss, log_q + u)  # beyond, 1 - q is below the rounding
    weight = np.exp(np.minimum(0.0, log_q + u - loss))
    moved = np.abs(u) + (np.abs(x) + abs(float(x[0]))) / variance
    error = _LOSS_ROUNDOFF * (np.abs(loss) + weight * moved)
    return Losses(loss, weight, error)


def _strip_exponents(pair: SampledGaussianPair, power: float, theta: float) -> Array:
    """How much the integrand's modulus may grow at each phase, in logarithms; shape (11,)."""
    grown = 0.5 * (_PHASES * pair.noise_multiplier) ** 2 + theta * _PHASES
    if power < 0:
        grown = grown + power * np.log(np.cos(0.5 * _PHASES))
    return np.asarray(grown, dtype=np.float64)


def grid_spacing(
    pair: SampledGaussianPair, *, power: float, theta: float, share: float
) -> tuple[float, float]:
    """(phase, h): the widest grid whose strip bound is at most `share` of the moment."""
    needed = _strip_exponents(pair, power, theta) + math.log(4 / share)
    spacings = 2 * math.pi * _PHASES * pair.noise_multiplier**2 / needed
    best = int(np.argmax(spacings))
    return float(_PHASES[best]), float(spacings[best])


def grid_points(left: float, right: float, h: float) -> Array:
    """Points from `left` by steps of h until `right` is passed."""
    return np.asarray(left + h * np.arange(math.ceil((right - left) / h) + 1), dtype=np.float64)


def strip_share(
    pair: SampledGaussianPair, *, power: float, theta: float, phase: float, h: float
) -> float:
    """The trapezoidal sum's distance from the integral, as a share of M(lam). Upper.

    The integrand is analytic where |Im x| < phase sigma^2. There |S| <= S(Re x), |arg S| <= phase
    and |S| >= cos(phase/2) S(Re x), so its modulus integrates to at most e^g M(lam) with g =
    phase^2 sigma^2/2 + theta phase, plus |e| log(1/cos(phase/2)) for powers e < 0. The error is at
    most 2 e^g / (e^(2 pi phase sigma^2/h) - 1).
    """
    grown = 0.5 * (phase * pair.noise_multiplier) ** 2 + theta * phase
    if power < 0:
        grown += power * math.log(math.cos(0.5 * phase))
    decay = 2 * math.pi * phase * pair.noise_multiplier**2 / h
    exponent = grown * (1 + 1e-12) - decay * (1 - 1e-12)
    if not exponent < -2:
        raise ArithmeticError("The grid is too coarse for its own error bound.")
    return 2 * math.exp(exponent) / -math.expm1(-decay) * (1 + 1e-12)


def widest_range(pair: SampledGaussianPair, *, power: float) -> tuple[float, float]:
    """Beyond which density times S^power, and smaller powers, are probably negligible.

    The tails beyond are bounded and added, so any range is sound.
    """
    q, sigma = pair.sampling_probability, pair.noise_multiplier
    if power > 0:
        return -CUT * sigma, power + CUT * sigma
    log_odds = math.log(q) - math.log1p(-q)
    shift = min(-power, max(0.0, sigma * sigma * log_odds) + 1)
    return -CUT * sigma - shift, CUT * sigma


def log_left_tail(
    pair: SampledGaussianPair, powers: Array, *, left: float, loss: float, weight: float
) -> Array:
    """Log of the integral of density times S^e over x < left. Upper, shape (k,).

    S rises in x. For e > 0 it is at most S(left). For e < 0, log S(x) >= log S(left) -
    w (left-x)/sigma^2 with w the weight at left, which gives a shifted normal tail.

    Args:
        pair: whose ratio.
        powers: e, all of one sign, (k,).
        left: where the sum begins.
        loss: log S there.
        weight: w there.
    """
    sigma = pair.noise_multiplier
    shift = np.maximum(0.0, -powers) * weight * (1 + 1e-9)
    grown = shift * left / sigma**2 + 0.5 * (shift / sigma) ** 2
    found = powers * loss + grown + special.log_ndtr((left + shift) / sigma)
    return np.asarray(found + tail_slack(powers, loss, left, sigma), dtype=np.float64)


def log_right_tail(pair: SampledGaussianPair, powers: Array, *, right: float, loss: float) -> Array:
    """Log of the integral of density times S^e over x > right. Upper, shape (k,).

    For e < 0, S^e is at most S(right)^e. For e > 0, log S(x) <= log S(right) +
    (x-right)/sigma^2, its slope being at most 1/sigma^2.

    Args:
        pair: whose ratio.
        powers: e, all of one sign, (k,).
        right: where the sum ends.
        loss: log S there.
    """
    sigma = pair.noise_multiplier
    shift = np.maximum(0.0, powers)
    grown = -shift * right / sigma**2 + 0.5 * (shift / sigma) ** 2
    found = powers * loss + grown + special.log_ndtr((shift - right) / sigma)
    return np.asarray(found + tail_slack(powers, loss, right, sigma), dtype=np.float64)


def log_tails(pair: SampledGaussianPair, powers: Array, x: Array, losses: Losses) -> Array:
    """Log of what a sum over the grid leaves out beyond both ends. Upper, shape (k,)."""
    first, last = float(losses.loss[0]), float(losses.loss[-1])
    weight = float(losses.weight[0])
    return np.logaddexp(
        log_left_tail(pair, powers, left=float(x[0]), loss=first, weight=weight),
        log_right_tail(pair, powers, right=float(x[-1]), loss=last),
    )


def tail_slack(powers: Array, loss: float, end: float, sigma: float) -> Array:
    """Rounding of the logarithm of a tail, and of counting nodes for an integral, shape (k,)."""
    sizes = np.abs(powers) * (abs(loss) + (abs(end) + np.abs(powers) + 1) / sigma**2)
    return np.asarray(64 * UNIT_ROUNDOFF * (sizes + (end / sigma) ** 2 + 4) + 1e-9) + math.log(2)
