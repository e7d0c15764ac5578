"""Show a run: what it has spent, how that grew, what it rests on, and who did what."""

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel
from sqlalchemy import Connection, Row, bindparam, desc, select

from service.errors import TooExpensiveError
from service.guarantees import privacy_curve
from service.guarantees.attribution import RunCharge, charge_of_run
from service.guarantees.guarantee import Question, run_guarantee
from service.guarantees.noise_schedule import Schedule, event_words
from service.guarantees.replay import correction_count
from service.guarantees.run_progress import Growth, Growths
from service.identity.authentication import Caller, KeyRing
from service.ledger import lookups, views
from service.ledger.budgets.budget import delta_of
from service.ledger.corrections import latest_span, latest_uncorrected_span
from service.ledger.findings import FindingAnswer, SamplingFound, list_findings
from service.ledger.incidents import INCIDENT_ROWS, IncidentAnswer, incident_answer
from service.operations.event_feed import Feed
from service.schemas.event_codec import event_of
from service.schemas.responses import RunGuarantee
from service.schemas.run_states import CLOSED
from service.storage.engine import snapshot
from service.storage.tables import entries, incidents
from service.trace_context import trace_of
from service.transparency.audit_answers import AuditAnswer
from service.transparency.audits import list_audits
from service.web.certificate_issue import CertificateQuery, answer_certificate
from service.web.dashboard.glossary import ASSUMPTIONS, RELATIONS, STATUSES
from service.web.dashboard.pages.incidents import with_advice
from service.web.dashboard.rendering import PageRoute, render
from service.web.dashboard.response_cache import answers_of, dataset_version
from service.web.dashboard.viewer import PageViewer, browser_session, find_signed_in, session_token
from service.web.event_streams import EventStream, StreamQuery, find_resume_point, run_topic
from service.web.parameters import Database, RunName
from service.web.strict_requests import JSON, expensive

_TOLD_MAX: Final = 20
_FINDINGS_MAX: Final = 200  # most are ranks, which are not told
_INCIDENTS: Final = (
    INCIDENT_ROWS.where(
        incidents.c.dataset_id == bindparam("dataset"), incidents.c.run_id == bindparam("run")
    )
    .order_by(desc(incidents.c.id))
    .limit(_TOLD_MAX)
)
_LAST_ENTRY: Final = (
    select(entries.c.recorded_at, entries.c.traceparent)
    .where(entries.c.run_id == bindparam("run"))
    .order_by(desc(entries.c.sequence))
    .limit(1)
)
STREAM_SECONDS: Final = 300.0  # then a browser comes again, and its session is looked at again
_AGAIN_SECONDS: Final = 2.0  # between two looks at a run that goes on
READERS_A_SECOND: Final = 10  # looks in all: the more who watch, the more seldom each looks
ANSWERS_A_SECOND: Final = 5  # that are worked out for those who watch, of each kind and run
SLICE_SECONDS: Final = 0.03  # before the next part of an answer that is not complete
router = APIRouter(route_class=PageRoute, include_in_schema=False)


@dataclass(frozen=True, slots=True)
class RunActivity:
    """What happened to a run."""

    last_recorded_at: datetime | None
    last_trace: str | None  # the trace id of the request that recorded the last step
    incidents: list[IncidentAnswer]  # of the run itself, the newest first
    samplings: list[SamplingFound]  # what was read of its loaders, the newest first
    audits: list[AuditAnswer]  # the newest first


def chronicle(connection: Connection, run: Row[Any]) -> RunActivity:
    """What happened to a run."""
    asked = {"dataset": run.dataset_id, "run": run.id}
    rows = connection.execute(_INCIDENTS, asked).all()
    last = connection.execute(_LAST_ENTRY, {"run": run.id}).one_or_none()
    sent = None if last is None else last.traceparent
    found, _ = list_findings(connection, run.id, after=0, size=_FINDINGS_MAX)
    return RunActivity(
        last_recorded_at=None if last is None else last.recorded_at,
        last_trace=None if sent is None else trace_of(sent),
        incidents=[incident_answer(row) for row in rows],
        samplings=_newest(found),
        audits=list_audits(connection, run.name).audits[::-1],
    )


