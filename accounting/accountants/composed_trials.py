"""What the trials of private selections would cost one by one, had each been released."""

from collections import Counter
from collections.abc import Mapping

from accounting.bounds.selection_bounds import trial_counts
from accounting.event_counts import EventCounts
from accounting.events import Event, PrivateSelection
from accounting.renyi.selection import expected_trials


def as_recorded_trials(counts: EventCounts) -> tuple[int, EventCounts] | None:
    """The ledger had every trial of its selections been recorded by itself.

    Args:
        counts: units of each distinct event.

    Returns:
        (trials, the mean of each selection rounded to whole ones; the ledger), or None where there
        is no selection.
    """
    trials = 0
    steps, passes, begun = Counter(counts.steps), Counter(counts.passes), Counter(counts.begun)
    for event, count in counts.steps.items():
        if isinstance(event.mechanism, PrivateSelection):
            runs = count * max(1, round(expected_trials(event.mechanism.repetitions)))
            trials += runs
            del steps[event]
            one = trial_counts(event.mechanism)
            for total, each in ((steps, one.steps), (passes, one.passes), (begun, one.begun)):
                _add(total, each, runs)
    if not trials:
        return None
    return trials, EventCounts(steps=dict(steps), passes=dict(passes), begun=dict(begun))


def _add(total: "Counter[Event]", each: Mapping[Event, int], runs: int) -> None:
    for event, count in each.items():
        total[event] += count * runs
