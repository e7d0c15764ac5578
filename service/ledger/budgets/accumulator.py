"""What a filter has added up in one scope: recorded, reserved, and what a change would make it.

Steps that are counted one by one add up in whole numbers, whatever their order; of samplings that
are counted by pass the event counts are kept, and their sums in whole numbers beside them.

Beside what was recorded stands what corrections say of it. Each sum is the larger of the two
accounts, component by component, and no correction lowers one: docs/theory/lineage.md.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from accounting.event_counts import EventCounts
from accounting.events import Event, NeighboringRelation, Sampling
from accounting.filters import EnvelopeFilter, Filter, PassRule, Total, pass_rule, plus
from accounting.guarantees import Status
from service.ledger.budgets import cost_cache
from service.ledger.budgets.cost_cache import Cost, Quote
from service.ledger.budgets.pass_sums import PassSums
from service.ledger.budgets.steps_and_passes import (
    EventCountDelta,
    StepsAndPasses,
    add_to,
    by_pass,
    merge_changes,
)

READINGS_MAX: Final = 4  # before and after a move, spent and held
COSTS_MAX: Final = 1024  # kept by one accumulator; further ones are computed again


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetDelta:
    """What an operation changes: what is recorded, and what is admitted ahead."""

    recorded: EventCountDelta = field(default_factory=dict)
    reserved: EventCountDelta = field(default_factory=dict)
    # Of the latter, what the run's own budget counts: not its plan. None for all of it.
    own: EventCountDelta | None = None
    # Counted in the corrected account alone: passes that corrections have shifted, of what is
    # recorded; of what is admitted ahead; and of what of the latter the run's own budget counts.
    shifted: EventCountDelta = field(default_factory=dict)
    shifted_ahead: EventCountDelta = field(default_factory=dict)
    own_shifted: EventCountDelta = field(default_factory=dict)

    @property
    def of_run(self) -> "BudgetDelta":
        """The same in the run's own budget."""
        if self.own is None:
            return self
        return replace(self, reserved=self.own, own=None, shifted_ahead=self.own_shifted)

    @property
    def by_pass(self) -> "BudgetDelta":
        """What of it counts by pass: sums that are stored hold the rest."""
        recorded, reserved = (
            {event: counts for event, counts in change.items() if by_pass(event)}
            for change in (self.recorded, self.reserved)
        )
        return BudgetDelta(recorded=recorded, reserved=reserved)

    @property
    def events(self) -> set[Event]:
        """What it changes the counts of."""
        return {*self.recorded, *self.reserved, *self.shifted, *self.shifted_ahead}


@dataclass(frozen=True, slots=True)
class Totals:
    """What a filter adds up: what was recorded, and that with what is reserved."""

    spent: Total
    held: Total


@dataclass(frozen=True, slots=True)
class AccumulatedEpsilon:
    """What a filter says of a total."""

    admitted: bool
    epsilon: float  # nats at the filter's delta, upper
    share: float  # of the filter's capacity, upper; at most 1 if admitted


@dataclass(frozen=True, slots=True)
class _Next:
    """An accumulator after a move."""

    move: BudgetDelta
    recorded: Total
    reserved: Total
    passes: EventCountDelta
    reserved_passes: EventCountDelta
    changes: Sequence[EventCountDelta]  # of each of the pass sums
    sums: Totals