def _newest(found: list[FindingAnswer]) -> list[SamplingFound]:
    samplings = [one for one in found if isinstance(one, SamplingFound)]
    return samplings[::-1][:_TOLD_MAX]


class _Found(NamedTuple):
    run: Row[Any]
    dataset: Row[Any]


class _Spent(NamedTuple):
    guarantee: RunGuarantee
    charge: RunCharge | None  # none without a limit of the dataset


def _growths(request: Request) -> Growths:
    found: Growths = request.app.state.growths
    return found


def _find(connection: Connection, name: str) -> _Found:
    run = lookups.find_run(connection, name)
    return _Found(run, lookups.dataset_of(connection, run))


@router.get("/runs/{run}")
@expensive
def run_page(run: RunName, request: Request, database: Database, viewer: PageViewer) -> Response:
    """A run; the page asks later for what costs more than a read of stored sums."""
    with snapshot(database) as connection:
        found = _find(connection, run)
        answer = views.run_answer(connection, found.run)
        happened = chronicle(connection, found.run)
        corrections = correction_count(connection, found.run)
        contradicted = answer.sampling_status == "contradicted"
        told = with_advice(connection, happened.incidents)
        last_recorded = _last_recorded(connection, found) if contradicted else ""
        corrected_all = corrections > 0 and _is_corrected(connection, found)
    return render(
        request,
        "run.html",
        viewer=viewer,
        run=answer,
        dataset=found.dataset,
        relation=RELATIONS[found.dataset.neighboring_relation],
        delta=delta_of(found.dataset, found.run),
        happened=happened,
        corrections=corrections,
        last_recorded=last_recorded,
        corrected_all=corrected_all,
        incidents=told,
        closed=CLOSED,
        **_spent_fields(answers_of(request).get(*_question("guarantee", found))),
    )


def _last_recorded(connection: Connection, found: _Found) -> str:
    """What the last steps of the latest branch were recorded as; empty without steps."""
    span = latest_span(connection, lookups.branches_of(connection, found.run)[-1])
    return "" if span is None else event_words(event_of(span.content, found.dataset.dataset_size))


def _is_corrected(connection: Connection, found: _Found) -> bool:
    """Whether every recorded step of a run is corrected."""
    every = lookups.branches_of(connection, found.run)
    return all(latest_uncorrected_span(connection, one) is None for one in every)


@router.get("/runs/{run}/guarantee")
@expensive
def guarantee_part(
    run: RunName, request: Request, database: Database, viewer: PageViewer
) -> Response:
    """The part of the page that says what was spent."""
    with snapshot(database) as connection:
        found = _find(connection, run)
        delta = delta_of(found.dataset, found.run)
        spent = None
        if delta is not None:
            spent = answers_of(request).compute(
                *_question("guarantee", found),
                lambda: _read_spent(connection, found),
                age_max=_age_max(request),
            )
        answer = views.run_answer(connection, found.run)
    return render(
        request,
        "run_guarantee.html",
        viewer=viewer,
        delta=delta,
        run=answer,
        closed=CLOSED,
        **_spent_fields(spent),
    )


def _read_spent(connection: Connection, found: _Found) -> _Spent:
    guarantee = run_guarantee(connection, found.run.name, Question())
    try:
        charge = charge_of_run(connection, found.run, found.dataset)
    except TooExpensiveError:
        charge = None
    return _Spent(guarantee, charge)


def _question(kind: str, found: _Found) -> tuple[Hashable, Hashable]:
    """What is asked of a run, and its dataset's version; the time keeps databases apart."""
    key = (kind, found.run.id, found.run.created_at, found.run.state)
    return key, dataset_version(found.dataset)


