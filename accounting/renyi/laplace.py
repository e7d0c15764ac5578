"""Renyi curves of Laplace noise: without sampling and under Poisson sampling."""

import math
from typing import Final

import numpy as np

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.renyi.orders import checked_orders
from accounting.renyi.poisson import curve_of
from accounting.renyi.pure import amplified_epsilon, pure_dp_rdp
from accounting.rounding import UNIT_ROUNDOFF, Array
from accounting.work_limit import spend

_SERIES_TERMS: Final = 24  # 1/24! is far below the rounding
_LARGE: Final = 30.0  # beyond, the rest is subtracted relative to the exponential


def _log_excess(x: Array) -> Array:
    """log(e^x - 1 - x) elementwise, for x != 0: a quantity that is never negative."""
    result = np.empty_like(x)
    near, large = np.abs(x) < 1, x > _LARGE
    middle = ~near & ~large
    series = np.ones_like(x[near])
    for j in range(_SERIES_TERMS, 2, -1):
        series = 1 + series * x[near] / j
    result[near] = np.log(0.5 * series) + 2 * np.log(np.abs(x[near]))
    result[large] = x[large] + np.log1p(-(1 + x[large]) * np.exp(-x[large]))
    result[middle] = np.log(np.expm1(x[middle]) - x[middle])
    return result


@theorem(
    id="laplace-renyi",
    source="Mironov 2017, CSF, arXiv:1702.07476v3, Proposition 6",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.INDEPENDENT_LAPLACE_NOISE,),
)
def laplace_rdp(*, noise_multiplier: float, sensitivity: float, orders: Array) -> Array:
    """RDP of one full-batch Laplace step.

    With b = noise_multiplier / sensitivity,

      rdp(alpha) = log(alpha/(2 alpha-1) e^((alpha-1)/b) + (alpha-1)/(2 alpha-1) e^(-alpha/b))
                   / (alpha-1).

    The argument less one is (alpha g((alpha-1)/b) + (alpha-1) g(-alpha/b)) / (2 alpha-1) with
    g(x) = e^x - 1 - x >= 0, so that much noise loses no digits. The curve is convex in 1/b and zero
    at zero: a contribution spread over several coordinates costs no more than one on a single
    coordinate of the same L1 norm.

    Args:
        noise_multiplier: noise scale / L1 norm bound, > 0.
        sensitivity: in norm bounds; 1 for add_or_remove_one and replace_special, 2 for replace_one.
        orders: alpha > 1, shape (k,).

    Returns:
        RDP in nats, shape (k,). Upper; relative excess below 1e-11.
    """
    orders = checked_orders(orders)
    spend(26_000)
    epsilon = sensitivity / noise_multiplier
    rise = np.log(orders) + _log_excess((orders - 1) * epsilon)
    fall = np.log(orders - 1) + _log_excess(-orders * epsilon)
    log_moments = np.logaddexp(rise, fall) - np.log(2 * orders - 1)
    # A relative rounding of x moves log g(x) by at most 2 + |x| times as much.
    size = 8 + np.abs(log_moments) + np.abs(fall) + orders * min(epsilon, 1.0)
    size = size + (orders - 1) * epsilon
    return curve_of(log_moments + 32 * UNIT_ROUNDOFF * size, orders)


@theorem(
    id="poisson-laplace",
    source="Balle, Barthe and Gaboardi 2018, NeurIPS, arXiv:1807.01647v2, Theorem 8; from Bun and "
    "Steinke 2016, TCC, arXiv:1605.02065v1, Proposition 3.3",
    status=Status.PUBLISHED,
    relations=(NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL),
    assumptions=(Assumption.POISSON_SAMPLING, Assumption.INDEPENDENT_LAPLACE_NOISE),
)
def poisson_laplace_rdp(
    *, noise_multiplier: float, sampling_probability: float, orders: Array
) -> Array:
    """RDP of one Poisson-subsampled Laplace step.

    The step is log(1 + q (e^(1/b) - 1))-DP, b = noise_multiplier, and sampling never costs more
    than a full batch. At each order the lesser of the pure curve of that epsilon and of laplace_rdp
    is taken. A null record adds nothing to the sum, so replace_special has the same two laws.

    Args:
        noise_multiplier: noise scale / L1 norm bound, > 0.
        sampling_probability: q, in (0, 1].
        orders: alpha > 1, shape (k,).

    Returns:
        RDP in nats, shape (k,). Upper; the pure curve knows only the largest loss, so it is above
        the pair's own divergence.
    """
    epsilon = math.nextafter(1 / noise_multiplier, math.inf)
    amplified = amplified_epsilon(epsilon=epsilon, sampling_probability=sampling_probability)
    full = laplace_rdp(noise_multiplier=noise_multiplier, sensitivity=1.0, orders=orders)
    least: Array = np.minimum(pure_dp_rdp(epsilon=amplified, orders=orders), full)
    return least


THEOREMS = (laplace_rdp, poisson_laplace_rdp)
