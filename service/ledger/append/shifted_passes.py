"""Passes that corrections have shifted: of what runs recorded, and of what they hold ahead."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sqlalchemy import Connection, bindparam, select

from accounting.events import Span
from service.ledger.append.admission import count_reserved
from service.ledger.budgets.accumulator import BudgetDelta
from service.ledger.budgets.correction_costs import (
    Corrected,
    Shifts,
    recorded_passes,
    shifts_of,
    with_shifts,
)
from service.ledger.budgets.pass_positions import place_of
from service.ledger.budgets.steps_and_passes import EventCountDelta, merge_changes, negative
from service.schemas.event_codec import event_of
from service.storage.tables import branches, distinct_events, reservations

_pass_events = distinct_events.alias()
_AHEAD: Final = (
    select(
        reservations.c.branch_id,
        reservations.c.name,
        reservations.c.first_step,
        reservations.c.end_step,
        branches.c.next_step,
        branches.c.pass_position,
        distinct_events.c.content,
        _pass_events.c.content.label("open_content"),
    )
    .join(branches, branches.c.id == reservations.c.branch_id)
    .join(distinct_events, distinct_events.c.id == reservations.c.event_id)
    .outerjoin(_pass_events, _pass_events.c.id == branches.c.pass_event_id)
    .where(
        reservations.c.run_id == bindparam("run"),
        reservations.c.end_step > branches.c.next_step,
        reservations.c.end_step > reservations.c.first_step,
    )
    .order_by(reservations.c.branch_id, reservations.c.first_step)
)


def shifted_by(
    connection: Connection, run: int, shifts: Shifts, *, dataset_size: int
) -> BudgetDelta:
    """Return what shifts add to all that a run has recorded and holds ahead.

    Args:
        connection: for reading; what its transaction changed must be written.
        run: the run's row.
        shifts: of its loaders.
        dataset_size: of its dataset.
    """
    if not shifts:
        return BudgetDelta(own={})
    by_branch: dict[int, list[Any]] = {}
    for row in connection.execute(_AHEAD, {"run": run}):
        by_branch.setdefault(row.branch_id, []).append(row)
    each = list(by_branch.values())
    named = [[row for row in rows if row.name is not None] for rows in each]
    whole = BudgetDelta(
        recorded=recorded_passes(connection, run, dataset_size),
        reserved=merge_changes(_held(rows, dataset_size) for rows in each),
        own=merge_changes(_held(rows, dataset_size) for rows in named if rows),
    )
    found = with_shifts(whole, shifts)
    return BudgetDelta(
        own={},
        shifted=found.shifted,
        shifted_ahead=found.shifted_ahead,
        own_shifted=found.own_shifted,
    )


def _held(rows: list[Any], dataset_size: int) -> EventCountDelta:
    """What a branch holds ahead."""
    first = rows[0]
    place = place_of(first.open_content, first.pass_position, dataset_size)
    spans = [
        Span(
            event=event_of(row.content, dataset_size),
            steps=row.end_step - max(row.first_step, row.next_step),
        )
        for row in rows
    ]
    return count_reserved(place, spans)


def shifted_since(before: BudgetDelta, after: BudgetDelta) -> BudgetDelta:
    """Return what shifts add more than they did."""
    return BudgetDelta(
        own={},
        shifted=merge_changes([after.shifted, negative(before.shifted)]),
        shifted_ahead=merge_changes([after.shifted_ahead, negative(before.shifted_ahead)]),
        own_shifted=merge_changes([after.own_shifted, negative(before.own_shifted)]),
    )


def shifted_by_all(
    connection: Connection, corrected: Iterable[Corrected], sizes: Mapping[int, int]
) -> BudgetDelta:
    """Return what the shifts of all corrected runs add, given the sizes of their datasets."""
    by_run: dict[tuple[int, int], list[Corrected]] = {}
    for one in corrected:
        by_run.setdefault((one.run_id, one.dataset_id), []).append(one)
    found = [
        shifted_by(connection, run, shifts_of(part), dataset_size=sizes[dataset_id])
        for (run, dataset_id), part in by_run.items()
    ]
    return BudgetDelta(
        own={},
        shifted=merge_changes(one.shifted for one in found),
        shifted_ahead=merge_changes(one.shifted_ahead for one in found),
        own_shifted=merge_changes(one.own_shifted for one in found),
    )
