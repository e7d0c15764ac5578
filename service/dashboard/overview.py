"""The first page: how every budget stands, what runs, and what somebody should look at."""

from typing import Final

from fastapi import APIRouter, Request, Response

from service.board import INCIDENT_DAYS, SERIOUS, Boards
from service.dashboard.access import Viewer
from service.dashboard.pages import PageRoute, render
from service.database import snapshot
from service.http import dear
from service.routes.parameters import Database

REFRESH_SECONDS: Final = 20  # that an open page is looked at again

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/")
@dear
def overview(request: Request, viewer: Viewer, database: Database) -> Response:
    """Every dataset at a glance."""
    boards: Boards = request.app.state.boards
    with snapshot(database) as connection:
        board = boards.seen(connection, viewer.datasets)
    return render(
        request,
        "overview.html",
        viewer=viewer,
        board=board,
        serious=SERIOUS,
        incident_days=round(INCIDENT_DAYS),
        refresh_seconds=REFRESH_SECONDS,
    )
