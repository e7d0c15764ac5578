"""Filters over HTTP: chosen with a budget, told with it, and as generous as they say."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.filters import KINDS, UNION_ORDERS
from tests.service.samples import FULL, POISSON, Json, append, dataset, event, run
from tests.service.test_reservations import reserve

BOX: Json = {"kind": "approximate_dp", "epsilon": 0.05, "delta": 1e-9}
LAPLACE: Json = {"kind": "laplace", "noise_multiplier": 30.0}
CYCLIC: Json = {"kind": "cyclic", "batch_size": 6000, "steps_per_pass": 10}  # ten steps a pass


def gaussian(noise: float) -> Json:
    return {"kind": "gaussian", "noise_multiplier": noise}


# What each filter counts, so that a few to a few thousand steps fit in (3, 1e-5).
EVENTS: dict[str, list[tuple[Json, Json]]] = {
    "fixed_order_renyi": [
        (gaussian(30.0), FULL), (gaussian(1.3), POISSON), (LAPLACE, FULL), (gaussian(40.0), CYCLIC),
    ],
    "union_of_orders": [
        (gaussian(30.0), FULL), (gaussian(1.3), POISSON), (LAPLACE, FULL), (gaussian(40.0), CYCLIC),
    ],
    "gaussian_dp": [(gaussian(30.0), FULL), (gaussian(50.0), POISSON), (gaussian(40.0), CYCLIC)],
    "approximate_dp": [(BOX, FULL), (LAPLACE, FULL), (BOX, POISSON)],
}  # fmt: skip


def budget(kind: str, **given: Any) -> Json:
    return {"epsilon": 3.0, "delta": 1e-5, "filter": kind} | given


def create(api: httpx.Client, name: str, limit: Json, **given: Any) -> httpx.Response:
    accept = ["published", "derived", "declared"]
    settings_ = {"budget": limit, "accept": accept, "neighboring_relation": "replace_special"}
    return api.post("/v1/datasets", json=dataset(name, **settings_ | given))


def state(api: httpx.Client, name: str = "data") -> Any:
    return api.get(f"/v1/datasets/{name}").json()["budget"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_budget_says_which_filter_holds_it(api: httpx.Client, kind: str) -> None:
    answer = create(api, "data", budget(kind))
    assert answer.status_code == 201, answer.text
    found = answer.json()["budget"]
    assert found["filter"]["kind"] == kind
    assert found["filter"]["status"] == ("derived" if kind == "union_of_orders" else "published")
    assert found["filter"]["theorem"]
    orders, weights = found["filter"]["orders"], found["filter"]["weights"]
    several = {"fixed_order_renyi": 1, "union_of_orders": len(UNION_ORDERS)}
    assert len(orders) == several.get(kind, 0)
    assert sum(weights) <= 1
    assert (found["revision"], found["delta_share"], found["valid_for"]) == (0, 1, "adaptive")
    assert (found["spent"], found["reserved"], found["remaining"]) == (0, 0, 3.0)
    assert found["overdrawn"] is False
    assert found["order"] in ([*orders] or [None])


def test_a_filter_whose_theorem_is_not_accepted_is_refused(api: httpx.Client) -> None:
    answer = create(api, "data", budget("union_of_orders"), accept=["published"])
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["location"].endswith("budget.filter")
    assert api.get("/v1/datasets/data").status_code == 404


@pytest.mark.parametrize(
    ("kind", "orders"),
    [
        ("fixed_order_renyi", [2.0, 3.0]),
        ("fixed_order_renyi", [1.0]),
        ("union_of_orders", [2.0, 2.0]),
        ("union_of_orders", [2000.0]),
        ("gaussian_dp", [2.0]),
        ("approximate_dp", [2.0]),
    ],
)
def test_orders_that_a_filter_has_not_are_refused(
    api: httpx.Client, kind: str, orders: list[float]
) -> None:
    answer = create(api, "data", budget(kind, orders=orders))
    assert answer.status_code == 422
    assert "budget.orders" in answer.json()["errors"][0]["location"]


def test_orders_are_kept_as_they_were_given(api: httpx.Client) -> None:
    create(api, "one", budget("fixed_order_renyi", orders=[5.5]))
    assert state(api, "one")["filter"]["orders"] == [5.5]
    create(api, "two", budget("union_of_orders", orders=[4.0, 16.0]))
    assert state(api, "two")["filter"]["orders"] == [4.0, 16.0]


def test_the_golden_counts_of_the_filters_hold_over_http(api: httpx.Client) -> None:
    found = {}
    for kind in ("union_of_orders", "gaussian_dp"):
        name = kind.replace("_", "-")
        create(api, name, budget(kind), neighboring_relation="add_or_remove_one")
        api.post("/v1/runs", json=run(name, dataset=name))
        asked = event(0, 1000, mechanism=gaussian(10.0), sampling=FULL)
        found[kind] = append(api, asked, run=name, mode="charge").json()["admissible_steps"]
    assert found == {"union_of_orders": 36, "gaussian_dp": 51}


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@pytest.mark.parametrize("kind", KINDS)
@given(
    spent=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=4),
    wanted=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    held=st.integers(0, 5),
    number=st.integers(0, 10**12),
)
def test_as_many_steps_fit_as_a_refusal_says(
    api: httpx.Client,
    kind: str,
    spent: list[tuple[int, int]],
    wanted: list[int],
    held: int,
    number: int,
) -> None:
    name = f"d{number}"
    made = create(api, name, budget(kind))
    if made.status_code == 200:  # hypothesis may ask again
        return
    api.post("/v1/runs", json=run(name, dataset=name))
    events, first = EVENTS[kind], 0
    for index, steps in spent:
        mechanism, sampling = events[index % len(events)]
        told = append(api, event(first, steps, mechanism=mechanism, sampling=sampling), run=name)
        assert told.json()["verdict"] == "within"
        first += steps
    if held:
        ahead = {"mechanism": events[0][0], "sampling": events[0][1], "steps": held}
        api.post("/v1/runs", json=run(f"{name}.held", dataset=name))
        answer = reserve(api, f"{name}.lease", held, run_name=f"{name}.held", event=ahead)
        assert answer.status_code == 201, answer.text
    asked = []
    for at, index in enumerate(wanted):
        mechanism, sampling = events[index % len(events)]
        steps = 7 if at < len(wanted) - 1 else 10**8
        asked.append(event(first + 7 * at, steps, mechanism=mechanism, sampling=sampling))
    refused = append(api, *asked, run=name, mode="charge")
    assert refused.status_code == 409, refused.text
    fits = refused.json()["admissible_steps"]
    before = state(api, name)
    assert not _charge_leading(api, name, asked, fits + 1)
    assert state(api, name) == before
    assert _charge_leading(api, name, asked, fits)
    after = state(api, name)
    assert not after["overdrawn"]
    assert after["spent"] + after["reserved"] <= 3.0


def _charge_leading(api: httpx.Client, name: str, asked: list[Json], steps: int) -> bool:
    """Whether the first steps of what was asked are admitted."""
    leading = []
    for one in asked:
        count = min(one["steps"], steps)
        steps -= count
        if count:
            leading.append(one | {"steps": count})
    return not leading or append(api, *leading, run=name, mode="charge").status_code == 201


@pytest.mark.parametrize(
    ("kind", "mechanism", "sampling"),
    [
        ("fixed_order_renyi", {"kind": "none"}, FULL),
        ("gaussian_dp", BOX, FULL),
        ("gaussian_dp", LAPLACE, FULL),
        ("approximate_dp", gaussian(5.0), FULL),
        ("union_of_orders", {"kind": "none"}, FULL),
    ],
)
def test_what_a_filter_cannot_count_is_refused_and_if_told_is_beyond_every_limit(
    api: httpx.Client, kind: str, mechanism: Json, sampling: Json
) -> None:
    create(api, "data", budget(kind))
    api.post("/v1/runs", json=run())
    step = event(0, 1, mechanism=mechanism, sampling=sampling)
    refused = append(api, step, mode="charge")
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/unsupported-event")
    assert refused.json()["location"] == "body.events[0]"
    lines = {"content-type": "application/x-ndjson"}
    told = api.post("/v1/runs/run/events?mode=charge", content=json.dumps(step), headers=lines)
    assert (told.json()["location"], told.json()["detail"][:8]) == ("line 1", "line 1: ")
    assert state(api)["overdrawn"] is False
    assert append(api, step).json()["verdict"] == "overdraft"
    found = state(api)
    assert (found["overdrawn"], found["spent"], found["remaining"]) == (True, None, 0)
    known, where = EVENTS[kind][0]
    frozen = append(api, event(1, 1, mechanism=known, sampling=where), mode="charge")
    assert (frozen.status_code, frozen.json()["admissible_steps"]) == (409, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_runs_own_budget_is_held_by_the_filter_it_names(api: httpx.Client, kind: str) -> None:
    create(api, "data", {"epsilon": 50.0, "delta": 1e-5, "filter": kind})
    own = budget(kind, epsilon=0.5)
    answer = api.post("/v1/runs", json=run(budget=own))
    assert answer.status_code == 201, answer.text
    assert answer.json()["budget"]["filter"]["kind"] == kind
    mechanism, sampling = EVENTS[kind][0]
    asked = event(0, 10**6, mechanism=mechanism, sampling=sampling)
    refused = append(api, asked, mode="charge").json()
    assert "run:run" in {scope["scope"] for scope in refused["failing_scopes"]}
    fits = refused["admissible_steps"]
    if fits:
        assert append(api, asked | {"steps": fits}, mode="charge").status_code == 201
    assert append(api, asked | {"first_step": fits, "steps": 1}, mode="charge").status_code == 409
    spent = api.get("/v1/runs/run").json()["budget"]["spent"]
    assert (spent > 0) == (fits > 0)
    assert spent <= 0.5
