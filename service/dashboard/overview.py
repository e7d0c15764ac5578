"""The first page: how every budget stands, what runs, and what somebody should look at."""

from fastapi import APIRouter, Request, Response

from service.dashboard.access import Viewer
from service.dashboard.pages import PageRoute, render

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/")
def overview(request: Request, viewer: Viewer) -> Response:
    """Every dataset at a glance."""
    return render(request, "overview.html", viewer=viewer)
