"""Budgets and compositions read from less than they need."""

import math

import numpy as np

from accounting.events import NeighboringRelation
from accounting.gaussian import gaussian_mu
from accounting.guarantees import Status, theorem
from accounting.renyi.conversion import conversion_costs
from accounting.renyi.orders import checked_orders
from accounting.rounding import Array


@theorem(
    id="any-order-filter",
    source="Common practice; refuted in docs/theory/errata.md, Proposition 2",
    status=Status.REFUTED,
    relations=tuple(NeighboringRelation),
    counterexample="epsilon 3, delta 1e-5, orders 2 to 32: two steps, the second chosen by the "
    "answer to the first and admitted by order 6, 12 or 32, have delta(3) = 2.439e-5.",
)
def any_order_room(*, rdp: Array, orders: Array, epsilon: float, delta: float) -> float:
    """What a budget holds if a step is admitted as long as some order is within its full budget.

    max over alpha of epsilon - log(1 - 1/alpha) + (log(delta) + log(alpha))/(alpha - 1) - rdp

    A step is admitted if this is not negative. Which order decides may then depend on the answers,
    and each answer's order fails with up to delta; fixed-order-renyi-filter fixes it in advance.

    Args:
        rdp: nats, shape (k,); spent with the step.
        orders: alpha > 1, shape (k,).
        epsilon: nats, > 0.
        delta: in (0, 1).

    Returns:
        RDP in nats that is left. Lower as claimed, which it is not where steps are chosen.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    orders = checked_orders(orders)
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise ValueError("epsilon is positive and finite, and delta lies in (0, 1).")
    if rdp.shape != orders.shape or not np.all(rdp >= 0):
        raise ValueError("rdp is not negative and has the shape of orders.")
    return float(np.max(epsilon - conversion_costs(orders, delta=delta) - rdp))


@theorem(
    id="single-point-gdp",
    source="Document 001 (Sordello, Bu, Dong and Su 2021), Section 3, Remark 3",
    status=Status.REFUTED,
    relations=(NeighboringRelation.REPLACE_ONE,),
    counterexample="(1, 1e-5)-DP: a mechanism that tells all with a chance of 1e-5 has delta 1e-5 "
    "at every epsilon, the Gaussian through that point 2.4e-30 at epsilon 3.",
)
def single_point_gdp(*, epsilon: float, delta: float) -> float:
    """Gaussian DP of a mechanism known to be (epsilon, delta)-DP at one point.

    The mu whose profile passes through the point. One point bounds no other: no finite mu, and no
    finite Renyi curve, follows from it. What composes is the whole profile of document 001's
    Theorem 2, and the least mu for that profile is 2L/sigma, which is no amplification.

    Args:
        epsilon: nats, >= 0.
        delta: in (0, 1).

    Returns:
        mu. Upper as claimed, which it is not.

    Raises:
        ValueError: epsilon is negative or delta not in (0, 1).
    """
    return gaussian_mu(epsilon, delta=delta)


THEOREMS = (any_order_room, single_point_gdp)
