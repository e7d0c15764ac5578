"""Budgets held without orders: of Gaussian releases, and of black boxes."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, Final, Never

from accounting.bounds.event_bounds import NoBoundError, filter_accepted
from accounting.bounds.gdp_bounds import gdp_bounds
from accounting.event_counts import EventCounts
from accounting.events import Event, NeighboringRelation
from accounting.filters.approximate_dp import epsilon_delta
from accounting.filters.integer_totals import (
    LimitedFilter,
    Total,
    delta_limit,
    delta_units,
    limit_units,
    loss_of,
    loss_units,
    plus,
    times,
)
from accounting.filters.theorems import (
    approximate_dp_filter_epsilon,
    gaussian_filter_limit,
    squares_limit,
)
from accounting.gaussian import gaussian_epsilon
from accounting.guarantees import DEFAULT_ACCEPT, Status
from accounting.rounding import require, rounded_down, rounded_up
from accounting.work_limit import cached_with_cost

# Distinct events whose cost is cached, about 1 kB each: more than one body names, 10,000. Of
# fewer, each would be forgotten before it is asked for again, and worked out anew every time.
CACHE_ENTRIES: Final = 10_240
FILTERS_MAX: Final = 1024  # whose limits are cached
REASON_FIXED: Final = "The limit of such a budget cannot be revised once answers were seen."


class _FixedFilter(LimitedFilter):
    """A filter without orders, whose limit cannot be revised once answers were seen."""

    __slots__ = ()

    @abstractmethod
    def cost(
        self,
        event: Event,
        *,
        relation: NeighboringRelation,
        accept: frozenset[Status] = DEFAULT_ACCEPT,
    ) -> Total:
        """What one unit of the event adds. Upper."""

    def total(
        self,
        counts: EventCounts,
        *,
        relation: NeighboringRelation,
        accept: frozenset[Status] = DEFAULT_ACCEPT,
        known: Mapping[Event, Total] | None = None,
    ) -> Total:
        """What a ledger adds up to, of costs that are known or worked out. Upper."""
        total = self.zero()
        for event, count in counts.counted():
            unit = known[event] if known else self.cost(event, relation=relation, accept=accept)
            total = plus(total, times(unit, count))
        return total

    def binding_order(self, total: Total) -> None:
        """None: there are no orders."""

    def at(self, *, epsilon: float, delta: float) -> Never:
        """Refused: a limit that follows the answers would be exceeded where they look worst.

        Raises:
            ValueError: always.
        """
        raise ValueError(REASON_FIXED)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianFilter(_FixedFilter):
    """A budget of steps that are Gaussian releases. Totals are (uncovered, sum of mu^2)."""

    kind: ClassVar[str] = "gaussian_dp"
    theorem: ClassVar[str] = gaussian_filter_limit.id
    status: ClassVar[Status] = gaussian_filter_limit.status

    epsilon: float  # nats
    delta: float

    @property
    def limits(self) -> Total:
        """What the budget holds."""
        return _gaussian_limits(self.epsilon, self.delta)

    def zero(self) -> Total:
        """Nothing spent."""
        return (0, 0)

    def cost(
        self,
        event: Event,
        *,
        relation: NeighboringRelation,
        accept: frozenset[Status] = DEFAULT_ACCEPT,
    ) -> Total:
        """What one unit of the event adds: a step, or a pass at its least noise. Upper."""
        return _gaussian_cost(event, relation, accept)

    def spent(self, total: Total) -> float:
        """The epsilon at the budget's delta that a total stands for, in nats. Upper."""
        uncovered, squares = total
        if uncovered:
            return math.inf
        reading = _gaussian_reading(loss_of(squares), self.delta)
        return min(reading, self.epsilon) if self.admits(total) else reading

    def record(self) -> dict[str, Any]:
        """What is stored with the budget."""
        return {"kind": self.kind, "orders": [], "weights": []}


@cached_with_cost(maxsize=CACHE_ENTRIES)
def _gaussian_cost(event: Event, relation: NeighboringRelation, accept: frozenset[Status]) -> Total:
    try:
        bounds = filter_accepted(gdp_bounds(event, relation), accept=accept)
    except NoBoundError:
        return (1, 0)
    mu = min(bound.loss for bound in bounds)
    return (0, loss_units(rounded_up(mu * mu)))


@lru_cache(maxsize=FILTERS_MAX)
def _gaussian_limits(epsilon: float, delta: float) -> Total:
    if not (0 <= epsilon < math.inf and 0 < delta < 1):
        return (0, -1)
    return (0, limit_units(gaussian_filter_limit(epsilon=epsilon, delta=delta)))


@lru_cache(maxsize=FILTERS_MAX)
def _gaussian_reading(squares: float, delta: float) -> float:
    return gaussian_epsilon(delta, mu=rounded_up(math.sqrt(squares)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproximateDpFilter(_FixedFilter):
    """A budget of black boxes, each (epsilon, delta)-DP by itself.

    Of its delta a share is for the sum of theirs, and a share for the deviation of their losses.
    Totals are (uncovered, sum of deltas, sum of squared epsilons).
    """

    kind: ClassVar[str] = "approximate_dp"
    theorem: ClassVar[str] = approximate_dp_filter_epsilon.id
    status: ClassVar[Status] = approximate_dp_filter_epsilon.status

    weights: tuple[float, float] = (0.5, 0.5)  # of delta: for the deviation, for the sum
    epsilon: float  # nats
    delta: float

    def __post_init__(self) -> None:
        """Refuse weights that spend delta more than once."""
        require(len(self.weights) == 2 and min(self.weights) > 0, "two weights > 0")
        require(sum(map(Fraction, self.weights)) <= 1, "weights add up to at most 1")

    @property
    def delta_slack(self) -> float:
        """The delta for the deviation of losses. Lower."""
        return rounded_down(self.weights[0] * self.delta)

    @property
    def limits(self) -> Total:
        """What the budget holds."""
        squares = squares_limit(epsilon=self.epsilon, delta_slack=self.delta_slack)
        declared = delta_limit(rounded_down(self.weights[1] * self.delta))
        return (0, declared, limit_units(squares))

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
        """What one step adds. Upper."""
        return _box_cost(event, relation, accept)

    def spent(self, total: Total) -> float:
        """The epsilon at the budget's delta that a total stands for, in nats. Upper."""
        uncovered, deltas, units = total
        if uncovered or not deltas <= self.limits[1]:
            return math.inf
        squares = loss_of(units)
        if not squares:
            return 0.0
        reading = approximate_dp_filter_epsilon(squares=squares, delta_slack=self.delta_slack)
        return min(reading, self.epsilon) if self.admits(total) else reading

    def record(self) -> dict[str, Any]:
        """What is stored with the budget."""
        return {"kind": self.kind, "orders": [], "weights": [*self.weights]}


@cached_with_cost(maxsize=CACHE_ENTRIES)
def _box_cost(event: Event, relation: NeighboringRelation, accept: frozenset[Status]) -> Total:
    try:
        epsilon, delta = epsilon_delta(event, relation, accept)
    except NoBoundError:
        return (1, 0, 0)
    squared = rounded_up(epsilon * epsilon) if epsilon else 0.0
    return (0, delta_units(delta), loss_units(squared))
