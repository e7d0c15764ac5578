"""What the page of a run says is charged, and which number it tells a reader to rely on."""

import httpx
import pytest
from sqlalchemy import Engine

from service.formatting import percent_up
from service.guarantees.attribution import charge_of_run
from service.ledger import lookups
from service.storage.engine import snapshot
from tests.service.samples import BUDGET, Json, append, event, run, setup

LESS: Json = {"kind": "gaussian", "noise_multiplier": 2.0}


def start(api: httpx.Client, *events: Json) -> None:
    setup(api, dataset_given={"budget": BUDGET | {"epsilon": 50.0}})
    assert append(api, *events).status_code == 201


def test_the_page_says_which_number_to_rely_on(api: httpx.Client) -> None:
    start(api, event(0, 10))
    text = api.get("/runs/run/guarantee").text
    assert "It holds if no step depended on earlier answers. Otherwise rely on what is" in text
    plan = [{key: value for key, value in event(0, 10).items() if key != "first_step"}]
    planned = run("planned", plan=plan, budget={"epsilon": 5.0, "delta": 1e-5})
    assert api.post("/v1/runs", json=planned).status_code == 201
    append(api, event(0, 5), run="planned")
    assert "the whole schedule was registered before" in api.get("/runs/planned/guarantee").text
    append(api, event(5, 5, mechanism=LESS), run="planned")
    assert "The run has left the schedule" in api.get("/runs/planned/guarantee").text


def test_without_a_budget_nothing_is_charged_and_the_page_says_so(api: httpx.Client) -> None:
    setup(api, delta=1e-5)
    append(api, event(0, 10))
    text = api.get("/runs/run/guarantee").text
    assert "Otherwise nothing here holds" in text
    assert "Charged to" not in text


def test_what_runs_are_charged_adds_up_to_what_the_dataset_is(
    api: httpx.Client, engine: Engine
) -> None:
    start(api, event(0, 30), event(30, 10, mechanism=LESS))
    assert api.post("/v1/runs", json=run("other")).status_code == 201
    append(api, event(0, 50), run="other")
    shares = []
    with snapshot(engine) as connection:
        home = lookups.find_dataset(connection, "data")
        for name in ("run", "other"):
            found = charge_of_run(connection, lookups.find_run(connection, name), home)
            assert found is not None
            assert found.share is not None
            shares.append(found.share)
            told = f'<p class="headline">{percent_up(found.share)}</p>'
            assert told in api.get(f"/runs/{name}/guarantee").text
    budget = api.get("/v1/datasets/data").json()["budget"]
    assert sum(shares) == pytest.approx(budget["share"], rel=1e-12)


def test_the_items_of_an_envelope_that_a_run_uses_are_named(api: httpx.Client) -> None:
    item = {key: value for key, value in event(0, 100).items() if key != "first_step"}
    budget = BUDGET | {"filter": "envelope", "envelope": [item | {"name": "team a"}]}
    setup(api, dataset_given={"budget": budget})
    append(api, event(0, 25))
    text = api.get("/runs/run/guarantee").text
    assert "25" in text[text.index("Charged to data") :]
    assert ": 25 of item team a" in text
