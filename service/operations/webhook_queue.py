"""Deliveries: which incidents an address has taken, and when to try the others again."""

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, bindparam, func, insert, or_, select, update

from service.clock import utc
from service.ledger.incidents import INCIDENT_ROWS
from service.storage.engine import upsert
from service.storage.tables import deliveries, incidents

LEASE: Final = timedelta(seconds=60)  # after which an attempt that said nothing is made again
BACKOFF_SECONDS: Final = 5.0  # before the second attempt; then twice as long each time
BACKOFF_SECONDS_MAX: Final = 3600.0
# No pause lasts as long: an attempt that is set for later was so by a clock that was ahead.
FAR: Final = timedelta(hours=2)
GIVE_UP: Final = timedelta(days=3)  # after the incident
# How much of the past a target is told of that was never seen before. It is also longer than any
# transaction, during which an incident is seen later than others of higher ids.
RECENT: Final = timedelta(hours=1)

_OF_TARGET: Final = and_(
    deliveries.c.incident_id == incidents.c.id, deliveries.c.target == bindparam("target")
)
_WANTED: Final = and_(
    incidents.c.id > bindparam("after"),
    incidents.c.kind.in_(bindparam("kinds", expanding=True)),
    incidents.c.occurred_at > bindparam("oldest"),
)
_NEVER_TRIED: Final = deliveries.c.incident_id.is_(None)

# Statements are built once: building one costs as much as running it.
_DUE: Final = (
    INCIDENT_ROWS.outerjoin(deliveries, _OF_TARGET)
    .where(
        _WANTED,
        or_(
            _NEVER_TRIED,
            deliveries.c.next_attempt_at <= bindparam("moment"),
            deliveries.c.next_attempt_at > bindparam("far"),
        ),
    )
    .order_by(incidents.c.id)
    .limit(1)
)
_OPEN: Final = and_(_WANTED, or_(_NEVER_TRIED, deliveries.c.next_attempt_at.is_not(None)))
_WAITING: Final = (
    select(func.count()).select_from(incidents).outerjoin(deliveries, _OF_TARGET).where(_OPEN)
)
_FIRST_OPEN: Final = (
    select(func.min(incidents.c.id))
    .select_from(incidents)
    .outerjoin(deliveries, _OF_TARGET)
    .where(
        incidents.c.id > bindparam("after"),
        or_(incidents.c.occurred_at > bindparam("recent"), _OPEN),
    )
)
_ROWS_OF_TARGET: Final = deliveries.c.target == bindparam("target")
_ANY: Final = select(deliveries.c.incident_id).where(_ROWS_OF_TARGET).limit(1)
_MARK: Final = select(func.min(deliveries.c.incident_id)).where(
    _ROWS_OF_TARGET, deliveries.c.attempts == 0
)
_LAST_BEFORE: Final = select(func.max(incidents.c.id)).where(
    incidents.c.occurred_at <= bindparam("recent")
)
_SETTLE: Final = (
    update(deliveries)
    .where(
        deliveries.c.incident_id == bindparam("incident"),
        deliveries.c.target == bindparam("address"),
        deliveries.c.delivered_at.is_(None),
    )
    .values(next_attempt_at=bindparam("next_at"), delivered_at=bindparam("taken_at"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """What an address is to be told: incidents of some kinds after a row."""

    target: str  # SHA-256 of the address
    kinds: tuple[str, ...]
    after: int


def begin_target(connection: Connection, target: str, moment: datetime) -> int:
    """The row after which a target is told of incidents.

    At its first start what is past is marked as no concern of it, by a row without an attempt.
    """
    asked = {"target": target}
    if connection.execute(_ANY, asked).first() is None:
        last = connection.scalar(_LAST_BEFORE, {"recent": moment - RECENT})
        if last is not None:
            mark = {"incident_id": last, "target": target, "attempts": 0}
            connection.execute(insert(deliveries).values(mark))
    return connection.scalar(_MARK, asked) or 0


def due(connection: Connection, wants: Wants, moment: datetime) -> Row[Any] | None:
    """The first incident to be sent now, as a row of incidents.INCIDENT_ROWS."""
    return connection.execute(_DUE, _query_values(wants, moment) | _times(moment)).first()


def _times(moment: datetime) -> dict[str, datetime]:
    return {"moment": moment, "far": moment + FAR}


def claim(connection: Connection, incident_id: int, target: str, moment: datetime) -> int | None:
    """Make an attempt ours by leasing it; how many there were, or none if another process has it.

    The condition is checked under the row's lock, so that of two claims one finds the lease.
    """
    statement = upsert(connection.dialect.name, deliveries).values(
        incident_id=incident_id, target=target, attempts=1, next_attempt_at=moment + LEASE
    )
    changes = {
        "attempts": deliveries.c.attempts + 1,
        "next_attempt_at": statement.excluded.next_attempt_at,
    }
    statement = statement.on_conflict_do_update(
        index_elements=[deliveries.c.incident_id, deliveries.c.target],
        set_=changes,
        where=or_(
            deliveries.c.next_attempt_at <= moment, deliveries.c.next_attempt_at > moment + FAR
        ),
    )
    attempts: int | None = connection.scalar(statement.returning(deliveries.c.attempts))
    return attempts


def record_delivery(
    connection: Connection, incident_id: int, target: str, moment: datetime
) -> None:
    """Note that a target has taken an incident."""
    _settle(connection, incident_id, target, next_at=None, taken_at=moment)


def postpone(
    connection: Connection, incident: Row[Any], target: str, attempts: int, moment: datetime
) -> bool:
    """Note that an attempt failed; whether there will be another."""
    pause = min(BACKOFF_SECONDS * 2.0 ** min(attempts - 1, 30), BACKOFF_SECONDS_MAX)
    # Spread over half of the pause, so that what failed together does not return together.
    pause *= 0.5 + secrets.randbelow(1001) / 2000
    next_at = moment + timedelta(seconds=pause)
    again: bool = next_at <= utc(incident.occurred_at) + GIVE_UP
    _settle(connection, incident.id, target, next_at=next_at if again else None, taken_at=None)
    return again


def _settle(
    connection: Connection,
    incident_id: int,
    target: str,
    *,
    next_at: datetime | None,
    taken_at: datetime | None,
) -> None:
    # What was taken stays so, whatever a slower process says of its own attempt.
    found = {"incident": incident_id, "address": target, "next_at": next_at, "taken_at": taken_at}
    connection.execute(_SETTLE, found)


def waiting(connection: Connection, wants: Wants, moment: datetime) -> int:
    """How many incidents a target has not taken yet."""
    return connection.scalar(_WAITING, _query_values(wants, moment)) or 0


def find_settled_row(connection: Connection, wants: Wants, moment: datetime) -> int:
    """The row up to which nothing is left to send, nor can come to be."""
    asked = _query_values(wants, moment) | {"recent": moment - RECENT}
    first = connection.scalar(_FIRST_OPEN, asked)
    if first is not None:
        return int(first) - 1
    last = connection.scalar(_LAST_BEFORE, {"recent": moment - RECENT})
    return max(wants.after, last or 0)


def _query_values(wants: Wants, moment: datetime) -> dict[str, Any]:
    return {
        "target": wants.target,
        "kinds": wants.kinds,
        "after": wants.after,
        "oldest": moment - GIVE_UP,
    }
