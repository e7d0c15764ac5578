"""Which filter holds a budget: chosen when it is set, read back from what was stored."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from accounting.events import Event, NeighboringRelation, Sampling
from accounting.filters.closed_form import ApproximateDpFilter, GaussianFilter
from accounting.filters.default_order import default_order
from accounting.filters.envelope import EnvelopeFilter
from accounting.filters.falling_noise import LeastNoise, PassRule, renyi_pass_rule
from accounting.filters.integer_totals import Total
from accounting.filters.renyi import ORDERS_MAX, RenyiFilter, UnionFilter
from accounting.filters.theorems import renyi_filter_limit
from accounting.guarantees import DEFAULT_ACCEPT, Status
from accounting.renyi.orders import ORDERS
from accounting.rounding import rounded_down

Filter = RenyiFilter | UnionFilter | GaussianFilter | ApproximateDpFilter | EnvelopeFilter

KINDS: Final = (RenyiFilter.kind, UnionFilter.kind, GaussianFilter.kind, ApproximateDpFilter.kind)
# A few orders serve nearly as well as many, and each takes its share of delta.
UNION_ORDERS: Final = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)
# An integer order is cheap for every new event: it is chosen unless it holds fewer steps by more
# than this share.
_FEWER: Final = 0.02


def choose(
    kind: str, *, epsilon: float, delta: float, orders: Sequence[float] | None = None
) -> Filter:
    """The filter of a budget that is being set.

    Args:
        kind: one of KINDS.
        epsilon: nats.
        delta: in (0, 1); all that the filter may use.
        orders: of a Renyi filter, in [1.1, 1024]; chosen from the budget where they are missing.

    Raises:
        ValueError: an unknown kind, or orders that are out of range or that the kind has not.
    """
    if kind in (GaussianFilter.kind, ApproximateDpFilter.kind) and orders is not None:
        raise ValueError(f"orders: the {kind} filter has none.")
    if kind == GaussianFilter.kind:
        return GaussianFilter(epsilon=epsilon, delta=delta)
    if kind == ApproximateDpFilter.kind:
        return ApproximateDpFilter(epsilon=epsilon, delta=delta)
    if kind == RenyiFilter.kind:
        (order,) = _check_orders(orders or (default_order(epsilon=epsilon, delta=delta),), most=1)
        return RenyiFilter(order=order, epsilon=epsilon, delta=delta)
    if kind == UnionFilter.kind:
        several = _check_orders(UNION_ORDERS if orders is None else orders, most=ORDERS_MAX)
        weights = (rounded_down(1 / len(several)),) * len(several)
        return UnionFilter(orders=several, weights=weights, epsilon=epsilon, delta=delta)
    raise ValueError(f"kind: the filters are {', '.join(KINDS)}.")


def _check_orders(orders: Sequence[float], *, most: int) -> tuple[float, ...]:
    low, high = float(ORDERS[0]), float(ORDERS[-1])
    if not all(low <= order <= high for order in orders):
        raise ValueError(f"orders: each lies in [{low:g}, {high:g}].")
    if not 1 <= len(set(orders)) == len(orders) <= most:
        raise ValueError(f"orders: from 1 to {most}, each once.")
    return tuple(float(order) for order in orders)


def filter_of(record: Mapping[str, Any], *, epsilon: float, delta: float) -> Filter:
    """The filter that was stored, under a limit.

    Raises:
        ValueError: the record is not one of a filter.
    """
    kind, orders, weights = record["kind"], tuple(record["orders"]), tuple(record["weights"])
    if kind == RenyiFilter.kind:
        (order,) = orders
        return RenyiFilter(order=order, epsilon=epsilon, delta=delta)
    if kind == UnionFilter.kind:
        return UnionFilter(orders=orders, weights=weights, epsilon=epsilon, delta=delta)
    if kind == GaussianFilter.kind:
        return GaussianFilter(epsilon=epsilon, delta=delta)
    if kind == ApproximateDpFilter.kind:
        return ApproximateDpFilter(weights=weights, epsilon=epsilon, delta=delta)
    raise ValueError(f"kind: the filters are {', '.join(KINDS)}.")


def best_order(*, epsilon: float, delta: float) -> float:
    """The order at which a budget holds the most full-batch Gaussian steps, or nearly so.

    A budget that names nothing else counts at default_order. A Gaussian step costs in
    proportion to the order, so limit / order over ORDERS is what counts. The best integer is taken
    unless another order holds noticeably more.
    """
    steps = np.array(
        [
            renyi_filter_limit(order=order, epsilon=epsilon, delta=delta) / order
            for order in ORDERS.tolist()
        ]
    )
    whole = np.where(np.floor(ORDERS) == ORDERS, steps, -np.inf)
    best, integer = int(np.argmax(steps)), int(np.argmax(whole))
    near = steps[integer] >= steps[best] - _FEWER * abs(steps[best])
    return float(ORDERS[integer if near else best])


def pass_rule(
    held_by: Filter,
    sampling: Sampling,
    *,
    relation: NeighboringRelation,
    accept: frozenset[Status] = DEFAULT_ACCEPT,
    unit: Callable[[Event], Total],
) -> PassRule | None:
    """How a filter adds up the passes of a sampling; None where it asks for all of them at once.

    Args:
        held_by: the filter.
        sampling: one that is counted by pass.
        relation: the neighbouring relation.
        accept: statuses of theorems that may be used.
        unit: what a pass costs that keeps its noise.
    """
    if isinstance(held_by, EnvelopeFilter):
        return None
    if isinstance(held_by, RenyiFilter | UnionFilter):
        return renyi_pass_rule(sampling, relation, accept, held_by.orders, unit)
    return LeastNoise(held_by.zero(), unit)
