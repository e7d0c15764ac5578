"""The whole ledger on one board: the same numbers as one by one, however often they are read."""

from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text

from service.clock import now
from service.formatting import percent_up
from service.ledger.incidents import Incident, Kind, record_incidents
from service.ledger.lookups import find_dataset
from service.operations import budgets
from service.operations import overview as module
from service.operations.metrics import Ledger
from service.operations.overview import OVERVIEW_DATASETS_MAX, Board, Boards
from service.storage.engine import snapshot, transaction
from tests.service.samples import BUDGET, Json, append, dataset, event, run, setup


def look(boards: Boards, engine: Engine, limit: frozenset[str] | None = None) -> Board:
    with snapshot(engine) as connection:
        return boards.look(connection, limit)


def agrees(api: httpx.Client, found: Board) -> bool:
    """Whether every budget is what the API says of its dataset alone."""
    for one in found.datasets:
        said = api.get(f"/v1/datasets/{one.name}").json()["budget"]
        if (one.budget.model_dump(mode="json") if one.budget else None) != said:
            return False
    return True


def reserve(api: httpx.Client, name: str, steps: int) -> None:
    ahead = {key: value for key, value in event(0, steps).items() if key != "first_step"}
    lease: Json = {"name": name, "event": ahead, "ttl_seconds": 600}
    assert api.post("/v1/runs/run/reservations", json=lease).status_code == 201


def expire(engine: Engine, name: str) -> None:
    with transaction(engine) as connection:
        connection.execute(
            text("UPDATE reservations SET expires_at = :past WHERE name = :name"),
            {"past": (now() - timedelta(minutes=1)).replace(tzinfo=None), "name": name},
        )


def test_budgets_are_as_the_api_tells_them_after_each_change(
    api: httpx.Client, engine: Engine
) -> None:
    boards = Boards()
    assert api.post("/v1/datasets", json=dataset("parent", budget=BUDGET)).status_code == 201
    made = {"parents": ["parent"], "rows_per_parent_record": "at_most_one", "budget": BUDGET}
    setup(api, dataset_given=made)
    assert agrees(api, look(boards, engine))
    append(api, event(0, 100))
    assert agrees(api, look(boards, engine))
    reserve(api, "lease", 300)
    before = look(boards, engine)
    assert agrees(api, before)
    assert before.forfeited == 0
    expire(engine, "lease")  # by the clock alone, nothing is written
    after = look(boards, engine)
    assert agrees(api, after)
    assert {one.name: one.forfeited for one in after.datasets} == {"data": 1, "parent": 0}
    assert all(one.budget and not one.budget.reserved for one in after.datasets)
    released = api.post("/v1/reservations/lease:release", json={"last_step": 99})
    assert released.status_code == 200, released.text
    assert agrees(api, look(boards, engine))
    raised = {"reason": "more", "budget": {"epsilon": 5.0, "delta": 1e-5}}
    etag = api.get("/v1/datasets/data").headers["etag"]
    changed = api.patch("/v1/datasets/data", json=raised, headers={"if-match": etag})
    assert changed.status_code == 200, changed.text
    assert agrees(api, look(boards, engine))


def test_what_has_not_changed_is_not_read_again(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 100))
    boards = Boards()
    first = look(boards, engine)

    def fail(*_given: object) -> Any:
        raise AssertionError("read again")

    monkeypatch.setattr(budgets, "each_budget", fail)
    monkeypatch.setattr(module, "outlook", fail)
    assert look(boards, engine) == first


