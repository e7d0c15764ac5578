"""Opening balances: what was spent before the ledger counts from its first day."""

from typing import Any

import httpx
import pytest

from service.ledger.datasets import NAME_LENGTH, opening_name
from tests.service.samples import BUDGET, FULL, POISSON, Json, append, dataset, event, run, setup

QUIET: Json = {"kind": "gaussian", "noise_multiplier": 20.0}
LOUD: Json = {"kind": "gaussian", "noise_multiplier": 2.0}
BOX: Json = {"kind": "approximate_dp", "epsilon": 0.1, "delta": 1e-9}


def spent(steps: int, *, mechanism: Json = QUIET, sampling: Json = FULL) -> Json:
    return {"steps": steps, "mechanism": mechanism, "sampling": sampling}


def opened(api: httpx.Client, *events: Json, **given: Any) -> httpx.Response:
    body = dataset("data", **({"budget": BUDGET} | given), opening_balance=list(events))
    return api.post("/v1/datasets", json=body)


def state(api: httpx.Client, name: str = "data") -> Any:
    return api.get(f"/v1/datasets/{name}").json()


def test_what_was_spent_before_is_a_closed_run_that_counts_like_any_other(
    api: httpx.Client,
) -> None:
    answer = opened(api, spent(5), spent(7, mechanism=LOUD, sampling=POISSON))
    assert answer.status_code == 201, answer.text
    assert (answer.json()["sequence"], answer.json()["runs"]) == (2, 1)
    found = api.get("/v1/runs/opening.data").json()
    assert (found["state"], found["steps"], found["next_step"]) == ("finished", 12, 12)
    ledger = api.get("/v1/runs/opening.data/ledger").json()["events"]
    quiet = event(0, 5, mechanism=QUIET, sampling=FULL)
    assert ledger == [quiet, event(5, 7, mechanism=LOUD, sampling=POISSON)]
    api.post("/v1/datasets", json=dataset("other", budget=BUDGET))
    api.post("/v1/runs", json=run("there", dataset="other"))
    append(api, quiet, event(5, 7, mechanism=LOUD, sampling=POISSON), run="there")
    assert state(api)["budget"] == state(api, "other")["budget"]
    readings = [
        api.get(f"/v1/datasets/{name}/guarantee").json()["epsilon"] for name in ("data", "other")
    ]
    assert readings[0] == readings[1] > 0
    (told,) = api.get("/v1/datasets/data/explain").json()["runs"]
    assert told["run"] == "opening.data"


def test_the_same_request_again_records_nothing_twice(api: httpx.Client) -> None:
    first = opened(api, spent(5))
    again = opened(api, spent(5))
    assert (again.status_code, again.json()) == (200, first.json())
    assert opened(api, spent(6)).status_code == 409
    assert first.json().items() >= state(api).items()


def test_one_beyond_the_limit_begins_overdrawn_and_frozen(api: httpx.Client) -> None:
    answer = opened(api, spent(1000, mechanism=LOUD))
    assert answer.status_code == 201
    assert answer.json()["budget"]["overdrawn"]
    assert answer.json()["remaining"] == 0
    assert api.post("/v1/runs", json=run()).status_code == 201
    quiet = event(0, 1, mechanism=QUIET, sampling=FULL)
    refused = append(api, quiet, mode="charge")
    assert (refused.status_code, refused.json()["admissible_steps"]) == (409, 0)
    assert append(api, quiet).json()["verdict"] == "overdraft"
    found = api.get("/v1/datasets/data/incidents").json()["incidents"]
    assert "overdraft" in [one["kind"] for one in found]


def test_somebody_elses_figure_is_held_by_a_filter_that_takes_it(api: httpx.Client) -> None:
    limit = {"epsilon": 3.0, "delta": 1e-5, "filter": "approximate_dp"}
    answer = opened(api, spent(10, mechanism=BOX), budget=limit)
    assert answer.status_code == 201
    budget = answer.json()["budget"]
    assert 0 < budget["spent"] < 3.0
    assert not budget["overdrawn"]
    # An order has room for failures of a millionth of delta only.
    body = dataset("order", budget=BUDGET, opening_balance=[spent(10, mechanism=BOX)])
    order = api.post("/v1/datasets", json=body).json()["budget"]
    assert (order["spent"], order["overdrawn"]) == (None, True)


def test_it_counts_as_an_answer_that_was_seen(api: httpx.Client) -> None:
    opened(api, spent(5))
    change = {"reason": "more", "budget": BUDGET | {"epsilon": 4.0}}
    answer = api.patch("/v1/datasets/data", json=change, headers={"If-Match": '"1"'})
    assert answer.json()["budget"]["revision"] == 1


def test_its_run_is_not_charged_and_its_name_is_taken(api: httpx.Client) -> None:
    opened(api, spent(5))
    more = event(5, 1, mechanism=QUIET, sampling=FULL)
    refused = append(api, more, run="opening.data", mode="charge")
    assert refused.json()["type"] == "/problems/run-finished"
    assert api.post("/v1/runs", json=run("opening.data")).status_code == 409


def test_a_run_of_that_name_stands_in_the_way_and_nothing_is_created(api: httpx.Client) -> None:
    long = opening_name("a" * 63)
    api.post("/v1/datasets", json=dataset("a" * 63, opening_balance=[spent(5)])).raise_for_status()
    other = dataset(long.removeprefix("opening."), opening_balance=[spent(5)])
    refused = api.post("/v1/datasets", json=other)
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/conflict")
    assert long in refused.json()["detail"]
    assert api.get(f"/v1/datasets/{other['name']}").status_code == 404


def test_no_trainer_takes_the_name_that_an_opening_balance_needs(api: httpx.Client) -> None:
    setup(api, dataset_given={"name": "first"}, dataset="first", name="opening")
    refused = api.post("/v1/runs", json=run("opening.data", dataset="first"))
    assert refused.status_code == 422
    (fault,) = refused.json()["errors"]
    assert fault["location"] == "body.name"
    assert "opening." in fault["message"]
    assert api.get("/v1/runs/opening.data").status_code == 404
    assert opened(api, spent(5)).status_code == 201


@pytest.mark.parametrize(
    ("given", "location"),
    [
        ({"first_step": 1}, "body.opening_balance[0].first_step"),
        ({"steps": 0}, "body.opening_balance[0].steps"),
        (
            {"sampling": {"kind": "fixed_size", "batch_size": 60001}},
            "body.opening_balance[0].sampling.batch_size",
        ),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_created(
    api: httpx.Client, given: Json, location: str
) -> None:
    answer = opened(api, spent(5) | given)
    assert (answer.status_code, answer.json()["errors"][0]["location"]) == (422, location)
    assert api.get("/v1/datasets/data").status_code == 404


def test_long_names_that_begin_alike_have_runs_of_their_own() -> None:
    names = ["a" * 62 + end for end in "xy"] + ["a" * 55, "a" * 56]
    found = [opening_name(name) for name in names]
    assert len(set(found)) == len(names)
    assert all(len(name) <= NAME_LENGTH for name in found)
    assert found[2] == "opening." + "a" * 55
