"""From a Renyi curve to (epsilon, delta), in either direction."""

import math

import numpy as np

from accounting.events import NeighboringRelation
from accounting.guarantees import Status, theorem
from accounting.rounding import UNIT_ROUNDOFF, Array, rounded_up

_SOURCE = "Canonne, Kamath and Steinke 2020, NeurIPS, arXiv:2004.00010v4, Proposition 12"


def conversion_costs(orders: Array, *, delta: float) -> Array:
    """What the conversion adds to the RDP at each order. Upper; may be negative for large delta.

    log(1 - 1/alpha) - (log(delta) + log(alpha)) / (alpha - 1)
    """
    log_delta, log_orders = math.log(delta), np.log(orders)
    costs = np.log1p(-1 / orders) - (log_delta + log_orders) / (orders - 1)
    slack = 16 * UNIT_ROUNDOFF * (1 + abs(log_delta) + log_orders) / (orders - 1)
    return np.asarray(costs + slack + 16 * UNIT_ROUNDOFF, dtype=np.float64)


@theorem(
    id="renyi-to-epsilon",
    source=_SOURCE,
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
)
def rdp_epsilon(*, rdp: Array, orders: Array, delta: float) -> tuple[float, float]:
    """Epsilon at delta from a Renyi curve, by the improved conversion.

    epsilon = min over alpha of rdp(alpha) + log(1 - 1/alpha) - (log(delta) + log(alpha))/(alpha-1)

    Args:
        rdp: nats, shape (k,); infinite where nothing is known.
        orders: alpha > 1, shape (k,).
        delta: in (0, 1).

    Returns:
        (epsilon in nats, >= 0 and possibly infinite; the order that attains it). Upper.

    Raises:
        ValueError: delta is not in (0, 1), the curve is negative or not a number, or an
            order is not above 1.
    """
    _check(rdp, orders)
    if not 0 < delta < 1:
        raise ValueError("delta lies in (0, 1).")
    epsilons = rdp + conversion_costs(orders, delta=delta)
    best = int(np.argmin(epsilons))
    return max(0.0, rounded_up(float(epsilons[best]), ulps=2)), float(orders[best])


@theorem(
    id="renyi-to-delta",
    source=_SOURCE,
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
)
def rdp_delta(*, rdp: Array, orders: Array, epsilon: float) -> tuple[float, float]:
    """Delta at epsilon from a Renyi curve.

    delta = min over alpha of exp((alpha-1) (rdp(alpha) - epsilon + log(1 - 1/alpha))) / alpha

    Args:
        rdp: nats, shape (k,).
        orders: alpha > 1, shape (k,).
        epsilon: nats, >= 0.

    Returns:
        (delta in (0, 1], the order that attains it). Upper.

    Raises:
        ValueError: epsilon is negative, the curve is negative or not a number, or an
            order is not above 1.
    """
    _check(rdp, orders)
    if not epsilon >= 0:
        raise ValueError("epsilon is not negative.")
    exponents = (orders - 1) * (rdp - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    exponents = exponents + 16 * UNIT_ROUNDOFF * orders * (rdp + epsilon + 2)
    best = int(np.argmin(exponents))
    delta = math.exp(min(0.0, float(exponents[best])))
    return min(1.0, rounded_up(delta, ulps=4)), float(orders[best])


@theorem(
    id="renyi-to-epsilon-classical",
    source="Mironov 2017, CSF, arXiv:1702.07476v3, Proposition 3; as document 004 (Berthier 2019), "
    "Proposition 2.7",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
)
def classical_rdp_epsilon(*, rdp: Array, orders: Array, delta: float) -> tuple[float, float]:
    """Epsilon at delta from a Renyi curve, by the classical conversion.

    epsilon = min over alpha of rdp(alpha) + log(1/delta) / (alpha-1); rdp_epsilon is never more.

    Args:
        rdp: nats, shape (k,); infinite where nothing is known.
        orders: alpha > 1, shape (k,).
        delta: in (0, 1).

    Returns:
        (epsilon in nats, > 0 and possibly infinite; the order that attains it). Upper.

    Raises:
        ValueError: delta is not in (0, 1), the curve is negative or not a number, or an
            order is not above 1.
    """
    _check(rdp, orders)
    if not 0 < delta < 1:
        raise ValueError("delta lies in (0, 1).")
    costs = -math.log(delta) / (orders - 1) * (1 + 16 * UNIT_ROUNDOFF)
    epsilons = rdp + costs
    best = int(np.argmin(epsilons))
    return rounded_up(float(epsilons[best]), ulps=2), float(orders[best])


def _check(rdp: Array, orders: Array) -> None:
    if not np.all(orders > 1):
        raise ValueError("Orders lie above 1.")
    if not np.all(rdp >= 0):  # also refuses NaN; never repaired
        raise ValueError("An RDP curve is not negative.")


THEOREMS = (rdp_epsilon, rdp_delta, classical_rdp_epsilon)
