"""What is certified of a plan, before any lock, and what that leaves to the filter behind it."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text

from accounting.accountants import best_bound
from accounting.event_counts import count_events
from accounting.events import Event, Gaussian, NeighboringRelation, Poisson, Span
from accounting.filters import KINDS
from service.errors import BudgetExhaustedError, UnavailableError
from service.ledger import fixed_plans, runs
from service.schemas.requests import NewRun
from service.storage.engine import snapshot, transaction
from tests.service.samples import FULL, POISSON, append, dataset, event, run
from tests.service.test_fixed_plans import (
    DELTA,
    OWN,
    PLAN,
    QUIET,
    WIDE,
    charge,
    of_dataset,
    of_run,
    planned_run,
    step,
)


@pytest.fixture
def limited(api: httpx.Client) -> httpx.Client:
    assert api.post("/v1/datasets", json=dataset(budget=WIDE)).status_code == 201
    return api


def new_run(**given: Any) -> NewRun:
    return NewRun.model_validate(run(**{"plan": PLAN, "budget": OWN} | given))


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_that_takes_all_of_its_budget_leaves_nothing_to_the_filter(
    limited: httpx.Client, engine: Engine, kind: str
) -> None:
    quiet = {"kind": "gaussian", "noise_multiplier": 20.0}
    plan = [{"mechanism": quiet, "sampling": FULL, "steps": 100}]
    new = new_run(plan=plan, budget={"epsilon": 4.0, "delta": DELTA, "filter": kind})
    with transaction(engine) as connection:
        accept = '["declared","derived","published"]'
        connection.execute(text("UPDATE datasets SET accept = :a"), {"a": accept})
        certificate = fixed_plans.certify_plan(connection, new)
        assert certificate is not None
        whole = replace(certificate, epsilon=4.0, delta=DELTA)
        runs.create_run(connection, new, certificate=whole)
    assert of_run(limited)["budget"]["remaining"] == 0
    off = event(0, 1, mechanism=quiet, sampling=POISSON)
    assert charge(limited, off).status_code in (409, 422)
    assert of_run(limited)["on_plan"] is True
    kept = charge(limited, event(0, 100, mechanism=quiet, sampling=FULL)).json()
    assert kept["verdict"] == "within"
    assert append(limited, event(100, 1, mechanism=quiet, sampling=FULL)).json()["verdict"] == (
        "overdraft"
    )
    found = of_run(limited)["budget"]
    assert (found["overdrawn"], found["remaining"], found["delta_share"]) == (True, 0, 0)


def test_a_certificate_under_other_settings_registers_nothing(
    limited: httpx.Client, engine: Engine
) -> None:
    with snapshot(engine) as connection:
        certificate = fixed_plans.certify_plan(connection, new_run())
    accept = '["derived","published"]'
    with transaction(engine) as connection:
        connection.execute(text("UPDATE datasets SET accept = :a"), {"a": accept})
    with pytest.raises(UnavailableError), transaction(engine) as connection:
        runs.create_run(connection, new_run(), certificate=certificate)
    with pytest.raises(UnavailableError), transaction(engine) as connection:
        runs.create_run(connection, new_run())
    assert limited.get("/v1/runs/run").status_code == 404


def test_what_a_certificate_does_not_bound_is_not_registered(
    limited: httpx.Client, engine: Engine
) -> None:
    with snapshot(engine) as connection:
        certificate = fixed_plans.certify_plan(connection, new_run())
    assert certificate is not None
    broken = fixed_plans.PlanCertificate(
        epsilon=float("nan"), delta=0.5, accept=certificate.accept, admissible_steps=3
    )
    with pytest.raises(BudgetExhaustedError) as refusal, transaction(engine) as connection:
        runs.create_run(connection, new_run(), certificate=broken)
    assert refusal.value.extra["admissible_steps"] == 3
    assert certificate.delta < DELTA
    assert certificate.epsilon < 1.9


def test_the_delta_that_a_plan_takes_is_its_own_at_the_budgets_epsilon(
    limited: httpx.Client, engine: Engine
) -> None:
    with snapshot(engine) as connection:
        certificate = fixed_plans.certify_plan(connection, new_run())
    assert certificate is not None
    steps = Event(
        mechanism=Gaussian(noise_multiplier=1.0), sampling=Poisson(sampling_probability=0.01)
    )
    found = best_bound.guarantee(
        count_events([[Span(event=steps, steps=1000)]]),
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        epsilon=1.9,
    )
    assert certificate.delta == found.delta
    planned_run(limited)
    append(limited, step(0, 1, QUIET))
    share = of_run(limited)["budget"]["delta_share"]
    assert share == pytest.approx(1 - certificate.delta / DELTA, rel=1e-12)
    assert share * DELTA + certificate.delta <= DELTA * (1 + 1e-15)


def _register(api: httpx.Client, worker: int) -> list[str]:
    plan, faults = [PLAN[0] | {"steps": 5}], []
    for one in range(5):
        name = f"plan-{worker}-{one}"
        made = planned_run(api, name=name, plan=plan, dataset=("data", "child")[one % 2])
        ended = api.post(f"/v1/runs/{name}:finish", json={"state": "finished"})
        faults += [answer.text for answer in (made, ended) if answer.status_code > 201]
    return faults


def _record(api: httpx.Client, worker: int) -> list[str]:
    answers = [append(api, step(one, 1, QUIET), run=f"busy-{worker}") for one in range(30)]
    return [answer.text for answer in answers if answer.status_code != 201]


def test_registering_and_finishing_never_deadlock_with_those_who_record(
    limited: httpx.Client,
) -> None:
    child = dataset("child", parents=["data"], rows_per_parent_record="at_most_one")
    limited.post("/v1/datasets", json=child)
    for one in range(4):
        limited.post("/v1/runs", json=run(f"busy-{one}", dataset=("data", "child")[one % 2]))
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(work, limited, n) for work in (_register, _record) for n in range(4)]
        assert [fault for job in jobs for fault in job.result()] == []
    assert of_dataset(limited)["reserved"] == 0


def test_a_long_plan_is_reserved_and_followed(limited: httpx.Client) -> None:
    plan = [
        {"mechanism": {"kind": "gaussian", "noise_multiplier": 20 + one / 100}, "sampling": FULL,
         "steps": 1}
        for one in range(200)
    ]  # fmt: skip
    budget = {"epsilon": 5.0, "delta": DELTA}
    answer = planned_run(limited, plan=plan, budget=budget)
    assert answer.status_code == 201, answer.text
    events = [one | {"first_step": first} for first, one in enumerate(plan)]
    assert charge(limited, *events).json()["verdict"] == "within"
    assert (of_run(limited)["on_plan"], of_dataset(limited)["reserved"]) == (True, 0)
