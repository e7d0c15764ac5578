"""Every page, in a literal list."""

from fastapi import APIRouter, FastAPI

from service.guarantees.run_progress import Growths
from service.guarantees.spending_history import SPENDINGS_MAX
from service.storage.versioned_cache import VersionedCache
from service.web.dashboard import assets, rendering, sign_in
from service.web.dashboard.pages import (
    api_browser,
    compare,
    correction,
    dataset,
    endings,
    keys,
    lists,
    new_dataset,
    planner,
    run,
    statement,
    theorems,
)
from service.web.dashboard.response_cache import ANSWERS_MAX


def install_pages(app: FastAPI) -> list[APIRouter]:
    """Add the pages, and tell errors as pages to those who look; the routers that were added."""
    modules = (
        api_browser,
        assets,
        sign_in,
        lists,
        new_dataset,
        dataset,
        endings,
        correction,
        keys,
        compare,
        planner,
        run,
        statement,
        theorems,
    )
    app.state.spendings = VersionedCache(SPENDINGS_MAX)
    app.state.growths = Growths()
    app.state.answers = VersionedCache(ANSWERS_MAX, shared=True)
    rendering.install_errors(app)
    for module in modules:
        app.include_router(module.router)
    return [module.router for module in modules]