def _spent_fields(spent: _Spent | None) -> dict[str, Any]:
    """What is certified and charged, and what its words mean."""
    guarantee, charge = spent or (None, None)
    words = {"statuses": STATUSES, "assumptions": ASSUMPTIONS}
    return {"guarantee": guarantee, "charge": charge, **words}


class _Again(BaseModel):
    """When to look again, and how often while the run goes on."""

    again_seconds: float


class GrowthData(Growth, _Again):
    """A run's epsilon by step."""


class ScheduleData(Schedule, _Again):
    """A run's noise and rate by step."""


@router.get("/runs/{run}/history.json")
@expensive
def history_data(
    run: RunName, request: Request, database: Database, _viewer: PageViewer
) -> Response:
    """Epsilon by step, as far as it is worked out."""
    with snapshot(database) as connection:
        question = _question("history", _find(connection, run))
        found = answers_of(request).get(*question, age_max=_age_max(request))
        if found is None:
            found = _growths(request).growth(connection, run)
            if found.complete:
                answers_of(request).put(*question, found, seconds=found.look_seconds)
    again = _again(request, complete=found.complete, took=found.look_seconds)
    return _data(GrowthData(**dict(found), again_seconds=again))


@router.get("/runs/{run}/schedule.json")
@expensive
def schedule_data(
    run: RunName, request: Request, database: Database, _viewer: PageViewer
) -> Response:
    """Noise and rate by step."""
    with snapshot(database) as connection:
        found = _growths(request).schedule(connection, run)
    again = _again(request, complete=found.complete)
    return _data(ScheduleData(**dict(found), again_seconds=again))


@router.get("/runs/{run}/meaning.json")
@expensive
def meaning_data(
    run: RunName, request: Request, database: Database, _viewer: PageViewer
) -> Response:
    """The privacy profile, the trade-off curve, and what they say in words."""
    with snapshot(database) as connection:
        found = answers_of(request).compute(
            *_question("meaning", _find(connection, run)),
            lambda: privacy_curve.membership(connection, run),
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
    return max(_AGAIN_SECONDS if complete else SLICE_SECONDS, shared, took)


@router.get("/runs/{run}/stream", response_class=EventStream)
async def stream(
    run: RunName, query: Annotated[StreamQuery, Query()], viewer: PageViewer, request: Request
) -> Response:
    """The run's entries as they are recorded, for as long as the session's key is in force."""
    feed: Feed = request.app.state.feed
    topic, head = await run_in_threadpool(run_topic, feed.engine, run)
    allowed = await run_in_threadpool(_leave_of, request, viewer)
    after = find_resume_point(request, query, head)
    return EventStream(request, viewer, topic, after, allowed=allowed)


def _leave_of(request: Request, viewer: Caller) -> Callable[[], bool] | None:
    """Whether a stream may go on; None for a command's, which bears its key itself."""
    if "authorization" in request.headers:
        return None
    keys: KeyRing = request.app.state.keys
    ends = time.monotonic() + STREAM_SECONDS
    token = session_token(request)
    session = None
    if token is not None:
        session = browser_session(request, token)

    def allowed() -> bool:
        if time.monotonic() > ends or session is None:
            return False
        holder = find_signed_in(keys, session)
        return holder is not None and holder.name == viewer.name

    return allowed


@router.get("/runs/{run}/certificate")
@expensive
def certificate(
    run: RunName,
    kind: Annotated[Literal["json", "html"], Query(alias="format")],
    request: Request,
    database: Database,
    viewer: PageViewer,
) -> Response:
    """The run's certificate as a file, by the API's own function and at its rate."""
    answer = answer_certificate(
        "run", run, CertificateQuery(format=kind), request, database, viewer
    )
    answer.headers["Content-Disposition"] = f'attachment; filename="{run}.certificate.{kind}"'
    return answer
