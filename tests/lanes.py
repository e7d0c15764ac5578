"""Which tests a change must pass at once, and which run when what they cover has changed.

A lane is a marker: `unit` needs no database, `service` does; `make test` runs these two. `numerics`
compares the accounting with definitions, `system` breaks or kills whole processes; `make test-all`
runs all four, and `.ci/run` runs a lane whenever a file that it covers differs.
"""

from functools import cache
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parent
LANES: Final = {"unit", "service", "numerics", "system"}
NUMERICS: Final = "accounting"  # a folder
# They also read the service, and so belong to each change.
READ_SERVICE: Final = ("accounting/test_quarantine.py", "accounting/test_quarantine_values.py")
SYSTEM: Final = (  # folders and modules
    "browser",
    "client/failures",
    "deploy",
    "fuzz",
    "generated",
    "image",
    "packages",
    "service/faults",
    "service/test_balancers.py",
    "service/test_concurrency.py",
    "service/test_demo.py",
    "service/test_drain.py",
    "service/test_envelope_race.py",
    "service/test_eyes_at_random.py",
    "service/test_memory.py",
    "service/test_nginx.py",
    "service/test_race.py",
    "service/test_refused_bodies.py",
    "service/test_schemathesis.py",
    "service/test_slow_bodies.py",
    "service/test_telemetry.py",
)
DATABASES: Final = {"addresses", "backend_urls", "database_url", "own_server", "postgres_url"}
# Modules of pages, of the planner and of questions over HTTP: what differs by database is tested in
# other modules. `make test` runs these on SQLite, `make test-all` on both.
SQLITE_ALONE: Final = tuple(
    f"service/test_{name}.py"
    for name in (
        "advisories", "api_browser", "arrivals", "certificate_page", "charts", "corrected_pages",
        "curve", "dashboard", "dataset_admission", "dataset_page", "default_order_over_http",
        "effort", "entrance", "explain", "falling_noise_over_http", "filters_over_http",
        "first_hour_pages", "form_faults", "guide_blocks", "hidden_runs", "hidden_runs_refused",
        "history", "hostile", "inbox_page", "limits", "lower_ends", "mechanisms",
        "new_dataset_page", "officer_pages", "officer_questions", "one_meaning", "one_person",
        "outlook", "plan", "plan_units", "planner_budget", "planner_choices", "planner_noise",
        "planner_page", "poisson_would_say", "problems", "reports", "request_pages", "run_charges",
        "run_page", "samplings", "scopes", "smaller_bounds", "spending", "theorems_page",
        "watching",
    )
)  # fmt: skip


def lane_of(item: pytest.Item) -> str:
    """The one lane of a test."""
    lanes = lanes_in(item.path)
    if len(lanes) == 1:
        return next(iter(lanes))
    return "service" if DATABASES.intersection(getattr(item, "fixturenames", ())) else "unit"


@cache
def lanes_in(path: Path) -> frozenset[str]:
    """The lanes that tests of a file or folder are in, from its place alone."""
    place = _place(path)
    if place.startswith(f"{NUMERICS}/") and place not in READ_SERVICE:
        return frozenset({"numerics"})
    if any(place == one or place.startswith(f"{one}/") for one in SYSTEM):
        return frozenset({"system"})
    return frozenset({"unit", "service"})


def is_left_out(path: Path, chosen: str) -> bool:
    """Whether no test of a file is in the lanes that `-m` names, joined by `or`."""
    lanes = set(chosen.split(" or "))
    return lanes <= LANES and path.suffix == ".py" and lanes.isdisjoint(lanes_in(path))


def is_repeated(item: pytest.Item) -> bool:
    """Whether a test of SQLITE_ALONE is the case on PostgreSQL."""
    case = getattr(item, "callspec", None)
    if case is None or _place(item.path) not in SQLITE_ALONE:
        return False
    return any(isinstance(one, str) and one == "postgres" for one in case.params.values())


@cache
def _place(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()
