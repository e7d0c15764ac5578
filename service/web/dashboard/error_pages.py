"""Errors, told as pages to browsers.

The page is rendered by what all pages need, which is loaded with them.
"""

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from service.errors import LedgerError
from service.identity.authentication import Caller, caller_of
from service.web.dashboard.viewer import viewer_of

ERROR_PAGE: Final = "error.html"
IS_PAGE: Final = "dpledger.page"  # of a connection's scope
_KEPT: Final = ("allow", "retry-after", "x-request-id")  # headers of a refusal that a page keeps
Handler = Callable[[Request, Any], Awaitable[Response]]


def is_data(request: Request) -> bool:
    """Whether a script asks for what a page shows."""
    return request.url.path.endswith((".json", ".csv"))


def install_errors(app: FastAPI) -> None:
    """Answer refusals as pages to browsers, and as problem documents to all others."""
    for kind in (LedgerError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(
            kind, _page_or_problem(cast("Handler", app.exception_handlers[kind]))
        )


def _page_or_problem(before: Handler) -> Handler:
    async def told(request: Request, error: Exception) -> Response:
        refusal = await before(request, error)
        if not _wants_page(request):
            return refusal
        viewer = caller_of(request)
        if viewer is None and refusal.status_code == HTTPStatus.NOT_FOUND:
            with suppress(LedgerError):  # the page needs no database to say what it does
                viewer = await viewer_of(request)
        return _error_page(request, refusal, viewer)

    return told


def _wants_page(request: Request) -> bool:
    path = request.url.path
    if is_data(request) or path.startswith(("/v1/", "/static/", "/problems/")):
        return False
    return IS_PAGE in request.scope or "text/html" in request.headers.get("accept", "")


def _error_page(request: Request, refusal: Response, viewer: Caller | None) -> Response:
    from service.web.dashboard.rendering import render  # `PageLoader` has loaded it

    told = json.loads(bytes(refusal.body))
    page = render(
        request,
        ERROR_PAGE,
        viewer=viewer,
        status_code=refusal.status_code,
        slug=told["type"].rpartition("/")[2],
        title=told["title"],
        detail="" if told["detail"] == told["title"] else told["detail"],
        identifier=refusal.headers.get("x-request-id"),
    )
    for name in _KEPT:
        if name in refusal.headers:
            page.headers[name] = refusal.headers[name]
    return page
