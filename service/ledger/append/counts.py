"""Count steps and passes of recorded events."""

from typing import Any

from accounting.event_counts import EventCounts
from service.ledger.budgets.accumulator import StepsAndPasses


def counts_of(counts: EventCounts) -> dict[Any, StepsAndPasses]:
    """Return the counts of each event."""
    return {
        event: StepsAndPasses(
            steps=counts.steps.get(event, 0),
            passes=counts.passes.get(event, 0),
            begun=counts.begun.get(event, 0),
        )
        for event in {**counts.steps, **counts.passes, **counts.begun}
    }


def count_events(counts: dict[Any, StepsAndPasses]) -> EventCounts:
    """Return event counts of these; how often loaders began anew is unknown."""
    return EventCounts(
        steps={event: one.steps for event, one in counts.items() if one.steps},
        passes={event: one.passes for event, one in counts.items() if one.passes},
        begun={event: one.begun for event, one in counts.items() if one.begun},
    )
