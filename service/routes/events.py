"""Events: the one write path a trainer uses at every step."""

from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Engine

from service import ledger
from service.answers import AppendAnswer
from service.auth import Trainer
from service.database import snapshot, transaction
from service.errors import InvalidRequestError, UnsupportedMediaTypeError
from service.http import JSON, NDJSON, media_type, parse_json
from service.routes.parameters import AppendQuery, Appends, Database, PathName
from service.schemas import LINES_MAX, EventBatch, EventMessage

router = APIRouter(prefix="/v1/runs", tags=["events"])
_LINE: Final = TypeAdapter(EventMessage)
_BODY: Final[dict[str, Any]] = {
    "required": True,
    "content": {
        JSON: {"schema": {"$ref": "#/components/schemas/EventBatch"}},
        NDJSON: {"schema": {"type": "string", "description": "one event a line, 10,000 at most"}},
    },
}


@router.post(
    "/{run}/events",
    status_code=201,
    response_model=AppendAnswer,
    openapi_extra={"requestBody": _BODY},
)
async def append_events(
    run: PathName, query: Appends, database: Database, _caller: Trainer, request: Request
) -> Response:
    """Record or charge a batch of events, all or none; 200 when all were recorded before."""
    body = await request.body()
    kind = media_type(request)
    answer = await run_in_threadpool(_append, database, run, query, kind, body)
    status = 201 if answer.accepted else 200
    return Response(answer.model_dump_json(), status, media_type=JSON)


def _append(database: Engine, run: str, query: AppendQuery, kind: str, body: bytes) -> AppendAnswer:
    if kind == NDJSON:
        branch, mode, events = query.branch, query.mode, _lines(body)
    elif kind == JSON:
        if surplus := sorted(query.model_fields_set):
            raise InvalidRequestError(f"query.{surplus[0]}", "a JSON body says this itself")
        batch = _batch(body)
        branch, mode, events = batch.branch, batch.mode, batch.events
    else:
        raise UnsupportedMediaTypeError(f"Send {JSON} or {NDJSON}.")
    if len(events) > 1:  # many new events may take seconds, during which others must not wait
        with snapshot(database) as connection:
            ledger.prepare(connection, run_name=run, events=events)
    with transaction(database) as connection:
        return ledger.append(connection, run_name=run, branch_name=branch, mode=mode, events=events)


def _batch(body: bytes) -> EventBatch:
    try:
        return EventBatch.model_validate(parse_json(body))
    except ValidationError as error:
        raise RequestValidationError(
            [{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors()]
        ) from None


def _lines(body: bytes) -> list[EventMessage]:
    lines = body.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if not 1 <= len(lines) <= LINES_MAX:
        raise InvalidRequestError("body", f"must have from 1 to {LINES_MAX} lines")
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            events.append(_LINE.validate_python(parse_json(line, where=f"line {number}")))
        except ValidationError as error:
            raise RequestValidationError(
                [{**fault, "loc": (f"line {number}", *fault["loc"])} for fault in error.errors()]
            ) from None
    return events
