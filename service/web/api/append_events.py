"""Events: the one write path a trainer uses at every step."""

import asyncio
import math
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any, Final

import numpy as np
import orjson
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Engine
from starlette.datastructures import State
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from service import trace_context
from service.errors import InvalidRequestError, LedgerError, UnsupportedMediaTypeError
from service.identity.authentication import authenticate
from service.identity.keys import Role
from service.ledger.append.append import Append, prepare
from service.ledger.append.rdp_reading import DeferredGuarantee, read_reply
from service.ledger.budgets.strategies import Sensitivities
from service.schemas.correlated.steps import MatrixGaussianMechanism
from service.schemas.event_codec import MAIN
from service.schemas.field_errors import in_lines
from service.schemas.requests import (
    LINES_MAX,
    NAME_PATTERN,
    STEP_MAX,
    STEPS_MAX,
    EventBatch,
    EventMessage,
    valid_name,
)
from service.storage.engine import snapshot
from service.web.parameters import AppendQuery
from service.web.strict_json import parse_json
from service.web.strict_requests import (
    INLINE_BYTES,
    JSON,
    NDJSON,
    QueryRules,
    media_type,
    read_body,
)

FAILURE: Final = "dpledger.failure"  # of a scope: why an append was refused before it came here
EVENTS_PATH: Final = "/v1/runs/{run}/events"
# How a line begins that most writers send; what follows is the step, and often that of the last.
_SPACE: Final = rb"[ \t\r]*"  # of JSON; \s is more than that
_PLACE: Final = re.compile(
    rb'~{~"first_step"~:~(0|[1-9]\d{0,12})~,~"steps"~:~([1-9]\d{0,9})~,'.replace(b"~", _SPACE)
)
_FIRST_STEP: Final = re.compile(rb'"first_step"\s*:\s*(0|[1-9]\d{0,12})\s*[,}]')
KNOWN_BYTES: Final = 1024  # of a body that is cached
_KNOWN_MAX: Final = 1024  # bodies
_LINE: Final = TypeAdapter(EventMessage)
STRATEGY: Final = b"matrix_gaussian"  # in a body that names one
DEFAULTS: Final = AppendQuery()
_TOLD: Final = ("accepted", "duplicates", "sequence", "verdict")  # to a span
_RULES: Final = QueryRules.of_model(AppendQuery)
# What a reply has.
_PLAIN: Final = (str, int, NoneType)
_NUMBERS: Final = (float, np.floating)
_SEQUENCES: Final = (list, tuple)


async def append_events(request: Request) -> Response:
    """Record or charge a batch of events, all or none; 200 when all were recorded before."""
    request.scope["routine"] = True  # the ledger itself is the log of what is recorded
    if FAILURE in request.scope:
        raise request.scope.pop(FAILURE)
    state, run = request.app.state, request.path_params["run"]
    caller = await authenticate(request, (Role.TRAINER,), {"run": run})
    if not valid_name(run):
        raise InvalidRequestError("path.run", f"must match {NAME_PATTERN}")
    query = _query(request)
    body = await read_body(request)
    kind = media_type(request)
    known = state.sensitivities
    # A strategy is looked up in the database.
    if len(body) <= INLINE_BYTES and STRATEGY not in body:
        append = read_append(run, query, kind, body, known, caller.name)
    else:
        append = await run_in_threadpool(read_append, run, query, kind, body, known, caller.name)
    try:
        status, content = await record(state, append)
    except LedgerError as error:
        if kind == NDJSON:
            error.relocate(in_lines)
        raise
    return Response(content, status, media_type=JSON)


async def record(state: State, append: Append) -> tuple[int, bytes]:
    """Write an append; the status and the content of its answer.

    Raises:
        LedgerError: it was refused, and nothing of it was written.
        UnavailableError: it is not known to be written; sent again, it is counted once.
    """
    if len(append.events) > 1:
        append = await run_in_threadpool(_prepare, state.engine, append)
    span = trace_context.span.get()
    if span is not None:
        span.set_attributes(_span_attributes(append))
    answer, content = await state.writer.write(append, _encode_early)
    if span is not None:
        span.set_attributes({f"dpledger.{name}": answer[name] for name in _TOLD})
    if not isinstance(content, bytes):
        content = await content
    return (201 if answer["accepted"] else 200), content


def _encode_early(answer: dict[str, Any]) -> tuple[dict[str, Any], bytes | asyncio.Task[bytes]]:
    """The answer with its content; a guarantee that takes time is begun in another thread."""
    guarantee = answer["guarantee"]
    if not isinstance(guarantee, DeferredGuarantee):
        return answer, encode(answer)
    known = guarantee.read_known()
    if known is not None:
        return answer, encode(answer | {"guarantee": known})
    later = run_in_threadpool(lambda: encode(read_reply(answer)))
    return answer, asyncio.create_task(later)


def _span_attributes(append: Append) -> dict[str, str | int]:
    """What a span is told of an append before it is answered."""
    return {
        "dpledger.branch": append.branch_name,
        "dpledger.mode": append.mode,
        "dpledger.steps": sum(event.steps for event in append.events),
    }


def encode(answer: Mapping[str, Any]) -> bytes:
    """Return an AppendAnswer as JSON.

    Raises:
        ValueError: a number in it is NaN or infinite, for which orjson would write null, or a
            value is of a type in which such a number would not be seen.
    """
    _require_finite(answer.values())
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def _require_finite(values: Iterable[Any]) -> None:
    # It is looked at when everything is committed: before, it would refuse a fact.
    for value in values:
        if isinstance(value, _PLAIN):
            continue
        if isinstance(value, _NUMBERS):
            if not math.isfinite(value):
                raise ValueError("A number of the reply is not finite.")
        elif isinstance(value, dict):
            _require_finite(value.values())
        elif isinstance(value, _SEQUENCES):
            _require_finite(value)
        else:  # it may hold a number that is not seen here
            raise ValueError(f"A reply has no value of type {type(value).__name__}.")


