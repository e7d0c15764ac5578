"""How pages are answered: rendered, and guarded by headers."""

from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined

import accounting
from service import formatting
from service.clock import now
from service.errors import LedgerError, UnauthorizedError, UnavailableError
from service.guarantees.noise_schedule import part_words
from service.identity.authentication import Caller, KeyRing
from service.identity.key_administration import admin_keys_end
from service.identity.keys import Role
from service.storage.engine import snapshot
from service.web import problems
from service.web.dashboard.assets import static_url
from service.web.dashboard.error_pages import ERROR_PAGE, IS_PAGE, is_data
from service.web.dashboard.request_changes import pending_requests
from service.web.dashboard.theory_markdown import theory_links
from service.web.dashboard.viewer import (
    SignInNeededError,
    csrf_of,
    is_local,
    list_page_scopes,
    require_viewer,
    sign_in_path,
)
from service.web.middleware import SuspensionState
from service.web.strict_requests import QueryRules, is_expensive, seat

TEMPLATES: Final = Path(__file__).parent / "templates"
PAGE_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
GUARDS: Final = {
    "Content-Security-Policy": PAGE_POLICY,
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
KEYS_END_SOON: Final = timedelta(days=30)


class PageRoute(APIRoute):
    """A route whose answer is looked at: behind a session, and guarded by headers."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler."""
        handler = super().get_route_handler()
        needed = list_page_scopes(self.dependant)
        costs = is_expensive(self.endpoint)
        rules = QueryRules.of_route(self.dependant)

        async def answered(request: Request) -> Response:
            caller = await require_viewer(request, needed) if needed else None
            if fault := rules.fault(request.scope["query_string"]):
                raise fault
            gate: SuspensionState = request.app.state.gate
            request.state.standing = await gate.current()
            async with seat(request, caller) if costs else nullcontext():
                if costs and await request.is_disconnected():
                    raise UnavailableError("The client has disconnected.")
                return await handler(request)

        async def paged(request: Request) -> Response:
            request.scope[IS_PAGE] = True
            try:
                return add_security_headers(await answered(request))
            except SignInNeededError:
                return add_security_headers(_to_sign_in(request))

        return paged


def add_security_headers(response: Response) -> Response:
    """The answer with the headers that every page has; a certificate has a policy of its own."""
    for name, value in GUARDS.items():
        response.headers.setdefault(name, value)
    return response


def _to_sign_in(request: Request) -> Response:
    where = sign_in_path(request)
    if is_data(request) or "hx-request" in request.headers:
        refusal = problems.problem_answer(
            UnauthorizedError("You are not signed in, or your session has ended.")
        )
        refusal.headers["HX-Redirect"] = "/sign-in"
        return refusal
    return RedirectResponse(where, HTTPStatus.SEE_OTHER)


@lru_cache(maxsize=1)
def templates() -> Environment:
    """The templates; everything they are given is escaped, and nothing may be missing."""
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters.update(formatting.FILTERS, theory_links=theory_links, part_words=part_words)
    found.globals.update(
        static_url=static_url, version=accounting.__version__, times_from=formatting.TIMES_FROM
    )
    return found


def render(
    request: Request, name: str, *, viewer: Caller | None, status_code: int = 200, **context: Any
) -> Response:
    """A page.

    Args:
        request: that asked for it.
        name: of the template.
        viewer: the signed-in key; None if no key is signed in.
        status_code: of the answer.
        context: what the template is given beside what `base.html` needs.
    """
    keys: KeyRing = request.app.state.keys
    frame = {
        "viewer": viewer,
        "start_token": keys.start_token,
        "standing": getattr(request.state, "standing", None),
        "csrf": csrf_of(request),
        "path": request.url.path,
        "address": service_address(request),
        "pending": _pending(request, name, viewer),
        "admin_keys_end": _admin_keys_end(request, name, viewer),
    }
    text = templates().get_template(name).render(frame | context)
    return add_security_headers(HTMLResponse(text, status_code))


def _pending(request: Request, name: str, viewer: Caller | None) -> int | None:
    """How many change requests wait; not asked for a page that says what went wrong."""
    if viewer is None or name == ERROR_PAGE:
        return None
    return pending_requests(request.app.state.engine, viewer)


def _admin_keys_end(request: Request, name: str, viewer: Caller | None) -> datetime | None:
    """When the last admin key expires, if that is soon and no identity provider admits admins."""
    keys: KeyRing = request.app.state.keys
    may_read = viewer is not None and viewer.may(Role.ADMIN) and name != ERROR_PAGE
    if not may_read or keys.directory is not None:
        return None
    end = None
    with suppress(LedgerError), snapshot(request.app.state.engine) as connection:
        end = admin_keys_end(connection)
    return end if end is not None and end - now() < KEYS_END_SOON else None


def service_address(request: Request) -> str:
    """Where this service is, for what is copied from a page."""
    scheme = "http" if is_local(request) else "https"
    return f"{scheme}://{request.headers.get('host', '')}"
