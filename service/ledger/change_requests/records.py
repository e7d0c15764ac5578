"""The rows of change requests and decisions, and the state that follows from them."""

import json
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    DateTime,
    Row,
    Select,
    bindparam,
    case,
    func,
    insert,
    select,
)

from service.clock import now, stamp
from service.errors import ConflictError, NotFoundError
from service.ledger.change_requests.incident import (
    handle_request_incident,
    raise_request_incident,
)
from service.ledger.change_requests.messages import (
    EXPIRY_DAYS,
    OPEN_REQUESTS_MAX,
    ChangeRequestAnswer,
    DecisionAnswer,
    DecisionName,
    RequestKind,
    RequestState,
)
from service.ledger.change_requests.persons import Actor
from service.ledger.log.leaves import append_leaves
from service.ledger.log.row_records import build_log_records
from service.schemas.event_codec import canonical
from service.storage.tables import change_decisions, change_requests, datasets

_MOMENT: Final = bindparam("moment", type_=DateTime(timezone=True))
_state: Final[ColumnElement[str]] = case(
    (change_decisions.c.decision.is_not(None), change_decisions.c.decision),
    (change_requests.c.expires_at <= _MOMENT, "expired"),
    (change_requests.c.revision != datasets.c.revision, "stale"),
    else_="pending",
)
_FOUND: Final = (
    select(
        change_requests,
        datasets.c.name.label("dataset"),
        _state.label("state"),
        change_decisions.c.decision,
        change_decisions.c.reason.label("why"),
        change_decisions.c.by.label("decided_by"),
        change_decisions.c.person.label("decided_by_person"),
        change_decisions.c.decided_at,
    )
    .outerjoin(datasets, datasets.c.id == change_requests.c.dataset_id)
    .outerjoin(change_decisions, change_decisions.c.request_id == change_requests.c.id)
)
_NAMED: Final = _FOUND.where(change_requests.c.name == bindparam("named"))
# What the same key asked for before, which a client sends again if no answer came.
_SAME: Final = _FOUND.where(
    _state.in_(["pending"]),
    change_requests.c.dataset_id == bindparam("dataset"),
    change_requests.c.by == bindparam("by"),
    change_requests.c.change == bindparam("change"),
)


def find_request(connection: Connection, name: str) -> Row[Any]:
    """A request with its decision and its state.

    Raises:
        NotFoundError: there is none of that name.
    """
    asked = {"named": name, "moment": now()}
    found = connection.execute(_NAMED, asked).one_or_none()
    if found is None:
        raise NotFoundError("There is no such change request.")
    return found


def select_requests(*wanted: ColumnElement[bool], moment: datetime | None = None) -> Select[Any]:
    """The requests for which all of that holds; their state is as of the moment, or now."""
    return _FOUND.where(*wanted).params(moment=moment or now())


def in_state(state: RequestState) -> ColumnElement[bool]:
    """The requests in a state."""
    return _state == state


def count_requests(connection: Connection, *wanted: ColumnElement[bool]) -> int:
    """How many requests there are for which all of that holds."""
    found = select(func.count()).select_from(select_requests(*wanted).subquery())
    return connection.scalar(found) or 0


def insert_request(
    connection: Connection,
    dataset: Row[Any],
    change: Mapping[str, Any],
    *,
    kind: RequestKind,
    target: str | None,
    revision: int | None,
    reason: str,
    by: Actor,
) -> tuple[Row[Any], bool]:
    """Store a request, or find the pending one that is the same; whether it is new.

    A new one raises an incident, so that who decides hears of it.

    Args:
        connection: in a transaction that holds the dataset's lock.
        dataset: which the change is about.
        change: the body that is applied when it is approved.
        kind: of change.
        target: the run or reservation that the change is about, if any.
        revision: of the settings that it was decided on; none if none matters.
        reason: why.
        by: who asks.

    Raises:
        ConflictError: as many requests of the person wait as may.
    """
    text, moment = canonical(dict(change)), now()
    asked = {"dataset": dataset.id, "by": by.key, "change": text, "moment": moment}
    for same in connection.execute(_SAME, asked):
        if (same.kind, same.target, same.revision) == (kind, target, revision):
            return same, False
    waiting = (change_requests.c.person == by.person) & in_state("pending")
    if count_requests(connection, waiting) >= OPEN_REQUESTS_MAX:
        raise ConflictError(
            f"{by.person} has {OPEN_REQUESTS_MAX} requests that wait for a decision, which is the "
            "most; withdraw one first, or let it be decided."
        )
    values = {
        "name": secrets.token_hex(8),
        "dataset_id": dataset.id,
        "kind": kind,
        "target": target,
        "change": text,
        "revision": revision,
        "reason": reason,
        "by": by.key,
        "person": by.person,
        "requested_at": moment,
        "expires_at": moment + timedelta(days=EXPIRY_DAYS),
    }
    inserted = insert(change_requests).values(values).returning(change_requests.c.id)
    number = connection.execute(inserted).scalar_one()
    _log(connection, "change_request", dataset.id, number, by)
    raise_request_incident(connection, dataset, values)
    return find_request(connection, values["name"]), True


def insert_decision(
    connection: Connection, request: Row[Any], decision: DecisionName, *, reason: str, by: Actor
) -> None:
    """Store what was decided; the caller holds the lock of the request's dataset.

    The request's incident is acknowledged: nothing is left to do about it.
    """
    connection.execute(
        insert(change_decisions).values(
            request_id=request.id,
            decision=decision,
            reason=reason,
            by=by.key,
            person=by.person,
            decided_at=now(),
        )
    )
    _log(connection, "change_decision", request.dataset_id, request.id, by)
    told = f"{decision.capitalize()}: {reason}"
    handle_request_incident(connection, request, text=told, by=by.key)


def _log(connection: Connection, kind: str, dataset_id: int, row: int, by: Actor) -> None:
    acts = build_log_records(connection, kind, dataset_id=dataset_id, row=row, by=by.key)
    append_leaves(connection, dataset_id, acts)


def request_answer(row: Row[Any]) -> ChangeRequestAnswer:
    """A request as it stands."""
    return ChangeRequestAnswer(
        id=row.name,
        dataset=row.dataset,
        kind=row.kind,
        target=row.target,
        state=row.state,
        change=json.loads(row.change),
        revision=row.revision,
        reason=row.reason,
        by=row.by,
        person=row.person,
        requested_at=stamp(row.requested_at),
        expires_at=stamp(row.expires_at),
        decision=_decision(row),
    )


def _decision(row: Row[Any]) -> DecisionAnswer | None:
    if row.decision is None:
        return None
    return DecisionAnswer(
        decision=row.decision,
        reason=row.why,
        by=row.decided_by,
        person=row.decided_by_person,
        decided_at=stamp(row.decided_at),
    )
