"""How long a budget lasts: as long as the filter admits the same again, and nothing made up."""

from datetime import timedelta

import httpx
import pytest
from sqlalchemy import Engine

from service.clock import now
from service.ledger.lookups import find_dataset
from service.operations import forecast as module
from service.operations.forecast import Outlook, Verdict, outlook
from service.storage.engine import snapshot
from tests.service.samples import (
    BALLS,
    BUDGET,
    append,
    dataset,
    event,
    run,
    setup,
)


def in_days(engine: Engine, days: float, name: str = "data") -> Outlook:
    """What will be said so many days from now, if nothing happens."""
    with snapshot(engine) as connection:
        found = find_dataset(connection, name)
        return outlook(connection, found, now() + timedelta(days=days))


def lasting(found: Outlook) -> float:
    assert found.verdict is Verdict.LASTS
    assert found.days is not None
    return found.days


def test_it_lasts_as_long_as_the_same_again_is_admitted(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 400))
    found = in_days(engine, 4)
    assert found.window_days == pytest.approx(4, abs=0.01)
    again = int(lasting(found) / 4)  # so often, four days each
    assert again > 3
    assert append(api, event(400, 400 * again), mode="charge").status_code == 201
    assert append(api, event(400 + 400 * again, 400), mode="charge").status_code == 409


def test_a_quicker_pace_ends_sooner(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 200))
    slow = lasting(in_days(engine, 3))
    append(api, event(200, 200))
    assert lasting(in_days(engine, 3)) < 0.5 * slow


def test_what_is_reserved_is_gone(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 200))
    before = lasting(in_days(engine, 3))
    ahead = {key: value for key, value in event(0, 2000).items() if key != "first_step"}
    lease = {"name": "lease", "event": ahead, "ttl_seconds": 600}
    assert api.post("/v1/runs/run/reservations", json=lease).status_code == 201
    assert lasting(in_days(engine, 3)) < before


def test_nothing_is_said_of_too_little_history(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    assert in_days(engine, 30).verdict is Verdict.NEW
    append(api, event(0, 10))
    assert in_days(engine, 1.9) == Outlook(verdict=Verdict.NEW)
    assert in_days(engine, 2.1).verdict is Verdict.LASTS


def test_where_nothing_is_spent_any_more_there_is_no_end(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 10))
    assert in_days(engine, 6.9).verdict is Verdict.LASTS
    idle = in_days(engine, 7.1)
    assert (idle.verdict, idle.days) == (Verdict.IDLE, None)


def test_what_is_beyond_its_limit_lasts_no_longer(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 1, mechanism={"kind": "none"}))
    assert in_days(engine, 3).verdict is Verdict.SPENT


def test_without_a_limit_nothing_can_end(api: httpx.Client, engine: Engine) -> None:
    setup(api)
    append(api, event(0, 10))
    assert in_days(engine, 3).verdict is Verdict.NO_LIMIT


def test_what_is_spent_on_what_was_made_from_it_counts(api: httpx.Client, engine: Engine) -> None:
    assert api.post("/v1/datasets", json=dataset("parent", budget=BUDGET)).status_code == 201
    made = {"parents": ["parent"], "rows_per_parent_record": "at_most_one"}
    setup(api, dataset_given=made)
    assert in_days(engine, 3, "parent").verdict is Verdict.NEW
    append(api, event(0, 400))
    below = lasting(in_days(engine, 3, "parent"))
    assert api.post("/v1/runs", json=run("own", dataset="parent")).status_code == 201
    append(api, event(0, 400), run="own")
    assert lasting(in_days(engine, 3, "parent")) < 0.6 * below


def test_passes_count_where_steps_do_not(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": {"epsilon": 50.0, "delta": 1e-5}})
    append(api, event(0, 100, sampling=BALLS))
    once = lasting(in_days(engine, 3))
    append(api, event(100, 300, sampling=BALLS))
    assert lasting(in_days(engine, 3)) < 0.5 * once


def test_of_too_many_entries_the_last_are_counted(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    for step in range(4):  # of other noise each, or they would be one entry
        noise = {"kind": "gaussian", "noise_multiplier": 1.1 + 0.01 * step}
        append(api, event(100 * step, 100, mechanism=noise))
    whole = lasting(in_days(engine, 3))
    monkeypatch.setattr(module, "FORECAST_ENTRIES_MAX", 1)
    assert lasting(in_days(engine, 3)) > 3 * whole
