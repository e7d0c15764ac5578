"""Whatever reads much of a ledger takes a seat: no list and no page is left out."""

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Final

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from service.web import api, dashboard
from service.web.dashboard.viewer import list_page_scopes
from service.web.parameters import PageQuery
from service.web.strict_requests import is_expensive

CHEAP: Final = {
    # They send the reader to another page and read nothing.
    "GET /datasets/{dataset}/limit", "GET /datasets/{dataset}/admission", "GET /planner/budget",
    "GET /datasets/{dataset}/accept", "GET /datasets/{dataset}/ask",
    "GET /incidents/{incident}/notes", "GET /keys/{key}/revoke",
    "GET /keys/{key}/rotate", "GET /requests/{change_request}/{verb}",
    # They read or change a few rows of one key, request, run or reservation.
    "GET /keys/{key}", "POST /keys/{key}/revoke", "POST /keys/{key}/rotate",
    "GET /requests/{change_request}", "POST /requests/{change_request}/reject",
    "POST /requests/{change_request}/withdraw", "GET /runs/{run}/finish",
    "POST /runs/{run}/finish", "GET /reservations/{reservation}/void",
    "POST /reservations/{reservation}/void",
    # Theorems and theory are the same for every ledger.
    "GET /theorems", "GET /theorems/{bound}", "GET /docs/theory", "GET /docs/theory/{page}",
    # Closed forms, asked for while a slider moves.
    "GET /planner/quick.json",
    # A stream is open for minutes; the feed limits how many there are.
    "GET /runs/{run}/stream",
}  # fmt: skip


def routes_of(package: ModuleType) -> Iterator[APIRoute]:
    """Every route that a module of the package has."""
    for one in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        router = getattr(import_module(one.name), "router", None)
        for route in router.routes if router is not None else ():
            assert isinstance(route, APIRoute)
            yield route


def is_paged(dependant: Dependant) -> bool:
    kinds = [field.field_info.annotation for field in dependant.query_params]
    return any(isinstance(kind, type) and issubclass(kind, PageQuery) for kind in kinds)


def test_every_list_takes_a_seat() -> None:
    paged = {route.path: route.endpoint for route in routes_of(api) if is_paged(route.dependant)}
    assert len(paged) >= 9
    assert [path for path, endpoint in paged.items() if not is_expensive(endpoint)] == []


def test_every_page_of_a_ledger_takes_a_seat_unless_it_is_named_as_cheap() -> None:
    seen = [route for route in routes_of(dashboard) if list_page_scopes(route.dependant)]
    assert len(seen) >= 25
    cheap = [route for route in seen if not is_expensive(route.endpoint)]
    assert {f"{method} {one.path}" for one in cheap for method in one.methods or ()} == CHEAP