def test_metrics_and_overview_read_a_budget_once_for_both(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    shared = budgets.Budgets()
    boards, ledger = Boards(shared), Ledger(engine, lambda: 0, shared)
    for first_step in (0, 100):
        append(api, event(first_step, 100))
        (one,) = look(boards, engine).datasets
        with monkeypatch.context() as patched:
            patched.setattr(budgets, "each_budget", None)
            (told,) = ledger.read().budgets.values()
        assert one.spent_share == told.spent > 0


def test_what_there_was_no_time_for_is_not_told_by_the_overview_and_as_it_was_by_metrics(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    shared = budgets.Budgets()
    boards, ledger = Boards(shared), Ledger(engine, lambda: 0, shared)
    before = ledger.read().budgets
    append(api, event(0, 100))
    with monkeypatch.context() as patched:
        patched.setattr(budgets, "each_budget", lambda *_given: iter(()))
        assert (look(boards, engine).unread, ledger.read().budgets) == (1, before)
    assert look(boards, engine).unread == 0
    assert ledger.read().budgets != before


def test_an_outlook_is_told_anew_once_it_is_old(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    boards = Boards()
    look(boards, engine)
    asked = []
    monkeypatch.setattr(module, "outlook", lambda *_given: asked.append(1))
    append(api, event(0, 100))
    look(boards, engine)
    assert not asked  # a minute has not passed
    monkeypatch.setattr(module, "OUTLOOK_SECONDS", -1.0)
    append(api, event(100, 100))
    look(boards, engine)
    assert asked


def test_a_look_takes_no_longer_than_it_may(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        assert api.post("/v1/datasets", json=dataset(name, budget=BUDGET)).status_code == 201
    monkeypatch.setattr(module, "BUDGETS_SECONDS", -1.0)
    boards = Boards()
    assert [look(boards, engine).unread for _ in range(4)] == [2, 1, 0, 0]


def test_the_most_spent_come_first_and_are_not_too_many(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    for number in range(OVERVIEW_DATASETS_MAX + 2):
        limit = {"budget": BUDGET} if number % 2 else {}
        assert api.post("/v1/datasets", json=dataset(f"n{number}", **limit)).status_code == 201
    assert api.post("/v1/runs", json=run("wild", dataset="n1")).status_code == 201
    append(api, event(0, 100))
    append(api, event(0, 10**6), run="wild")  # far beyond
    found = look(Boards(), engine)
    assert [one.name for one in found.datasets[:2]] == ["n1", "data"]
    assert (len(found.datasets), found.dataset_count) == (
        OVERVIEW_DATASETS_MAX,
        OVERVIEW_DATASETS_MAX + 3,
    )
    worst = found.datasets[0]
    assert (found.overdrawn, worst.overdrawn) == (1, True)
    assert worst.spent_share > 1


def test_shares_are_upper_and_infinite_where_the_spending_is(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 1, mechanism={"kind": "none"}))
    (one,) = look(Boards(), engine).datasets
    assert one.budget is not None
    assert (one.budget.spent, one.spent_share) == (None, float("inf"))


def test_a_limited_key_sees_its_own_alone(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    assert api.post("/v1/datasets", json=dataset("other", budget=BUDGET)).status_code == 201
    append(api, event(0, 10**6))
    boards = Boards()
    own = look(boards, engine, frozenset({"other"}))
    assert ([one.name for one in own.datasets], own.runs, own.run_count) == (["other"], [], 0)
    assert (own.incidents, own.incident_counts, own.overdrawn) == ([], {}, 0)
    assert look(boards, engine).overdrawn == 1
    assert look(boards, engine, frozenset()).dataset_count == 0


def test_active_runs_are_told_the_last_that_recorded_first(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    for name in ("second", "third"):
        assert api.post("/v1/runs", json=run(name)).status_code == 201
    append(api, event(0, 10), run="third")
    append(api, event(0, 20), run="run")
    assert api.post("/v1/runs/third:finish", json={"state": "finished"}).status_code == 200
    found = look(Boards(), engine)
    assert [(one.name, one.steps) for one in found.runs] == [("run", 20), ("second", 0)]
    assert found.run_count == 2
    assert found.runs[1].last_at is None


def happen(engine: Engine, kind: Kind, days: float) -> None:
    moment = now() - timedelta(days=days)
    with transaction(engine) as connection:
        home = find_dataset(connection, "data").id
        told = Incident(dataset_id=home, kind=kind, sequence=0, detail={}, occurred_at=moment)
        record_incidents(connection, [told])


def test_serious_incidents_are_named_and_the_others_counted(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    happen(engine, Kind.OVERDRAFT, 400)
    happen(engine, Kind.SAMPLING_CONTRADICTED, 20)
    happen(engine, Kind.REFUSAL, 10)
    happen(engine, Kind.REFUSAL, 5)
    found = look(Boards(), engine)
    assert [one.kind for one in found.incidents] == ["sampling_contradicted", "overdraft"]
    assert found.incident_counts == {"sampling_contradicted": 1, "refusal": 2, "overdraft": 1}


def test_the_page_tells_what_the_board_does(api: httpx.Client) -> None:
    empty = api.get("/").text
    assert "No dataset yet" in empty
    assert f"curl {str(api.base_url).rstrip('/')}/v1/datasets" in empty
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 1000))
    share = api.get("/v1/datasets/data").json()["budget"]["share"]
    page = api.get("/").text
    assert "of ε 3 at δ 1e-5" in page
    assert f"<strong>{percent_up(share)}</strong>" in page
    assert "too new to say" in page
    assert "overdrawn" not in page
    append(api, event(1000, 10**6))
    assert "overdrawn" in api.get("/").text
