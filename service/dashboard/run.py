"""A run: how much it has spent and how that grew, what it rests on, and what it means."""

import time
from collections.abc import Callable, Hashable
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel
from sqlalchemy import Connection, Row

from service import catalog, membership
from service.answers import RunGuarantee
from service.auth import Caller, KeyRing
from service.chronicle import chronicle
from service.dashboard import access
from service.dashboard.access import Viewer
from service.dashboard.kept import Kept, state_of
from service.dashboard.meanings import ASSUMPTIONS, RELATIONS, STATUSES
from service.dashboard.pages import PageRoute, render
from service.database import snapshot
from service.growth import Growth, Growths
from service.http import JSON, dear
from service.readings import Question, delta_of, run_guarantee
from service.routes.certificates import CertificateQuery, issued
from service.routes.parameters import Database, RunName
from service.routes.streams import EventStream, StreamQuery, resumed, run_topic
from service.run_states import CLOSED
from service.schedules import Schedule
from service.streams import Feed

STREAM_SECONDS: Final = 300.0  # then a browser comes again, and its session is looked at again
AGAIN_SECONDS: Final = 2.0  # between two looks at a run that goes on
READERS_A_SECOND: Final = 10  # looks in all: the more who watch, the more seldom each looks
ANSWERS_A_SECOND: Final = 5  # that are worked out for those who watch, of each kind and run
SLICE_SECONDS: Final = 0.05  # before the next part of an answer that is not complete
_KEPT: Final = "dashboard_kept"
_GROWTHS: Final = "dashboard_growths"

router = APIRouter(route_class=PageRoute, include_in_schema=False)


class _Found(NamedTuple):
    run: Row[Any]
    dataset: Row[Any]


def _state(request: Request, name: str, new: Callable[[], Any]) -> Any:
    """What this process remembers for pages; made when it is first asked for."""
    state = request.app.state
    if not hasattr(state, name):
        setattr(state, name, new())
    return getattr(state, name)


def _kept(request: Request) -> Kept:
    found: Kept = _state(request, _KEPT, Kept)
    return found


def _growths(request: Request) -> Growths:
    found: Growths = _state(request, _GROWTHS, Growths)
    return found


def _find(connection: Connection, name: str) -> _Found:
    run = catalog.find_run(connection, name)
    return _Found(run, catalog.dataset_of(connection, run))


@router.get("/runs/{run}")
@dear
def run_page(run: RunName, request: Request, database: Database, viewer: Viewer) -> Response:
    """A run; what costs more than a look at the books is asked for by the page."""
    with snapshot(database) as connection:
        found = _find(connection, run)
        answer = catalog.run_answer(connection, found.run)
        happened = chronicle(connection, found.run)
    return render(
        request,
        "run.html",
        viewer=viewer,
        run=answer,
        dataset=found.dataset,
        relation=RELATIONS[found.dataset.neighboring_relation],
        delta=delta_of(found.dataset, found.run),
        happened=happened,
        closed=CLOSED,
        **_told(_kept(request).known(*_question("guarantee", found))),
    )


@router.get("/runs/{run}/guarantee")
@dear
def guarantee_part(run: RunName, request: Request, database: Database, viewer: Viewer) -> Response:
    """The part of the page that says what was spent."""
    with snapshot(database) as connection:
        found = _find(connection, run)
        delta = delta_of(found.dataset, found.run)
        told = None
        if delta is not None:
            told = _kept(request).answer(
                *_question("guarantee", found),
                lambda: run_guarantee(connection, run, Question()),
                age_max=_age_max(request),
            )
    return render(request, "run_guarantee.html", viewer=viewer, delta=delta, **_told(told))


def _question(kind: str, found: _Found) -> tuple[Hashable, Hashable]:
    """What is asked of a run, and the state it is in; the time keeps databases apart."""
    return (kind, found.run.id, found.run.created_at), state_of(found.dataset)


