"""What a filter adds up of events that are counted by pass, moved by differences.

Events whose passes are read together form a group, and a filter's total is the sum over groups, in
whole numbers. While each pass of a group keeps the noise that it began with, the group adds the sum
of its passes times their costs: a change then costs the same however many events there are. A group
in which noise fell within a pass, or a secret order may be used again, is read as a whole.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from accounting.event_counts import EventCounts, read_together
from accounting.events import Event, Shuffle
from accounting.filters import Total, plus, times
from service.ledger.budgets.event_counts import (
    NONE,
    EventCountDelta,
    StepsAndPasses,
    add_to,
    count_events,
)


class _Sum(NamedTuple):
    """What a group's counts come to."""

    kept: Total  # the sum of passes times costs
    fallen: int  # events whose passes did not all keep the noise that they began with
    early: int  # events of a shuffle that stops early
    events: int
    total: Total  # what the group adds to the filter's total


@dataclass(slots=True)
class _Group:
    sum: _Sum
    counts: dict[Event, StepsAndPasses] = field(default_factory=dict)


_Step = tuple[Hashable, EventCountDelta, _Sum]


class PassSums:
    """The total of event counts that change by and by."""

    def __init__(
        self,
        zero: Total,
        *,
        cost: Callable[[Event], Total],
        whole: Callable[[EventCounts, Mapping[Event, Total]], Total],
    ) -> None:
        """The total of nothing.

        Args:
            zero: of the filter.
            cost: of a unit of an event; it raises where a lock is held and the cost is not known.
            whole: the filter's total of event counts, given the costs of their events.
        """
        self.total = zero
        self._none = _Sum(zero, 0, 0, 0, zero)
        self._cost, self._whole = cost, whole
        self._costs: dict[Event, Total] = {}  # of the events that are counted
        self._groups: dict[Hashable, _Group] = {}
        self._seen: tuple[EventCountDelta, list[_Step]] | None = None  # after a change

    def after(self, change: EventCountDelta) -> Total:
        """The total after a change; nothing changes yet."""
        total = self.total
        for key, _, after in self._look(change):
            total = _exchanged(total, self._group(key).sum, after)
        return total

    def _look(self, change: EventCountDelta) -> "list[_Step]":
        """What each group comes to after a change: worked out once for a change that is taken."""
        if self._seen is None or self._seen[0] is not change:
            found = [(key, part, self._after(key, part)) for key, part in _parts(change)]
            self._seen = change, found
        return self._seen[1]

    def add(self, change: EventCountDelta) -> None:
        """Take a change in; nothing changes where a cost is not known."""
        found = self._look(change)
        self._costs |= {event: self._cost_of(event) for event in change}
        self._seen = None
        for key, part, after in found:
            group = self._groups.setdefault(key, self._group(key))
            self.total = _exchanged(self.total, group.sum, after)
            group.sum = after
            add_to(group.counts, part)
            for event in part.keys() - group.counts.keys():
                del self._costs[event]
            if not group.counts:
                del self._groups[key]

    def _group(self, key: Hashable) -> _Group:
        return self._groups.get(key) or _Group(self._none)

    def _cost_of(self, event: Event) -> Total:
        known = self._costs.get(event)
        return self._cost(event) if known is None else known

    def _after(self, key: Hashable, part: EventCountDelta) -> _Sum:
        """What a group comes to after its part of a change."""
        group = self._group(key)
        kept, fallen, early, events, _ = group.sum
        for event, more in part.items():
            before = group.counts.get(event, NONE)
            after = before + more
            kept = plus(kept, times(self._cost_of(event), more.passes))
            fallen += before.kept_noise - after.kept_noise
            added = (after != NONE) - (before != NONE)
            events += added
            early += added if _stops_early(event) else 0
        if not fallen and early in (0, events):
            return _Sum(kept, fallen, early, events, kept)
        counts = add_to(dict(group.counts), part)
        known = {event: self._cost_of(event) for event in counts}
        return _Sum(kept, fallen, early, events, self._whole(count_events(counts), known))


def _parts(change: EventCountDelta) -> Iterable[tuple[Hashable, EventCountDelta]]:
    """A change by the groups that it changes."""
    if len(change) == 1:
        (event,) = change
        return [(read_together(event.sampling), change)]
    parts: dict[Hashable, dict[Event, StepsAndPasses]] = {}
    for event, counts in change.items():
        parts.setdefault(read_together(event.sampling), {})[event] = counts
    return parts.items()


def _stops_early(event: Event) -> bool:
    return isinstance(event.sampling, Shuffle) and event.sampling.stops_early


def _exchanged(total: Total, before: _Sum, after: _Sum) -> Total:
    each = zip(total, before.total, after.total, strict=True)
    return tuple([whole - old + new for whole, old, new in each])
