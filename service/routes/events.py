"""Events: the one write path a trainer uses at every step."""

import json
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Engine

from service import ledger
from service.answers import AppendAnswer
from service.auth import Scope, Trainer, current
from service.database import snapshot
from service.errors import InvalidRequestError, UnsupportedMediaTypeError
from service.http import JSON, NDJSON, media_type, parse_json
from service.ledger import Append
from service.routes.parameters import AppendQuery, Appends, Database, PathName, path_name
from service.schemas import LINES_MAX, EventBatch, EventMessage

INLINE_BYTES: Final = 16 * 1024  # read without a thread: less than a millisecond
_LINE: Final = TypeAdapter(EventMessage)
_BODY: Final[dict[str, Any]] = {
    "required": True,
    "content": {
        JSON: {"schema": {"$ref": "#/components/schemas/EventBatch"}},
        NDJSON: {"schema": {"type": "string", "description": "one event a line, 10,000 at most"}},
    },
}
_DEFAULTS: Final = AppendQuery()


async def _append(request: Request) -> Response:
    state = request.app.state
    await current(state.keys)
    state.keys.caller(request).require(Scope.TRAINER)
    run = path_name(request, "run")
    query = _query(request)
    body = await request.body()
    kind = media_type(request)
    if len(body) <= INLINE_BYTES:
        append = _read(run, query, kind, body)
    else:
        append = await run_in_threadpool(_read, run, query, kind, body)
    if len(append.events) > 1:
        await run_in_threadpool(_prepare, state.engine, append)
    answer = await state.writer.write(append)
    status = 201 if answer["accepted"] else 200
    return Response(json.dumps(answer), status, media_type=JSON)


class DirectRoute(APIRoute):
    """The route of every step: what FastAPI would resolve for it costs more than the step."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Handle requests ourselves; the endpoint's signature still describes them."""
        return _append


router = APIRouter(prefix="/v1/runs", route_class=DirectRoute, tags=["events"])


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
    raise NotImplementedError  # DirectRoute answers instead


def _query(request: Request) -> AppendQuery:
    if not request.scope["query_string"]:
        return _DEFAULTS
    try:
        return AppendQuery.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise RequestValidationError(
            [{**fault, "loc": ("query", *fault["loc"])} for fault in error.errors()]
        ) from None


def _read(run: str, query: AppendQuery, kind: str, body: bytes) -> Append:
    if kind == NDJSON:
        events = _lines(body)
        return Append(run_name=run, branch_name=query.branch, mode=query.mode, events=events)
    if kind == JSON:
        if surplus := sorted(query.model_fields_set):
            raise InvalidRequestError(f"query.{surplus[0]}", "a JSON body says this itself")
        batch = _batch(body)
        return Append(run_name=run, branch_name=batch.branch, mode=batch.mode, events=batch.events)
    raise UnsupportedMediaTypeError(f"Send {JSON} or {NDJSON}.")


def _prepare(database: Engine, append: Append) -> None:
    # Many new events may take seconds to account, during which no lock should be held.
    with snapshot(database) as connection:
        ledger.prepare(connection, run_name=append.run_name, events=append.events)


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
