"""What branches hold ahead, counted from the rows of their reservations."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final

from sqlalchemy import select

from accounting.events import Span
from service.ledger.append.admission import count_reserved
from service.ledger.budgets.pass_positions import place_of
from service.ledger.budgets.steps_and_passes import EventCountDelta
from service.schemas.event_codec import event_of
from service.storage.tables import branches, distinct_events, reservations

_pass_events = distinct_events.alias()
AHEAD: Final = (
    select(
        reservations.c.run_id,
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
    .where(reservations.c.end_step > branches.c.next_step)
    .order_by(reservations.c.branch_id, reservations.c.first_step)
)


def split_by_branch(rows: Iterable[Any]) -> list[list[Any]]:
    """Split rows of AHEAD into those of each branch."""
    return [list(part) for _, part in groupby(rows, key=lambda row: row.branch_id)]


def count_ahead(rows: Sequence[Any], dataset_size: int) -> EventCountDelta:
    """Count what a branch holds ahead.

    Args:
        rows: of AHEAD, at least one, all of the branch.
        dataset_size: of its dataset.
    """
    place = place_of(rows[0].open_content, rows[0].pass_position, dataset_size)
    spans = [
        Span(
            event=event_of(row.content, dataset_size),
            steps=row.end_step - max(row.first_step, row.next_step),
        )
        for row in rows
        if row.end_step > max(row.first_step, row.next_step)
    ]
    return count_reserved(place, spans)
