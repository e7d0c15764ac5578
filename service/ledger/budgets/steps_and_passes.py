"""Steps and passes of recorded events, and what changes them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from accounting.event_counts import EventCounts, pass_length
from accounting.events import Event, NoNoise


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsAndPasses:
    """How often an event counts: in steps, and in passes where passes count."""

    steps: int = 0
    passes: int = 0  # by the least noise of each pass
    begun: int = 0  # passes by the noise of their first step

    def __add__(self, other: "StepsAndPasses") -> "StepsAndPasses":
        """Both together."""
        return StepsAndPasses(
            steps=self.steps + other.steps,
            passes=self.passes + other.passes,
            begun=self.begun + other.begun,
        )

    @property
    def kept_noise(self) -> bool:
        """Whether all passes are counted at the noise that they began with."""
        return self.begun == self.passes >= 0


NONE = StepsAndPasses()
# Counts may be negative: a reservation shrinks as it is used.
EventCountDelta = Mapping[Event, StepsAndPasses]
NOTHING: Final[EventCountDelta] = {}


@lru_cache(maxsize=8192)
def by_pass(event: Event) -> bool:
    """Whether passes of the event count rather than steps."""
    return pass_length(event) is not None


def add_to(into: dict[Event, StepsAndPasses], more: EventCountDelta) -> dict[Event, StepsAndPasses]:
    """Add a change to event counts, in place."""
    for event, counts in more.items():
        total = into.get(event, NONE) + counts
        if total == NONE:
            into.pop(event, None)
        else:
            into[event] = total
    return into


def merge_changes(changes: Iterable[EventCountDelta]) -> dict[Event, StepsAndPasses]:
    """Several changes as one."""
    total: dict[Event, StepsAndPasses] = {}
    for change in changes:
        add_to(total, change)
    return total


def negative(change: EventCountDelta) -> EventCountDelta:
    """The change that takes another back."""
    return {
        event: StepsAndPasses(steps=-counts.steps, passes=-counts.passes, begun=-counts.begun)
        for event, counts in change.items()
    }


def reuses_noise(change: EventCountDelta) -> bool:
    """Whether a change counts a pass whose correlated noise may be used elsewhere."""
    return any(
        counts.passes > 0 and event.is_correlated and isinstance(event.mechanism, NoNoise)
        for event, counts in change.items()
    )


def counts_of(counts: EventCounts) -> dict[Event, StepsAndPasses]:
    """Return the counts of each event."""
    return {
        event: StepsAndPasses(
            steps=counts.steps.get(event, 0),
            passes=counts.passes.get(event, 0),
            begun=counts.begun.get(event, 0),
        )
        for event in {**counts.steps, **counts.passes, **counts.begun}
    }


def count_events(counts: EventCountDelta) -> EventCounts:
    """Return event counts of these; how often loaders began anew is unknown."""
    return EventCounts(
        steps={event: one.steps for event, one in counts.items() if one.steps},
        passes={event: one.passes for event, one in counts.items() if one.passes},
        begun={event: one.begun for event, one in counts.items() if one.begun},
    )
