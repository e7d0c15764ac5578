"""An envelope with a Renyi filter beside its items, which holds what they do not."""

import httpx
import pytest

from service.ledger.budgets import cost_cache
from tests.service.samples import BUDGET, FULL, run
from tests.service.test_envelopes import RATE, charge, create, envelope, gaussian, item, state
from tests.service.test_reservations import reserve
from tests.service.test_settings_changes import change


def test_an_order_beside_the_items_holds_steps_outside_with_all_before_them(
    api: httpx.Client,
) -> None:
    limit = envelope(item(2.0, RATE, 100), orders=[12.0])
    assert create(api, limit).status_code == 201
    assert api.post("/v1/runs", json=run()).status_code == 201
    (weight,) = state(api)["filter"]["weights"]
    assert state(api)["filter"]["orders"] == [12.0]
    assert 0.9 < weight < 1  # the items need little of delta at epsilon 3
    assert charge(api, 0, 50, 2.0, RATE).status_code == 201
    inside = state(api)
    assert (inside["spent"], inside["remaining_steps"], inside["order"]) == (3.0, 50, None)
    assert inside["share"] < 0.5  # of what the filter holds; the items say half

    assert charge(api, 50, 10, 1.9, RATE).json()["verdict"] == "within"
    outside = state(api)
    assert (outside["spent"], outside["remaining_steps"], outside["order"]) == (3.0, 0, 12.0)
    assert outside["share"] > inside["share"]
    assert [one["remaining"] for one in outside["items"]] == [0]
    explained = api.get("/v1/datasets/data/explain").json()
    assert [one["share"] for one in explained["runs"]] == [1.0]
    page = api.get("/datasets/data").text
    assert "the items hold no further steps" in page
    refused = charge(api, 60, 10_000, 1.9, RATE)
    assert refused.status_code == 409
    assert "reason" not in refused.json()["failing_scopes"][0]  # no item would help now
    fit = refused.json()["admissible_steps"]
    alone = BUDGET | {"delta": 1e-5 * weight, "orders": [12.0]}
    assert create(api, alone, "alone").status_code == 201
    assert api.post("/v1/runs", json=run("other", dataset="alone")).status_code == 201
    assert charge(api, 0, 50, 2.0, RATE, run="other").status_code == 201
    same = charge(api, 50, 10_010, 1.9, RATE, run="other").json()["admissible_steps"]
    assert same - 10 == fit  # what the filter on that delta holds of all the steps
    assert charge(api, 60, fit, 1.9, RATE).status_code == 201
    assert charge(api, 60 + fit, 1, 2.0, RATE).status_code == 409


def test_items_that_need_all_of_delta_leave_none_to_an_order(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = create(api, envelope(item(1.6260, RATE, 400), orders=[12.0]), "tight")
    assert tight.status_code == 201
    (weight,) = tight.json()["budget"]["filter"]["weights"]
    assert 0 < weight < 0.1
    monkeypatch.setattr(cost_cache, "unused_delta", lambda *_, **__: 0.0)
    refused = create(api, envelope(item(1.6261, RATE, 400), orders=[12.0]))
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["location"] == "body.budget.orders"


def test_an_order_beside_the_items_is_kept_and_given_up_before_the_first_answer(
    api: httpx.Client,
) -> None:
    assert create(api, envelope(item(2.0, RATE, 100), orders=[12.0])).status_code == 201
    kept = change(api, 1, budget=BUDGET | {"epsilon": 2.9}).json()["budget"]
    assert (kept["epsilon"], kept["filter"]["orders"]) == (2.9, [12.0])
    given_up = change(api, 2, budget=envelope(item(2.0, RATE, 100))).json()["budget"]
    assert given_up["filter"]["orders"] == []
    other = change(api, 3, budget=envelope(item(2.0, RATE, 90), orders=[9.0])).json()["budget"]
    assert other["filter"]["orders"] == [9.0]


def test_what_is_reserved_outside_takes_no_steps_from_items(api: httpx.Client) -> None:
    limit = envelope(item(20.0, FULL, 3), item(10.0, FULL, 3), orders=[8.0])
    assert create(api, limit).status_code == 201
    assert api.post("/v1/runs", json=run()).status_code == 201
    assert charge(api, 0, 5, 20.0, FULL).status_code == 201
    ahead = {"mechanism": gaussian(9.0), "sampling": FULL}
    assert reserve(api, "ahead", 1, event=ahead).status_code == 201
    assert [(one["used"], one["reserved"]) for one in state(api)["items"]] == [(3, 0), (2, 0)]
    assert charge(api, 5, 1, 9.0, FULL).status_code == 201
    assert [(one["used"], one["reserved"]) for one in state(api)["items"]] == [(3, 0), (2, 0)]
