"""The passes of one sampling by their noise, and what they add up to, moved by differences."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from accounting.bounds.event_bounds import NoBoundError
from accounting.event_counts import PassCounts, noise_rank
from accounting.events import Event
from accounting.filters import PassRule, Total, plus, times
from service.ledger.budgets.steps_and_passes import NONE, EventCountDelta, StepsAndPasses

_Key = tuple[float, str]


class _Level(NamedTuple):
    """Passes at one noise, and what holds at it and at more noise."""

    key: _Key
    event: Event
    counts: StepsAndPasses
    falling: int  # passes that began at this noise or more, and had less than it as their least
    seen: tuple[int, ...]
    added: Total  # what its passes add
    unread: bool  # whether the rule does not hold for them


class LevelsChange(NamedTuple):
    """Levels that take the place of others, and what all levels come to with them."""

    begin: int
    end: int
    levels: Sequence[_Level]
    added: Total
    unread: int


class PassesByNoise:
    """A level for each noise, the greatest first.

    What a level adds depends on its counts, and on what is known from levels of more noise. So a
    change reads its own levels again, and those below for which something else is known after it.
    """

    def __init__(self, rule: PassRule, counts: EventCountDelta) -> None:
        """The counts of a sampling's events, by the rule of a filter for it."""
        self._rule = rule
        self._levels: list[_Level] = []
        self._added = rule.none
        self._unread = 0  # levels
        self.take(self.after(counts))

    def after(self, change: EventCountDelta) -> LevelsChange:
        """What a change makes of the levels; nothing changes yet."""
        changed = {noise_rank(event): (event, counts) for event, counts in change.items()}
        keys = deque(sorted(changed))
        begin = end = bisect_left(self._levels, keys[0], key=_key) if keys else 0
        last = self._levels[begin - 1] if begin else None
        found: list[_Level] = []
        added, unread = self._added, self._unread
        while keys or self._differs(last, end):
            level = self._levels[end] if end < len(self._levels) else None
            if level is None or (keys and keys[0] < level.key):
                key = keys.popleft()
                event, counts = changed[key]
            else:
                key, event, counts = level.key, level.event, level.counts
                added, unread = _less(added, level.added), unread - level.unread
                end += 1
                if keys and keys[0] == key:
                    counts += changed[keys.popleft()][1]
            if counts != NONE:
                last = self._level(key, event, counts, last)
                found.append(last)
                added, unread = plus(added, last.added), unread + last.unread
        return LevelsChange(begin, end, found, added, unread)

    def take(self, change: LevelsChange) -> None:
        """Take a change in that `after` made of the present levels."""
        self._levels[change.begin : change.end] = change.levels
        self._added, self._unread = change.added, change.unread

    def total(self, change: LevelsChange | None = None) -> Total | None:
        """What the passes come to after a change; None where the rule does not hold for them."""
        levels, added, unread = self._levels[-1:], self._added, self._unread
        if change is not None:
            added, unread = change.added, change.unread
            if change.end == len(self._levels):
                before = self._levels[max(0, change.begin - 1) : change.begin]
                levels = [*before, *change.levels]
        falling = levels[-1].falling if levels else 0
        return None if unread or falling else self._rule.total(added)

    def _differs(self, last: _Level | None, end: int) -> bool:
        """Whether what passes on to a level is not what it was read with."""
        if end == len(self._levels):
            return False
        before = self._levels[end - 1] if end else None
        return self._passed_on(last) != self._passed_on(before)

    def _passed_on(self, level: _Level | None) -> tuple[int, tuple[int, ...]]:
        return (0, self._rule.start) if level is None else (level.falling, level.seen)

    def _level(
        self, key: _Key, event: Event, counts: StepsAndPasses, above: _Level | None
    ) -> _Level:
        falling, seen = self._passed_on(above)
        below = falling + counts.begun - counts.passes
        unread = counts.begun < 0 or below < 0  # no passes have such counts
        one = PassCounts(event=event, begun=counts.begun, passes=counts.passes, known=True)
        added = self._rule.none
        if not unread:
            try:
                added, seen = self._rule.add(one, falling, seen)
            except NoBoundError:
                unread = True
        return _Level(key, event, counts, below, seen, added, unread)


def _key(level: _Level) -> _Key:
    return level.key


def _less(total: Total, part: Total) -> Total:
    return plus(total, times(part, -1))
