"""The routers of the API, and how an application takes their routes."""

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from service.web import problems
from service.web.strict_requests import StrictRoute


def operation_id(route: APIRoute) -> str:
    """Return the endpoint's name in camel case: the name of the method in a generated client."""
    first, *others = route.name.split("_")
    return first + "".join(word.capitalize() for word in others)


def api_router(prefix: str = "", *, tag: str | None = None) -> APIRouter:
    """A router of endpoints.

    Args:
        prefix: of their paths.
        tag: under which the OpenAPI document lists them, where they do not say it each.
    """
    return APIRouter(
        prefix=prefix,
        route_class=StrictRoute,
        tags=None if tag is None else [tag],
        generate_unique_id_function=operation_id,
        responses={"4XX": problems.PROBLEM_DESCRIPTION, "503": problems.PROBLEM_DESCRIPTION},
    )


def add_routes(app: FastAPI, router: APIRouter) -> None:
    """Add the routes of a router to an application as they are.

    To include a router would build each of them once more, when the first request comes.
    """
    app.router.routes.extend(router.routes)
    problems.note_methods(app, router)
