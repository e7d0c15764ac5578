"""What one unit of an event costs a Renyi filter: its divergence at the orders the filter has."""

import math
from functools import lru_cache
from typing import Final

import numpy as np

from accounting.bounds.event_bounds import REPLACE_ONE, filter_accepted, sensitivity_of
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.events import (
    Event,
    Full,
    Gaussian,
    NeighboringRelation,
    Poisson,
    Unknown,
)
from accounting.guarantees import Status
from accounting.renyi.orders import ORDERS
from accounting.renyi.poisson import poisson_gaussian_rdp
from accounting.rounding import UNIT_ROUNDOFF, Array, rounded_up
from accounting.work_limit import spend

ORDER_MAX: Final = 64  # up to here the moment of an integer order is summed term by term
# Rates and noises of that sum. The term of two copies, 1e-27 or more, is then far above whatever
# underflows, and no term overflows.
_RATES: Final = (1e-9, 0.5)
_PRECISION_MIN: Final = 1e-9  # 1 / (2 sigma^2)
_EXPONENT_MAX: Final = 500.0


def losses_at(
    event: Event,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    orders: tuple[float, ...],
) -> tuple[list[float], float]:
    """RDP of one unit at each order, and the probability with which it may fail. Upper, nats.

    Raises:
        NoBoundError: no accepted theorem bounds the event.
    """
    plain = _sampled_gaussian(event, relation, accept)
    if plain is not None:
        spend(200 * len(orders))
        return gaussian_step_rdp(orders, *plain), 0.0
    bounds = filter_accepted(renyi_bounds(event, relation), accept=accept)
    least = [min((loss_at(bound.loss, order), bound.delta) for bound in bounds) for order in orders]
    return [loss for loss, _ in least], max(delta for _, delta in least)


def _sampled_gaussian(
    event: Event, relation: NeighboringRelation, accept: frozenset[Status]
) -> tuple[float, float, float] | None:
    """(noise, rate, sensitivity) where all accepted bounds are that sampled Gaussian's curve.

    These are nearly all events of nearly all runs, and a whole curve costs fifty times as much as
    one order.
    """
    mechanism, sampling = event.mechanism, event.sampling
    if not isinstance(mechanism, Gaussian) or Status.PUBLISHED not in accept:
        return None
    if isinstance(sampling, Full | Unknown):
        return mechanism.noise_multiplier, 1.0, sensitivity_of(relation)
    if not isinstance(sampling, Poisson):
        return None
    if relation is not REPLACE_ONE:
        return mechanism.noise_multiplier, sampling.sampling_probability, 1.0
    # The amplified curve is derived; without it the step is a release of both records.
    return None if Status.DERIVED in accept else (mechanism.noise_multiplier, 1.0, 2.0)


def gaussian_step_rdp(
    orders: tuple[float, ...], sigma: float, q: float, sensitivity: float
) -> list[float]:
    """gaussian_rdp, or poisson_gaussian_rdp where q < 1, at each order. Upper, nats."""
    found = [_few_terms(order, sigma, q, sensitivity) for order in orders]
    far = [index for index, loss in enumerate(found) if loss is None]
    if far:
        curve = poisson_gaussian_rdp(
            noise_multiplier=sigma,
            sampling_probability=q,
            orders=np.array([orders[index] for index in far]),
        )
        for index, loss in zip(far, curve, strict=True):
            found[index] = float(loss)
    return [loss for loss in found if loss is not None]


def _few_terms(order: float, sigma: float, q: float, sensitivity: float) -> float | None:
    """The same at one order, where that takes a few terms and no term overflows; else None."""
    ratio = sensitivity / sigma
    full = order * (0.5 * ratio * ratio * (1 + 8 * UNIT_ROUNDOFF))
    if q == 1:
        return full
    precision = 0.5 / (sigma * sigma)
    top = order * (order - 1) * precision
    if not (
        order == int(order) <= ORDER_MAX
        and _RATES[0] <= q <= _RATES[1]
        and precision >= _PRECISION_MIN
        and top <= _EXPONENT_MAX
    ):
        return None
    odds = q / (1 - q)
    power, moment = odds, 0.0
    for ways, pairs in _binomials(int(order)):
        power *= odds
        moment += ways * power * math.expm1(pairs * precision)
    # E[S^alpha] - 1, as log_integer_moments sums it, but not in logarithms.
    slack = UNIT_ROUNDOFF * (8 * top + 16 * order + 64)
    moment *= (1 - q) ** order * (1 + slack)
    return min(full, math.log1p(moment) / (order - 1) * (1 + 32 * UNIT_ROUNDOFF) + 5e-324)


@lru_cache(maxsize=ORDER_MAX)
def _binomials(order: int) -> tuple[tuple[float, float], ...]:
    """C(order, k) and k (k-1), for k from 2 on."""
    return tuple((float(math.comb(order, k)), float(k * (k - 1))) for k in range(2, order + 1))


def loss_at(curve: Array, order: float) -> float:
    """A curve on ORDERS at any order between. Upper: (alpha-1) rdp(alpha) is convex."""
    above = int(np.searchsorted(ORDERS, order))
    b, at_b = float(ORDERS[above]), float(curve[above])
    if b == order:
        return at_b
    a, at_a = float(ORDERS[above - 1]), float(curve[above - 1])
    chord = (b - order) * (a - 1) * at_a + (order - a) * (b - 1) * at_b
    return rounded_up(chord / ((b - a) * (order - 1)), ulps=16)
