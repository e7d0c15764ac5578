"""Budgets held by Renyi filters: at one order, or at any of several that share delta."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, Final, Self

from accounting.bounds.event_bounds import NoBoundError
from accounting.event_counts import EventCounts, pass_length, passes_by_sampling
from accounting.events import Event, NeighboringRelation
from accounting.filters.event_costs import losses_at
from accounting.filters.falling_noise import passes_total
from accounting.filters.integer_totals import (
    LimitedFilter,
    Total,
    delta_limit,
    delta_units,
    limit_units,
    loss_of,
    loss_units,
    plus,
    remaining_epsilon,
    sum_of,
    times,
    within,
)
from accounting.filters.theorems import conversion_cost, renyi_filter_limit, union_filter_limits
from accounting.guarantees import DEFAULT_ACCEPT, Status
from accounting.rounding import require, rounded_down, rounded_up
from accounting.work_limit import cached_with_cost

# Of a budget's delta, for steps whose curve may fail with a probability of its own.
FAILURE_SHARE: Final = 1e-6
# Distinct events whose cost is cached. Most repeat at once or never, and each takes about 1 kB.
CACHE_ENTRIES: Final = 10_240
FILTERS_MAX: Final = 1024  # whose limits are cached
ORDERS_MAX: Final = 64  # of one filter: as many numbers a total has


@cached_with_cost(maxsize=CACHE_ENTRIES)
def _cost(
    event: Event,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    orders: tuple[float, ...],
) -> Total:
    """(uncovered, failures, RDP at each order) of one unit: a step, or a pass of one noise."""
    try:
        losses, failure = losses_at(event, relation, accept, orders)
    except NoBoundError:
        return (1, 0, *(0 for _ in orders))
    return (0, delta_units(failure), *map(loss_units, losses))


def renyi_total(
    counts: EventCounts,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    orders: tuple[float, ...],
    known: Mapping[Event, Total] | None = None,
) -> Total:
    """(uncovered, failures, RDP at each order) of a ledger. Upper."""

    def unit(event: Event) -> Total:
        return known[event] if known else _cost(event, relation, accept, orders)

    total: Total = (0, 0, *(0 for _ in orders))
    for event, count in counts.steps.items():
        if pass_length(event) is None:
            total = plus(total, times(unit(event), count))
    amplified = Status.DERIVED in accept  # only what stops early has a Renyi curve of its own
    again = {one for one in counts.used_again if amplified and one.stops_early}
    for sampling, each in passes_by_sampling(counts).items():
        total = plus(total, passes_total(each, relation, accept, orders, unit))
        if sampling in again:
            total = (total[0] + sum(one.passes for one in each), *total[1:])
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class RenyiFilter(LimitedFilter):
    """A budget held at one order, which is fixed when the budget is set.

    Epsilon is read at the budget's delta less FAILURE_SHARE of it. That share is for steps whose
    curve holds but for some probability, which may not add up to more (docs/theory/filters.md).
    Totals are (uncovered, failures, RDP).
    """

    kind: ClassVar[str] = "fixed_order_renyi"
    theorem: ClassVar[str] = renyi_filter_limit.id
    status: ClassVar[Status] = renyi_filter_limit.status

    order: float
    epsilon: float  # nats
    delta: float

    @property
    def orders(self) -> tuple[float, ...]:
        """The one order."""
        return (self.order,)

    @property
    def limits(self) -> Total:
        """What the budget holds."""
        return _limits(self.order, self.epsilon, self.delta)

    def zero(self) -> Total:
        """Nothing spent."""
        return (0, 0, 0)

    def cost(
        self,
        event: Event,
        *,
        relation: NeighboringRelation,
        accept: frozenset[Status] = DEFAULT_ACCEPT,
    ) -> Total:
        """What one unit of the event adds. Upper."""
        return _cost(event, relation, accept, (self.order,))

    def total(
        self,
        counts: EventCounts,
        *,
        relation: NeighboringRelation,
        accept: frozenset[Status] = DEFAULT_ACCEPT,
        known: Mapping[Event, Total] | None = None,
    ) -> Total:
        """What a ledger adds up to, of costs that are known or worked out. Upper."""
        return renyi_total(counts, relation, accept, (self.order,), known)

    def spent(self, total: Total) -> float:
        """The epsilon at the budget's delta that a total stands for, in nats. Upper."""
        uncovered, failures, rdp = total
        if not any(total):
            return 0.0
        if uncovered or not failures <= self.limits[1]:
            return math.inf
        cost = conversion_cost(self.order, _read_at(self.delta))
        reading = max(0.0, rounded_up(loss_of(rdp) + cost, ulps=2))
        # What is admitted is within the budget; the last digit of a reading may not say so.
        return min(reading, self.epsilon) if self.admits(total) else reading

    def room(self, total: Total) -> int | None:
        """How much more RDP the order holds, in units; None where no more is ever admitted."""
        limits = self.limits
        return limits[2] - total[2] if within(total[:2], limits[:2]) else None

    def binding_order(self, total: Total) -> float | None:
        """The order."""
        return self.order if self.room(total) is not None else None

    def at(self, *, epsilon: float, delta: float) -> Self:
        """The same order under another limit."""
        return replace(self, epsilon=epsilon, delta=delta)

    def record(self) -> dict[str, Any]:
        """What is stored with the budget."""
        return {"kind": self.kind, "orders": [self.order], "weights": [1.0]}


