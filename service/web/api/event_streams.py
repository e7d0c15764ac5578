"""Streams of a run or a dataset as server-sent events, and the list of its incidents."""

from typing import Annotated, Any, Final

from fastapi import Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import Connection, Engine

from service.identity.authentication import TrainerOrApprover, Viewer
from service.ledger import incidents, lookups
from service.ledger.append.write_access import run_in_write_transaction
from service.ledger.incidents import IncidentPage
from service.operations.event_feed import Feed
from service.operations.feed_messages import Topic
from service.operations.incident_inbox import (
    HandledIncident,
    IncidentFilter,
    IncidentInbox,
    list_inbox,
    read_handled,
)
from service.operations.incident_notes import NewIncidentNote, find_incident, record_note
from service.storage.engine import snapshot
from service.web.event_streams import (
    _FRAME,
    EVENT_STREAM,
    EventStream,
    StreamQuery,
    find_resume_point,
    run_topic,
)
from service.web.parameters import (
    Database,
    DatasetName,
    IncidentId,
    IncidentPages,
    Pages,
    RunName,
    continuation_token,
    repeated,
)
from service.web.routers import api_router
from service.web.strict_requests import expensive

router = api_router("/v1", tag="streams")
_DESCRIPTION: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Frames `state`, `entry` and `incident`; the guide describes them",
        "content": {EVENT_STREAM: {"schema": _FRAME}},
    }
}


@router.get(
    "/runs/{run}/stream", status_code=200, responses=_DESCRIPTION, response_class=EventStream
)
async def stream_run(
    run: RunName, query: Annotated[StreamQuery, Query()], caller: Viewer, request: Request
) -> Response:
    """A run's entries as they are recorded, from now on or after Last-Event-ID."""
    feed: Feed = request.app.state.feed
    topic, head = await run_in_threadpool(run_topic, feed.engine, run)
    return EventStream(request, caller, topic, find_resume_point(request, query, head))


@router.get(
    "/datasets/{dataset}/stream",
    status_code=200,
    responses=_DESCRIPTION,
    response_class=EventStream,
)
async def stream_dataset(
    dataset: DatasetName, query: Annotated[StreamQuery, Query()], caller: Viewer, request: Request
) -> Response:
    """The entries of all runs of a dataset as they are recorded, and its incidents."""
    feed: Feed = request.app.state.feed
    topic, head = await run_in_threadpool(_dataset_topic, feed.engine, dataset)
    return EventStream(request, caller, topic, find_resume_point(request, query, head))


@router.get("/datasets/{dataset}/incidents")
@expensive
def list_incidents(
    dataset: DatasetName, query: Pages, database: Database, _caller: Viewer
) -> IncidentPage:
    """A dataset's incidents, the oldest first."""
    with snapshot(database) as connection:
        found, after = incidents.list_incidents(
            connection,
            lookups.find_dataset(connection, dataset).id,
            after=query.after,
            size=query.page_size,
        )
    return IncidentPage(incidents=found, next_page_token=continuation_token(after))


@router.get("/incidents")
@expensive
def list_all_incidents(query: IncidentPages, database: Database, caller: Viewer) -> IncidentInbox:
    """The incidents of all datasets, the newest first, with what was done about each."""
    if query.dataset is not None:
        caller.require_dataset(query.dataset)
    wanted = IncidentFilter(
        state=query.state, kind=query.kind, dataset=query.dataset, assignee=query.assignee
    )
    with snapshot(database) as connection:
        if query.dataset is not None:
            lookups.find_dataset(connection, query.dataset)
        found, after = list_inbox(
            connection, caller.datasets, wanted, after=query.after, size=query.page_size
        )
    return IncidentInbox(incidents=found, next_page_token=continuation_token(after))


@router.post("/incidents/{incident}/notes", status_code=201, responses=repeated(HandledIncident))
def note_incident(
    incident: IncidentId,
    new: NewIncidentNote,
    database: Database,
    caller: TrainerOrApprover,
    response: Response,
) -> HandledIncident:
    """Comment on an incident; owners and approvers may acknowledge it, admins assign it, too."""

    def noted(connection: Connection) -> tuple[HandledIncident, bool]:
        created = record_note(connection, incident, new, caller)
        (answer,) = read_handled(connection, [find_incident(connection, incident)])
        return answer, created

    answer, created = run_in_write_transaction(database, noted)
    response.status_code = 201 if created else 200
    return answer


def _dataset_topic(engine: Engine, name: str) -> tuple[Topic, int]:
    with snapshot(engine) as connection:
        dataset = lookups.find_dataset(connection, name)
    return Topic(dataset_id=dataset.id), dataset.head_sequence
