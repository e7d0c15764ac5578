"""Who looks at a page: the key that began the session."""

from collections.abc import Mapping, Sequence
from hmac import compare_digest
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.models import Dependant
from sqlalchemy import Engine

from service.errors import (
    ForbiddenError,
    ForeignOriginError,
    MalformedBodyError,
    UnsupportedMediaTypeError,
)
from service.identity import sessions
from service.identity.authentication import (
    Caller,
    KeyRing,
    caller_of,
    fresh_keys,
    require_permission,
)
from service.identity.keys import Role
from service.identity.sessions import Session
from service.web.strict_requests import form_fields, media_type

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
COOKIE: Final = "dpledger"
# Which a browser keeps only when it came over TLS from this very host, for all its paths.
SECURE_COOKIE: Final = "__Host-dpledger"
FORM: Final = "application/x-www-form-urlencoded"
CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "x-csrf-token"
NEXT_MAX: Final = 1000  # characters of an address to return to
_READING: Final = frozenset({"GET", "HEAD"})


class SignInNeededError(Exception):
    """No key is signed in, or its session has ended."""


def host_of(request: Request) -> str:
    """The host that was asked for, without its port."""
    host = request.headers.get("host", "").lower()
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host


def is_local(request: Request) -> bool:
    """Whether a browser on this machine asked, where no TLS is needed."""
    return host_of(request) in LOOPBACK_NAMES


def cookie_name(request: Request) -> str:
    """What the session's cookie is called here; one of another name is not believed."""
    return COOKIE if is_local(request) else SECURE_COOKIE


def session_token(request: Request) -> str | None:
    """The session's token, as it was sent."""
    return request.cookies.get(cookie_name(request))


def csrf_of(request: Request) -> str:
    """The CSRF token that a form must carry; empty if no key is signed in."""
    token = session_token(request)
    return "" if token is None else sessions.csrf_token(token)


def engine_of(request: Request) -> Engine:
    """The database of the service."""
    engine: Engine = request.app.state.engine
    return engine


def browser_session(request: Request, token: str) -> Session | None:
    """The session of a token; None where there is none."""
    secret: bytes = request.app.state.session_secret
    return sessions.session_of(engine_of(request), secret, token)


def find_signed_in(ring: KeyRing, session: Session) -> Caller | None:
    """Who is signed in, if the key is in force or something is granted to the person."""
    if session.principal is None:
        return ring.holder(session.key_digest)
    return None if ring.directory is None else ring.directory.person(session.principal)


async def _caller(request: Request) -> Caller:
    """Whose session it is.

    Raises:
        SignInNeededError: there is no such session, or its key is no longer valid.
        UnauthorizedError: a key was sent that is not in force.
    """
    ring = await fresh_keys(request)
    # No page can make a browser send that header: a command reads a page with its key.
    kind = request.headers.get("authorization", "").partition(" ")[0].lower()
    if kind == "bearer" and request.method in _READING:
        return ring.caller(request)
    token = session_token(request)
    if token is None:
        raise SignInNeededError
    session = await run_in_threadpool(browser_session, request, token)
    caller = None if session is None else find_signed_in(ring, session)
    if caller is None:
        raise SignInNeededError
    return caller


async def viewer_of(request: Request) -> Caller | None:
    """The caller of a page that needs no key; None without a session in force."""
    found = caller_of(request)
    token = session_token(request)
    if found is not None or token is None:
        return found
    ring = await fresh_keys(request)
    session = await run_in_threadpool(browser_session, request, token)
    return None if session is None else find_signed_in(ring, session)


async def require_viewer(request: Request, needed: Sequence[Role]) -> Caller:
    """Who looks, where that key may; asked once a request.

    Raises:
        SignInNeededError: no key is signed in.
        ForbiddenError: the key's scope is none that is needed, or another site sent the request.
        NotFoundError: the key is limited to datasets and the path is of none of them.
        TooManyRequestsError: the key's rate is used up.
    """
    found = caller_of(request)
    if found is not None:
        found.require(*needed)
        return found
    caller = await require_permission(request, await _caller(request), needed, request.path_params)
    if request.method not in _READING:
        await require_own_form(request)
    return caller


def require_own_origin(request: Request) -> None:
    """Refuse what a page of another site sent.

    Raises:
        ForeignOriginError: one did, or nothing says that none did.
    """
    site = request.headers.get("sec-fetch-site")
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    # TLS ends elsewhere, so the scheme is not known here; nothing is read out of what was sent.
    own = origin in (None, f"https://{host}", f"http://{host}")
    if site not in (None, "same-origin", "none") or not own:
        raise ForeignOriginError("The form was sent by a page of another origin.")
    if site is None and origin is None:
        raise ForeignOriginError("Nothing says which page sent the form; use a browser.")


async def require_own_form(request: Request) -> None:
    """Refuse a form that is none of this session's pages."""
    require_own_origin(request)
    expected = csrf_of(request)
    sent = request.headers.get(CSRF_HEADER)
    if sent is None:
        sent = (await posted_form(request)).get(CSRF_FIELD, "")
    if not compare_digest(sent.encode(), expected.encode()):
        raise ForbiddenError("The form is of another session; load the page again.")


async def posted_form(request: Request) -> dict[str, str]:
    """The fields of a form, each of them once.

    Raises:
        UnsupportedMediaTypeError: it is no form as browsers send them.
        MalformedBodyError: it cannot be read.
    """
    if media_type(request) != FORM:
        raise UnsupportedMediaTypeError(f"Send {FORM}.")
    try:
        text = (await request.body()).decode("ascii")
    except UnicodeDecodeError:
        raise MalformedBodyError("body: not a form") from None
    return form_fields(text)


def own_path(text: str | None) -> str:
    """Where to go after signing in: a path of this service, whatever was asked for."""
    path = text or "/"
    plain = path.isascii() and path.isprintable() and "\\" not in path and len(path) <= NEXT_MAX
    if not plain or not path.startswith("/") or path.startswith(("//", "/sign-", "/v1/")):
        return "/"
    return path


def sign_in_path(request: Request) -> str:
    """Where to sign in, and then come back."""
    path = request.url.path
    asked = path + (f"?{request.url.query}" if request.url.query else "")
    if request.method not in _READING or own_path(asked) == "/":
        return "/sign-in"
    return f"/sign-in?next={quote(asked, safe='/')}"


class SeenBy:
    """What a page depends on: a key of one of these scopes, and its own form where it is sent."""

    def __init__(self, *needed: Role) -> None:
        self.needed = needed

    async def __call__(self, request: Request) -> Caller:
        """Who looks."""
        return await require_viewer(request, self.needed)


def list_page_scopes(dependant: Dependant) -> Sequence[Role]:
    """The scopes that a page accepts; empty if it needs no key."""
    found = [one.call.needed for one in dependant.dependencies if isinstance(one.call, SeenBy)]
    return found[0] if found else ()


PageViewer = Annotated[Caller, Depends(SeenBy(Role.VIEWER))]
PageTrainer = Annotated[Caller, Depends(SeenBy(Role.TRAINER))]
PageOwner = Annotated[Caller, Depends(SeenBy(Role.OWNER))]
PageApprover = Annotated[Caller, Depends(SeenBy(Role.APPROVER))]
PageTrainerOrApprover = Annotated[Caller, Depends(SeenBy(Role.TRAINER, Role.APPROVER))]
PageAdmin = Annotated[Caller, Depends(SeenBy(Role.ADMIN))]
PostedForm = Annotated[Mapping[str, str], Depends(posted_form)]
