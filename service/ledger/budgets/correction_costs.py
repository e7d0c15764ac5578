"""Charge what corrections change in the corrected account, enforced beside the recorded one.

A corrected step changes the account by what it costs more or less than it did as recorded. Where
passes count, the recorded ones stay counted, and each pass that the corrected steps may have
touched is counted in full beside them. A correction that changes the sampling shifts the passes of
a loader, which then begin elsewhere: each of them counts once more. An accumulator enforces the
larger account, and never less than it did before.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Connection, Select, bindparam, case, func, or_, select

from accounting.event_counts import pass_length, reveal_order
from accounting.events import Event, Sampling
from accounting.filters import EnvelopeFilter, Total, plus, times
from service.ledger.budgets import cost_cache
from service.ledger.budgets.accumulator import BudgetAccumulator, BudgetDelta
from service.ledger.budgets.pass_positions import IS_UNPLACED
from service.ledger.budgets.steps_and_passes import (
    EventCountDelta,
    StepsAndPasses,
    by_pass,
    merge_changes,
)
from service.schemas.event_codec import event_of
from service.storage.tables import branches, corrections, distinct_events, entries, run_balances

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
_takers = branches.alias()
# Of such a run some steps are of a place that is not known, where a pass was taken from.
_SHARED: Final = select(_takers.c.run_id).where(_takers.c.takes_pass)
_CORRECTED: Final = (
    select(
        corrections.c.id,
        corrections.c.dataset_id,
        corrections.c.run_id,
        corrections.c.steps.label("length"),
        _recorded.c.content.label("recorded"),
        _really.c.content.label("really"),
        or_(IS_UNPLACED, branches.c.run_id.in_(_SHARED)).label("unplaced"),
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
        branches.c.takes_pass,
        branches.c.run_id,
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
_COUNTED: Final = (
    select(
        distinct_events.c.content,
        run_balances.c.steps,
        run_balances.c.passes,
        run_balances.c.begun,
    )
    .join(distinct_events, distinct_events.c.id == run_balances.c.event_id)
    .where(run_balances.c.run_id == bindparam("run"), distinct_events.c.by_pass)
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


def view_corrections(corrected: Iterable[Corrected], view: View) -> list[Corrected]:
    """The same as the records of another dataset see it."""
    return [replace(one, recorded=view(one.recorded), really=view(one.really)) for one in corrected]


def add_correction_costs(accumulator: BudgetAccumulator, corrected: Iterable[Corrected]) -> None:
    """Count in an accumulator what corrections change, in the order they were recorded.

    Args:
        accumulator: the sums of a scope, which hold all earlier corrections.
        corrected: the steps, as the scope's records see them; all of each correction.
    """
    order = attrgetter("correction")
    told = sorted(corrected, key=order)
    cost_cache.require(
        accumulator.missing({event for one in told for event in (one.recorded, one.really)})
    )
    changes = [
        (
            [times(_dearer(accumulator, one), one.steps) for one in parts],
            merge_changes(_passes(accumulator, one) for one in parts),
        )
        for parts in (list(group) for _, group in groupby(told, key=order))
    ]
    cost_cache.require(accumulator.missing({event for _, passes in changes for event in passes}))
    for steps, passes in changes:
        accumulator.correct(reduce(plus, steps), passes)


def _dearer(accumulator: BudgetAccumulator, one: Corrected) -> Total:
    """What a step costs more, as far as steps are what counts; negative where it costs less."""
    return plus(
        _step_cost(accumulator, one.really), times(_step_cost(accumulator, one.recorded), -1)
    )


def _step_cost(accumulator: BudgetAccumulator, event: Event) -> Total:
    return accumulator.filter.zero() if by_pass(event) else accumulator.cost(event)


def _passes(accumulator: BudgetAccumulator, one: Corrected) -> EventCountDelta:
    """The passes of the corrected steps, which count besides those that were recorded."""
    both = (one.recorded, one.really) if one.unplaced else ()
    # Where the noise falls, another pass of an old order is counted.
    old = [{reveal_order(event): StepsAndPasses(passes=1)} for event in both if by_pass(event)]
    return merge_changes([_count_touched_passes(accumulator, one), *old])


def _count_touched_passes(accumulator: BudgetAccumulator, one: Corrected) -> EventCountDelta:
    """The passes that corrected steps may have touched, wherever they began."""
    if one.recorded.sampling == one.really.sampling and _no_dearer(accumulator, one):
        return {}
    length = pass_length(one.really)
    if length is None:
        return {}
    touched = 1 + -(-(one.length - 1) // length)  # wherever in a pass they began
    counted = reveal_order(one.really) if one.unplaced else one.really
    passes = min(one.steps, touched)
    found: EventCountDelta = {counted: StepsAndPasses(steps=one.steps, passes=passes)}
    if isinstance(accumulator.filter, EnvelopeFilter) and by_pass(one.recorded):
        # What the pass began as is not known: one that may have fallen leaves its item.
        found = merge_changes([found, {one.recorded: StepsAndPasses(begun=-passes)}])
    return found


def _no_dearer(accumulator: BudgetAccumulator, one: Corrected) -> bool:
    """Whether what was recorded covers what really was, in every component."""
    before, after = accumulator.cost(one.recorded), accumulator.cost(one.really)
    return all(b <= a for a, b in zip(before, after, strict=True))


Shifts = Mapping[Sampling, int]  # how many corrections of a run shifted the passes of a loader
NO_SHIFTS: Final[Shifts] = {}


def shifts_of(corrected: Iterable[Corrected]) -> Shifts:
    """Count the corrections of one run that changed the sampling, by each loader they shift."""
    changed = [one for one in corrected if one.recorded.sampling != one.really.sampling]
    both = [(one, event) for one in changed for event in (one.recorded, one.really)]
    found = {(one.correction, event.sampling, 1) for one, event in both if by_pass(event)}
    # Of a place that is not known, steps in a row that are cut touch a pass more on each side.
    told = [(one.correction, reveal_order(event)) for one, event in both if one.unplaced]
    found |= {
        (row, event.sampling, side) for row, event in told if by_pass(event) for side in (1, 2)
    }
    return Counter(sampling for _, sampling, _ in found)


def shifted_counts(shifts: Shifts, recorded: EventCountDelta) -> EventCountDelta:
    """Return what is counted besides recorded passes: each of them once more for each shift.

    Its steps may lie in one pass more for each shift, and at what noise any of these began is not
    known. What is added to several records is the sum of what is added to each.
    """
    if not shifts:
        return {}
    return {
        event: StepsAndPasses(passes=shifts[event.sampling] * counts.passes, begun=-counts.begun)
        for event, counts in recorded.items()
        if event.sampling in shifts
    }


def shifts_of_run(
    connection: Connection, run: int, *, dataset_id: int, dataset_size: int
) -> Shifts:
    """Count the shifts of a run's loaders."""
    return shifts_of(of_run(connection, run, dataset_id=dataset_id, dataset_size=dataset_size))


def recorded_passes(connection: Connection, run: int, dataset_size: int) -> EventCountDelta:
    """Return what a run has recorded of events that are counted by pass."""
    return {
        event_of(row.content, dataset_size): StepsAndPasses(
            steps=row.steps, passes=row.passes, begun=row.begun
        )
        for row in connection.execute(_COUNTED, {"run": run})
        if row.steps or row.passes
    }


def with_shifts(move: BudgetDelta, shifts: Shifts) -> BudgetDelta:
    """Return a move of a run with what shifts add to it: to what it records and holds ahead."""
    if not shifts:
        return move
    return replace(
        move,
        shifted=shifted_counts(shifts, move.recorded),
        shifted_ahead=shifted_counts(shifts, move.reserved),
        own_shifted=shifted_counts(shifts, move.own or {}),
    )
