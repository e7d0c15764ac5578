"""The incident of a change request: it is raised with the request, and a decision handles it."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, select

from service.ledger.incidents import DetailValue, Incident, Kind, record_incidents
from service.ledger.log.notes import insert_note
from service.schemas.event_codec import canonical
from service.storage.tables import incidents


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
