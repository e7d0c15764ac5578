"""What corrections add to what is enforced; they never take anything off.

A corrected step adds what it costs more than it did as recorded, in each component of the filter's
sums. Where passes count, each pass that the corrected steps may have touched is counted in full
beside the recorded ones; what else changes where they shift later passes is for `shifts` to say.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Select, bindparam, case, func, select

from accounting.balances import pass_length, retold
from accounting.events import Event
from accounting.filters import Total, times
from service import pricing
from service.documents import event_of
from service.passes import IS_UNPLACED
from service.tables import branches, corrections, distinct_events, entries
from service.tallies import Counts, Move, Tally, by_pass, merged

View = Callable[[Event], Event]  # an event of a dataset as another dataset's record sees it

_recorded, _really, _earlier = distinct_events.alias(), distinct_events.alias(), entries.alias()
_end = corrections.c.first_step + corrections.c.steps
_entry_end = entries.c.first_step + entries.c.steps
_overlap = case((_entry_end < _end, _entry_end), else_=_end) - case(
    (entries.c.first_step > corrections.c.first_step, entries.c.first_step),
    else_=corrections.c.first_step,
)
# Entries of a branch are contiguous: the one that holds a step is the last to begin by it.
_holds_first = (
    select(func.max(_earlier.c.first_step))
    .where(
        _earlier.c.branch_id == corrections.c.branch_id,
        _earlier.c.first_step <= corrections.c.first_step,
    )
    .correlate(corrections)
    .scalar_subquery()
)
_CORRECTED: Final = (
    select(
        corrections.c.id,
        corrections.c.dataset_id,
        corrections.c.run_id,
        corrections.c.steps.label("length"),
        _recorded.c.content.label("recorded"),
        _really.c.content.label("really"),
        IS_UNPLACED.label("unplaced"),
        func.sum(_overlap).label("steps"),
    )
    .join(_really, _really.c.id == corrections.c.event_id)
    .join(branches, branches.c.id == corrections.c.branch_id)
    .join(
        entries,
        (entries.c.branch_id == corrections.c.branch_id)
        & (entries.c.first_step >= _holds_first)
        & (entries.c.first_step < _end),
    )
    .join(_recorded, _recorded.c.id == entries.c.event_id)
    .group_by(
        corrections.c.id,
        corrections.c.dataset_id,
        corrections.c.run_id,
        corrections.c.steps,
        _recorded.c.content,
        _really.c.content,
        branches.c.name,
        branches.c.order,
    )
)
_OF_DATASETS: Final = _CORRECTED.where(
    corrections.c.dataset_id.in_(bindparam("datasets", expanding=True))
)
_OF_RUN: Final = _CORRECTED.where(corrections.c.run_id == bindparam("run"))
_ONE: Final = _CORRECTED.where(corrections.c.id == bindparam("correction"))
# Asked first: nearly always the answer is none, and entries are then not looked at.
_DATASETS: Final = (
    select(corrections.c.dataset_id)
    .distinct()
    .where(corrections.c.dataset_id.in_(bindparam("datasets", expanding=True)))
)
_RUNS: Final = (
    select(corrections.c.run_id)
    .distinct()
    .where(corrections.c.run_id.in_(bindparam("runs", expanding=True)))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """Steps that were recorded as one event and, as a correction says, were another."""

    correction: int  # its row
    dataset_id: int
    run_id: int
    recorded: Event
    really: Event
    steps: int
    length: int  # of the whole correction, which may lie over other events, too
    unplaced: bool = False  # whether passes of the branch may begin elsewhere than counted from


def of_datasets(connection: Connection, sizes: Mapping[int, int]) -> list[Corrected]:
    """All that was corrected in some datasets, given their sizes."""
    found = list(connection.scalars(_DATASETS, {"datasets": list(sizes)}))
    return _read(connection, _OF_DATASETS, sizes, datasets=found) if found else []


def of_run(
    connection: Connection, run: int, *, dataset_id: int, dataset_size: int
) -> list[Corrected]:
    """All that was corrected in a run."""
    if not corrected_runs(connection, [run]):
        return []
    return _read(connection, _OF_RUN, {dataset_id: dataset_size}, run=run)


def of_one(
    connection: Connection, correction: int, *, dataset_id: int, dataset_size: int
) -> list[Corrected]:
    """What one correction lies over."""
    return _read(connection, _ONE, {dataset_id: dataset_size}, correction=correction)


def corrected_runs(connection: Connection, runs: Iterable[int]) -> set[int]:
    """Those of some runs that have corrections."""
    return set(connection.scalars(_RUNS, {"runs": list(runs)}))


def _read(
    connection: Connection, query: Select[Any], sizes: Mapping[int, int], **asked: Any
) -> list[Corrected]:
    return [
        Corrected(
            correction=row.id,
            dataset_id=row.dataset_id,
            run_id=row.run_id,
            recorded=event_of(row.recorded, sizes[row.dataset_id]),
            really=event_of(row.really, sizes[row.dataset_id]),
            steps=int(row.steps),  # Postgres sums whole numbers as decimals
            length=row.length,
            unplaced=bool(row.unplaced),
        )
        for row in connection.execute(query, asked)
    ]


def charge(
    tally: Tally, corrected: Iterable[Corrected], *, view: View | None = None, stored: bool = False
) -> None:
    """Count in a tally what corrected steps add.

    Args:
        tally: the sums of a scope.
        corrected: the steps.
        view: how the scope's records see an event; None where it is their own.
        stored: whether the sums were stored with what steps add; passes never are.
    """
    passes = []
    seen = [(one, *_seen(one, view)) for one in corrected]
    pricing.require(tally.missing({event for _, *both in seen for event in both}))
    for one, recorded, really in seen:
        if not stored:
            more = times(_dearer(tally, recorded, really), one.steps)
            tally.recorded = tuple(a + b for a, b in zip(tally.recorded, more, strict=True))
        passes.append(_passes(tally, recorded, really, one))
        if one.unplaced:  # where the noise falls, another pass of an old order is counted
            passes += [
                {retold(event): Counts(passes=1)} for event in (recorded, really) if by_pass(event)
            ]
    tally.apply(Move(recorded=merged(passes)))


def _seen(one: Corrected, view: View | None) -> tuple[Event, Event]:
    """What was recorded and what really was, as a scope's records see it."""
    return (one.recorded, one.really) if view is None else (view(one.recorded), view(one.really))


def _dearer(tally: Tally, recorded: Event, really: Event) -> Total:
    """What a step costs more, as far as steps are what counts; no component is negative."""
    before, after = _step_cost(tally, recorded), _step_cost(tally, really)
    return tuple(max(0, b - a) for a, b in zip(before, after, strict=True))


def _step_cost(tally: Tally, event: Event) -> Total:
    return tally.filter.zero() if by_pass(event) else tally.cost(event)


def _passes(tally: Tally, recorded: Event, really: Event, one: Corrected) -> dict[Event, Counts]:
    """The passes of the corrected steps, which count besides those that were recorded."""
    if recorded.sampling == really.sampling and _no_dearer(tally, recorded, really):
        return {}
    length = pass_length(really)
    if length is None:
        return {}
    touched = 1 + -(-(one.length - 1) // length)  # wherever in a pass they began
    return {really: Counts(steps=one.steps, passes=min(one.steps, touched))}


def _no_dearer(tally: Tally, recorded: Event, really: Event) -> bool:
    """Whether what was recorded covers what really was, in every component."""
    before, after = tally.cost(recorded), tally.cost(really)
    return all(b <= a for a, b in zip(before, after, strict=True))
