"""How much of a plan a budget would hold, at its default order and at the best."""

import math
from typing import Final

from accounting.event_counts import EventCounts
from accounting.events import NeighboringRelation
from accounting.filters import default_order, order_for, share_held
from accounting.guarantees import Status
from accounting.work_limit import attempt, remaining_points
from service.schemas.plan_response import PlanOrders

ORDERS_POINTS: Final = 10_000_000  # of a plan's work, that its orders may take
_GAIN: Final = 1.2  # a remedy is named where the best order holds so many times as much


def plan_orders(
    counts: EventCounts,
    *,
    relation: NeighboringRelation,
    epsilon: float | None,
    delta: float,
    accept: frozenset[Status],
) -> PlanOrders | None:
    """Return what a budget holds of a plan; None where no order holds a step, or work runs out.

    Args:
        counts: the plan's events.
        relation: the neighbouring relation.
        epsilon: nats, of the budget; None where it is infinite.
        delta: in (0, 1).
        accept: statuses that may be used.
    """
    if not epsilon or not math.isfinite(epsilon):
        return None

    def found() -> PlanOrders | None:
        best = order_for(counts, relation=relation, epsilon=epsilon, delta=delta, accept=accept)
        if best is None:
            return None
        usual = default_order(epsilon=epsilon, delta=delta)
        shares = [
            share_held(
                counts,
                relation=relation,
                epsilon=epsilon,
                delta=delta,
                order=order,
                accept=accept,
            )
            for order in (usual, best)
        ]
        return PlanOrders(
            epsilon=epsilon,
            default_order=usual,
            default_share=shares[0],
            best_order=best,
            best_share=shares[1],
            remedy=_remedy(usual, best, shares),
        )

    return attempt(min(ORDERS_POINTS, remaining_points()), found)


def _remedy(usual: float, best: float, shares: list[float]) -> str | None:
    if shares[1] <= _GAIN * shares[0]:
        return None
    return (
        f"A budget counts at order {usual:g} unless told otherwise, which holds less of this plan "
        f"than order {best:g}. Create the dataset with these events in `for`, or the budget with "
        f"`orders: [{best:g}]`."
    )
