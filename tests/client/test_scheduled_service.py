"""Leases of several kinds against the real service, on both databases: none is lost or doubled."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dpledger_client import BudgetExhausted, Client, Run, event, gaussian, poisson

SAMPLING = poisson(sampling_probability=0.01)
STEPS = 120
BUDGETS: dict[str, dict[str, Any]] = {
    "filter": {"epsilon": 50.0, "delta": 1e-5},
    "envelope": {"epsilon": 50.0, "delta": 1e-5, "filter": "envelope"},
}


def noise(number: int) -> dict[str, Any]:
    return gaussian(noise_multiplier=2.0 + number / 100)


def plan(steps: int = STEPS) -> list[dict[str, Any]]:
    return [event(mechanism=noise(at), sampling=SAMPLING, steps=1) for at in range(steps)]


@pytest.fixture
def client(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("DPLEDGER_SPOOL", str(tmp_path / "spool"))
    with Client(address) as client:
        yield client


def create(client: Client, kind: str) -> None:
    budget = dict(BUDGETS[kind])
    if kind == "envelope":
        budget["envelope"] = plan()
    client.create_dataset(
        "data",
        dataset_size=60000,
        neighboring_relation="add_or_remove_one",
        privacy_unit="example",
        budget=budget,
    )


def start(client: Client, **given: Any) -> Run:
    return client.start_run("run", "data", plan=plan(), delta=1e-5, **given)


def take(run: Run, first: int, end: int) -> None:
    for at in range(first, end):
        run.step(mechanism=noise(at), sampling=SAMPLING)


@pytest.mark.parametrize("kind", BUDGETS)
def test_a_planned_run_records_what_it_took_and_holds_nothing(client: Client, kind: str) -> None:
    create(client, kind)
    with start(client, flush_steps=7) as run:
        take(run, 0, STEPS)
        if kind == "envelope":
            with pytest.raises(BudgetExhausted):
                run.step(mechanism=noise(0), sampling=SAMPLING)
    events = client.ledger("run")["events"]
    assert [(one["first_step"], one["steps"]) for one in events] == [(at, 1) for at in range(STEPS)]
    assert [one["mechanism"] for one in events] == [noise(at) for at in range(STEPS)]
    found = client.dataset("data")
    assert (found["reserved"], found["budget"]["overdrawn"]) == (0, False)
    if kind == "envelope":
        assert [one["used"] for one in found["budget"]["items"]] == [1] * STEPS


@pytest.mark.parametrize("kind", BUDGETS)
def test_a_run_that_stops_early_gives_the_rest_back(client: Client, kind: str) -> None:
    create(client, kind)
    with start(client) as run:
        take(run, 0, 50)
    found = client.dataset("data")
    assert (client.run("run")["steps"], found["reserved"]) == (50, 0)
    if kind == "envelope":
        assert found["budget"]["remaining_steps"] == STEPS - 50


@pytest.mark.parametrize("kind", BUDGETS)
def test_a_killed_run_goes_on_and_no_step_counts_twice(
    client: Client, kind: str, at_exit: Any
) -> None:
    create(client, kind)
    run = start(client, flush_seconds=1e6, flush_steps=10**6)
    take(run, 0, 30)
    at_exit.waiting.clear()
    run._writer.close(complete=False)  # as if it were killed: only the spool knows its steps
    assert client.dataset("data")["reserved"] > 0
    with start(client, resume="must") as run:
        assert run.next_step == 30
        take(run, 30, STEPS)
    found = client.dataset("data")
    assert client.run("run")["steps"] == STEPS
    assert (found["reserved"], found["budget"]["overdrawn"]) == (0, False)
    if kind == "envelope":
        assert found["budget"]["remaining_steps"] == 0


@pytest.mark.parametrize("kind", BUDGETS)
def test_a_detour_from_the_plan_is_leased_by_itself(client: Client, kind: str) -> None:
    create(client, kind)
    loud = noise(STEPS - 1) if kind == "envelope" else gaussian(noise_multiplier=1.0)
    with start(client) as run:
        take(run, 0, 10)
        run.step(mechanism=loud, sampling=SAMPLING)
        take(run, 11, 20)
    events = client.ledger("run")["events"]
    assert events[10]["mechanism"] == loud
    found = client.dataset("data")
    assert (client.run("run")["steps"], found["reserved"]) == (20, 0)
    assert not found["budget"]["overdrawn"]


def test_a_noise_that_changes_without_a_plan_takes_more_steps_than_leases_may_be_open(
    client: Client,
) -> None:
    create(client, "filter")
    with client.start_run("run", "data", delta=1e-5) as run:
        take(run, 0, 300)
    assert client.run("run")["steps"] == 300
    assert client.dataset("data")["reserved"] == 0
