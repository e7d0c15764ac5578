"""Read bodies strictly, and none before its sender may send it."""

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, TypeVar

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from service.errors import UnavailableError, UnsupportedMediaTypeError
from service.identity.authentication import Caller, authenticate, scopes_needed
from service.ledger.budgets.strategies import Sensitivities
from service.schemas.correlated.strategies import mechanisms_in
from service.web.concurrency_limit import ConcurrencyLimiter
from service.web.query_strings import QueryRules
from service.web.strict_json import parse_json

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
INLINE_BYTES: Final = 16 * 1024  # read without a thread: less than a millisecond
CACHING: Final = "dpledger.caching"  # of a connection's scope: how its answer may be kept
_DEAR: Final = "_dear"  # an endpoint's attribute
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
        needed = scopes_needed(self.dependant)
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
                    checked.parsed = await _parsed(body)
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


async def fill_in_strategies(request: Request, body: Any, *, location: str = "body") -> None:
    """Fill in, where a body names strategies, their sensitivity; most bodies name none.

    Raises:
        InvalidRequestError: a strategy is not known, does not serve its sampling, or is said to
            have another sensitivity.
        TooExpensiveError: a sensitivity takes too much work.
    """
    if any(True for _ in mechanisms_in(body)):
        known: Sensitivities = request.app.state.sensitivities
        await run_in_threadpool(known.fill_in, body, location=location)


async def _parsed(body: bytes) -> Any:
    return (
        parse_json(body) if len(body) <= INLINE_BYTES else await run_in_threadpool(parse_json, body)
    )
