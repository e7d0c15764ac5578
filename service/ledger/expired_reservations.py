"""Expired reservations: they count as spent until recorded, released or voided."""

from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, or_, select

from accounting.events import NeighboringRelation, Span
from service.ledger.append.admission import count_reserved
from service.ledger.budgets.accumulator import BudgetDelta
from service.ledger.budgets.correction_costs import shifts_of_run, with_shifts
from service.ledger.budgets.lineage import as_seen_by_ancestor, rows_of
from service.ledger.budgets.pass_positions import place_of
from service.ledger.budgets.steps_and_passes import merge_changes, negative
from service.schemas.event_codec import event_of
from service.storage.tables import branches, datasets, distinct_events, lineage, reservations

_pass_events = distinct_events.alias()
_EXPIRED: Final = (
    select(
        reservations.c.run_id,
        reservations.c.branch_id,
        reservations.c.first_step,
        reservations.c.end_step,
        reservations.c.expires_at,
        branches.c.next_step,
        branches.c.pass_position,
        distinct_events.c.content,
        _pass_events.c.content.label("open_content"),
        datasets.c.id.label("dataset_id"),
        datasets.c.dataset_size,
        lineage.c.exactly_one,
        lineage.c.most_rows,
    )
    .join(branches, branches.c.id == reservations.c.branch_id)
    .join(distinct_events, distinct_events.c.id == reservations.c.event_id)
    .join(datasets, datasets.c.id == reservations.c.dataset_id)
    .outerjoin(_pass_events, _pass_events.c.id == branches.c.pass_event_id)
    .outerjoin(
        lineage,
        (lineage.c.dataset_id == datasets.c.id) & (lineage.c.ancestor_id == bindparam("dataset")),
    )
    .where(
        or_(datasets.c.id == bindparam("dataset"), lineage.c.ancestor_id == bindparam("dataset")),
        reservations.c.end_step > branches.c.next_step,
        reservations.c.expires_at <= bindparam("moment"),
    )
    .order_by(reservations.c.branch_id, reservations.c.first_step)
)


def expired_reservations(
    connection: Connection, dataset: Row[Any], moment: datetime, *, run_id: int | None = None
) -> BudgetDelta:
    """What expired on a dataset and on all that were made from it, or in one of its runs.

    From reserved to spent.
    """
    asked = {"dataset": dataset.id, "moment": moment}
    by_branch: dict[int, list[Any]] = {}
    for row in connection.execute(_EXPIRED, asked):
        if run_id is not None and row.run_id != run_id:
            continue
        by_branch.setdefault(row.branch_id, []).append(row)
    relation = NeighboringRelation(dataset.neighboring_relation)
    each = [_lost(connection, dataset.id, relation, rows) for rows in by_branch.values()]
    lost = merge_changes(one.recorded for one in each)
    shifted = merge_changes(one.shifted for one in each)
    return BudgetDelta(
        recorded=lost,
        reserved=negative(lost),
        shifted=shifted,
        shifted_ahead=negative(shifted),
    )


def _lost(
    connection: Connection, dataset_id: int, relation: NeighboringRelation, rows: list[Any]
) -> BudgetDelta:
    """What expired on one branch, as if it was recorded."""
    first, size = rows[0], rows[0].dataset_size
    open_pass = place_of(first.open_content, first.pass_position, size)
    spans = [
        Span(
            event=event_of(row.content, size),
            steps=row.end_step - max(row.first_step, row.next_step),
        )
        for row in rows
        if row.end_step > max(row.first_step, row.next_step)
    ]
    shifts = shifts_of_run(connection, first.run_id, dataset_id=first.dataset_id, dataset_size=size)
    lost = with_shifts(BudgetDelta(recorded=count_reserved(open_pass, spans)), shifts)
    if first.dataset_id == dataset_id:
        return lost
    return as_seen_by_ancestor(lost, relation=relation, rows=rows_of(first))
