"""Expired reservations: they count as spent until recorded, released or voided."""

from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, or_

from accounting.events import NeighboringRelation
from service.ledger.append.reserved_rows import AHEAD, count_ahead, split_by_branch
from service.ledger.budgets.accumulator import BudgetDelta
from service.ledger.budgets.correction_costs import shifts_of_run, with_shifts
from service.ledger.budgets.lineage import as_seen_by_ancestor, rows_of
from service.ledger.budgets.steps_and_passes import merge_changes, negative
from service.storage.tables import datasets, lineage, reservations

_EXPIRED: Final = (
    AHEAD.add_columns(
        datasets.c.id.label("dataset_id"),
        datasets.c.dataset_size,
        lineage.c.exactly_one,
        lineage.c.most_rows,
    )
    .join(datasets, datasets.c.id == reservations.c.dataset_id)
    .outerjoin(
        lineage,
        (lineage.c.dataset_id == datasets.c.id) & (lineage.c.ancestor_id == bindparam("dataset")),
    )
    .where(
        or_(datasets.c.id == bindparam("dataset"), lineage.c.ancestor_id == bindparam("dataset")),
        reservations.c.expires_at <= bindparam("moment"),
    )
)


def expired_reservations(
    connection: Connection, dataset: Row[Any], moment: datetime, *, run_id: int | None = None
) -> BudgetDelta:
    """What expired on a dataset and on all that were made from it, or in one of its runs.

    From reserved to spent.
    """
    asked = {"dataset": dataset.id, "moment": moment}
    rows = connection.execute(_EXPIRED, asked)
    by_branch = split_by_branch(row for row in rows if run_id is None or row.run_id == run_id)
    relation = NeighboringRelation(dataset.neighboring_relation)
    each = [_count_expired(connection, dataset.id, relation, part) for part in by_branch]
    lost = merge_changes(one.recorded for one in each)
    shifted = merge_changes(one.shifted for one in each)
    return BudgetDelta(
        recorded=lost,
        reserved=negative(lost),
        shifted=shifted,
        shifted_ahead=negative(shifted),
    )


def _count_expired(
    connection: Connection, dataset_id: int, relation: NeighboringRelation, rows: list[Any]
) -> BudgetDelta:
    """What expired on one branch, as if it was recorded."""
    first, size = rows[0], rows[0].dataset_size
    shifts = shifts_of_run(connection, first.run_id, dataset_id=first.dataset_id, dataset_size=size)
    lost = with_shifts(BudgetDelta(recorded=count_ahead(rows, size)), shifts)
    if first.dataset_id == dataset_id:
        return lost
    return as_seen_by_ancestor(lost, relation=relation, rows=rows_of(first))
