"""Which Renyi order a new budget counts at, where its maker names none."""

from typing import Final

import numpy as np

from accounting.event_counts import EventCounts
from accounting.events import NeighboringRelation
from accounting.filters.integer_totals import CEILING
from accounting.filters.renyi import RenyiFilter, renyi_total
from accounting.filters.theorems import renyi_filter_limit
from accounting.guarantees import DEFAULT_ACCEPT, Status
from accounting.renyi.orders import ORDERS
from accounting.rounding import rounded_down

# Of the order that holds the most full-batch steps. A sampled step with little noise costs little
# up to some order and beyond it soon as much as a full batch, so an order that is too high admits
# none of them; an order that is too low leaves little of epsilon after the conversion. Over a table
# of ordinary trainings, among those for which some order admits 60 % of the PLD's steps, the worst
# keeps 50 % at .68, 52 % at .7 and 6 % at .72 (benchmarks/default_filter.py --search).
SHARE: Final = 0.7
_ALL: Final[tuple[float, ...]] = tuple(ORDERS.tolist())


def default_order(*, epsilon: float, delta: float, share: float = SHARE) -> float:
    """Return the order of a budget that names only epsilon and delta.

    Args:
        epsilon: nats, > 0.
        delta: in (0, 1).
        share: of the full-batch order, in (0, 1].

    Returns:
        An order of ORDERS: at most that share of the order that holds the most full-batch steps.
        It is the next one above where that admits no step at all.
    """
    limits = np.array(
        [renyi_filter_limit(order=order, epsilon=epsilon, delta=delta) for order in _ALL]
    )
    full = int(np.argmax(limits / ORDERS))
    below = int(np.searchsorted(ORDERS, share * ORDERS[full], side="right")) - 1
    chosen = max(0, below)
    while chosen < full and not limits[chosen] > 0:
        chosen += 1
    return _ALL[chosen]


def order_for(
    counts: EventCounts,
    *,
    relation: NeighboringRelation,
    epsilon: float,
    delta: float,
    accept: frozenset[Status] = DEFAULT_ACCEPT,
) -> float | None:
    """Return the order at which a budget holds a plan the most times.

    Args:
        counts: the plan's events; each needs a Renyi bound.
        relation: the neighbouring relation.
        epsilon: nats, > 0.
        delta: in (0, 1).
        accept: statuses that may be used.

    Returns:
        An order of ORDERS, at which the budget may hold less than one step; None if no order has a
        finite bound of the plan.
    """
    total = renyi_total(counts, relation, accept, _ALL)
    if total[0]:
        return None
    best, most = None, 0.0
    for order, spent in zip(_ALL, total[2:], strict=True):
        uncovered, failures, limit = RenyiFilter(order=order, epsilon=epsilon, delta=delta).limits
        if total[1] > failures or spent >= CEILING or limit <= uncovered:
            continue
        times = limit / spent if spent else float("inf")
        if times > most:
            best, most = order, times
    return best


def share_held(
    counts: EventCounts,
    *,
    relation: NeighboringRelation,
    epsilon: float,
    delta: float,
    order: float,
    accept: frozenset[Status] = DEFAULT_ACCEPT,
) -> float:
    """Return the share of a plan's cost that a budget holds at an order. Lower, in [0, 1].

    Args:
        counts: the plan's events.
        relation: the neighbouring relation.
        epsilon: nats, > 0.
        delta: in (0, 1).
        order: of ORDERS.
        accept: statuses that may be used.
    """
    held = RenyiFilter(order=order, epsilon=epsilon, delta=delta)
    total = held.total(counts, relation=relation, accept=accept)
    if held.admits(total):
        return 1.0
    limit, spent = held.limits[2], total[2]
    if total[0] or total[1] > held.limits[1] or not 0 < limit < spent:
        return 0.0
    return rounded_down(limit / spent, ulps=2)
