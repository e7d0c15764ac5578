"""Passes that corrections have shifted: of what runs recorded, and of what they hold ahead."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, bindparam

from service.ledger.append.reserved_rows import AHEAD, count_ahead, split_by_branch
from service.ledger.budgets.accumulator import BudgetDelta
from service.ledger.budgets.correction_costs import (
    Corrected,
    Shifts,
    recorded_passes,
    shifts_of,
    with_shifts,
)
from service.ledger.budgets.steps_and_passes import merge_changes, negative
from service.storage.tables import reservations

_AHEAD_OF_RUN: Final = AHEAD.where(reservations.c.run_id == bindparam("run"))


def compute_shifts(
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
    each = split_by_branch(connection.execute(_AHEAD_OF_RUN, {"run": run}))
    named = [[row for row in rows if row.name is not None] for rows in each]
    whole = BudgetDelta(
        recorded=recorded_passes(connection, run, dataset_size),
        reserved=merge_changes(count_ahead(rows, dataset_size) for rows in each),
        own=merge_changes(count_ahead(rows, dataset_size) for rows in named if rows),
    )
    return _shifts_alone([with_shifts(whole, shifts)])


def compute_shifts_since(before: BudgetDelta, after: BudgetDelta) -> BudgetDelta:
    """Return what shifts add more than they did."""
    less = BudgetDelta(
        shifted=negative(before.shifted),
        shifted_ahead=negative(before.shifted_ahead),
        own_shifted=negative(before.own_shifted),
    )
    return _shifts_alone([after, less])


def compute_all_shifts(
    connection: Connection, corrected: Iterable[Corrected], sizes: Mapping[int, int]
) -> BudgetDelta:
    """Return what the shifts of all corrected runs add, given the sizes of their datasets."""
    by_run: dict[tuple[int, int], list[Corrected]] = {}
    for one in corrected:
        by_run.setdefault((one.run_id, one.dataset_id), []).append(one)
    return _shifts_alone(
        [
            compute_shifts(connection, run, shifts_of(part), dataset_size=sizes[dataset_id])
            for (run, dataset_id), part in by_run.items()
        ]
    )


def _shifts_alone(moves: Sequence[BudgetDelta]) -> BudgetDelta:
    """Add up what shifts add, and leave out what they add it to."""
    return BudgetDelta(
        own={},
        shifted=merge_changes(one.shifted for one in moves),
        shifted_ahead=merge_changes(one.shifted_ahead for one in moves),
        own_shifted=merge_changes(one.own_shifted for one in moves),
    )
