"""Signing in at an identity provider: there, and back with its answer."""

from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Path, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse

from service.errors import LedgerError, NotFoundError
from service.identity import sessions
from service.identity.authentication import KeyRing
from service.identity.keys import digest_of
from service.identity.single_sign_on.code_flow import (
    STARTED_SECONDS,
    Started,
    begin_sign_in,
    finish_sign_in,
    unseal,
)
from service.identity.single_sign_on.configuration import Provider
from service.identity.single_sign_on.directory import TokenDirectory
from service.identity.single_sign_on.tokens import Principal
from service.schemas.requests import NAME_PATTERN
from service.storage.engine import transaction
from service.web.dashboard import viewer
from service.web.dashboard.rendering import PageRoute, render, service_address
from service.web.dashboard.sign_in import NEXT_FIELD, begin_browser_session, sign_in_form
from service.web.problems import status_of

_COOKIE: Final = "dpledger-sign-in"
_SECURE_COOKIE: Final = f"__Host-{_COOKIE}"

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ProviderName = Annotated[str, Path(pattern=NAME_PATTERN)]


@router.get("/sign-in/{provider}")
async def begin_at_provider(provider: ProviderName, request: Request) -> Response:
    """On to the provider; the browser keeps the values that its answer is compared with."""
    directory, found = _find_provider(request, provider)
    where = viewer.own_path(request.query_params.get(NEXT_FIELD))
    before = viewer.session_token(request)
    try:
        started, there = await run_in_threadpool(
            begin_sign_in,
            found,
            directory.keys[provider],
            redirect_uri=f"{service_address(request)}/sign-in/{provider}/answer",
            next_path=where,
            session=None if before is None else digest_of(before),
        )
    except LedgerError as error:
        return sign_in_form(request, where, fault=error.detail, status=status_of(error))
    answer = RedirectResponse(there, HTTPStatus.SEE_OTHER)
    answer.set_cookie(
        _cookie(request),
        started.sealed(request.app.state.session_secret),
        max_age=STARTED_SECONDS,
        secure=not viewer.is_local(request),
        httponly=True,
        samesite="lax",  # the answer comes from a page of the provider
    )
    return answer


@router.get("/sign-in/{provider}/answer")
async def end_at_provider(provider: ProviderName, request: Request) -> Response:
    """Begin a session of the person whom the provider names."""
    directory, found = _find_provider(request, provider)
    kept = request.cookies.get(_cookie(request), "")
    started = unseal(request.app.state.session_secret, kept)
    where = "/" if started is None else viewer.own_path(started.next_path)
    try:
        principal = await run_in_threadpool(
            finish_sign_in,
            started,
            found,
            directory.keys[provider],
            directory.exchanges,
            dict(request.query_params),
        )
        await run_in_threadpool(_end_before, request, directory, principal, started)
        directory.caller_of(principal)
    except LedgerError as error:
        return sign_in_form(request, where, fault=error.detail, status=status_of(error))
    # A redirect would still be a navigation of the provider's page, with which a browser sends no
    # cookie that is strict: this page leads on by itself.
    answer = render(request, "signed_in.html", viewer=None, where=where)
    await begin_browser_session(
        request,
        answer,
        digest_of(principal.name),
        principal=principal.stored(),
        seconds=found.session_seconds,
    )
    answer.delete_cookie(
        _cookie(request), secure=not viewer.is_local(request), httponly=True, samesite="lax"
    )
    return answer


def _end_before(
    request: Request, directory: TokenDirectory, principal: Principal, started: Started | None
) -> None:
    """End the browser's session before, and all of a person to whom nothing is granted any more.

    The answer comes from a page of the provider, without the cookie of that session.
    """
    with transaction(viewer.engine_of(request)) as connection:
        if started is not None and started.session is not None:
            sessions.end_digest(connection, started.session)
        if directory.person(principal.stored()) is None:
            sessions.end_all(connection, digest_of(principal.name))


def _find_provider(request: Request, name: str) -> tuple[TokenDirectory, Provider]:
    """The provider of a path.

    Raises:
        NotFoundError: people do not sign in through one of that name.
    """
    ring: KeyRing = request.app.state.keys
    directory = ring.directory
    assert isinstance(directory, TokenDirectory)  # noqa: S101 (the pages are installed with it)
    provider = directory.providers.get(name)
    if provider is None or provider.client_id is None:
        raise NotFoundError("There is no such identity provider.")
    return directory, provider


def _cookie(request: Request) -> str:
    return _COOKIE if viewer.is_local(request) else _SECURE_COOKIE
