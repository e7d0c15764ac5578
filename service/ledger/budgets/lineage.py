"""What a dataset was made from: a step on it is a step on all of that, too.

docs/theory/lineage.md proves which steps count unchanged for a parent's record, and which count as
unamplified or not at all.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from accounting.events import (
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    NeighboringRelation,
    NoNoise,
    Poisson,
    PoissonUnit,
    TruncatedPoisson,
)
from accounting.rounding import rounded_down
from service.ledger.budgets.accumulator import BudgetDelta
from service.ledger.budgets.steps_and_passes import EventCountDelta, StepsAndPasses, merge_changes


class RowsPerParent(NamedTuple):
    """How many rows of a dataset a record of another has, on the whole path between them."""

    exactly_one: bool
    most: int = 1


ITSELF: Final = RowsPerParent(exactly_one=True)
UNBOUNDED: Final = Event(mechanism=NoNoise(), sampling=Full())
_NOISE_MIN: Final = 1e-100  # that an event may have


def as_seen_by_ancestor(
    move: BudgetDelta, *, relation: NeighboringRelation, rows: RowsPerParent
) -> BudgetDelta:
    """What a move on a dataset is for a dataset it was made from.

    Args:
        move: on the dataset that was made; its events hold that dataset's own rates.
        relation: of both.
        rows: that a record of the other has in it.
    """
    if _is_unchanged(relation, rows):
        return move
    return BudgetDelta(  # without shifted passes: there none count
        recorded=_view_change(move.recorded, relation, rows.most),
        reserved=_view_change(move.reserved, relation, rows.most),
    )


def view_event(event: Event, *, relation: NeighboringRelation, rows: RowsPerParent) -> Event:
    """The event that a step on a dataset is for a dataset it was made from."""
    return event if _is_unchanged(relation, rows) else _view_event(event, relation, rows.most)


def _is_unchanged(relation: NeighboringRelation, rows: RowsPerParent) -> bool:
    if rows.most > 1:
        return False
    return rows.exactly_one or relation is NeighboringRelation.ADD_OR_REMOVE_ONE


def rows_of(row: Any) -> RowsPerParent:
    """What a row of the table lineage says; of a dataset and itself there is none."""
    return RowsPerParent(bool(row.exactly_one), row.most_rows or 1)


def _view_change(
    change: EventCountDelta, relation: NeighboringRelation, most: int
) -> EventCountDelta:
    return merge_changes(
        {(seen := _view_event(event, relation, most)): _counts(counts, same=seen == event)}
        for event, counts in change.items()
    )


def _counts(counts: StepsAndPasses, *, same: bool) -> StepsAndPasses:
    """Steps alone where passes no longer count."""
    return counts if same else StepsAndPasses(steps=counts.steps)


@lru_cache(maxsize=8192)
def _view_event(event: Event, relation: NeighboringRelation, most: int) -> Event:
    return _of_several(event, relation, most) if most > 1 else _view_without_row(event, relation)


def _of_several(event: Event, relation: NeighboringRelation, most: int) -> Event:
    """The event for a record with up to so many rows: docs/theory/units.md, "A parent's budget"."""
    mechanism, sampling = event.mechanism, event.sampling
    grows = relation is NeighboringRelation.ADD_OR_REMOVE_ONE
    match mechanism, sampling:
        case Gaussian(noise_multiplier=noise), Poisson(sampling_probability=rate) if rate < 1:
            unit = PoissonUnit(sampling_probability=rate, rows=most)
            return Event(mechanism=Gaussian(noise_multiplier=noise), sampling=unit)
        case Gaussian() | Laplace(), Full() | Poisson():
            return _full_batch_moved_by(mechanism, most)
        case Gaussian(), FixedSize(batch_size=size, dataset_size=whole) if (
            grows and size <= whole - most
        ):
            return _full_batch_moved_by(
                mechanism, 2 * min(most, size)
            )  # each takes another row's place
        case Gaussian(), TruncatedPoisson(max_batch_size=size) if grows:
            return _full_batch_moved_by(mechanism, 2 * min(most, size))
        case _:
            return UNBOUNDED


def _full_batch_moved_by(mechanism: Gaussian | Laplace, bounds: int) -> Event:
    """A full batch whose sum a record moves by so many norm bounds."""
    noise = rounded_down(mechanism.noise_multiplier / bounds)
    if noise < _NOISE_MIN:
        return UNBOUNDED
    return Event(mechanism=replace(mechanism, noise_multiplier=noise), sampling=Full())


def _view_without_row(event: Event, relation: NeighboringRelation) -> Event:
    """The event for a record whose row may be missing, not only be another one."""
    mechanism, sampling = event.mechanism, event.sampling
    if isinstance(mechanism, Gaussian | Laplace) and isinstance(sampling, Full | Poisson):
        return event  # a missing row adds to a sum what a row of zeros does
    if isinstance(mechanism, Gaussian) and isinstance(sampling, FixedSize):
        return _view_with_substitute(mechanism.noise_multiplier, sampling, relation)
    return UNBOUNDED


def _view_with_substitute(
    sigma: float, sampling: FixedSize, relation: NeighboringRelation
) -> Event:
    """A batch in which another record may stand in for the missing one: two norm bounds away."""
    if sampling.batch_size == sampling.dataset_size:
        return UNBOUNDED  # no other record can take its place
    if relation is NeighboringRelation.REPLACE_SPECIAL:
        sigma = sigma / 2  # for a release counts one norm bound under this relation
    if sigma < _NOISE_MIN:
        return UNBOUNDED
    return Event(mechanism=Gaussian(noise_multiplier=sigma), sampling=Full())
