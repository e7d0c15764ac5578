"""Streams of a run or a dataset as server-sent events, and the list of its incidents."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import Engine

from service.identity.authentication import Viewer
from service.ledger import incidents, lookups
from service.ledger.incidents import IncidentPage
from service.operations.event_feed import Feed
from service.operations.feed_messages import Topic
from service.storage.engine import snapshot
from service.web.event_streams import (
    _FRAME,
    EVENT_STREAM,
    EventStream,
    StreamQuery,
    resumed,
    run_topic,
)
from service.web.parameters import Database, DatasetName, Pages, RunName, continuation_token
from service.web.strict_requests import StrictRoute, expensive

router = APIRouter(prefix="/v1", route_class=StrictRoute, tags=["streams"])
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
    return EventStream(request, caller, topic, resumed(request, query, head))


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
    return EventStream(request, caller, topic, resumed(request, query, head))


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


def _dataset_topic(engine: Engine, name: str) -> tuple[Topic, int]:
    with snapshot(engine) as connection:
        dataset = lookups.find_dataset(connection, name)
    return Topic(dataset_id=dataset.id), dataset.head_sequence