class _AppendRoute(Route):
    """A plain route, for what the framework would do costs more than to record a step."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle as any route, and note which it is for the log of requests."""
        scope["route"] = self
        await super().handle(scope, receive, send)


ROUTE: Final = _AppendRoute(EVENTS_PATH, append_events, methods=["POST"])


def _query(request: Request) -> AppendQuery:
    if not request.scope["query_string"]:
        return DEFAULTS
    if fault := _RULES.fault(request.scope["query_string"]):
        raise fault
    try:
        return AppendQuery.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise RequestValidationError(
            [{**fault, "loc": ("query", *fault["loc"])} for fault in error.errors()]
        ) from None


def read_append(
    run: str,
    query: AppendQuery,
    kind: str,
    body: bytes,
    known: Sensitivities,
    by: str | None = None,
) -> Append:
    """The append of a body.

    Raises:
        InvalidRequestError, RequestValidationError: it breaks the schema, or the query says
            otherwise.
        UnsupportedMediaTypeError: it is neither JSON nor lines of JSON.
    """
    if kind == NDJSON:
        events = _lines(body, known)
        branch, mode = query.branch or MAIN, query.mode or "record"
        return Append(
            run_name=run,
            branch_name=branch,
            mode=mode,
            events=events,
            by=by,
            writer=query.writer,
        )
    if kind == JSON:
        batch = _batch(body, known)
        _require_agreement(query, batch)
        return Append(
            run_name=run,
            branch_name=batch.branch,
            mode=batch.mode,
            events=batch.events,
            by=by,
            writer=batch.writer,
        )
    raise UnsupportedMediaTypeError(f"Send {JSON} or {NDJSON}.")


def _require_agreement(query: AppendQuery, batch: EventBatch) -> None:
    """Refuse a query that contradicts the JSON body, which says the same things itself."""
    for name in sorted(query.model_fields_set):
        if getattr(query, name) != getattr(batch, name):
            raise InvalidRequestError(f"query.{name}", f"must equal body.{name} or be left out")


def _prepare(database: Engine, append: Append) -> Append:
    # Many events take a while to read, during which no lock should be held.
    with snapshot(database) as connection:
        return prepare(connection, append)


# Bodies of one event, without its first step, that were read before; trainers send few others.
_known: OrderedDict[tuple[bytes, bytes], EventBatch] = OrderedDict()


def _batch(body: bytes, known: Sensitivities) -> EventBatch:
    place = _FIRST_STEP.search(body)
    if place is None or len(body) > KNOWN_BYTES:
        return _read_batch(body, known)
    first_step, key = int(place[1]), (body[: place.start(1)], body[place.end(1) :])
    same = _known.get(key)
    if same is not None and first_step <= STEP_MAX:
        return EventBatch.model_construct(
            branch=same.branch,
            writer=same.writer,
            mode=same.mode,
            events=[move_event(same.events[0], first_step)],
        )
    batch = _read_batch(body, known)
    # A batch that was read has names for its only texts, so what was found is that field. What a
    # strategy costs is asked of the ledger.
    one = batch.events[0]
    strategy = isinstance(one.mechanism, MatrixGaussianMechanism)
    if len(batch.events) == 1 and one.first_step == first_step and not strategy:
        _known[key] = batch
        if len(_known) > _KNOWN_MAX:
            _known.popitem(last=False)
    return batch


def _read_batch(body: bytes, known: Sensitivities) -> EventBatch:
    parsed = parse_json(body)
    known.fill_in(parsed)
    try:
        return EventBatch.model_validate(parsed)
    except ValidationError as error:
        raise RequestValidationError(
            [{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors()]
        ) from None


def _lines(body: bytes, known: Sensitivities) -> list[EventMessage]:
    lines = body.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if not 1 <= len(lines) <= LINES_MAX:
        raise InvalidRequestError("body", f"must have from 1 to {LINES_MAX} lines")
    alike: dict[bytes, EventMessage] = {}
    return [_line(number, line, alike, known) for number, line in enumerate(lines, start=1)]


def move_event(message: EventMessage, first_step: int, steps: int | None = None) -> EventMessage:
    """The same step elsewhere; what it says was checked before."""
    return EventMessage.model_construct(
        first_step=first_step,
        steps=message.steps if steps is None else steps,
        mechanism=message.mechanism,
        sampling=message.sampling,
    )


def _line(
    number: int, line: bytes, alike: dict[bytes, EventMessage], known: Sensitivities
) -> EventMessage:
    """The event of a line; lines that say the same step are read once."""
    place = _PLACE.match(line)
    same = alike.get(line[place.end() :]) if place else None
    if place is None or same is None:
        message = _read_line(number, line, known)
        if place:
            alike[line[place.end() :]] = message
        return message
    first_step, steps = int(place[1]), int(place[2])
    if not (first_step <= STEP_MAX and 1 <= steps <= STEPS_MAX):
        return _read_line(number, line, known)  # which says what is wrong
    return move_event(same, first_step, steps)


def _read_line(number: int, line: bytes, known: Sensitivities) -> EventMessage:
    parsed = parse_json(line, where=f"line {number}")
    known.fill_in(parsed, location=f"line {number}")
    try:
        return _LINE.validate_python(parsed)
    except ValidationError as error:
        raise RequestValidationError(
            [{**fault, "loc": (f"line {number}", *fault["loc"])} for fault in error.errors()]
        ) from None
