"""What a new budget counts at, what it would admit, and the order of the plan that it is for."""

import re
from typing import Any

import httpx
import pytest

from accounting.filters import default_order
from service.formatting import percent_up, up
from tests.service.samples import append, event, run
from tests.service.test_listing import words

EVENT: dict[str, Any] = {
    "steps": 1000,
    "mechanism": {"kind": "gaussian", "noise_multiplier": 0.8},
    "sampling": {"kind": "poisson", "sampling_probability": 0.001},
}
FULL: dict[str, Any] = {
    "steps": 10,
    "mechanism": {"kind": "gaussian", "noise_multiplier": 20.0},
    "sampling": {"kind": "full"},
}


def asked(epsilon: float | None, **more: Any) -> dict[str, Any]:
    budget = None if epsilon is None else {"epsilon": epsilon, "delta": 1e-5}
    return {
        "name": "scans",
        "dataset_size": 60_000,
        "neighboring_relation": "add_or_remove_one",
        "privacy_unit": "one patient",
        "budget": budget,
        **more,
    }


def created(api: httpx.Client, epsilon: float | None, **more: Any) -> dict[str, Any]:
    response = api.post("/v1/datasets", json=asked(epsilon, **more))
    assert response.status_code == 201, response.text
    found: dict[str, Any] = response.json()
    return found


def test_a_budget_counts_at_the_default_order(api: httpx.Client) -> None:
    answer = created(api, 1.0)
    assert answer["budget"]["order"] == default_order(epsilon=1.0, delta=1e-5) == 12


def test_creation_answers_what_three_ordinary_trainings_would_get(api: httpx.Client) -> None:
    answer = created(api, 4.0)
    steps = {one["name"]: one["steps"] for one in answer["would_admit"]}
    assert len(steps) == 3
    assert min(steps.values()) > 0
    assert answer["warnings"] == []
    again = api.post("/v1/datasets", json=asked(4.0))
    assert again.status_code == 200
    assert again.json() == answer


def test_creation_warns_where_an_ordinary_training_gets_no_step(api: httpx.Client) -> None:
    answer = created(api, 1.0)
    none = [one["name"] for one in answer["would_admit"] if one["steps"] == 0]
    assert none == ["small batches"]
    (warning,) = answer["warnings"]
    assert "no step of small batches" in warning
    assert "order 12" in warning
    assert "`for`" in warning


def test_without_a_budget_nothing_is_answered(api: httpx.Client) -> None:
    answer = created(api, None)
    assert answer["would_admit"] == answer["warnings"] == []


def test_a_budget_for_a_plan_counts_at_the_order_that_holds_most_of_it(api: httpx.Client) -> None:
    answer = created(api, 1.0, **{"for": {"events": [FULL]}})
    assert answer["budget"]["filter"]["orders"] == [18]
    again = api.post("/v1/datasets", json=asked(1.0, **{"for": {"events": [FULL]}}))
    assert again.status_code == 200
    assert api.post("/v1/datasets", json=asked(1.0)).status_code == 409
    assert api.get("/v1/datasets/scans").json()["budget"]["order"] == 18


def test_the_order_of_a_plan_stays_when_the_limit_changes(api: httpx.Client) -> None:
    created(api, 1.0, **{"for": {"events": [FULL]}})
    change = {"reason": "a second study", "budget": {"epsilon": 2.0, "delta": 1e-5}}
    response = api.patch("/v1/datasets/scans", json=change, headers={"If-Match": '"1"'})
    assert response.status_code == 200, response.text
    assert response.json()["budget"]["order"] == 18


@pytest.mark.parametrize(
    "body",
    [
        asked(None, **{"for": {"events": [EVENT]}}),
        asked(1.0, **{"for": {"events": []}}),
        asked(0.01, **{"for": {"events": [EVENT]}}) | {"budget": {"epsilon": 1e-9, "delta": 1e-9}},
        asked(1.0, **{"for": {"events": [EVENT]}})
        | {"budget": {"epsilon": 1.0, "delta": 1e-5, "orders": [8.0]}},
        asked(1.0, **{"for": {"events": [EVENT]}})
        | {"budget": {"epsilon": 1.0, "delta": 1e-5, "filter": "gaussian_dp"}},
    ],
    ids=["no budget", "no events", "no order", "orders", "another filter"],
)
def test_a_plan_that_chooses_no_order_is_refused(api: httpx.Client, body: dict[str, Any]) -> None:
    response = api.post("/v1/datasets", json=body)
    assert response.status_code == 422, response.text
    assert api.get("/v1/datasets/scans").status_code == 404


def test_a_refusal_names_the_order_that_does_not_suit_and_one_that_does(api: httpx.Client) -> None:
    body = asked(1.0)
    created(api, None, budget=body["budget"] | {"orders": [18.0]})
    api.post("/v1/runs", json=run(dataset="scans"))
    step = event(0, 1, mechanism={"kind": "gaussian", "noise_multiplier": 1.1})
    step["sampling"] = {"kind": "poisson", "sampling_probability": 0.004}
    refusal = append(api, step, mode="charge")
    assert refusal.status_code == 409
    detail = refusal.json()["detail"]
    assert "counts at order 18, which suits full batches: of such steps it holds 0" in detail
    assert "at order 12 it would hold 1,971" in detail
    assert "`orders`" in detail


