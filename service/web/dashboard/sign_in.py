"""Signing in with an API key, and out."""

from hmac import compare_digest
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from sqlalchemy import Engine

from service.errors import ForeignOriginError
from service.identity import sessions
from service.identity.authentication import KeyRing, fresh_keys
from service.identity.keys import KEY_PREFIX, digest_of
from service.storage.engine import transaction
from service.web.dashboard import viewer
from service.web.dashboard.rendering import PageRoute, render
from service.web.dashboard.viewer import PostedForm

KEY_FIELD: Final = "key"
NEXT_FIELD: Final = "next"
TOKEN_FIELD: Final = "token"  # noqa: S105 (a field of the address)
WRONG_KEY: Final = "That key is not in force. It may be mistyped, revoked, rotated or expired."
NOT_IN_FORCE: Final = "The start token of that link is not in force. Sign in with an API key."

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/sign-in")
async def sign_in_page(request: Request) -> Response:
    """The form; with the start token in the address a session, and the token is gone from there."""
    where = viewer.own_path(request.query_params.get(NEXT_FIELD))
    given = request.query_params.get(TOKEN_FIELD)
    keys: KeyRing = request.app.state.keys
    if given is None:
        if keys.start_token is not None:  # the first key may have been made meanwhile
            await fresh_keys(request)
        return sign_in_form(request, where)
    start_token = (await fresh_keys(request)).start_token
    if start_token is None or not compare_digest(given.encode(), start_token.text.encode()):
        return sign_in_form(request, where, fault=NOT_IN_FORCE, status=HTTPStatus.UNAUTHORIZED)
    return await _begin_session(request, digest_of(given), where)


@router.post("/sign-in")
async def sign_in(request: Request, form: PostedForm) -> Response:
    """Begin a session, and go to where the form says."""
    viewer.require_own_origin(request)
    _require_tls(request)
    where = viewer.own_path(form.get(NEXT_FIELD))
    ring = await fresh_keys(request)
    digest = digest_of(form.get(KEY_FIELD, "").strip())
    caller = ring.holder(digest)
    if caller is None:
        return sign_in_form(request, where, fault=WRONG_KEY, status=HTTPStatus.UNAUTHORIZED)
    if caller.bucket is not None:
        caller.bucket.take()
    return await _begin_session(request, digest, where)


async def _begin_session(request: Request, digest: str, where: str) -> Response:
    """A session of the key of this digest, instead of the one before, and on to a page."""
    answer = RedirectResponse(where, HTTPStatus.SEE_OTHER)
    await begin_browser_session(request, answer, digest)
    return answer


async def begin_browser_session(
    request: Request,
    answer: Response,
    digest: str,
    *,
    principal: str | None = None,
    seconds: int = sessions.SESSION_SECONDS,
) -> None:
    """Begin a session instead of the one before, and give its token with an answer.

    Args:
        request: of the browser.
        answer: to it.
        digest: of the API key's secret, or of the person's name.
        principal: what an identity provider said of the person; None for a key's session.
        seconds: that it lasts at most.
    """
    before = viewer.session_token(request)
    secret = request.app.state.session_secret

    def begun() -> str:
        with transaction(viewer.engine_of(request)) as connection:
            if before is not None:
                sessions.end(connection, before)
            return sessions.begin_session(
                connection, secret, digest, principal=principal, seconds=seconds
            )

    answer.set_cookie(
        viewer.cookie_name(request),
        await run_in_threadpool(begun),
        max_age=seconds,
        secure=not viewer.is_local(request),
        httponly=True,
        samesite="strict",
    )


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """End the session; who has none is signed out already."""
    viewer.require_own_origin(request)
    token = viewer.session_token(request)
    if token is not None:
        await viewer.require_own_form(request)
        await run_in_threadpool(_end_session, viewer.engine_of(request), token)
    answer = RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)
    answer.delete_cookie(
        viewer.cookie_name(request),
        secure=not viewer.is_local(request),
        httponly=True,
        samesite="strict",
    )
    answer.headers["Clear-Site-Data"] = '"cache"'
    return answer


def sign_in_form(
    request: Request, where: str, *, fault: str = "", status: int = HTTPStatus.OK
) -> Response:
    """The page on which to sign in, with what was wrong before."""
    keys: KeyRing = request.app.state.keys
    given = {
        "next_path": where,
        "fault": fault,
        "key_prefix": KEY_PREFIX,
        "providers": [] if keys.directory is None else keys.directory.sign_in_providers,
    }
    no_key_yet = keys.start_token is not None
    return render(
        request, "sign_in.html", viewer=None, status_code=status, no_key_yet=no_key_yet, **given
    )


def _require_tls(request: Request) -> None:
    """Refuse a key that came over the network for everybody to read.

    Raises:
        ForeignOriginError: it did; a browser would not keep the session's cookie either.
    """
    if request.headers.get("origin", "").startswith("http://") and not viewer.is_local(request):
        raise ForeignOriginError(
            "Sign in over HTTPS: over plain HTTP others could read the key, and may have. If this "
            "key was sent over a network, rotate it."
        )


def _end_session(engine: Engine, token: str) -> None:
    with transaction(engine) as connection:
        sessions.end(connection, token)
