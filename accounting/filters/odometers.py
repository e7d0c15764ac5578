"""Readings that hold at all times at once, whoever looks and whenever they stop."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from accounting.event_counts import EventCounts
from accounting.events import NeighboringRelation
from accounting.filters.integer_totals import delta_limit, loss_of
from accounting.filters.renyi import FAILURE_SHARE, renyi_total
from accounting.filters.selection import UNION_ORDERS
from accounting.guarantees import DEFAULT_ACCEPT, Status, theorem
from accounting.rounding import LIBRARY_ULPS, Array, require, rounded_down, rounded_up

_ALL: Final = tuple(NeighboringRelation)
ODOMETER_ORDERS: Final = UNION_ORDERS


@theorem(
    id="renyi-odometer",
    source="docs/theory/odometers.md, Theorem 1",
    status=Status.DERIVED,
    relations=_ALL,
)
def renyi_odometer_epsilon(*, rdp: Array, orders: Array, delta: float) -> float:
    """Epsilon that the loss exceeds at no time at all, but for probability delta.

    min over alpha of rdp(alpha) + log(k/delta) / (alpha-1), k the number of orders, which are fixed
    before the first step. Steps are chosen one by one; rdp is what they have added up to so far. It
    is not the filter's conversion, which holds at one time only.

    Args:
        rdp: nats, shape (k,); infinite where nothing is known.
        orders: alpha > 1, shape (k,).
        delta: in (0, 1).

    Returns:
        Epsilon in nats. Upper.

    Raises:
        ValueError: delta is not in (0, 1), or the curve is negative or not a number.
    """
    require(0 < delta < 1 and bool(np.all(rdp >= 0)), "delta in (0, 1), rdp >= 0")
    costs = (math.log(len(orders)) - math.log(delta)) / (orders - 1)
    return rounded_up(float(np.min(rdp + costs * (1 + 1e-14))), ulps=2 * LIBRARY_ULPS)


@theorem(
    id="zcdp-odometer",
    source="docs/theory/odometers.md, Theorem 2",
    status=Status.DERIVED,
    relations=_ALL,
)
def zcdp_odometer_epsilon(*, rho: float, rho0: float, delta: float) -> float:
    """Epsilon that the loss of zCDP steps exceeds at no time at all, but for probability delta.

    rho + 2 sqrt((rho + rho0) (log(1/delta) + log((rho + rho0)/rho0) / 2)), rho what the steps have
    added up to so far. It serves best where rho is some 2 log(1/delta) times rho0.

    Args:
        rho: >= 0.
        rho0: > 0, fixed before the first step.
        delta: in (0, 1).

    Returns:
        Epsilon in nats. Upper, to rounding.

    Raises:
        ValueError: an argument is out of range.
    """
    require(
        0 <= rho < math.inf and 0 < rho0 < math.inf and 0 < delta < 1,
        "rho >= 0, rho0 > 0, delta in (0, 1)",
    )
    log_odds = 0.5 * math.log1p(rho / rho0) - math.log(delta)
    return rounded_up(rho + 2 * math.sqrt((rho + rho0) * log_odds), ulps=4 * LIBRARY_ULPS)


def odometer_epsilon(
    counts: EventCounts,
    *,
    relation: NeighboringRelation,
    delta: float,
    accept: frozenset[Status] = DEFAULT_ACCEPT,
    orders: Sequence[float] = ODOMETER_ORDERS,
) -> float:
    """The odometer's reading of a ledger, valid whenever it is looked at. Upper, nats.

    Infinite where some event has no accepted bound, or where curves may fail with more than the
    share of delta that is kept for it, as in a filter.

    Raises:
        ValueError: delta is not in (0, 1).
    """
    require(0 < delta < 1, "delta in (0, 1)")
    uncovered, failures, *rdp = renyi_total(counts, relation, accept, tuple(orders))
    if uncovered or not failures <= delta_limit(rounded_down(FAILURE_SHARE * delta)):
        return math.inf
    if not any(rdp):
        return 0.0
    return renyi_odometer_epsilon(
        rdp=np.array([loss_of(units) for units in rdp]),
        orders=np.array(orders),
        delta=rounded_down(delta * (1 - FAILURE_SHARE), ulps=2),
    )


THEOREMS = (renyi_odometer_epsilon, zcdp_odometer_epsilon)
