"""Every page, in a literal list."""

from types import ModuleType

from fastapi import APIRouter, FastAPI

from service.guarantees.run_progress import Growths
from service.guarantees.spending_history import SPENDINGS_MAX
from service.storage.versioned_cache import VersionedCache
from service.web.dashboard import assets, rendering, sign_in
from service.web.dashboard.pages import (
    api_browser,
    audit_log,
    compare,
    correction,
    dataset,
    endings,
    incidents,
    keys,
    lists,
    new_dataset,
    overview_chart,
    requests,
    run,
    statement,
    theorems,
)
from service.web.dashboard.pages.planning import planner
from service.web.dashboard.response_cache import ANSWERS_MAX


def install_pages(app: FastAPI, *, single_sign_on: bool = False) -> list[APIRouter]:
    """Add the pages, and tell errors as pages to those who look; the routers that were added.

    Args:
        app: to which they are added.
        single_sign_on: whether people sign in at identity providers.
    """
    modules: list[ModuleType] = [
        api_browser,
        assets,
        sign_in,
        lists,
        overview_chart,
        incidents,
        audit_log,
        new_dataset,
        dataset,
        endings,
        correction,
        keys,
        compare,
        planner,
        requests,
        run,
        statement,
        theorems,
    ]
    if single_sign_on:
        from service.web.dashboard import provider_sign_in  # its libraries take long to load

        modules.append(provider_sign_in)
    app.state.spendings = VersionedCache(SPENDINGS_MAX)
    app.state.spending_lines = overview_chart.SpendingLines()
    app.state.growths = Growths()
    app.state.answers = VersionedCache(ANSWERS_MAX, shared=True)
    rendering.install_errors(app)
    for module in modules:
        app.include_router(module.router)
    return [module.router for module in modules]
