"""Renyi curves of Gaussian noise: without sampling and under Poisson sampling."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.events import Direction, NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.renyi.moments import is_too_fine, log_integer_moments, log_real_moments
from accounting.renyi.orders import checked_orders
from accounting.rounding import UNIT_ROUNDOFF, Array
from accounting.work_limit import spend

Indices = npt.NDArray[np.intp]
# Orders up to so many times the noise share a grid: exponents on it are within those of doubles.
_SHARED_UP_TO: Final = 13.0


def curve_of(log_moments: Array, orders: Array) -> Array:
    """log(1 + J) / (order - 1), rounded up: the divergence whose moment is 1 + J."""
    rdp = np.logaddexp(0.0, log_moments) / (orders - 1)
    # For tiny J, logaddexp keeps a relative accuracy of a few units: log1p(e^x).
    rdp = np.asarray(rdp * (1 + 32 * UNIT_ROUNDOFF) + 5e-324, dtype=np.float64)
    if not np.all(rdp >= 0):  # also refuses NaN
        raise ArithmeticError("A Renyi curve is not negative.")
    return rdp


@theorem(
    id="gaussian-renyi",
    source="Mironov 2017, CSF, arXiv:1702.07476v3, Proposition 7",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.INDEPENDENT_GAUSSIAN_NOISE,),
)
def gaussian_rdp(*, noise_multiplier: float, sensitivity: float, orders: Array) -> Array:
    """RDP of one full-batch Gaussian step.

    rdp(alpha) = alpha sensitivity^2 / (2 noise_multiplier^2)

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        sensitivity: in norm bounds; 1 for add_or_remove_one and replace_special, 2 for replace_one.
        orders: alpha > 1, shape (k,).

    Returns:
        RDP in nats, shape (k,). Upper, to rounding.
    """
    orders = checked_orders(orders)
    ratio = sensitivity / noise_multiplier
    return orders * (0.5 * ratio * ratio * (1 + 8 * UNIT_ROUNDOFF))


@theorem(
    id="poisson-gaussian",
    source="Zhu, Dong and Wang 2022, AISTATS, arXiv:2106.08567v4, Theorem 11; moments at integer "
    "orders as in Mironov, Talwar and Zhang 2019, arXiv:1908.10530v1, Section 3.3",
    status=Status.PUBLISHED,
    relations=(NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL),
    assumptions=(Assumption.POISSON_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def poisson_gaussian_rdp(
    *,
    noise_multiplier: float,
    sampling_probability: float,
    orders: Array,
    direction: Direction = Direction.REMOVE,
) -> Array:
    """RDP of one Poisson-subsampled Gaussian step at real orders.

    The step is dominated by the pair ((1-q) N(0, sigma^2) + q N(1, sigma^2), N(0, sigma^2)) and its
    reverse. With S the ratio of the pair, rdp = log(E[S^alpha]) / (alpha - 1) when the record is
    removed and log(E[S^(1-alpha)]) / (alpha - 1) when it is added. The first is never the smaller
    (docs/theory/renyi.md), so it stands for both unless `direction` says otherwise.

    E[S^beta] - 1 is evaluated as a sum of positive terms, so that small rates lose no digits.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        sampling_probability: q, in (0, 1].
        orders: alpha > 1, shape (k,).
        direction: which divergence.

    Returns:
        RDP in nats, shape (k,). Upper; relative excess below 1e-9 for q and 1/sigma above 1e-7,
        more below and where noise_multiplier < 0.1 (fractional orders by convexity, the added
        record by a closed form).
    """
    orders = checked_orders(orders)
    sigma, q = noise_multiplier, sampling_probability
    full = gaussian_rdp(noise_multiplier=sigma, sensitivity=1.0, orders=orders)
    if q == 1:
        return full
    if direction is Direction.REMOVE:
        curve = curve_of(remove_moments(orders, q=q, sigma=sigma), orders)
    else:
        curve = curve_of(add_moments(orders, q=q, sigma=sigma), orders)
    least: Array = np.minimum(curve, full)  # mixing with N(0) never raises the divergence
    return least


def remove_moments(orders: Array, *, q: float, sigma: float) -> Array:
    """log(E[S^alpha] - 1). Upper, shape (k,)."""
    spend(10_000)
    floor = np.floor(orders)
    whole = orders == floor
    between = ~whole & _too_fine(orders, q=q, sigma=sigma)
    needed = np.append(floor[whole | between], floor[between] + 1)
    rising = np.unique(needed[needed > 1])
    integers = np.append(1.0, rising)
    known = np.append(-math.inf, log_integer_moments(rising.astype(int).tolist(), q=q, sigma=sigma))
    result = np.empty_like(orders)
    result[whole] = known[np.searchsorted(integers, floor[whole])]
    if np.any(between):
        # log E[S^alpha] is convex in alpha and zero at one: a chord lies above it.
        below = np.searchsorted(integers, floor[between])
        share = (orders - floor)[between]
        ends = np.logaddexp(0.0, known)
        chord = (1 - share) * ends[below] + share * ends[below + 1]
        chord = chord * (1 + 8 * UNIT_ROUNDOFF)
        result[between] = _log_expm1_above(chord)
    for chunk in _by_grid(orders, np.flatnonzero(~whole & ~between), sigma=sigma):
        result[chunk] = log_real_moments(orders[chunk], q=q, sigma=sigma)
    return result


def add_moments(orders: Array, *, q: float, sigma: float) -> Array:
    """log(E[S^(1-alpha)] - 1). Upper, shape (k,)."""
    # S >= 1-q, and the divergence is at most the one without sampling.
    exponent = (orders - 1) * np.minimum(-math.log1p(-q), 0.5 * orders / (sigma * sigma))
    result = _log_expm1_above(exponent * (1 + 16 * UNIT_ROUNDOFF))
    quick = np.flatnonzero(~_too_fine(1 - orders, q=q, sigma=sigma))
    for chunk in _by_grid(orders, quick, sigma=sigma):
        result[chunk] = log_real_moments(1 - orders[chunk], q=q, sigma=sigma)
    return result


def _too_fine(powers: Array, *, q: float, sigma: float) -> npt.NDArray[np.bool_]:
    """Of which powers, all above 1 or all below 0, the moment would need too many points."""
    if not is_too_fine(float(powers[np.argmax(np.abs(powers))]), q=q, sigma=sigma):
        return np.zeros(len(powers), dtype=np.bool_)
    return np.array([is_too_fine(float(power), q=q, sigma=sigma) for power in powers])


def _log_expm1_above(x: Array) -> Array:
    """log(e^x - 1) for x >= 0. Upper: the logarithm of a small x is large, and rounded as such."""
    x = x + 2e-323  # which may have been lost below the least number there is
    found = x + np.log(-np.expm1(-x))
    slack = UNIT_ROUNDOFF * (128 + 8 * np.abs(found))
    return np.asarray(found + slack, dtype=np.float64)


def _by_grid(orders: Array, indices: Indices, *, sigma: float) -> list[Indices]:
    """The indices in groups that share a grid: all of them, or orders within a factor two.

    The largest order decides the points of a grid; if they are few, one grid costs less than two.
    """
    asked = orders[indices]
    octave = np.floor(np.log2(asked)) * np.any(asked >= _SHARED_UP_TO * sigma)
    return [indices[octave == value] for value in np.unique(octave)]


THEOREMS = (gaussian_rdp, poisson_gaussian_rdp)
