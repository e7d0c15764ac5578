"""Count steps and passes of recorded events."""

from typing import Any

from accounting.event_counts import EventCounts
from service.ledger.budgets.accumulator import StepsAndPasses


def counts_of(balance: EventCounts) -> dict[Any, StepsAndPasses]:
    """A balance event by event."""
    return {
        event: StepsAndPasses(
            steps=balance.steps.get(event, 0),
            passes=balance.passes.get(event, 0),
            begun=balance.begun.get(event, 0),
        )
        for event in {**balance.steps, **balance.passes, **balance.begun}
    }


def count_events(counts: dict[Any, StepsAndPasses]) -> EventCounts:
    """Return the balance of these counts; how often loaders began anew is unknown."""
    return EventCounts(
        steps={event: one.steps for event, one in counts.items() if one.steps},
        passes={event: one.passes for event, one in counts.items() if one.passes},
        begun={event: one.begun for event, one in counts.items() if one.begun},
    )
