"""What a branch says of the order of its records, and what it costs where it says nothing."""

from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from service.guarantees.event_counts import run_counts
from service.guarantees.recorded_facts import refold_run
from service.ledger.lookups import dataset_of, find_run
from service.storage.engine import snapshot
from tests.service.samples import WRITER, Json, append, event, setup

NULL: Json = {"neighboring_relation": "replace_special"}
NOISE: Json = {"kind": "gaussian", "noise_multiplier": 1.0}
CYCLIC: Json = {"kind": "cyclic", "batch_size": 6000, "steps_per_pass": 10}


def opened(api: httpx.Client, from_step: int, **given: Any) -> httpx.Response:
    body = {"name": "again", "writer": WRITER, "from_step": from_step} | given
    return api.post("/v1/runs/run/branches", json=body)


def step(first_step: int, steps: int, **given: Any) -> Json:
    return event(first_step, steps, **({"mechanism": NOISE, "sampling": CYCLIC} | given))


def epsilon(api: httpx.Client, **asked: Any) -> float:
    answer = api.get("/v1/runs/run/guarantee", params={"delta": 1e-5} | asked)
    assert answer.status_code == 200, answer.text
    found: float = answer.json()["epsilon"]
    return found


@pytest.mark.parametrize(
    ("order", "expected"), [("fresh", 6.57), ("continued", 8.39), (None, 8.39)]
)
def test_a_branch_inside_a_pass_counts_the_rest_of_an_order_that_was_used(
    api: httpx.Client, engine: Engine, order: str | None, expected: float
) -> None:
    setup(api, dataset_given=NULL)
    append(api, step(0, 10))
    said = {} if order is None else {"order": order}
    answer = opened(api, 5, **said)
    assert answer.status_code == 201
    assert answer.json()["order"] == order
    assert append(api, step(5, 10), branch="again").status_code == 201
    assert epsilon(api) == pytest.approx(expected, abs=0.005)
    assert epsilon(api, branch="again") <= epsilon(api)
    with snapshot(engine) as connection:
        run = find_run(connection, "run")
        size = dataset_of(connection, run).dataset_size
        assert (
            refold_run(connection, run, size).passes == run_counts(connection, run.id, size).passes
        )
    document = api.get("/v1/runs/run/ledger").json()
    assert document["branches"][0].get("order") == order
    offline = api.post(
        "/v1/plan", json={**NULL, "dataset_size": 60000, "delta": 1e-5,
                          "events": [step(0, 20 if order == "fresh" else 30)]}
    )  # fmt: skip
    assert offline.json()["epsilon"] == pytest.approx(epsilon(api), rel=1e-9)


def test_what_was_said_of_the_order_is_said_again_or_is_a_conflict(api: httpx.Client) -> None:
    setup(api, dataset_given=NULL)
    append(api, step(0, 10))
    assert opened(api, 5, order="continued").status_code == 201
    assert opened(api, 5, order="continued").status_code == 200
    for other in ({}, {"order": "fresh"}):
        assert opened(api, 5, **other).status_code == 409
    refused = opened(api, 5, name="other", order="old")
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["location"] == "body.order"


def test_the_order_is_in_the_log(api: httpx.Client) -> None:
    setup(api, dataset_given=NULL)
    append(api, step(0, 10))
    opened(api, 5, order="continued")
    acts = api.get("/v1/datasets/data/acts").json()["acts"]
    told = {one["content"]["branch"]: one["content"]["order"]
            for one in acts if one["kind"] == "branch"}  # fmt: skip
    assert told == {"main": None, "again": "continued"}


@pytest.mark.parametrize("order", ["fresh", "continued", None])
def test_a_correction_on_a_branch_covers_both_accounts(
    api: httpx.Client, order: str | None
) -> None:
    budget = {"epsilon": 500.0, "delta": 1e-5}
    setup(api, dataset_given=NULL | {"budget": budget})
    append(api, step(0, 10))
    opened(api, 5, **({} if order is None else {"order": order}))
    append(api, step(5, 25), branch="again")
    quiet = {"kind": "gaussian", "noise_multiplier": 0.5}
    wrong = {"branch": "again", "first_step": 12, "steps": 4, "mechanism": quiet,
             "sampling": CYCLIC, "reason": "half the noise"}  # fmt: skip
    assert api.post("/v1/runs/run/corrections", json=wrong).status_code == 201
    spent = api.get("/v1/datasets/data").json()["budget"]["spent"]
    read = api.get("/v1/runs/run/guarantee", params={"delta": 1e-5}).json()
    assert spent >= max(read["epsilon"], read["corrected_epsilon"]) * 0.999
