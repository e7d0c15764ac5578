"""Health, readiness and the pages that explain problems; none of them needs a key."""

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from service import problems
from service.answers import Health
from service.auth import KeyRing
from service.database import ping
from service.errors import NotFoundError, UnavailableError
from service.routes.parameters import Database, PathName

router = APIRouter(tags=["health"])


def _open_mode(request: Request) -> bool:
    keys: KeyRing = request.app.state.keys
    return keys.open_mode


@router.get("/healthz")
def healthz(request: Request) -> Health:
    """The process answers."""
    return Health(status="alive", open_mode=_open_mode(request))


@router.get("/readyz")
def readyz(request: Request, database: Database) -> Health:
    """The database answers too, and appends are taken."""
    ping(database)
    if not request.app.state.writer.working:
        raise UnavailableError("The thread that appends to the ledger has stopped; restart.")
    return Health(status="ready", open_mode=_open_mode(request))


@router.get("/problems/{slug}", response_class=PlainTextResponse)
def problem_page(slug: PathName) -> PlainTextResponse:
    """What a problem means and what to do about it."""
    text = problems.page(slug)
    if text is None:
        raise NotFoundError("There is no such problem.")
    return PlainTextResponse(text, media_type="text/markdown; charset=utf-8")