def _told(guarantee: RunGuarantee | None) -> dict[str, Any]:
    """A guarantee, and what its words mean."""
    return {"guarantee": guarantee, "statuses": STATUSES, "assumptions": ASSUMPTIONS}


class _Again(BaseModel):
    """When to look again, and how often while the run goes on."""

    again_seconds: float


class GrowthData(Growth, _Again):
    """A run's epsilon by step."""


class ScheduleData(Schedule, _Again):
    """A run's noise and rate by step."""


@router.get("/runs/{run}/history.json")
@dear
def history_data(run: RunName, request: Request, database: Database, _viewer: Viewer) -> Response:
    """Epsilon by step, as far as it is worked out."""
    with snapshot(database) as connection:
        found = _growths(request).growth(connection, run, age_max=_age_max(request))
    again = _again(request, complete=found.complete, took=found.look_seconds)
    return _data(GrowthData(**dict(found), again_seconds=again))


@router.get("/runs/{run}/schedule.json")
@dear
def schedule_data(run: RunName, request: Request, database: Database, _viewer: Viewer) -> Response:
    """Noise and rate by step."""
    with snapshot(database) as connection:
        found = _growths(request).schedule(connection, run)
    again = _again(request, complete=found.complete)
    return _data(ScheduleData(**dict(found), again_seconds=again))


@router.get("/runs/{run}/meaning.json")
@dear
def meaning_data(run: RunName, request: Request, database: Database, _viewer: Viewer) -> Response:
    """The privacy profile, the trade-off curve, and what they say in words."""
    with snapshot(database) as connection:
        found = _kept(request).answer(
            *_question("meaning", _find(connection, run)),
            lambda: membership.membership(connection, run),
            age_max=_age_max(request),
        )
    return _data(found)


def _data(found: BaseModel) -> Response:
    return Response(found.model_dump_json(), media_type=JSON)


def _age_max(request: Request) -> float:
    """Seconds that an answer may be old: none for one who looks alone."""
    feed: Feed = request.app.state.feed
    return feed.subscribers / ANSWERS_A_SECOND


def _again(request: Request, *, complete: bool, took: float = 0.0) -> float:
    """Seconds until one should look again, so that many who watch ask no more than a few do."""
    feed: Feed = request.app.state.feed
    shared = feed.subscribers / READERS_A_SECOND
    return max(AGAIN_SECONDS if complete else SLICE_SECONDS, shared, took)


@router.get("/runs/{run}/stream", response_class=EventStream)
async def stream(
    run: RunName, query: Annotated[StreamQuery, Query()], viewer: Viewer, request: Request
) -> Response:
    """The run's entries as they are recorded, for as long as the session's key is in force."""
    feed: Feed = request.app.state.feed
    topic, head = await run_in_threadpool(run_topic, feed.engine, run)
    allowed = await run_in_threadpool(_leave_of, request, viewer)
    after = resumed(request, query, head)
    return EventStream(request, viewer, topic, after, allowed=allowed)


def _leave_of(request: Request, viewer: Caller) -> Callable[[], bool] | None:
    """Whether a stream may go on; None for a command's, which bears its key itself."""
    if "authorization" in request.headers:
        return None
    keys: KeyRing = request.app.state.keys
    ends = time.monotonic() + STREAM_SECONDS
    token = access.token_of(request)
    digest = None
    if token is not None:
        digest = access.session_key(request, token)

    def allowed() -> bool:
        if time.monotonic() > ends or digest is None:
            return False
        holder = keys.holder(digest)
        return holder is not None and holder.name == viewer.name

    return allowed


@router.get("/runs/{run}/certificate")
@dear
def certificate(
    run: RunName,
    kind: Annotated[Literal["json", "html"], Query(alias="format")],
    request: Request,
    database: Database,
    viewer: Viewer,
) -> Response:
    """The run's certificate as a file, by the API's own function and at its rate."""
    answer = issued("run", run, CertificateQuery(format=kind), request, database, viewer)
    answer.headers["Content-Disposition"] = f'attachment; filename="{run}.certificate.{kind}"'
    return answer
