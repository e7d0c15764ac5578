"""Every page, in a literal list."""

from fastapi import APIRouter, FastAPI

from service.board import Boards
from service.dashboard import (
    api_browser,
    assets,
    compare,
    datasets,
    entrance,
    lists,
    overview,
    pages,
    planner,
    reporting,
    run,
    theorems,
)
from service.spending import Spendings


def install(app: FastAPI) -> list[APIRouter]:
    """Add the pages, and tell errors as pages to those who look; the routers that were added."""
    modules = (
        api_browser,
        assets,
        entrance,
        overview,
        lists,
        datasets,
        compare,
        planner,
        run,
        reporting,
        theorems,
    )
    app.state.boards = Boards()
    app.state.spendings = Spendings()
    pages.install_errors(app)
    for module in modules:
        app.include_router(module.router)
    return [module.router for module in modules]
