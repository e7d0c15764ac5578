"""Turn refusals into RFC 9457 problems: the only place where errors meet HTTP."""

import asyncio
import logging
import random
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NotRequired

from fastapi import APIRouter, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import ConfigDict
from starlette.datastructures import State as AppState
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send
from typing_extensions import TypedDict

from service import telemetry
from service.errors import BudgetExhaustedError, LedgerError, TooManyRequestsError, release
from service.ledger.append.order_advice import advise
from service.ledger.append.write_access import LedgerState
from service.schemas.descriptions import describe
from service.schemas.field_errors import fault_list, in_request
from service.schemas.refusals import FailingScope
from service.schemas.run_states import RunStateName
from service.telemetry import PROBLEM

_PARAMETER = re.compile(r"\\{[^{}]+\\}")
_LOGGER = logging.getLogger("dpledger.problems")
MEDIA_TYPE: Final = "application/problem+json"
HELD_BACK_SECONDS: Final = 0.5  # on average, that a refusal for too many requests is held back
HELD_BACK_SECONDS_MAX: Final = 5.0
REFUSALS_PER_SECOND: Final = 100.0  # for too many requests, of all keys
RETRY_AFTER_SECONDS: Final = 1
PROBLEMS: Final[dict[str, tuple[int, str]]] = {
    "malformed-request": (400, "The request is not valid HTTP"),
    "malformed-body": (400, "The body is not valid JSON"),
    "unauthorized": (401, "A valid API key is needed"),
    "forbidden": (403, "The key's scope does not allow this"),
    "foreign-origin": (403, "The form was not sent by a page of this service"),
    "not-found": (404, "Not found"),
    "method-not-allowed": (405, "The path does not take this method"),
    "request-timeout": (408, "The request took too long to arrive"),
    "another-person": (409, "Another person must do this"),
    "dataset-frozen": (409, "The dataset is frozen"),
    "budget-exhausted": (409, "The steps do not fit in the budget"),
    "conflict": (409, "Recorded before with other content"),
    "run-exists": (409, "A run of that name exists"),
    "branch-exists": (409, "Another process opened this branch"),
    "run-finished": (409, "The run was closed"),
    "out-of-sequence": (409, "Steps are missing"),
    "precondition-failed": (412, "The settings have changed since"),
    "body-too-large": (413, "The body is too large"),
    "unsupported-media-type": (415, "The type of the body is not accepted"),
    "misdirected": (421, "Another process answers this"),
    "invalid-request": (422, "A field is missing, unknown or out of range"),
    "too-expensive": (422, "The plan takes too long to account"),
    "unsupported-event": (422, "No accepted theorem bounds this event"),
    "precondition-required": (428, "If-Match is missing"),
    "too-many-requests": (429, "The key sends requests faster than it may"),
    "internal-error": (500, "The service failed"),
    "ledger-suspended": (503, "The ledger contradicts what it signed"),
    "unavailable": (503, "The service cannot answer this now"),
}
# What the OpenAPI document says of every refusal.
PROBLEM_DESCRIPTION: Final[dict[str, Any]] = {
    "description": "A problem document (RFC 9457)",
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_BY_STATUS: Final = {
    400: "malformed-body",
    404: "not-found",
    405: "method-not-allowed",
    408: "request-timeout",
    413: "body-too-large",
}


def methods_of(paths: Mapping[str, Iterable[str]], path: str) -> list[str]:
    """The methods of a path, all of its endpoints' together; none where nothing has that path.

    Args:
        paths: the methods by path, with the names of its parameters.
        path: of a request. No name has a colon, so what follows one is a verb.
    """
    items = [item for one, item in paths.items() if _pattern(one).fullmatch(path)]
    return sorted({method for item in items for method in item})


def note_methods(app: FastAPI, router: APIRouter) -> None:
    """Keep which methods each path takes, for answers to those that it does not."""
    for route in router.routes:
        if isinstance(route, APIRoute):
            app.state.methods.setdefault(route.path_format, set()).update(route.methods)


@lru_cache(maxsize=256)
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(_PARAMETER.sub("[^/:]+", re.escape(path)))


class FieldError(TypedDict):
    """A faulty field of a request."""

    __pydantic_config__ = ConfigDict(json_schema_extra=describe)  # type: ignore[misc]
    location: str
    message: str


class Problem(TypedDict):
    """Why a request was refused (RFC 9457); further members depend on the type."""

    __pydantic_config__ = ConfigDict(json_schema_extra=describe)  # type: ignore[misc]
    type: str
    title: str
    status: int
    detail: str
    errors: NotRequired[list[FieldError]]
    expected_step: NotRequired[int]
    failing_scopes: NotRequired[list[FailingScope]]
    admissible_steps: NotRequired[int]
    dataset: NotRequired[str]
    location: NotRequired[str]
    retry_after_seconds: NotRequired[int]
    checks: NotRequired[dict[str, str]]
    state: NotRequired[LedgerState]
    revision: NotRequired[int]
    missing_steps: NotRequired[int]
    run_state: NotRequired[RunStateName]
    run_steps: NotRequired[int]


class JsonLine(JSONResponse):
    """JSON with a line end: a terminal shows what comes next below it."""

    def render(self, content: object) -> bytes:
        """Return the bytes of the body."""
        return super().render(content) + b"\n"


class ProblemResponse(JsonLine):
    """A problem document; it notes its slug in the connection's scope, for who counts them."""

    media_type = MEDIA_TYPE

    def __init__(self, slug: str, content: Any, status: int, headers: dict[str, str]) -> None:
        super().__init__(content, status, headers=headers)
        self._slug = slug

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        scope[PROBLEM] = self._slug
        await super().__call__(scope, receive, send)


def problem(
    slug: str, detail: str, *, headers: Mapping[str, str] | None = None, **extra: object
) -> JSONResponse:
    """A problem document."""
    status, title = PROBLEMS[slug]
    content = {
        "type": f"/problems/{slug}",
        "title": title,
        "status": status,
        "detail": detail,
        **extra,
    }
    return ProblemResponse(slug, content, status, dict(headers or {}))


def status_of(error: LedgerError) -> int:
    """The HTTP status of a refusal."""
    return PROBLEMS[error.slug][0]


def problem_page(slug: str) -> str | None:
    """The page that explains a problem, in Markdown."""
    if slug not in PROBLEMS:
        return None
    here = Path(__file__).parents[1]
    for folder in (here / "problem_pages", here.parent / "docs" / "problems"):
        if (file := folder / f"{slug}.md").is_file():
            return file.read_text(encoding="utf-8")
    return None


def invalid(errors: list[Any]) -> JSONResponse:
    """The answer to a message that breaks its schema."""
    faults = fault_list(errors)
    detail = "; ".join(f"{fault['location']}: {fault['message']}" for fault in faults[:3])
    return problem("invalid-request", detail, errors=faults)


def problem_answer(error: LedgerError | RequestValidationError | HTTPException) -> JSONResponse:
    """The problem document of a refusal, which then holds nothing of the request any more."""
    document = _document(error)
    release(error)
    return document


def _document(error: LedgerError | RequestValidationError | HTTPException) -> JSONResponse:
    if isinstance(error, RequestValidationError):
        return invalid(list(error.errors()))
    if isinstance(error, HTTPException):
        slug = _BY_STATUS.get(error.status_code, "internal-error")
        return problem(slug, PROBLEMS[slug][1], headers=error.headers)
    error.relocate(in_request)
    headers = {}
    if error.slug == "unavailable":
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    if isinstance(error, TooManyRequestsError):
        headers["Retry-After"] = str(error.retry_after_seconds)
    if error.slug == "unauthorized":
        headers["WWW-Authenticate"] = "Bearer"
    return problem(error.slug, error.detail, headers=headers, **error.extra)


async def hold_back(state: AppState, error: Exception) -> None:
    """Let a sender that asks too fast wait for its refusal: at once it would only ask again.

    Refusing takes time, too; thousands a second would take it from those who append. Each refusal
    that waits holds one connection, as a client that says nothing would.
    """
    if isinstance(error, TooManyRequestsError):
        # At moments of their own, or those that ask again at once would all come together.
        least = HELD_BACK_SECONDS * random.uniform(0.5, 1.5)  # noqa: S311
        turn = state.refusals.turn(HELD_BACK_SECONDS_MAX)
        await asyncio.sleep(max(least, min(turn, HELD_BACK_SECONDS_MAX)))


def install_problems(app: FastAPI) -> None:
    """Answer every error with a problem document."""

    @app.exception_handler(LedgerError)
    @app.exception_handler(RequestValidationError)
    @app.exception_handler(HTTPException)
    async def _refused(
        request: Request, error: LedgerError | RequestValidationError | HTTPException
    ) -> JSONResponse:
        if isinstance(error, BudgetExhaustedError):
            await run_in_threadpool(advise, error)
        if isinstance(error, LedgerError):
            refusal = problem_answer(error)
            await hold_back(app.state, error)
            return refusal
        # The router knows one endpoint of a path at a time, and takes a verb for part of a name.
        allowed = methods_of(app.state.methods, request.url.path)
        if allowed and request.method not in allowed:
            return problem_answer(HTTPException(405, headers={"Allow": ", ".join(allowed)}))
        return problem_answer(error)

    @app.exception_handler(Exception)
    async def _failed(_request: Request, error: Exception) -> JSONResponse:
        # This answer is made outside all middleware, so it carries the id itself.
        identifier = telemetry.request_id.get() or ""
        _LOGGER.error("unhandled", exc_info=error)
        if isinstance(error, MemoryError):
            headers = {"X-Request-Id": identifier, "Retry-After": str(RETRY_AFTER_SECONDS)}
            return problem("unavailable", "The service is short of memory.", headers=headers)
        return problem(
            "internal-error",
            "The failure was logged under the request's id.",
            headers={"X-Request-Id": identifier},
        )