@dataclass(frozen=True, slots=True)
class CorrectionSums:
    """What corrections change in an accumulator; by default nothing was corrected."""

    changed: Total | None = None
    most_changed: Total | None = None
    passes: Mapping[Event, StepsAndPasses] = field(default_factory=dict)
    passes_ahead: Mapping[Event, StepsAndPasses] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class BudgetAccumulator:
    """One filter's sums in one scope."""

    filter: Filter
    relation: NeighboringRelation
    accept: frozenset[Status]
    recorded: Total
    reserved: Total
    passes: dict[Event, StepsAndPasses] = field(default_factory=dict)  # recorded
    reserved_passes: dict[Event, StepsAndPasses] = field(default_factory=dict)
    # Of what counts by step: what all corrections change, and the most that the first, the first
    # two and so on have changed, component by component. None where nothing was corrected.
    changed: Total | None = None
    most_changed: Total | None = None
    corrected_passes: dict[Event, StepsAndPasses] = field(
        default_factory=dict
    )  # besides the recorded
    shifted_ahead: dict[Event, StepsAndPasses] = field(default_factory=dict)  # and the reserved
    # Of what counts by pass: recorded, and with what is reserved; then the same with what counts in
    # the corrected account alone. None until they are needed.
    _pass_sums: Sequence[PassSums] | None = None
    _sums: Totals | None = None
    _next: _Next | None = None  # what was worked out for a move that may be taken
    _costs: dict[Event, Total] = field(default_factory=dict)
    _question: Cost = field(init=False)
    _readings: dict[Total, AccumulatedEpsilon] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Ask for the costs of this filter."""
        self._question = Cost(self.filter, self.relation, self.accept)

    def cost(self, event: Event) -> Total:
        """What one unit of the event adds."""
        cost = self._costs.get(event)
        if cost is None:
            if len(self._costs) >= COSTS_MAX:
                self._costs.clear()
            if _counts_only(self.filter):
                cost = self._question.of(event)
            else:
                cost = cost_cache.ask(self._question, event)
            self._costs[event] = cost
        return cost

    def missing(self, events: Iterable[Event]) -> list[Quote]:
        """What must be worked out before a move of these events can be counted here."""
        unknown = [event for event in events if event not in self._costs]
        if not unknown or _counts_only(self.filter):
            return []
        if len(self._costs) + len(unknown) > COSTS_MAX:  # none of them will be there to the end
            unknown, self._costs = list(events), {}
        return cost_cache.missing(self._question, unknown)

    def sums(self, move: BudgetDelta | None = None) -> Totals:
        """The sums after a move; nothing changes yet."""
        if move is None:
            if self._sums is None:
                passes = [one.total for one in self._by_pass()]
                self._sums = self._totals(self.recorded, self.reserved, passes)
            return self._sums
        if self._next is None or self._next.move is not move:
            self._next = self._after(move)
        return self._next.sums

    def apply(self, move: BudgetDelta) -> None:
        """Take a move in."""
        after = self._next if self._next and self._next.move is move else self._after(move)
        for one, change in zip(self._by_pass(), after.changes, strict=True):
            if change:
                one.add(change)
        self.recorded, self.reserved, self._sums = after.recorded, after.reserved, after.sums
        add_to(self.passes, after.passes)
        add_to(self.reserved_passes, after.reserved_passes)
        add_to(self.corrected_passes, move.shifted)
        add_to(self.shifted_ahead, move.shifted_ahead)
        self._next = None

    def correct(self, change: Total, passes: EventCountDelta) -> None:
        """Take one more correction in.

        Args:
            change: what it adds to steps that add up one by one; negative where they cost less.
            passes: what it counts by pass, besides those that were recorded.
        """
        self.changed = change if self.changed is None else plus(self.changed, change)
        most = self.most_changed
        self.most_changed = self.changed if most is None else larger(most, self.changed)
        add_to(self.corrected_passes, passes)
        self._sums = self._next = self._pass_sums = None

    @property
    def corrections(self) -> CorrectionSums:
        """What the corrections that were taken in have changed."""
        passes, ahead = dict(self.corrected_passes), dict(self.shifted_ahead)
        return CorrectionSums(self.changed, self.most_changed, passes, ahead)

    def replace_corrections(self, found: CorrectionSums) -> None:
        """Count other corrections than those that were taken in."""
        self.changed, self.most_changed = found.changed, found.most_changed
        self.corrected_passes, self.shifted_ahead = dict(found.passes), dict(found.passes_ahead)
        self._sums = self._next = self._pass_sums = None

    def reading(self, total: Total) -> AccumulatedEpsilon:
        """Whether the filter admits a total, and the epsilon that it stands for."""
        found = self._readings.get(total)
        if found is None:
            if len(self._readings) >= READINGS_MAX:
                self._readings.clear()
            found = AccumulatedEpsilon(
                self.filter.admits(total), self.filter.spent(total), self.filter.share(total)
            )
            self._readings[total] = found
        return found

    def _after(self, move: BudgetDelta) -> _Next:
        recorded, passes = self._split(self.recorded, move.recorded)
        reserved, reserved_passes = self._split(self.reserved, move.reserved)
        ahead = merge_changes([passes, reserved_passes]) if reserved_passes else passes
        changes = self._with_corrected(passes, ahead, move.shifted, move.shifted_ahead)
        each = zip(self._by_pass(), changes, strict=True)
        totals = [one.after(change) if change else one.total for one, change in each]
        sums = self._totals(recorded, reserved, totals)
        return _Next(move, recorded, reserved, passes, reserved_passes, changes, sums)

    def _split(self, start: Total, change: EventCountDelta) -> tuple[Total, EventCountDelta]:
        """The sum of what counts by step, and what counts by pass."""
        passes: dict[Event, StepsAndPasses] = {}
        for event, counts in change.items():
            if by_pass(event):
                passes[event] = counts
            else:
                steps, cost = counts.steps, self.cost(event)
                start = tuple([x + y * steps for x, y in zip(start, cost, strict=True)])
        return start, passes

    def _with_corrected(
        self,
        spent: EventCountDelta,
        held: EventCountDelta,
        besides: EventCountDelta,
        ahead: EventCountDelta,
    ) -> Sequence[EventCountDelta]:
        """What is counted by pass: as recorded, with what is reserved, and both as corrected."""
        if self.most_changed is None:
            return spent, held
        held_besides = merge_changes([held, besides, ahead])
        return spent, held, merge_changes([spent, besides]), held_besides

    def _by_pass(self) -> Sequence[PassSums]:
        """The sums of what counts by pass, in the order of `_with_corrected`."""
        if self._pass_sums is None:
            held = merge_changes([self.passes, self.reserved_passes])
            besides = self.corrected_passes, self.shifted_ahead
            counted = self._with_corrected(self.passes, held, *besides)
            cost_cache.require(self.missing({event for one in counted for event in one}))
            self._pass_sums = [self._summed(one) for one in counted]
        return self._pass_sums

    def _summed(self, counts: EventCountDelta) -> PassSums:
        def whole(found: EventCounts, known: Mapping[Event, Total]) -> Total:
            return self.filter.total(found, relation=self.relation, accept=self.accept, known=known)

        def rule(sampling: Sampling, unit: Callable[[Event], Total]) -> PassRule | None:
            held_by, relation, accept = self.filter, self.relation, self.accept
            return pass_rule(held_by, sampling, relation=relation, accept=accept, unit=unit)

        found = PassSums(self.filter.zero(), cost=self.cost, whole=whole, rule=rule)
        found.add(counts)
        return found

    def _totals(self, recorded: Total, reserved: Total, passes: Sequence[Total]) -> Totals:
        """The larger account: as recorded, and with what corrections change and count besides."""
        held = plus(recorded, reserved)
        sums = Totals(plus(recorded, passes[0]), plus(held, passes[1]))
        if self.most_changed is None:
            return sums
        recorded, held = plus(recorded, self.most_changed), plus(held, self.most_changed)
        return Totals(
            larger(sums.spent, plus(recorded, passes[2])), larger(sums.held, plus(held, passes[3]))
        )

    def copy(self) -> "BudgetAccumulator":
        """The same sums, which move apart from these from here on."""
        return replace(
            self,
            passes=dict(self.passes),
            reserved_passes=dict(self.reserved_passes),
            corrected_passes=dict(self.corrected_passes),
            shifted_ahead=dict(self.shifted_ahead),
            _pass_sums=None,
            _next=None,
            _costs=dict(self._costs),
            _readings={},
        )

    def stored(self) -> str:
        """What counts by step, as it was recorded and reserved, as text."""
        return json.dumps([self.recorded, self.reserved], separators=(",", ":"))


def _counts_only(held_by: Filter) -> bool:
    """Whether a filter counts units, and works no price out."""
    return isinstance(held_by, EnvelopeFilter) and held_by.beside is None


def larger(a: Total, b: Total) -> Total:
    """The larger, component by component."""
    return tuple([max(x, y) for x, y in zip(a, b, strict=True)])


def read_accumulator(
    text: str | None, tally_filter: Filter, relation: NeighboringRelation, accept: frozenset[Status]
) -> BudgetAccumulator:
    """Return an accumulator from its text, without what counts by pass; empty from none."""
    zero = tally_filter.zero()
    recorded, reserved = (zero, zero) if text is None else map(tuple, json.loads(text))
    return BudgetAccumulator(
        filter=tally_filter,
        relation=relation,
        accept=accept,
        recorded=recorded,
        reserved=reserved,
    )
