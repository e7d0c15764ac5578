"""Every page, in a literal list."""

from collections.abc import Iterable
from types import ModuleType

from fastapi import FastAPI

from service.guarantees.run_progress import Growths
from service.guarantees.spending_history import SPENDINGS_MAX
from service.storage.versioned_cache import VersionedCache
from service.web.dashboard import assets, sign_in
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
from service.web.routers import add_routes


def page_modules(*, single_sign_on: bool = False) -> list[ModuleType]:
    """Every module that has pages.

    Args:
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
    return modules


def install_pages(app: FastAPI, modules: Iterable[ModuleType]) -> None:
    """Add the pages of modules to an application."""
    app.state.spendings = VersionedCache(SPENDINGS_MAX)
    app.state.spending_lines = overview_chart.SpendingLines()
    app.state.growths = Growths()
    app.state.answers = VersionedCache(ANSWERS_MAX, shared=True)
    for module in modules:
        add_routes(app, module.router)
