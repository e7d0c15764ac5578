"""What a dataset was made from: a step on it is a step on all of that, too.

docs/theory/lineage.md proves which steps count unchanged for a parent's record, and which count as
unamplified or not at all.
"""

from functools import lru_cache
from typing import Final

from accounting.events import (
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    NeighboringRelation,
    NoNoise,
    Poisson,
)
from service.ledger.budgets.accumulator import (
    BudgetDelta,
    EventCountDelta,
    StepsAndPasses,
    merge_changes,
)

UNBOUNDED: Final = Event(mechanism=NoNoise(), sampling=Full())
_NOISE_MIN: Final = 1e-100  # that an event may have


def as_seen_by_ancestor(
    move: BudgetDelta, *, relation: NeighboringRelation, exactly_one: bool
) -> BudgetDelta:
    """What a move on a dataset is for a dataset it was made from.

    Args:
        move: on the dataset that was made; its events hold that dataset's own rates.
        relation: of both.
        exactly_one: whether every record of the other has exactly one row in it, on the whole
            path; else it has at most one.
    """
    if exactly_one or relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
        return move
    return BudgetDelta(  # without shifted passes: there none count
        recorded=_restated(move.recorded, relation), reserved=_restated(move.reserved, relation)
    )


def seen_as(event: Event, *, relation: NeighboringRelation, exactly_one: bool) -> Event:
    """The event that a step on a dataset is for a dataset it was made from."""
    if exactly_one or relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
        return event
    return _left_out(event, relation)


def _restated(change: EventCountDelta, relation: NeighboringRelation) -> EventCountDelta:
    return merge_changes(
        {(seen := _left_out(event, relation)): _counts(counts, same=seen == event)}
        for event, counts in change.items()
    )


def _counts(counts: StepsAndPasses, *, same: bool) -> StepsAndPasses:
    """Steps alone where passes no longer count."""
    return counts if same else StepsAndPasses(steps=counts.steps)


@lru_cache(maxsize=8192)
def _left_out(event: Event, relation: NeighboringRelation) -> Event:
    """The event for a record whose row may be missing, not only be another one."""
    mechanism, sampling = event.mechanism, event.sampling
    if isinstance(mechanism, Gaussian | Laplace) and isinstance(sampling, Full | Poisson):
        return event  # a missing row adds to a sum what a row of zeros does
    if isinstance(mechanism, Gaussian) and isinstance(sampling, FixedSize):
        return _exchanged(mechanism.noise_multiplier, sampling, relation)
    return UNBOUNDED


def _exchanged(sigma: float, sampling: FixedSize, relation: NeighboringRelation) -> Event:
    """A batch in which another record may stand in for the missing one: two norm bounds away."""
    if sampling.batch_size == sampling.dataset_size:
        return UNBOUNDED  # no other record can take its place
    if relation is NeighboringRelation.REPLACE_SPECIAL:
        sigma = sigma / 2  # for a release counts one norm bound under this relation
    if sigma < _NOISE_MIN:
        return UNBOUNDED
    return Event(mechanism=Gaussian(noise_multiplier=sigma), sampling=Full())
