"""Budgets that a fixed multiset of steps fits exactly: the envelope of what may be done.

The items are fixed before the first answer, and all of them together are certified at once. Each
step is charged to an item that covers it, in whole numbers: no price is worked out.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Never

from accounting.event_counts import EventCounts, pass_length, passes_by_sampling
from accounting.events import (
    ApproximateDp,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    Mechanism,
    NeighboringRelation,
    NoNoise,
    NonUniform,
    Poisson,
    Sampling,
    Zcdp,
)
from accounting.filters.capacity import fraction_of
from accounting.filters.integer_totals import COUNT_MAX, Total, left, plus, times
from accounting.guarantees import DEFAULT_ACCEPT, Status
from accounting.rounding import require
from accounting.theorem import theorem

ITEMS_MAX: Final = 256  # of one envelope
REASON_FIXED: Final = "An envelope cannot be changed once answers were seen."
_COUNTS: Final = 2  # numbers of a total before the items: units without a bound, units outside


@theorem(
    id="envelope-filter",
    source="docs/theory/envelopes.md, Theorem 1 and Proposition 3",
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
    """

    kind: ClassVar[str] = "envelope"
    theorem: ClassVar[str] = charged_items.id
    status: ClassVar[Status] = charged_items.status

    items: tuple[EnvelopeItem, ...]
    epsilon: float  # nats
    delta: float
    certified: float  # nats at delta, of all items together. Upper
    _order: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _allowed: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _parents: tuple[int | None, ...] = field(init=False, repr=False, compare=False)
    _exact: Mapping[Event, int] = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse items that were not certified to fit, and order them, the covered ones first."""
        require(1 <= len(self.items) <= ITEMS_MAX, f"from 1 to {ITEMS_MAX} items")
        require(self.certified <= self.epsilon, "items that are certified within epsilon")
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
        object.__setattr__(self, "_hash", hash((self.items, self.epsilon, self.delta)))

    def __hash__(self) -> int:
        """Of the items and the limit, worked out once."""
        return self._hash

    def _goes_to(self, item: int, other: int) -> bool:
        """Whether what an item does not hold may be charged to another."""
        if not covers(self.items[other].event, self.items[item].event):
            return False
        return item < other or not covers(self.items[item].event, self.items[other].event)

    def zero(self) -> Total:
        """Nothing spent."""
        return (0,) * (_COUNTS + len(self.items))

    def cost(
        self,
        event: Event,
        *,
        relation: NeighboringRelation,
        accept: frozenset[Status] = DEFAULT_ACCEPT,
    ) -> Total:
        """What one unit of the event adds: a step, or a pass."""
        return self._units({self._item_of(event): 1})

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
        total = self.zero()
        for event, count in counts.steps.items():
            if pass_length(event) is None:
                unit = known[event] if known else self.cost(event, relation=relation, accept=accept)
                total = plus(total, times(unit, count))
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
        return total

    def admits(self, total: Total) -> bool:
        """Whether each unit finds an item."""
        return self._charged(total) is not None

    def spent(self, total: Total) -> float:
        """The epsilon at the budget's delta that a total stands for, in nats. Upper.

        That of the whole envelope as soon as anything is used: what was left out may have been a
        choice that the answers led to.
        """
        if not any(total):
            return 0.0
        return self.certified if self.admits(total) else math.inf

    def remaining(self, total: Total) -> float:
        """What is left of epsilon, in nats. Lower, >= 0."""
        return left(self, total)

    def share(self, total: Total) -> float:
        """The share of the steps that a total uses. Upper; at most 1 if admitted, else infinite."""
        return self._fraction(total) if self.admits(total) else math.inf

    def parts(
        self,
        totals: Sequence[Total],
        *,
        whole: Total | None = None,
    ) -> tuple[float, ...]:
        """The shares of the steps that several totals use; they add up. Upper."""
        return tuple(math.inf if total[1] else self._fraction(total) for total in totals)

    def charged(self, total: Total) -> tuple[int, ...]:
        """The units that are charged to each item, in the order of the items.

        Of a total that is not admitted: the units that are each item's own.
        """
        found = self._charged(total) or total[_COUNTS:]
        by_item = dict(zip(self._order, found, strict=True))
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
        units = (self.items[item].unit for item in self._order)
        return sum(n * unit for n, unit in zip(total[_COUNTS:], units, strict=True))

    def is_outside(self, cost: Total) -> bool:
        """Whether no item covers a unit of that cost."""
        return bool(cost[1])

    def binding_order(self, total: Total) -> None:
        """None: there are no orders."""

    def at(self, *, epsilon: float, delta: float) -> Never:
        """Refused: an envelope that is extended after an answer holds no more.

        Raises:
            ValueError: always.
        """
        raise ValueError(REASON_FIXED)

    def record(self) -> dict[str, Any]:
        """What is stored with the budget, but for the items."""
        return {"kind": self.kind, "orders": [], "weights": [], "certified": self.certified}

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
        if total[0] or total[1]:
            return None
        return charged_items(used=total[_COUNTS:], allowed=self._allowed, parents=self._parents)

    def _fraction(self, total: Total) -> float:
        capacity = sum(item.allowed * item.unit for item in self.items)
        return fraction_of(self.steps_of(total), capacity)


def covers(item: Event, event: Event) -> bool:
    """Whether a unit of an event may be charged to an item: whether it never tells more.

    Proposition 2 of docs/theory/envelopes.md.
    """
    if item == event:
        return True
    if not _mechanism_covers(item.mechanism, event.mechanism):
        return False
    return _sampling_covers(item.mechanism, item.sampling, event.sampling)


def _mechanism_covers(item: Mechanism, other: Mechanism) -> bool:
    match item, other:
        case Gaussian(noise_multiplier=least), Gaussian(noise_multiplier=noise):
            return least <= noise
        case Laplace(noise_multiplier=least), Laplace(noise_multiplier=noise):
            return least <= noise
        case ApproximateDp(), ApproximateDp():
            return other.epsilon <= item.epsilon and other.delta <= item.delta
        case _:
            return item == other and not isinstance(item, NoNoise | Zcdp)


def _sampling_covers(mechanism: Mechanism, item: Sampling, other: Sampling) -> bool:
    if item == other:
        return True
    match item, other:
        case Full(), Poisson():
            return True
        case Poisson(), Poisson():
            thinned = isinstance(mechanism, Gaussian | Laplace | ApproximateDp)
            return thinned and other.sampling_probability <= item.sampling_probability
        case FixedSize(), FixedSize():
            # A batch of all records is another mechanism: no record can stand in for one.
            of_item = item.batch_size * other.dataset_size
            return item.batch_size < item.dataset_size and (
                other.batch_size * item.dataset_size <= of_item
            )
        case NonUniform(), NonUniform():
            return other.max_weight <= item.max_weight < 1
        case _:
            return False


THEOREMS = (charged_items,)
