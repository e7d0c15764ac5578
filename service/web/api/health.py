"""Health, readiness and the pages that explain problems; none of them needs a key."""

from typing import Literal

from fastapi import Request
from fastapi.responses import PlainTextResponse

from service.errors import NotFoundError, UnavailableError
from service.operations.health import Readiness, explain_checks
from service.schemas.responses import Answer
from service.web import problems
from service.web.parameters import ProblemName
from service.web.problems import JsonLine
from service.web.routers import api_router

router = api_router(tag="health")


class Health(Answer):
    """Whether the service can answer."""

    status: Literal["alive", "ready"]


class Ready(Health):
    """Whether requests can be answered, and what was looked at: each part is `ok`."""

    checks: dict[str, str]


class HealthPage(PlainTextResponse):
    """A page in Markdown."""

    media_type = "text/markdown"


@router.get("/healthz", response_class=JsonLine)
def get_health() -> Health:
    """The process answers."""
    return Health(status="alive")


@router.get("/readyz", response_class=JsonLine)
async def get_readiness(request: Request) -> Ready:
    """Requests can be answered; if not, `checks` says what is not well."""
    if request.app.state.draining:
        raise UnavailableError("draining: the service was told to end; ask another one.")
    readiness: Readiness = request.app.state.readiness
    checks = await readiness.checks()
    if wrong := explain_checks(checks):
        raise UnavailableError(f"Not ready: {wrong}.", checks=checks)
    return Ready(status="ready", checks=checks)


@router.get(
    "/problems/{slug}", response_class=HealthPage, response_description="The page, in Markdown."
)
def get_problem_page(slug: ProblemName) -> HealthPage:
    """What a problem means and what to do about it."""
    text = problems.problem_page(slug)
    if text is None:
        raise NotFoundError("There is no such problem.")
    return HealthPage(text)
