"""Ledgers that a ledger is compared with: the same steps, had their batches been others."""

from collections import Counter
from dataclasses import replace

from accounting.event_counts import EventCounts
from accounting.events import Cyclic, Event, Full, Poisson, PrivateSelection, Shuffle


def as_if_poisson(counts: EventCounts) -> EventCounts | None:
    """The ledger had each batch in turn been a Poisson sample of the same size.

    Args:
        counts: units of each distinct event.

    Returns:
        The ledger, which bounds nothing; None where no batches were taken in turn.
    """
    steps: Counter[Event] = Counter()
    for event, count in counts.steps.items():
        sampling = event.sampling
        if isinstance(sampling, Cyclic | Shuffle):
            if isinstance(sampling, Shuffle) and sampling.dataset_size is not None:
                rate = sampling.batch_size / sampling.dataset_size
            else:
                rate = 1 / sampling.steps_per_pass
            event = replace(event, sampling=Poisson(sampling_probability=min(1.0, rate)))
        steps[event] += count
    if steps == counts.steps:
        return None
    passes = {event: n for event, n in counts.passes.items() if event in steps}
    return EventCounts(steps=steps, passes=passes)


def as_if_unsampled(counts: EventCounts) -> EventCounts:
    """The ledger had every record taken part in each step, which tells no less. Upper.

    Args:
        counts: units of each distinct event.
    """
    steps: Counter[Event] = Counter()
    for event, count in counts.steps.items():
        mechanism = event.mechanism
        if isinstance(mechanism, PrivateSelection):
            mechanism = replace(mechanism, base=replace(mechanism.base, sampling=Full()))
        steps[Event(mechanism=mechanism, sampling=Full())] += count
    return EventCounts(steps=dict(steps))