def _read_at(delta: float) -> float:
    """The delta at which an order is read. Lower.

    Of the smallest doubles nothing is left then; their share for failures is zero, so that the
    whole delta may be read at.
    """
    return rounded_down(delta * (1 - FAILURE_SHARE), ulps=2) or delta


@lru_cache(maxsize=FILTERS_MAX * 16)
def _limits(order: float, epsilon: float, delta: float) -> Total:
    limit = renyi_filter_limit(order=order, epsilon=epsilon, delta=_read_at(delta))
    return (0, delta_limit(rounded_down(FAILURE_SHARE * delta)), limit_units(limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionFilter:
    """A budget held at any of several orders; each has its own share of delta.

    It is as many fixed-order filters, one of which must hold. Totals are (uncovered, failures, RDP
    at each order).
    """

    kind: ClassVar[str] = "union_of_orders"
    theorem: ClassVar[str] = union_filter_limits.id
    status: ClassVar[Status] = union_filter_limits.status

    orders: tuple[float, ...]
    weights: tuple[float, ...]  # of delta; at most 1 together
    epsilon: float  # nats
    delta: float

    def __post_init__(self) -> None:
        """Refuse weights that spend delta more than once."""
        require(len(self.orders) == len(self.weights) > 0, "a weight for each order")
        require(min(self.weights) > 0, "weights > 0")
        require(sum(map(Fraction, self.weights)) <= 1, "weights add up to at most 1")

    def zero(self) -> Total:
        """Nothing spent."""
        return (0,) * (2 + len(self.orders))

    def cost(
        self,
        event: Event,
        *,
        relation: NeighboringRelation,
        accept: frozenset[Status] = DEFAULT_ACCEPT,
    ) -> Total:
        """What one unit of the event adds. Upper."""
        return _cost(event, relation, accept, self.orders)

    def total(
        self,
        counts: EventCounts,
        *,
        relation: NeighboringRelation,
        accept: frozenset[Status] = DEFAULT_ACCEPT,
        known: Mapping[Event, Total] | None = None,
    ) -> Total:
        """What a ledger adds up to, of costs that are known or worked out. Upper."""
        return renyi_total(counts, relation, accept, self.orders, known)

    def admits(self, total: Total) -> bool:
        """Whether some order holds so much."""
        return any(part.admits(own) for part, own in self._each(total))

    def spent(self, total: Total) -> float:
        """The epsilon at the budget's delta that a total stands for, in nats. Upper."""
        return min(part.spent(own) for part, own in self._each(total))

    def share(self, total: Total) -> float:
        """The share of capacity that a total uses, at the order where it is least. Upper.

        It is at most 1 exactly where some order admits the total.
        """
        return min(part.share(own) for part, own in self._each(total))

    def parts(self, totals: Sequence[Total], *, whole: Total | None = None) -> tuple[float, ...]:
        """The shares that several totals use of what binds the whole, their sum if none is given.

        Upper. All are read at the order at which the whole uses the least, so that they add up.
        """
        sums = sum_of(totals, self.zero()) if whole is None else whole
        covered = (0, *sums[1:])  # units without a bound count alike at every order
        shares = [part.share(own) for part, own in self._each(covered)]
        place = shares.index(min(shares))
        held_by, own = list(self._each(sums))[place]
        return held_by.parts([(t[0], t[1], t[2 + place]) for t in totals], whole=own)

    def remaining(self, total: Total) -> float:
        """What is left of epsilon, in nats. Lower, >= 0."""
        return remaining_epsilon(self, total)

    def admissible(self, total: Total, cost: Total) -> int:
        """How many further units of a cost the budget holds, at most COUNT_MAX."""
        each = zip(self._each(total), self._each(cost), strict=True)
        return max(part.admissible(own, unit) for (part, own), (_, unit) in each)

    def binding_order(self, total: Total) -> float | None:
        """The order that holds most of what may still come."""
        rooms = [(part.room(own), part.order) for part, own in self._each(total)]
        return max(((room, order) for room, order in rooms if room is not None), default=(0, None))[
            1
        ]

    def at(self, *, epsilon: float, delta: float) -> Self:
        """The same orders and weights under another limit."""
        return replace(self, epsilon=epsilon, delta=delta)

    def record(self) -> dict[str, Any]:
        """What is stored with the budget."""
        return {"kind": self.kind, "orders": [*self.orders], "weights": [*self.weights]}

    def _each(self, total: Total) -> Iterator[tuple[RenyiFilter, Total]]:
        """Each order's own filter, with what of the total it counts."""
        for part, rdp in zip(_parts(self), total[2:], strict=True):
            yield part, (total[0], total[1], rdp)


@lru_cache(maxsize=FILTERS_MAX)
def _parts(union: UnionFilter) -> tuple[RenyiFilter, ...]:
    return tuple(
        RenyiFilter(order=order, epsilon=union.epsilon, delta=rounded_down(weight * union.delta))
        for order, weight in zip(union.orders, union.weights, strict=True)
    )
