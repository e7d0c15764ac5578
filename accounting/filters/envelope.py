"""Budgets that a fixed multiset of steps fits exactly: the envelope of what may be done.

The items are fixed before the first answer, and all of them together are certified at once. Each
step is charged to an item that covers it, in whole numbers: no price is worked out.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import mul
from typing import Any, ClassVar, Final, Never

from accounting.event_counts import EventCounts, pass_length, passes_by_sampling
from accounting.events import Event, NeighboringRelation
from accounting.filters.covers import covers
from accounting.filters.integer_totals import (
    COUNT_MAX,
    Total,
    fraction_of,
    plus,
    remaining_epsilon,
    sum_of,
    times,
)
from accounting.filters.renyi import RenyiFilter
from accounting.guarantees import DEFAULT_ACCEPT, Status, theorem
from accounting.rounding import require, rounded_down

ITEMS_MAX: Final = 256  # of one envelope
READINGS_MAX: Final = 256  # totals whose charges are cached
REASON_FIXED: Final = "An envelope cannot be changed once answers were seen."
_COUNTS: Final = 2  # numbers of a total before the items: units without a bound, units outside


@theorem(
    id="envelope-filter",
    source="docs/theory/envelopes.md, Theorem 1 and Propositions 3 and 5",
    status=Status.DERIVED,
    relations=tuple(NeighboringRelation),
)
def charged_items(
    *, used: Sequence[int], allowed: Sequence[int], parents: Sequence[int | None]
) -> tuple[int, ...] | None:
    """How often each item is charged, when steps that an item does not hold go to its parent.

    Let the product of all items be (epsilon, delta)-DP in both orders. A trainer that charges each
    item at most as often as it is allowed, with steps that the item covers, and chooses order,
    steps, interleaving and end by all answers, is (epsilon, delta)-DP.

    Args:
        used: units whose own item it is, shape (k,).
        allowed: units that each item holds, shape (k,).
        parents: of each item one that comes later and covers it, or None, shape (k,).

    Returns:
        Units charged to each item, shape (k,), exact; None where some units find no item.
    """
    charged = list(used)
    for item, parent in enumerate(parents):
        beyond = charged[item] - allowed[item]
        if charged[item] < 0 or (beyond > 0 and parent is None):
            return None
        if beyond > 0 and parent is not None:
            charged[item] = allowed[item]
            charged[parent] += beyond
    return tuple(charged)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeItem:
    """Steps of one kind that an envelope holds."""

    event: Event
    steps: int  # >= 1
    name: str | None = None

    def __post_init__(self) -> None:
        """Refuse an item without steps."""
        require(self.steps >= 1, "steps >= 1")

    @property
    def unit(self) -> int:
        """The steps that are charged at once: those of a pass where passes count, else 1."""
        return pass_length(self.event) or 1

    @property
    def allowed(self) -> int:
        """The units it holds; a pass that is begun is a whole one."""
        return -(-self.steps // self.unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeFilter:
    """A budget of steps that were listed before the first answer, in any order.

    Totals are (0, units that no item covers, units of each item). An item's own units are those of
    steps that are equal to it or that it covers most closely; what it does not hold goes to items
    that cover it. Which those are follows from the items alone.

    With an order, a Renyi filter on the delta that the items leave holds whatever the items do not:
    then totals go on with that filter's own, which counts all steps, inside and outside
    (docs/theory/envelopes.md, Proposition 5).
    """

    kind: ClassVar[str] = "envelope"
    theorem: ClassVar[str] = charged_items.id
    status: ClassVar[Status] = charged_items.status

    items: tuple[EnvelopeItem, ...]
    epsilon: float  # nats
    delta: float
    certified: float  # nats at delta, of all items together. Upper
    order: float | None = None  # of the Renyi filter for what the items do not hold
    weight: float = 0.0  # of delta, that the items leave to that filter. Lower
    beside: RenyiFilter | None = field(init=False, repr=False, compare=False)
    _order: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _allowed: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _parents: tuple[int | None, ...] = field(init=False, repr=False, compare=False)
    _exact: Mapping[Event, int] = field(init=False, repr=False, compare=False)
    _steps: tuple[int, ...] = field(init=False, repr=False, compare=False)  # of a unit, in order
    _capacity: int = field(init=False, repr=False, compare=False)  # in steps
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse items that were not certified to fit, and order them, the covered ones first."""
        require(1 <= len(self.items) <= ITEMS_MAX, f"from 1 to {ITEMS_MAX} items")
        require(self.certified <= self.epsilon, "items that are certified within epsilon")
        require(0 <= self.weight < 1, "0 <= weight < 1")
        object.__setattr__(self, "beside", self._filter_beside())
        above = [
            frozenset(other for other in range(len(self.items)) if self._goes_to(item, other))
            for item in range(len(self.items))
        ]
        order = sorted(range(len(self.items)), key=lambda item: (-len(above[item]), item))
        place = {item: at for at, item in enumerate(order)}
        # Of the items that cover another, that with most above it covers no other of them.
        parents = [min((place[other] for other in above[item]), default=None) for item in order]
        exact: dict[Event, int] = {}
        for at, item in enumerate(order):
            exact.setdefault(self.items[item].event, at)
        object.__setattr__(self, "_order", tuple(order))
        object.__setattr__(self, "_allowed", tuple(self.items[item].allowed for item in order))
        object.__setattr__(self, "_parents", tuple(parents))
        object.__setattr__(self, "_exact", exact)
        steps = tuple(self.items[item].unit for item in order)
        object.__setattr__(self, "_steps", steps)
        object.__setattr__(self, "_capacity", sum(map(mul, self._allowed, steps)))
        limit = (self.epsilon, self.delta, self.order, self.weight)
        object.__setattr__(self, "_hash", hash((self.items, *limit)))

    def __hash__(self) -> int:
        """Of the items and the limit, worked out once."""
        return self._hash

    def _filter_beside(self) -> RenyiFilter | None:
        if self.order is None:
            return None
        left_over = rounded_down(self.weight * self.delta)
        require(left_over > 0, "a share of delta for the order")
        return RenyiFilter(order=self.order, epsilon=self.epsilon, delta=left_over)

    def _goes_to(self, item: int, other: int) -> bool:
        """Whether what an item does not hold may be charged to another."""
        if not covers(self.items[other].event, self.items[item].event):
            return False
        return item < other or not covers(self.items[item].event, self.items[other].event)

    def zero(self) -> Total:
        """Nothing spent."""
        return (0,) * (_COUNTS + len(self.items)) + (self.beside.zero() if self.beside else ())

    def cost(
        self,
        event: Event,
        *,
        relation: NeighboringRelation,
        accept: frozenset[Status] = DEFAULT_ACCEPT,
    ) -> Total:
        """What one unit of the event adds: a step, or a pass."""
        units = self._units({self._item_of(event): 1})
        if self.beside is None:
            return units
        return (*units, *self.beside.cost(event, relation=relation, accept=accept))

    def total(
        self,
        counts: EventCounts,
        *,
        relation: NeighboringRelation,
        accept: frozenset[Status] = DEFAULT_ACCEPT,
        known: Mapping[Event, Total] | None = None,
    ) -> Total:
        """What a ledger adds up to.

        A pass is charged when it begins. One whose noise falls below what covers its first step
        leaves the envelope.
        """
        total = self._units({})
        for event, count in counts.steps.items():
            if pass_length(event) is None:
                cost = known[event] if known else self._units({self._item_of(event): 1})
                total = plus(total, times(cost[: len(total)], count))
        for passes in passes_by_sampling(counts).values():
            begun: Counter[int | None] = Counter()
            ended: Counter[int | None] = Counter()
            for one in passes:
                item = self._item_of(one.event)
                begun[item] += one.begun
                ended[item] += one.passes
            moved = sum(abs(begun[item] - ended[item]) for item in {*begun, *ended})
            total = plus(total, self._units(ended))
            total = (total[0], total[1] + moved, *total[_COUNTS:])
        if self.beside is None:
            return total
        costs = {event: cost[len(total) :] for event, cost in known.items()} if known else None
        own = self.beside.total(counts, relation=relation, accept=accept, known=costs)
        return (*total, *own)

    def admits(self, total: Total) -> bool:
        """Whether each unit finds an item, or the filter beside the items holds all units."""
        return self.holds_items(total) or self._admitted_beside(total)

    def holds_items(self, total: Total) -> bool:
        """Whether each unit finds an item."""
        return self._charged(total) is not None

    def spent(self, total: Total) -> float:
        """The epsilon at the budget's delta that a total stands for, in nats. Upper.

        That of the whole envelope as soon as anything is used: what was left out may have been a
        choice that the answers led to. With a filter beside the items it is the budget's, since
        whether the items are left may be such a choice, too.
        """
        if not any(total):
            return 0.0
        if not self.admits(total):
            return math.inf
        return self.certified if self.beside is None else self.epsilon

    def remaining(self, total: Total) -> float:
        """What is left of epsilon, in nats. Lower, >= 0."""
        return remaining_epsilon(self, total)

    def share(self, total: Total) -> float:
        """The share of capacity that a total uses. Upper; at most 1 if admitted, else above 1.

        Of the steps of the items, or of the filter beside them: the lesser of the two. Infinite
        where there is no such filter and some unit finds no item.
        """
        items = self._fraction(total) if self.holds_items(total) else math.inf
        if self.beside is None:
            return items
        return min(items, self.beside.share(self.beside_part(total)))

    def parts(
        self,
        totals: Sequence[Total],
        *,
        whole: Total | None = None,
    ) -> tuple[float, ...]:
        """The shares that several totals use of what the whole is read by; they add up. Upper."""
        sums = sum_of(totals, self.zero()) if whole is None else whole
        if self.beside is not None and self.is_read_beside(sums):
            own = self.beside_part(sums)
            return self.beside.parts([self.beside_part(one) for one in totals], whole=own)
        return tuple(math.inf if total[1] else self._fraction(total) for total in totals)

    def is_read_beside(self, total: Total) -> bool:
        """Whether the share of a total is that of the filter beside the items."""
        if self.beside is None:
            return False
        own = self.beside.share(self.beside_part(total))
        return not self.holds_items(total) or own < self._fraction(total)

    def charged(self, total: Total) -> tuple[int, ...]:
        """The units that are charged to each item, in the order of the items.

        Where some unit finds no item: the units that are each item's own. Units that no item covers
        are charged to none.
        """
        return self._by_item(_charged_units(self, self._used(total)) or self._used(total))

    def own_units(self, total: Total) -> tuple[int, ...]:
        """The units that are each item's own, in the order of the items; those of parts add up."""
        return self._by_item(self._used(total))

    def _by_item(self, units: Sequence[int]) -> tuple[int, ...]:
        by_item = dict(zip(self._order, units, strict=True))
        return tuple(by_item[item] for item in range(len(self.items)))

    def admissible(self, total: Total, cost: Total) -> int:
        """How many further units of a cost the budget holds, at most COUNT_MAX."""
        if min(cost) < 0:
            raise ValueError("A cost is not negative.")
        if not self.admits(total):
            return 0
        low, high = 0, COUNT_MAX
        if self.admits(plus(total, times(cost, high))):
            return high
        while high - low > 1:
            middle = (low + high) // 2
            if self.admits(plus(total, times(cost, middle))):
                low = middle
            else:
                high = middle
        return low

    def steps_of(self, total: Total) -> int:
        """How many steps the units of all items are; passes count as whole ones."""
        return sum(map(mul, self._used(total), self._steps))

    def is_outside(self, cost: Total) -> bool:
        """Whether no item covers a unit of that cost."""
        return bool(cost[1])

    def binding_order(self, total: Total) -> float | None:
        """The order of the filter beside the items, once the items do not hold the total."""
        if self.beside is None or self.holds_items(total):
            return None
        return self.beside.binding_order(self.beside_part(total))

    def at(self, *, epsilon: float, delta: float) -> Never:
        """Refused: an envelope that is extended after an answer holds no more.

        Raises:
            ValueError: always.
        """
        raise ValueError(REASON_FIXED)

    def record(self) -> dict[str, Any]:
        """What is stored with the budget, but for the items."""
        orders, weights = ([], []) if self.order is None else ([self.order], [self.weight])
        return {
            "kind": self.kind, "orders": orders, "weights": weights, "certified": self.certified,
        }  # fmt: skip

    def _item_of(self, event: Event) -> int | None:
        """The place of the item that a unit of an event is charged to first; None outside."""
        exact = self._exact.get(event)
        return exact if exact is not None else next(self._covering(event), None)

    def _covering(self, event: Event) -> Iterator[int]:
        for at, item in enumerate(self._order):
            if covers(self.items[item].event, event):
                yield at

    def _units(self, counts: Mapping[int | None, int]) -> Total:
        total = [0] * len(self.items)
        for at, count in counts.items():
            if at is not None:
                total[at] = count
        return (0, counts.get(None, 0), *total)

    def _charged(self, total: Total) -> tuple[int, ...] | None:
        return None if total[0] or total[1] else _charged_units(self, self._used(total))

    def _used(self, total: Total) -> Total:
        """Units whose own item each is."""
        return total[_COUNTS : _COUNTS + len(self.items)]

    def beside_part(self, total: Total) -> Total:
        """What the filter beside the items counts."""
        return total[_COUNTS + len(self.items) :]

    def _admitted_beside(self, total: Total) -> bool:
        return self.beside is not None and self.beside.admits(self.beside_part(total))

    def _fraction(self, total: Total) -> float:
        return fraction_of(self.steps_of(total), self._capacity)

    def charge(self, used: Total) -> tuple[int, ...] | None:
        """The units charged to each item, in the filter's order; None where some find no item."""
        # Not counted as work: it is cached, and what is asked alone decides what work counts.
        return charged_items.function(used=used, allowed=self._allowed, parents=self._parents)


@lru_cache(maxsize=READINGS_MAX)
def _charged_units(held_by: EnvelopeFilter, used: Total) -> tuple[int, ...] | None:
    """What one total is charged as, for all that is read of it."""
    return held_by.charge(used)


THEOREMS = (charged_items,)
