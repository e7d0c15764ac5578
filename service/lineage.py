"""What a dataset was made from: a step on it is a step on all of that, too.

docs/theory/lineage.md proves which steps count unchanged for a parent's record, and which count as
unamplified or not at all.
"""

from accounting.events import (
    Event,
    FixedSize,
    Full,
    NeighboringRelation,
    NoNoise,
    Poisson,
    Unknown,
)
from service.tallies import Change, Counts, Move, merged

_UNBOUNDED = Event(mechanism=NoNoise(), sampling=Full())


def restated(move: Move, *, relation: NeighboringRelation, exactly_one: bool) -> Move:
    """What a move on a dataset is for a dataset it was made from.

    Args:
        move: on the dataset that was made; its events hold that dataset's own rates.
        relation: of both.
        exactly_one: whether every record of the other has exactly one row in it, on the whole
            path; else it has at most one.
    """
    if exactly_one or relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
        return move
    return Move(recorded=_restated(move.recorded), reserved=_restated(move.reserved))


def _restated(change: Change) -> Change:
    return merged({_event(event): _counts(event, counts)} for event, counts in change.items())


def _event(event: Event) -> Event:
    """The event for a record that the dataset may have left out."""
    match event.sampling:
        case Poisson() | Full() | Unknown():
            return event
        case FixedSize():
            return Event(mechanism=event.mechanism, sampling=Full())
        case _:
            return _UNBOUNDED


def _counts(event: Event, counts: Counts) -> Counts:
    """Steps, where passes no longer count."""
    return counts if _event(event) == event else Counts(steps=counts.steps)
