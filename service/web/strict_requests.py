"""Read requests strictly, and no body before its sender may send it.

A query has each parameter once, with numbers as JSON writes them. A framework would take the last
of two values, and read `1_0` and ` 1` as numbers: whatever filters requests in front may read
another value than the service does.
"""

import re
import types
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin
from urllib.parse import parse_qsl

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from service.errors import (
    InvalidRequestError,
    MalformedBodyError,
    UnavailableError,
    UnsupportedMediaTypeError,
)
from service.identity.authentication import Caller, authenticate, list_needed_scopes
from service.ledger.budgets.strategies import Sensitivities
from service.schemas.correlated.strategies import steps_in
from service.web.concurrency_limit import ConcurrencyLimiter
from service.web.strict_json import parse_json

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
INLINE_BYTES: Final = 16 * 1024  # read without a thread: less than a millisecond
FIELDS_MAX: Final = 100  # of a form
CACHING: Final = "dpledger.caching"  # of a connection's scope: how its answer may be kept
_DEAR: Final = "_dear"  # an endpoint's attribute
_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS: Final = {
    _INTEGER: "must be a whole number, in digits",
    _NUMBER: "must be a number as in JSON",
}
Endpoint = TypeVar("Endpoint", bound=Callable[..., object])


def expensive(endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint whose answer is worked out: it takes a seat, or waits for one."""
    setattr(endpoint, _DEAR, True)
    return endpoint


def is_expensive(endpoint: Callable[..., object]) -> bool:
    """Whether an endpoint was marked so."""
    return bool(getattr(endpoint, _DEAR, False))


def media_type(request: Request) -> str:
    """The body's declared type, without parameters.

    Raises:
        UnsupportedMediaTypeError: the body is compressed, or in another character set than UTF-8.
    """
    coding = request.headers.get("content-encoding", "identity")
    if coding.strip().lower() != "identity":  # a few bytes could be made to be many
        raise UnsupportedMediaTypeError("The body is compressed; send it uncompressed.")
    declared = request.headers.getlist("content-type")
    if len(declared) > 1:
        raise UnsupportedMediaTypeError("Content-Type was sent twice; send it once.")
    kind, *parameters = "".join(declared).lower().split(";")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in ("utf-8", "utf8"):
            raise UnsupportedMediaTypeError("Send the body in UTF-8; no other charset is accepted.")
    return kind.strip()


class StrictRequest(Request):
    """A request whose JSON was read strictly."""

    parsed: Any = None

    async def json(self) -> Any:
        """The body's value; FastAPI asks for it."""
        return self.parsed


class StrictRoute(APIRoute):
    """A route that reads bodies strictly, and none before the caller may send it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler."""
        handler = super().get_route_handler()
        needed = list_needed_scopes(self.dependant)
        costs = is_expensive(self.endpoint)
        reads, asks = self.body_field is not None, self.body_field is not None or costs
        rules = QueryRules.of_route(self.dependant)

        async def strict(request: Request) -> Response:
            caller = None
            fault = rules.fault(request.scope["query_string"])
            # A caller without a key is told of that first.
            if needed and (asks or fault):
                caller = await authenticate(request, needed, request.path_params)
            if fault is not None:
                raise fault
            if reads and media_type(request) != JSON:
                raise UnsupportedMediaTypeError(f"Send {JSON}.")
            if not asks:
                return await handler(request)
            checked = StrictRequest(request.scope, request.receive)
            body = await read_body(checked)  # a slow sender does not take a seat yet
            async with seat(request, caller) if costs else nullcontext():
                if costs and await checked.is_disconnected():
                    raise UnavailableError("The client has disconnected.")
                if reads:
                    checked.parsed = await _parse_body(body)
                    await fill_in_strategies(request, checked.parsed)
                return await handler(checked)

        return strict


def seat(request: Request, caller: Caller | None) -> AbstractAsyncContextManager[None]:
    """Take a seat for an expensive request, or wait for one."""
    seats: ConcurrencyLimiter = request.app.state.seats
    return seats.taken("" if caller is None else caller.name)


async def read_body(request: Request) -> bytes:
    """Read a body to its end.

    Raises:
        UnavailableError: the sender left before that.
    """
    try:
        return await request.body()
    except ClientDisconnect:  # there is no client to answer, and it is no defect
        raise UnavailableError("The body is incomplete.") from None


async def fill_in_strategies(request: Request, body: Any) -> None:
    """Fill in, where a body names strategies, their sensitivity; most bodies name none.

    Raises:
        InvalidRequestError: a strategy is not known, does not serve its sampling, or is said to
            have another sensitivity.
        TooExpensiveError: a sensitivity takes too much work.
    """
    if any(True for _ in steps_in(body)):
        known: Sensitivities = request.app.state.sensitivities
        await run_in_threadpool(known.fill_in, body)


async def _parse_body(body: bytes) -> Any:
    return (
        parse_json(body) if len(body) <= INLINE_BYTES else await run_in_threadpool(parse_json, body)
    )


def form_fields(text: str) -> dict[str, str]:
    """The fields of a form, each of them once: of a body, or of an address that a field carries.

    Raises:
        MalformedBodyError: they cannot be read, one is there twice, or one has a NUL character.
    """
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except ValueError:  # bytes that are no text too
        raise MalformedBodyError("body: not a form") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise MalformedBodyError("body: a field is there twice")
    if any("\0" in name + value for name, value in pairs):  # PostgreSQL's driver refuses it
        raise MalformedBodyError("body: a field has a NUL character")
    return fields


@dataclass(frozen=True, slots=True)
class _Rule:
    """What one parameter may be."""

    many: bool
    form: re.Pattern[str] | None  # of a number


class QueryRules:
    """What the query of a route may have."""

    def __init__(self, annotations: Mapping[str, Any]) -> None:
        """Of parameters by name."""
        self._rules = {name: _rule_of(kind) for name, kind in annotations.items()}

    @classmethod
    def of_model(cls, model: type[BaseModel]) -> "QueryRules":
        """Of a query that is one model."""
        fields = model.model_fields.items()
        return cls({field.alias or name: field.annotation for name, field in fields})

    @classmethod
    def of_route(cls, dependant: Dependant) -> "QueryRules":
        """Of a route with all that it depends on."""
        annotations: dict[str, Any] = {}
        for field in _fields(dependant):
            kind = field.field_info.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                fields = kind.model_fields.items()
                annotations |= {one.alias or name: one.annotation for name, one in fields}
            else:
                annotations[field.alias] = kind
        return cls(annotations)

    def fault(self, query: bytes) -> InvalidRequestError | None:
        """What is wrong with a query string; the name of an unknown parameter is not repeated."""
        seen = set()
        for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
            rule = self._rules.get(name)
            place = "query" if rule is None else f"query.{name}"
            if name in seen and (rule is None or not rule.many):
                return InvalidRequestError(place, "a parameter is there twice; send it once")
            if "\0" in name + value:  # no text has one, and PostgreSQL's driver refuses it
                return InvalidRequestError(place, "must have no NUL character")
            seen.add(name)
            if rule is not None and rule.form is not None and not rule.form.fullmatch(value):
                return InvalidRequestError(place, _WORDS[rule.form])
        return None


def _fields(dependant: Dependant) -> Iterator[Any]:
    yield from dependant.query_params
    for one in dependant.dependencies:
        yield from _fields(one)


def _rule_of(annotation: Any) -> _Rule:
    kinds, many = {annotation}, False
    while composed := {kind for kind in kinds if get_args(kind) and _is_composed(kind)}:
        for kind in composed:
            kinds.remove(kind)
            many = many or get_origin(kind) in (list, tuple, set, frozenset)
            parts = get_args(kind)
            kinds |= {parts[0]} if get_origin(kind) is Annotated else set(parts)
    if str in kinds:
        return _Rule(many, None)
    return _Rule(many, _NUMBER if float in kinds else _INTEGER if int in kinds else None)


def _is_composed(kind: Any) -> bool:
    return get_origin(kind) in (
        Annotated, Union, types.UnionType, list, tuple, set, frozenset,
    )  # fmt: skip
