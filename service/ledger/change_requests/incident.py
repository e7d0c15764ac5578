"""The incident of a change request: it is raised with the request, and a decision handles it.

A request that expires undecided writes nothing: that it has expired follows from the clock, as its
own state does. So its incident counts as acknowledged from that time on, wherever it is read.
"""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection, DateTime, Row, Select, bindparam, literal, not_, select

from service.clock import now
from service.ledger.incidents import DetailValue, Incident, Kind, record_incidents
from service.ledger.log.notes import insert_note
from service.schemas.event_codec import canonical
from service.storage.tables import change_decisions, change_requests, incidents

_PRESENT: Final = bindparam("present", callable_=lambda: now(), type_=DateTime(timezone=True))
_DECIDED: Final = (
    select(change_decisions.c.request_id)
    .where(change_decisions.c.request_id == change_requests.c.id)
    .exists()
)
# The request of an incident, if it expired undecided; its name is random, and quoted in JSON.
EXPIRED_REQUEST: Final[Select[Any]] = (
    select(change_requests.c.expires_at)
    .where(
        incidents.c.kind == Kind.CHANGE_REQUEST.value,
        change_requests.c.dataset_id == incidents.c.dataset_id,
        incidents.c.detail.like(literal('%"request":"') + change_requests.c.name + '"%'),
        change_requests.c.expires_at <= _PRESENT,
        not_(_DECIDED),
    )
    .correlate(incidents)
)


def raise_request_incident(
    connection: Connection, dataset: Row[Any], request: Mapping[str, Any]
) -> None:
    """Record the incident of a new request, so that its deciders hear of it.

    Args:
        connection: in a transaction that holds the dataset's lock.
        dataset: which the change is about.
        request: the columns of the request.
    """
    incident = Incident(
        dataset_id=dataset.id,
        kind=Kind.CHANGE_REQUEST,
        sequence=dataset.head_sequence,
        detail=_detail(dataset.name, request),
    )
    record_incidents(connection, [incident])


def handle_request_incident(
    connection: Connection, request: Row[Any], *, text: str, by: str
) -> None:
    """Acknowledge the incident of a request that is decided.

    Args:
        connection: in a transaction that holds the dataset's lock.
        request: a row of find_request.
        text: the decision.
        by: the key that decided.
    """
    detail = canonical(_detail(request.dataset, request._asdict()))
    wanted = (
        incidents.c.dataset_id == request.dataset_id,
        incidents.c.kind == Kind.CHANGE_REQUEST.value,
        incidents.c.detail == detail,
    )
    for number in connection.scalars(select(incidents.c.id).where(*wanted)).all():
        insert_note(
            connection,
            request.dataset_id,
            number,
            action="acknowledge",
            text=text,
            assignee=None,
            by=by,
        )


def _detail(dataset: str, request: Mapping[str, Any]) -> dict[str, DetailValue]:
    return {
        "dataset": dataset,
        "request": request["name"],
        "change": request["kind"],
        "target": request["target"],
        "reason": request["reason"],
    }
