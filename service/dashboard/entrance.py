"""Signing in with an API key, and out."""

from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from sqlalchemy import Engine

from service import sessions
from service.api_keys import KEY_PREFIX, digest_of
from service.auth import fresh_keys
from service.dashboard import access
from service.dashboard.access import Form
from service.dashboard.pages import PageRoute, render
from service.database import transaction
from service.errors import HostNotAllowedError

KEY_FIELD: Final = "key"
NEXT_FIELD: Final = "next"
WRONG_KEY: Final = "That key is not in force. It may be mistyped, revoked, rotated or expired."

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/sign-in")
async def sign_in_page(request: Request) -> Response:
    """The form; in open mode nobody needs it."""
    where = access.own_path(request.query_params.get(NEXT_FIELD))
    if (await fresh_keys(request)).open_mode:
        return RedirectResponse(where, HTTPStatus.SEE_OTHER)
    return _form(request, where)


@router.post("/sign-in")
async def sign_in(request: Request, form: Form) -> Response:
    """Begin a session, and go to where the form says."""
    access.require_own_origin(request)
    _require_tls(request)
    where = access.own_path(form.get(NEXT_FIELD))
    ring = await fresh_keys(request)
    if ring.open_mode:
        return RedirectResponse(where, HTTPStatus.SEE_OTHER)
    digest = digest_of(form.get(KEY_FIELD, "").strip())
    caller = ring.holder(digest)
    if caller is None:
        return _form(request, where, fault=WRONG_KEY, status=HTTPStatus.UNAUTHORIZED)
    if caller.bucket is not None:
        caller.bucket.take()
    engine = access.engine_of(request)
    token = await run_in_threadpool(_begun, engine, digest, access.token_of(request))
    answer = RedirectResponse(where, HTTPStatus.SEE_OTHER)
    answer.set_cookie(
        access.cookie_name(request),
        token,
        max_age=sessions.SESSION_SECONDS,
        secure=not access.is_local(request),
        httponly=True,
        samesite="strict",
    )
    return answer


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """End the session; who has none is signed out already."""
    access.require_own_origin(request)
    token = access.token_of(request)
    if token is not None:
        await access.require_own_form(request)
        await run_in_threadpool(_ended, access.engine_of(request), token)
    answer = RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)
    answer.delete_cookie(
        access.cookie_name(request),
        secure=not access.is_local(request),
        httponly=True,
        samesite="strict",
    )
    answer.headers["Clear-Site-Data"] = '"cache"'
    return answer


def _form(request: Request, where: str, *, fault: str = "", status: int = 200) -> Response:
    given = {"next_path": where, "fault": fault, "key_prefix": KEY_PREFIX}
    return render(request, "sign_in.html", viewer=None, status_code=status, **given)


def _require_tls(request: Request) -> None:
    """Refuse a key that came over the network for everybody to read.

    Raises:
        HostNotAllowedError: it did; a browser would not keep the session's cookie either.
    """
    if request.headers.get("origin", "").startswith("http://") and not access.is_local(request):
        raise HostNotAllowedError(
            "Sign in over HTTPS: over plain HTTP others could read the key, and may have. If this "
            "key was sent over a network, rotate it."
        )


def _begun(engine: Engine, digest: str, before: str | None) -> str:
    with transaction(engine) as connection:
        if before is not None:
            sessions.end(connection, before)
        return sessions.begin(connection, digest)


def _ended(engine: Engine, token: str) -> None:
    with transaction(engine) as connection:
        sessions.end(connection, token)
