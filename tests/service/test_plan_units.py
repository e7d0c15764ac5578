"""What a plan costs a person with several records, over HTTP."""

import httpx
import pytest

from tests.service.samples import Json

STEPS: Json = {
    "mechanism": {"kind": "gaussian", "noise_multiplier": 1.0},
    "sampling": {"kind": "poisson", "sampling_probability": 0.01},
    "steps": 1000,
}
PLAN: Json = {
    "neighboring_relation": "add_or_remove_one", "delta": 1e-5, "events": [STEPS],
    "accept": ["published", "derived"],
}  # fmt: skip


def test_a_plan_is_answered_for_a_person_beside_a_record(api: httpx.Client) -> None:
    record = api.post("/v1/plan", json=PLAN).json()
    assert record["unit"] is None
    answer = api.post("/v1/plan", json=PLAN | {"rows_per_unit": 2})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["epsilon"] == record["epsilon"]
    unit = found["unit"]
    assert (unit["rows"], unit["bound"], unit["status"]) == (2, "poisson-unit", "derived")
    assert unit["epsilon_lower"] <= 3.97909 <= unit["epsilon"] < unit["group_epsilon"]
    alone = api.post("/v1/plan", json=PLAN | {"rows_per_unit": 1}).json()["unit"]
    assert (alone["epsilon"], alone["bound"]) == (record["epsilon"], record["bound"])


def test_a_person_has_no_epsilon_where_derived_bounds_are_not_accepted(api: httpx.Client) -> None:
    plan = {key: value for key, value in PLAN.items() if key != "accept"}
    unit = api.post("/v1/plan", json=plan | {"rows_per_unit": 2}).json()["unit"]
    assert (unit["epsilon"], unit["group_epsilon"], unit["bound"]) == (None, None, None)


def test_the_noise_for_a_record_is_answered_for_a_person_too(api: httpx.Client) -> None:
    open_noise = STEPS | {"mechanism": {"kind": "gaussian"}}
    target = PLAN | {"events": [open_noise], "epsilon": 1.0, "solve_for": "noise_multiplier"}
    found = api.post("/v1/plan", json=target | {"rows_per_unit": 3}).json()
    assert found["epsilon"] <= 1.0 < found["unit"]["epsilon"]


@pytest.mark.parametrize("rows", [0, -1, 10_001, 1.5, "2"])
def test_rows_out_of_range_are_refused_by_their_field(api: httpx.Client, rows: object) -> None:
    refused = api.post("/v1/plan", json=PLAN | {"rows_per_unit": rows})
    assert refused.status_code == 422
    assert "rows_per_unit" in refused.json()["errors"][0]["location"]
