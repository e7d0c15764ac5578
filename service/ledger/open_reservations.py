"""Reservations of a dataset: listed by state, and voided together."""

from datetime import datetime
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, Connection, Row, bindparam, func, select

from accounting.events import Span
from service.clock import now
from service.ledger.append.admission import count_reserved
from service.ledger.append.state_rows import tally_of
from service.ledger.append.unit_of_work import DatasetCache
from service.ledger.budgets.accumulator import BudgetDelta
from service.ledger.budgets.budget import EnforcedBudget, dataset_scope
from service.ledger.budgets.steps_and_passes import by_pass, negative
from service.ledger.lookups import find_dataset
from service.ledger.reservation_ends import give_back
from service.ledger.reservations import (
    FOUND,
    OPEN,
    RELEASED,
    VOIDED,
    ReservationAnswer,
    remaining_steps_of,
    reservation_answer,
)
from service.schemas.event_codec import event_of
from service.schemas.responses import Page
from service.storage.tables import branches, reservations

ReservationState = Literal["open", "pending", "forfeited", "recorded", "released", "voided", "all"]
_SOME_LEFT: Final = (reservations.c.end_step > branches.c.next_step) & (
    reservations.c.end_step > reservations.c.first_step
)
_HOLDS: Final = _SOME_LEFT & (reservations.c.state != VOIDED)
_OF_DATASET: Final = FOUND.where(reservations.c.dataset_id == bindparam("dataset")).order_by(
    reservations.c.id
)
_OPEN: Final = _OF_DATASET.where(_HOLDS)
_COUNT: Final = (
    select(func.count())
    .select_from(reservations)
    .join(branches, branches.c.id == reservations.c.branch_id)
    .where(reservations.c.dataset_id == bindparam("dataset"), _HOLDS)
)


class HeldReservation(ReservationAnswer):
    """A reservation, and what it holds of its dataset's budget."""

    # nats that the dataset would get back if it were voided now, all else staying; null without a
    # budget, where it is not finite, or where passes count and others may have to pay for them
    epsilon_held: float | None


class ReservationPage(Page):
    """Reservations of a dataset, the oldest first."""

    reservations: list[HeldReservation]


def list_reservations(
    connection: Connection, dataset_name: str, *, state: ReservationState, after: int, size: int
) -> tuple[list[HeldReservation], int | None]:
    """Return the reservations of a dataset behind a row, and the row to continue after.

    One of several events is listed event by event.

    Args:
        connection: for reading.
        dataset_name: whose runs' reservations; those of datasets made from it are not listed.
        state: the state that alone is wanted; `open` is pending or forfeited.
        after: 0, or what an earlier call said.
        size: how many at most.

    Raises:
        NotFoundError: there is no such dataset.
    """
    dataset, moment = find_dataset(connection, dataset_name), now()
    query = _OF_DATASET.where(reservations.c.id > after).limit(size + 1)
    if (wanted := _filter_by_state(state, moment)) is not None:
        query = query.where(wanted)
    rows = connection.execute(query, {"dataset": dataset.id}).all()
    scope = dataset_scope(dataset, tally_of(connection, dataset)) if rows else None
    found = [
        HeldReservation(
            **reservation_answer([row], moment), epsilon_held=_count_reserved_nats(scope, row)
        )
        for row in rows[:size]
    ]
    return found, rows[size - 1].id if len(rows) > size else None


def first_open(
    connection: Connection, dataset_id: int, *, size: int
) -> tuple[list[ReservationAnswer], int]:
    """The oldest reservations of a dataset that still hold steps; and how many there are in all."""
    asked, moment = {"dataset": dataset_id}, now()
    rows = connection.execute(_OPEN.limit(size), asked).all()
    total = connection.scalar(_COUNT, asked)
    return [ReservationAnswer(**reservation_answer([row], moment)) for row in rows], total or 0


def _filter_by_state(state: ReservationState, moment: datetime) -> ColumnElement[bool] | None:
    """The rows that `answer_of` calls so."""
    expires_at = reservations.c.expires_at
    lapsed = expires_at.is_not(None) & (expires_at <= moment)
    held_open = reservations.c.state == OPEN
    return {
        "open": _HOLDS,
        "pending": held_open & _SOME_LEFT & ~lapsed,
        "forfeited": _HOLDS & lapsed,
        "recorded": held_open & ~_SOME_LEFT,
        "released": (reservations.c.state == RELEASED) & ~(_SOME_LEFT & lapsed),
        "voided": reservations.c.state == VOIDED,
        "all": None,
    }[state]


def _count_reserved_nats(scope: EnforcedBudget | None, row: Row[Any]) -> float | None:
    """Nats of its dataset's budget that a reservation holds beside everything else. Rounded."""
    if scope is None:
        return None
    steps = remaining_steps_of(row)
    if row.state == VOIDED or not steps:
        return 0.0
    event = event_of(row.content, row.dataset_size)
    if by_pass(event):
        return None
    back = BudgetDelta(reserved=negative(count_reserved(None, [Span(event=event, steps=steps)])))
    accumulator = scope.accumulator
    with_it, without = (
        accumulator.reading(sums.held) for sums in (accumulator.sums(), accumulator.sums(back))
    )
    if not with_it.epsilon < float("inf"):
        return None
    return max(0.0, with_it.epsilon - without.epsilon)


def void_open(connection: Connection, dataset: Row[Any], *, reason: str, by: str) -> None:
    """Void every reservation of a dataset's runs that still holds steps, those of plans too.

    It locks the dataset and its ancestors, in the order in which every writer does.
    """
    cache = DatasetCache()
    cache.lock(connection, {dataset.id})
    rows = connection.execute(_OPEN, {"dataset": dataset.id}).all()
    work = cache.open(connection, dict.fromkeys((row.run, row.branch) for row in rows))
    ends: dict[tuple[str, str], dict[int, int]] = {}
    for row in rows:
        place = ends.setdefault((row.run, row.branch), {})
        place[row.id] = max(row.first_step, row.next_step)
    for (run, branch), rest in ends.items():
        give_back(work, run, branch, rest, state=VOIDED, reason=reason, by=by)
