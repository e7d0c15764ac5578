"""What a filter adds up of events that are counted by pass, moved by differences.

Events whose passes are read together form a group, and a filter's total is the sum over groups, in
whole numbers. While each pass of a group keeps the noise that it began with, the group adds the sum
of its passes times their costs. Where noise fell within a pass, the group has the passes of each
sampling by their noise. A change of either costs the same however many events there are. A group in
which a secret order may be used again, or whose passes began at unknown noise, is read as a whole.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from accounting.event_counts import EventCounts, read_together
from accounting.events import Event, Sampling, Shuffle
from accounting.filters import PassRule, Total, plus, times
from service.ledger.budgets.passes_by_noise import LevelsChange, PassesByNoise
from service.ledger.budgets.steps_and_passes import (
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

    @property
    def alike(self) -> bool:
        """Whether no secret order may be used again."""
        return self.early in (0, self.events)


@dataclass(slots=True)
class _Group:
    sum: _Sum
    counts: dict[Event, StepsAndPasses] = field(default_factory=dict)
    by_noise: dict[Sampling, PassesByNoise] = field(default_factory=dict)  # since noise fell


class _Step(NamedTuple):
    """What a group comes to after its part of a change."""

    key: Hashable
    part: EventCountDelta
    sum: _Sum
    by_noise: Mapping[Sampling, tuple[PassesByNoise, LevelsChange]]  # that its part changes


class PassSums:
    """The total of event counts that change by and by."""

    def __init__(
        self,
        zero: Total,
        *,
        cost: Callable[[Event], Total],
        whole: Callable[[EventCounts, Mapping[Event, Total]], Total],
        rule: Callable[[Sampling, Callable[[Event], Total]], PassRule | None],
    ) -> None:
        """The total of nothing.

        Args:
            zero: of the filter.
            cost: of a unit of an event; it raises where a lock is held and the cost is not known.
            whole: the filter's total of event counts, given the costs of their events.
            rule: how it adds up passes of a sampling whose noise may have fallen. It is given what
                a pass costs that keeps its noise. None where only `whole` tells.
        """
        self.total = zero
        self._none = _Sum(zero, 0, 0, 0, zero)
        self._cost, self._whole, self._rule = cost, whole, rule
        self._costs: dict[Event, Total] = {}  # of the events that are counted
        self._groups: dict[Hashable, _Group] = {}
        self._seen: tuple[EventCountDelta, list[_Step]] | None = None  # after a change

    def after(self, change: EventCountDelta) -> Total:
        """The total after a change; nothing changes yet."""
        total = self.total
        for one in self._look(change):
            total = _replace_part(total, self._group(one.key).sum, one.sum)
        return total

    def _look(self, change: EventCountDelta) -> list[_Step]:
        """What each group comes to after a change: worked out once for a change that is taken."""
        if self._seen is None or self._seen[0] is not change:
            found = [self._after(key, part) for key, part in _parts(change)]
            self._seen = change, found
        return self._seen[1]

    def add(self, change: EventCountDelta) -> None:
        """Take a change in; nothing changes where a cost is not known."""
        found = self._look(change)
        self._costs |= {event: self._cost_of(event) for event in change}
        self._seen = None
        for one in found:
            group = self._groups.setdefault(one.key, self._group(one.key))
            self.total = _replace_part(self.total, group.sum, one.sum)
            group.sum = one.sum
            add_to(group.counts, one.part)
            for event in one.part.keys() - group.counts.keys():
                del self._costs[event]
            self._keep_by_noise(group, one)
            if not group.counts:
                del self._groups[one.key]

    def _keep_by_noise(self, group: _Group, step: _Step) -> None:
        """Keep a group's passes by noise at its counts, for as long as they are read."""
        if not (step.sum.fallen and step.sum.alike):
            group.by_noise = {}
        elif group.by_noise:
            for sampling, (passes, change) in step.by_noise.items():
                passes.take(change)
                group.by_noise[sampling] = passes
        else:
            each = _by_sampling(group.counts).items()
            found = {sampling: self._passes(sampling, counts) for sampling, counts in each}
            group.by_noise = {one: passes for one, passes in found.items() if passes is not None}

    def _passes(self, sampling: Sampling, counts: EventCountDelta) -> PassesByNoise | None:
        rule = self._rule(sampling, self._cost_of)
        return None if rule is None else PassesByNoise(rule, counts)

    def _with_falls(
        self, group: _Group, part: EventCountDelta
    ) -> tuple[Total | None, Mapping[Sampling, tuple[PassesByNoise, LevelsChange]]]:
        """What a group comes to in which noise fell; None if its passes by noise do not tell."""
        changes: dict[Sampling, tuple[PassesByNoise, LevelsChange]] = {}
        if not group.by_noise:
            return None, changes
        for sampling, change in _by_sampling(part).items():
            passes = group.by_noise.get(sampling) or self._passes(sampling, {})
            if passes is not None:
                changes[sampling] = passes, passes.after(change)
        totals = [passes.total(change) for passes, change in changes.values()]
        totals += [one.total() for key, one in group.by_noise.items() if key not in changes]
        total = self._none.total
        for each in totals:
            if each is None:
                return None, changes
            total = plus(total, each)
        return total, changes

    def _group(self, key: Hashable) -> _Group:
        return self._groups.get(key) or _Group(self._none)

    def _cost_of(self, event: Event) -> Total:
        known = self._costs.get(event)
        return self._cost(event) if known is None else known

    def _after(self, key: Hashable, part: EventCountDelta) -> _Step:
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
        found = _Sum(kept, fallen, early, events, kept)
        if not found.alike:
            return _Step(key, part, found._replace(total=self._anew(group, part)), {})
        if not fallen:
            return _Step(key, part, found, {})
        total, by_noise = self._with_falls(group, part)
        if total is None:
            total = self._anew(group, part)
        return _Step(key, part, found._replace(total=total), by_noise)

    def _anew(self, group: _Group, part: EventCountDelta) -> Total:
        """What all of a group's counts come to after its part of a change, read as a whole."""
        counts = add_to(dict(group.counts), part)
        known = {event: self._cost_of(event) for event in counts}
        return self._whole(count_events(counts), known)


def _parts(change: EventCountDelta) -> Iterable[tuple[Hashable, EventCountDelta]]:
    """A change by the groups that it changes."""
    if len(change) == 1:
        (event,) = change
        return [(read_together(event.sampling), change)]
    parts: dict[Hashable, dict[Event, StepsAndPasses]] = {}
    for event, counts in change.items():
        parts.setdefault(read_together(event.sampling), {})[event] = counts
    return parts.items()


def _by_sampling(counts: EventCountDelta) -> Mapping[Sampling, EventCountDelta]:
    found: dict[Sampling, dict[Event, StepsAndPasses]] = {}
    for event, one in counts.items():
        found.setdefault(event.sampling, {})[event] = one
    return found


def _stops_early(event: Event) -> bool:
    return isinstance(event.sampling, Shuffle) and event.sampling.stops_early


def _replace_part(total: Total, before: _Sum, after: _Sum) -> Total:
    each = zip(total, before.total, after.total, strict=True)
    return tuple([whole - old + new for whole, old, new in each])
