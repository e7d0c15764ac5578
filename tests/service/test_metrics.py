"""Metrics: what is told is true, bounded, and nobody else's."""

import asyncio
import math
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Engine

import accounting
from service.app import create_app, openapi_document
from service.clock import now
from service.identity.keys import Role, Terms, create_key
from service.operations import budgets, metrics
from service.operations.budget_summaries import each_budget
from service.operations.metrics import Ledger
from service.settings import Settings
from service.storage.engine import transaction
from service.storage.tables import reservations
from service.telemetry import Measures
from service.transparency.signing import Signer
from service.web import problems
from tests.conftest import AS_ADMIN
from tests.service.samples import BUDGET, FULL, SAMPLING, append, dataset, event, run, setup
from tests.service.test_keys import bearer

Serve = Callable[..., AbstractContextManager[str]]
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(text: str) -> Samples:
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


class Scrape:
    """An answer of /metrics."""

    def __init__(self, api: httpx.Client, **headers: str) -> None:
        answer = api.get("/metrics", headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/plain; version=")
        self.text = answer.text
        self.samples = samples_of(answer.text)

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, frozenset(labels.items())))

    def labels(self, name: str, label: str) -> set[str]:
        return {dict(own)[label] for found, own in self.samples if found == name}


@pytest.fixture
def fresh(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """A service whose counters begin at zero, and that looks at the ledger for each scrape."""
    monkeypatch.setattr(metrics, "KEPT_SECONDS", 0.0)
    with (
        serve(new=True) as address,
        httpx.Client(base_url=address, timeout=30, headers=AS_ADMIN) as api,
    ):
        yield api


def test_requests_are_counted_by_the_template_of_their_path(fresh: httpx.Client) -> None:
    setup(fresh)
    for name in ("run", "run", "nobody"):
        fresh.get(f"/v1/runs/{name}")
    append(fresh, event(0, 1))
    fresh.get("/v1/nothing/of/the/kind")
    fresh.request("BREW", "/v1/runs")
    found = Scrape(fresh)
    count = "dpledger_http_request_duration_seconds_count"

    def answers(route: str, method: str, status: str) -> float | None:
        return found.value(count, route=route, method=method, status=status)

    assert answers("/v1/runs/{run}", "GET", "2xx") == 2
    assert answers("/v1/runs/{run}", "GET", "4xx") == 1
    assert answers("/v1/runs/{run}/events", "POST", "2xx") == 1
    assert answers("other", "GET", "4xx") == 1
    assert "BREW" not in found.labels(count, "method")
    assert found.value("dpledger_refusals_total", problem="not-found") == 2
    known = set(openapi_document()["paths"]) | {"other"}
    assert found.labels(count, "route") <= known


def test_every_problem_begins_at_zero_and_no_series_is_named_after_what_was_sent(
    fresh: httpx.Client,
) -> None:
    setup(fresh, dataset_given={"name": "data"}, name="secret-run")
    fresh.get("/v1/runs/secret-run")
    found = Scrape(fresh)
    assert found.labels("dpledger_refusals_total", "problem") == set(problems.PROBLEMS)
    assert found.value("dpledger_refusals_total", problem="conflict") == 0
    assert "secret-run" not in found.text
    assert "_created" not in found.text


def test_steps_that_were_committed_are_counted_once_and_duplicates_apart(
    fresh: httpx.Client,
) -> None:
    setup(fresh)
    append(fresh, event(0, 7), event(7, 3))
    append(fresh, event(0, 7))
    append(fresh, event(99, 1))  # out of sequence
    found = Scrape(fresh)
    assert found.value("dpledger_steps_total", outcome="recorded") == 10
    assert found.value("dpledger_steps_total", outcome="duplicate") == 7
    assert found.value("dpledger_writer_requests_total", outcome="committed") == 2
    assert found.value("dpledger_writer_requests_total", outcome="refused") == 1
    assert found.value("dpledger_writer_batch_requests_sum") == 3
    assert found.value("dpledger_writer_commit_duration_seconds_count") == 3
    assert found.value("dpledger_writer_waiting") == 0
    assert found.value("dpledger_entries") == 1  # equal neighbours are one event
    assert found.value("dpledger_refusals_total", problem="out-of-sequence") == 1


def test_a_request_that_waits_for_a_price_is_counted_once(fresh: httpx.Client) -> None:
    setup(fresh)
    noise = 5 + secrets.randbelow(10**6) / 10**7  # that no test had before
    append(fresh, event(0, 1, mechanism={"kind": "gaussian", "noise_multiplier": noise}))
    found = Scrape(fresh)
    assert found.value("dpledger_writer_requests_total", outcome="committed") == 1
    assert found.value("dpledger_writer_requests_total", outcome="refused") == 0
    assert found.value("dpledger_writer_commit_duration_seconds_count") == 1


def test_a_budgets_share_is_told_rounded_up_and_an_overdraft_beside_it(
    fresh: httpx.Client,
) -> None:
    setup(fresh, dataset_given={"budget": BUDGET})
    fresh.post("/v1/datasets", json=dataset("free"))
    append(fresh, event(0, 100))
    found, budget = Scrape(fresh), fresh.get("/v1/datasets/data").json()["budget"]
    share = found.value("dpledger_budget_spent_ratio", dataset="data")
    assert share is not None
    assert share == budget["share"]
    assert 0 < 5 * share < budget["spent"] / BUDGET["epsilon"]  # no conversion is charged
    assert found.value("dpledger_budget_epsilon_nats", dataset="data") == BUDGET["epsilon"]
    assert found.labels("dpledger_budget_spent_ratio", "dataset") == {"data"}
    assert found.value("dpledger_budget_overdrawn", dataset="data") == 0
    append(fresh, event(100, 10**6, sampling=FULL))
    found = Scrape(fresh)
    assert (found.value("dpledger_budget_spent_ratio", dataset="data") or 0) > 1
    assert found.value("dpledger_budget_overdrawn", dataset="data") == 1
    assert found.value("dpledger_budgets_overdrawn") == 1
    assert found.value("dpledger_incidents_total", kind="overdraft") == 1
    append(fresh, event(10**6 + 100, 1, mechanism={"kind": "none"}))
    assert Scrape(fresh).value("dpledger_budget_spent_ratio", dataset="data") == math.inf


def test_a_datasets_epsilon_entries_and_incidents_are_told_by_its_name(
    fresh: httpx.Client,
) -> None:
    setup(fresh, dataset_given={"budget": BUDGET})
    fresh.post("/v1/datasets", json=dataset("free"))
    append(fresh, event(0, 100), event(100, 5, sampling=FULL))
    found, budget = Scrape(fresh), fresh.get("/v1/datasets/data").json()["budget"]
    asked = {"delta": BUDGET["delta"]}
    certified = fresh.get("/v1/datasets/data/guarantee", params=asked).json()["epsilon"]
    assert found.value("dpledger_budget_charged_nats", dataset="data") == budget["spent"]
    assert found.value("dpledger_budget_certified_nats", dataset="data") == certified > 0
    assert found.value("dpledger_dataset_entries_total", dataset="data") == 2
    refusals = {"dataset": "data", "kind": "refusal"}
    assert found.value("dpledger_dataset_incidents_total", **refusals) == 0
    assert append(fresh, event(105, 10**6, sampling=FULL), mode="charge").status_code == 409
    assert Scrape(fresh).value("dpledger_dataset_incidents_total", **refusals) == 1
    # Without a bound, the charge is infinite and the certified epsilon is left out.
    append(fresh, event(105, 1, mechanism={"kind": "none"}))
    found = Scrape(fresh)
    assert found.value("dpledger_budget_charged_nats", dataset="data") == math.inf
    assert found.value("dpledger_budget_certified_nats", dataset="data") is None
    assert found.value("dpledger_dataset_entries_total", dataset="data") == 3
    for name in ("dpledger_dataset_entries_total", "dpledger_dataset_incidents_total"):
        assert found.labels(name, "dataset") == {"data"}


def test_what_a_child_spends_is_told_of_its_parent(fresh: httpx.Client) -> None:
    setup(fresh, dataset_given={"budget": BUDGET})
    assert Scrape(fresh).value("dpledger_budget_spent_ratio", dataset="data") == 0
    made = {"parents": ["data"], "rows_per_parent_record": "exactly_one"}
    fresh.post("/v1/datasets", json=dataset("child", **made))
    fresh.post("/v1/runs", json=run("below", dataset="child"))
    append(fresh, event(0, 100), run="below")
    assert (Scrape(fresh).value("dpledger_budget_spent_ratio", dataset="data") or 0) > 0


def test_runs_reservations_and_contradictions_are_counted(
    fresh: httpx.Client, engine: Engine
) -> None:
    setup(fresh, dataset_given={"budget": {"epsilon": 50.0, "delta": 1e-5}})
    fresh.post("/v1/runs", json=run("done"))
    fresh.post("/v1/runs/done:finish", json={"state": "finished"})
    contradicted = SAMPLING | {"status": "contradicted", "recorded": FULL, "reason": "in order"}
    answer = fresh.post("/v1/runs/run/findings", json=contradicted)
    assert answer.status_code == 201, answer.text
    for name, first_step in (("first", 0), ("second", 10)):
        ahead = {"name": name, "event": event(first_step, 10), "ttl_seconds": 600}
        assert fresh.post("/v1/runs/run/reservations", json=ahead).status_code == 201
    found = Scrape(fresh)
    assert found.value("dpledger_runs", state="active") == 1
    assert found.value("dpledger_runs", state="finished") == 1
    assert found.value("dpledger_runs_contradicted") == 1
    assert found.value("dpledger_reservations", state="pending") == 2
    assert found.value("dpledger_reservations", state="forfeited") == 0
    assert (found.value("dpledger_budget_reserved_ratio", dataset="data") or 0) > 0
    spent = found.value("dpledger_budget_spent_ratio", dataset="data")
    with transaction(engine) as connection:
        past = now() - timedelta(hours=1)
        one = reservations.update().where(reservations.c.name == "first")
        connection.execute(one.values(expires_at=past))
    found = Scrape(fresh)
    assert found.value("dpledger_reservations", state="pending") == 1
    assert found.value("dpledger_reservations", state="forfeited") == 1
    assert (found.value("dpledger_budget_spent_ratio", dataset="data") or 0) > (spent or 0)


def test_of_many_budgets_the_most_spent_are_told_and_the_rest_counted(
    fresh: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "BUDGETS_MAX", 2)
    setup(fresh, dataset_given={"budget": BUDGET})
    for number in range(4):
        fresh.post("/v1/datasets", json=dataset(f"other-{number}", budget=BUDGET))
    append(fresh, event(0, 100))
    found = Scrape(fresh)
    told = found.labels("dpledger_budget_spent_ratio", "dataset")
    assert "data" in told
    assert len(told) == 2
    assert found.value("dpledger_budgets_untold") == 3


def test_budgets_that_have_not_changed_are_not_read_again_and_a_look_is_bounded(
    fresh: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    before = each_budget

    def counted(connection: Any, rows: Any) -> Iterator[Any]:
        for one in before(connection, rows):
            read.append(one[0])
            yield one

    setup(fresh, dataset_given={"budget": BUDGET})
    fresh.post("/v1/datasets", json=dataset("other", budget=BUDGET))
    monkeypatch.setattr(budgets, "each_budget", counted)
    ledger = Ledger(engine, lambda: 0)
    ledger.read()
    assert len(read) == 2
    ledger.read()
    assert len(read) == 2
    append(fresh, event(0, 100))
    ledger.read()
    assert len(read) == 3
    monkeypatch.setattr(metrics, "BUDGETS_SECONDS", -1.0)
    ledger = Ledger(engine, lambda: 0)
    assert [len(ledger.read().unread) for _ in range(3)] == [1, 0, 0]


def test_a_key_that_is_limited_is_told_of_its_datasets_alone(engine: Engine, serve: Serve) -> None:
    terms = Terms(datasets=frozenset({"letters"}))
    with transaction(engine) as connection:
        admin = bearer(create_key(connection, name="admin", scope=Role.ADMIN))
        viewer = create_key(connection, name="viewer", scope=Role.VIEWER, terms=terms)
    with serve(new=True) as address, httpx.Client(base_url=address, headers=AS_ADMIN) as api:
        for name in ("letters", "zebras"):
            for path, body in (("datasets", dataset(name, budget=BUDGET)),
                               ("runs", run(f"{name}-run", dataset=name))):  # fmt: skip
                assert api.post(f"/v1/{path}", json=body, headers=admin).status_code == 201
        change = {"frozen": True, "reason": "why"}
        match = admin | {"if-match": '"1"'}
        answer = api.patch("/v1/datasets/zebras", json=change, headers=match)
        assert answer.status_code == 200
        found, whole = Scrape(api, **bearer(viewer)), Scrape(api, **admin)
        assert "zebras" not in found.text
        assert found.labels("dpledger_budget_spent_ratio", "dataset") == {"letters"}
        assert (found.value("dpledger_datasets"), whole.value("dpledger_datasets")) == (1, 2)
        for looked, frozen in ((found, 0), (whole, 1)):
            assert looked.value("dpledger_datasets_frozen") == frozen
        assert (found.value("dpledger_runs", state="active")) == 1
        assert api.get("/metrics").status_code == 401


def test_a_process_says_what_it_is_and_how_it_stands(
    serve: Serve, database_url: str, tmp_path: Path
) -> None:
    signing_key = tmp_path / "signing_key"
    Signer.create(signing_key)
    given = {"signing_key_file": signing_key, "witness_file": tmp_path / "witness"}
    with (
        serve(**given) as address,
        httpx.Client(base_url=address, headers=AS_ADMIN) as api,
    ):
        found = Scrape(api)
        kind = "sqlite" if database_url.startswith("sqlite") else "postgresql"
        assert found.labels("dpledger_build_info", "version") == {accounting.__version__}
        assert found.labels("dpledger_build_info", "database") == {kind}
        assert found.value("dpledger_ready") == 1
        parts = found.labels("dpledger_ready_part", "part")
        assert parts == {"database", "migrations", "log", "writer"}
        assert found.value("dpledger_witness") == 1
        assert 0 <= (found.value("dpledger_witness_age_seconds") or 0) < 60
        assert 0 <= (found.value("dpledger_checkpoint_age_seconds") or 0) < 60
        assert found.value("dpledger_database_errors_total", operation="read") == 0
        assert found.value("dpledger_webhook_attempts_total", outcome="failed") == 0
        assert found.value("dpledger_streams_open") == 0
        assert (found.value("process_resident_memory_bytes") or 0) > 0


def test_two_applications_count_apart(database_url: str, engine: Engine) -> None:
    states = [create_app(Settings(database_url=database_url)).state for _ in range(2)]
    states[0].measures.refused("conflict")
    told = [
        one.value
        for state in states
        for family in state.measures.families()
        for one in family.samples
        if one.labels.get("problem") == "conflict"
    ]
    assert told == [1, 0]
    for state in states:
        state.engine.dispose()


def test_counting_an_answer_costs_microseconds() -> None:
    measures = Measures()
    measures.answered("/v1/runs/{run}/events", "POST", 201, 0.001)
    loop = asyncio.new_event_loop()
    started = loop.time()
    for _ in range(1000):
        measures.answered("/v1/runs/{run}/events", "POST", 201, 0.001)
    assert loop.time() - started < 0.1  # a hundred each, on the slowest machine
    loop.close()


def test_what_threads_count_at_once_is_all_there() -> None:
    measures = Measures()

    def count() -> None:
        for _ in range(500):
            measures.wrote(committed=1, refused=0, seconds=0.001)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (found,) = (one for one in measures.families() if one.name == "dpledger_writer_requests")
    assert {one.labels["outcome"]: one.value for one in found.samples}["committed"] == 2000
