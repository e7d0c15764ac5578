"""The passes of one sampling by their noise, and what they add up to, moved by differences."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from accounting.bounds.event_bounds import NoBoundError
from accounting.event_counts import PassCounts, noise_rank
from accounting.events import Event
from accounting.filters import PassRule, Total, plus, times
from service.ledger.budgets.event_counts import NONE, EventCountDelta, StepsAndPasses

_Key = tuple[float, str]


class _Rung(NamedTuple):
    """Passes at one noise, and what holds at it and at more noise."""

    key: _Key
    event: Event
    counts: StepsAndPasses
    falling: int  # passes that began at this noise or more, and had less than it as their least
    seen: tuple[int, ...]
    added: Total  # what its passes add
    unread: bool  # whether the rule does not hold for them


class LadderChange(NamedTuple):
    """Rungs that take the place of others, and what all rungs come to with them."""

    begin: int
    end: int
    rungs: Sequence[_Rung]
    added: Total
    unread: int


class PassLadder:
    """A rung for each noise, the greatest first.

    What a rung adds depends on its counts and on the rungs of more noise, by two things that pass
    from rung to rung. So a change reads its own rungs, and those below as long as these two differ.
    """

    def __init__(self, rule: PassRule, counts: EventCountDelta) -> None:
        """The ladder of the counts of a sampling's events, by the rule of a filter for it."""
        self._rule = rule
        self._rungs: list[_Rung] = []
        self._added = rule.none
        self._unread = 0  # rungs
        self.take(self.after(counts))

    def after(self, change: EventCountDelta) -> LadderChange:
        """What a change makes of the ladder; nothing changes yet."""
        changed = {noise_rank(event): (event, counts) for event, counts in change.items()}
        keys = deque(sorted(changed))
        begin = end = bisect_left(self._rungs, keys[0], key=_key) if keys else 0
        last = self._rungs[begin - 1] if begin else None
        found: list[_Rung] = []
        added, unread = self._added, self._unread
        while keys or self._differs(last, end):
            rung = self._rungs[end] if end < len(self._rungs) else None
            if rung is None or (keys and keys[0] < rung.key):
                key = keys.popleft()
                event, counts = changed[key]
            else:
                key, event, counts = rung.key, rung.event, rung.counts
                added, unread = _less(added, rung.added), unread - rung.unread
                end += 1
                if keys and keys[0] == key:
                    counts += changed[keys.popleft()][1]
            if counts != NONE:
                last = self._rung(key, event, counts, last)
                found.append(last)
                added, unread = plus(added, last.added), unread + last.unread
        return LadderChange(begin, end, found, added, unread)

    def take(self, change: LadderChange) -> None:
        """Take a change in that `after` made of the present ladder."""
        self._rungs[change.begin : change.end] = change.rungs
        self._added, self._unread = change.added, change.unread

    def total(self, change: LadderChange | None = None) -> Total | None:
        """What the passes come to after a change; None where the rule does not hold for them."""
        rungs, added, unread = self._rungs[-1:], self._added, self._unread
        if change is not None:
            added, unread = change.added, change.unread
            if change.end == len(self._rungs):
                before = self._rungs[max(0, change.begin - 1) : change.begin]
                rungs = [*before, *change.rungs]
        falling = rungs[-1].falling if rungs else 0
        return None if unread or falling else self._rule.total(added)

    def _differs(self, last: _Rung | None, end: int) -> bool:
        """Whether what passes on to a rung is not what it was read with."""
        if end == len(self._rungs):
            return False
        before = self._rungs[end - 1] if end else None
        return self._passed_on(last) != self._passed_on(before)

    def _passed_on(self, rung: _Rung | None) -> tuple[int, tuple[int, ...]]:
        return (0, self._rule.start) if rung is None else (rung.falling, rung.seen)

    def _rung(self, key: _Key, event: Event, counts: StepsAndPasses, above: _Rung | None) -> _Rung:
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
        return _Rung(key, event, counts, below, seen, added, unread)


def _key(rung: _Rung) -> _Key:
    return rung.key


def _less(total: Total, part: Total) -> Total:
    return plus(total, times(part, -1))