def test_the_order_that_is_named_is_that_of_passes_and_holds_so_many_steps(
    api: httpx.Client,
) -> None:
    step = event(0, 10**6, mechanism={"kind": "gaussian", "noise_multiplier": 20.0})
    step["sampling"] = {"kind": "cyclic", "batch_size": 20_000, "steps_per_pass": 3}
    for name, order in (("scans", 64.0), ("better", 7.5)):
        body = asked(3.0) | {"name": name, "neighboring_relation": "replace_special"}
        body["budget"]["orders"] = [order]
        assert api.post("/v1/datasets", json=body).status_code == 201
        api.post("/v1/runs", json=run(name, dataset=name))
    refusal = append(api, step, run="scans", mode="charge").json()
    assert refusal["admissible_steps"] == 105
    assert (
        "of such steps it holds 105 in all, and at order 7.5 it would hold 537."
        in (refusal["detail"])
    )
    refusal = append(api, step, run="better", mode="charge").json()
    assert refusal["admissible_steps"] == 537


def test_a_refusal_says_nothing_of_an_order_that_suits(api: httpx.Client) -> None:
    created(api, 1.0, **{"for": {"events": [FULL]}})
    api.post("/v1/runs", json=run(dataset="scans"))
    steps = event(0, 10_000, mechanism=FULL["mechanism"], sampling=FULL["sampling"])
    refusal = append(api, steps, mode="charge")
    assert refusal.status_code == 409
    assert "order" not in refusal.json()["detail"]


def test_a_plan_is_told_what_a_budget_holds_of_it_and_at_which_order(api: httpx.Client) -> None:
    plan = {
        "neighboring_relation": "add_or_remove_one",
        "delta": 1e-5,
        "events": [FULL | {"steps": 100}],
    }
    orders = api.post("/v1/plan", json=plan).json()["orders"]
    assert orders["default_order"] < orders["best_order"]
    assert 0 < orders["default_share"] < orders["best_share"] <= 1
    assert f"orders: [{orders['best_order']:g}]" in orders["remedy"]
    sampled = api.post("/v1/plan", json=plan | {"events": [EVENT]}).json()["orders"]
    assert sampled is None or sampled["default_share"] <= sampled["best_share"]


def test_an_explanation_names_an_order_that_would_hold_more(api: httpx.Client) -> None:
    created(api, None, budget={"epsilon": 1.0, "delta": 1e-5, "orders": [12.0]})
    api.post("/v1/runs", json=run(dataset="scans"))
    steps = event(0, 1000, mechanism=EVENT["mechanism"], sampling=EVENT["sampling"])
    assert append(api, steps, mode="record").status_code == 201
    url = "/v1/datasets/scans/explain"
    advice = api.get(url).json()["order_advice"]
    assert "dataset scans counts at order 12" in advice
    better = float(advice.split("; at order ")[1].split(" ")[0])
    assert better < 12
    assert "At order 12 the recorded steps use " in advice
    assert "they would use " in advice
    page = api.get("/datasets/scans").text
    assert "counts at order 12" in page


def test_a_limit_that_is_exceeded_many_times_says_by_what_and_why(api: httpx.Client) -> None:
    created(api, None, budget={"epsilon": 1.0, "delta": 1e-5, "orders": [32.0]})
    api.post("/v1/runs", json=run(dataset="scans"))
    louder = {"kind": "gaussian", "noise_multiplier": 0.6}
    assert append(api, event(0, 200, mechanism=louder, sampling=EVENT["sampling"])).is_success
    budget = api.get("/v1/datasets/scans").json()["budget"]
    assert budget["share"] > 10
    said = {path: words(api.get(path).text) for path in ("/", "/datasets", "/datasets/scans")}
    times = f"{up(budget['share'], 3)} times"
    for text in said.values():
        assert times in text
        assert percent_up(budget["share"]).replace("\u202f", " ") not in text
    assert f"{times} the capacity at ε 1" in said["/"]
    assert f"{times} the capacity at ε 1" in said["/datasets"]
    assert (
        f"bounds ε by {up(budget['spent'])}, counted at Rényi order 32" in said["/datasets/scans"]
    )
    assert "its order is then chosen for them" in said["/datasets/scans"]
    axis = re.findall(r'class="layers-word" x="0"[^>]*>([^<]*)<', api.get("/datasets/scans").text)
    assert axis
    assert all(re.fullmatch(r"\d+ times", mark) for mark in axis)


def test_an_explanation_says_nothing_of_an_order_that_suits(api: httpx.Client) -> None:
    created(api, 1.0, **{"for": {"events": [FULL]}})
    api.post("/v1/runs", json=run(dataset="scans"))
    steps = event(0, 3, mechanism=FULL["mechanism"], sampling=FULL["sampling"])
    assert append(api, steps, mode="charge").status_code == 201
    assert api.get("/v1/datasets/scans/explain").json()["order_advice"] is None


def test_a_budget_for_a_plan_that_no_order_holds_is_its_envelope(api: httpx.Client) -> None:
    """A training that was calibrated to the budget, and fits at no order."""
    step = {
        "steps": 10_000,
        "mechanism": {"kind": "gaussian", "noise_multiplier": 0.6299},
        "sampling": {"kind": "poisson", "sampling_probability": 0.001},
    }
    answer = created(api, 2.0, **{"for": {"events": [step]}})
    assert answer["budget"]["filter"]["kind"] == "envelope"
    assert answer["budget"]["remaining_steps"] == 10_000
    assert api.post("/v1/runs", json=run(dataset="scans")).status_code == 201
    sent = {"first_step": 0, **step}
    assert append(api, sent, mode="charge").status_code == 201
    longer = asked(2.0, **{"for": {"events": [step | {"steps": 20_000}]}}) | {"name": "longer"}
    held = api.post("/v1/datasets", json=longer).json()["budget"]["filter"]
    assert held["kind"] == "fixed_order_renyi"
