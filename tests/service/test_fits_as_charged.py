"""What is said to fit is what a charge takes, wherever the steps would be recorded."""

from typing import Any

import httpx
import pytest

from accounting.gaussian import gaussian_epsilon
from tests.service.samples import FULL, POISSON, WRITER, Json, append, dataset, event, run, setup
from tests.service.test_fixed_plans import (
    LOUD,
    NOISE,
    OWN,
    PLAN,
    WIDE,
    charge,
    planned_run,
    step,
)
from tests.service.test_reserved_shifts import (
    DELTA,
    GIVEN,
    NEXT,
    QUIET,
    REST,
    SHUFFLE,
    corrected,
    reserved,
)

CLOSE: Json = {"kind": "gaussian", "noise_multiplier": 0.9}
NEW: Json = {"name": "resumed", "writer": WRITER, "from_step": 1}


def ask(api: httpx.Client, *events: Json, **given: Any) -> httpx.Response:
    """Whether steps fit: the next of the run, if nothing else is said."""
    planned = [{key: one[key] for key in one if key != "first_step"} for one in events]
    body = {"events": planned, "run": "run"} | given
    return api.post("/v1/datasets/data/explain", json=body)


def fits(api: httpx.Client, *events: Json, **given: Any) -> int | None:
    """How many steps are said to fit; None for all."""
    answer = ask(api, *events, **given)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return None if found["fits"] else found["fewer_steps"]["value"] or 0


def start(api: httpx.Client, *, releases: float) -> None:
    """A dataset that holds so many steps of the loud noise, and one quiet step of a pass of two."""
    limit = gaussian_epsilon(DELTA, mu=releases**0.5 * 1.01 / 0.8)
    setup(api, dataset_given=GIVEN | {"budget": GIVEN["budget"] | {"epsilon": limit}})
    assert append(api, event(0, 1, mechanism=QUIET, sampling=SHUFFLE)).status_code == 201


def test_passes_that_a_correction_shifted_count(api: httpx.Client) -> None:
    start(api, releases=1)
    assert fits(api, REST, NEXT) is None
    corrected(api)
    assert fits(api, REST, NEXT) == 1
    assert charge(api, REST, NEXT | {"steps": 1}).status_code == 409
    assert charge(api, REST).status_code == 201


def test_a_fall_of_the_noise_in_a_pass_that_is_open_counts(api: httpx.Client) -> None:
    """One loud step makes the open pass a loud one, and the next begins another."""
    start(api, releases=1)
    loud = NEXT | {"first_step": 1}
    assert fits(api, loud, run=None) is None
    assert fits(api, loud) == 1
    assert charge(api, loud).status_code == 409
    noise = ask(api, loud).json()["more_noise"]["noise_multiplier"]
    assert noise == pytest.approx(0.8 * 2**0.5, rel=0.02)
    louder = loud | {"mechanism": loud["mechanism"] | {"noise_multiplier": noise}}
    assert charge(api, louder).status_code == 201


def test_the_branch_that_is_named_says_where_passes_began(api: httpx.Client) -> None:
    """A branch in an order that is known counts the rest of a pass as one, and another one."""
    start(api, releases=1)
    assert api.post("/v1/runs/run/branches", json=NEW).status_code == 201
    loud = event(1, 1, mechanism=CLOSE, sampling=SHUFFLE)
    assert fits(api, loud) is None
    assert fits(api, loud, branch="resumed") == 0
    assert charge(api, loud, branch="resumed").status_code == 409
    assert charge(api, loud).status_code == 201
    assert ask(api, loud, branch="none").status_code == 404


def test_steps_that_are_reserved_are_used_up(api: httpx.Client) -> None:
    start(api, releases=1)
    held = event(1, 2, mechanism=QUIET, sampling=SHUFFLE)
    full = event(1, 1, mechanism={"kind": "gaussian", "noise_multiplier": 0.8}, sampling=FULL)
    assert reserved(api, full).status_code == 201
    assert fits(api, full) is None
    assert fits(api, full, held) is None
    assert fits(api, full, run=None) == 0
    assert charge(api, full).status_code == 201


def test_steps_beside_a_plan_are_held_against_its_run(api: httpx.Client) -> None:
    assert api.post("/v1/datasets", json=dataset(budget=WIDE)).status_code == 201
    assert planned_run(api).status_code == 201
    assert fits(api, *PLAN) is None
    assert fits(api, PLAN[0] | {"steps": 1001}) == 1000
    other = step(10, 1, LOUD)
    assert fits(api, step(0, 10), other) == 10
    refusal = charge(api, step(0, 10), other)
    assert refusal.status_code == 409
    assert refusal.json()["admissible_steps"] == 10
    assert charge(api, step(0, 10)).status_code == 201
    assert fits(api, other) == 0
    assert charge(api, other).status_code == 409


def test_of_a_plan_that_holds_nothing_any_more_no_step_fits(api: httpx.Client) -> None:
    assert api.post("/v1/datasets", json=dataset(budget=WIDE)).status_code == 201
    assert planned_run(api).status_code == 201
    change = {"reason": "lost", "void_reservations": True}
    change |= {"budget": {"epsilon": 1e-3, "delta": WIDE["delta"]}}
    voided = api.patch("/v1/datasets/data", json=change, headers={"If-Match": '"1"'})
    assert voided.status_code == 200, voided.text
    refusal = charge(api, step(0, 10), step(10, 1, LOUD))
    assert refusal.json()["admissible_steps"] == fits(api, step(0, 10), step(10, 1, LOUD)) == 0
    assert charge(api, step(0, 10)).status_code == 409


@pytest.mark.parametrize("named", ["run", None])
def test_what_no_theorem_bounds_is_refused_where_no_budget_is(
    api: httpx.Client, named: str | None
) -> None:
    setup(api)
    cyclic: Json = {"kind": "cyclic", "batch_size": 600, "steps_per_pass": 100}
    unproved = event(1, 1, mechanism=NOISE, sampling=cyclic)
    told = ask(api, step(0, 1), unproved, run=named)
    assert told.status_code == 422
    assert told.json() == charge(api, step(0, 1), unproved).json()
    assert fits(api, step(0, 1), run=named) is None


def test_no_remedy_is_told_that_cannot_be_accounted(api: httpx.Client) -> None:
    """The parent counts a full batch; the dataset itself has no bound at any noise."""
    parent = dataset("parent", budget=OWN, neighboring_relation="replace_special")
    assert api.post("/v1/datasets", json=parent).status_code == 201
    setup(
        api,
        dataset_given={
            "neighboring_relation": "replace_special",
            "parents": ["parent"],
            "rows_per_parent_record": "exactly_one",
            "accept": ["declared"],
        },
    )
    loud = event(0, 10, mechanism=LOUD, sampling=POISSON)
    told = ask(api, loud).json()
    assert told["failing_scopes"][0]["scope"] == "dataset:parent"
    assert told["more_noise"]["noise_multiplier"] is None
    assert charge(api, loud).status_code == 422


def test_a_run_there_is_not_has_no_place(api: httpx.Client) -> None:
    setup(api)
    assert api.post("/v1/runs", json=run("other")).status_code == 201
    assert ask(api, step(0, 1), run="none").status_code == 404


@pytest.mark.parametrize("noise", [6.0, 60.0])
@pytest.mark.parametrize("taken", [9, 10])
def test_a_step_beside_a_plan_is_held_by_the_filter_in_an_open_pass_too(
    api: httpx.Client, taken: int, noise: float
) -> None:
    """It adds nothing to the sums: these were within the plan, and the filter never held them."""
    order: Json = SHUFFLE | {"batch_size": 15_000, "steps_per_pass": 4}
    planned: Json = {"mechanism": {"kind": "gaussian", "noise_multiplier": 6.0}, "sampling": order}
    given: Json = {"neighboring_relation": "replace_special", "accept": ["published", "derived"]}
    made = dataset(**given, budget={"epsilon": 30.0, "delta": DELTA})
    assert api.post("/v1/datasets", json=made).status_code == 201
    own: Json = {"epsilon": 2.5, "delta": DELTA, "orders": [1.5]}
    plan = [planned | {"steps": 10}]
    assert planned_run(api, plan=plan, budget=own).status_code == 201
    assert charge(api, planned | {"first_step": 0, "steps": taken}).status_code == 201
    quieter: Json = {"kind": "gaussian", "noise_multiplier": noise}
    kept = 10 - taken if noise == 6.0 else 0
    further = event(taken, 1 + kept, mechanism=quieter, sampling=order)
    assert fits(api, further) == kept
    refusal = charge(api, further)
    assert refusal.status_code == 409
    assert refusal.json()["admissible_steps"] == kept
    state = api.get("/v1/runs/run").json()
    assert (state["on_plan"], state["budget"]["overdrawn"]) == (True, False)


FALLING: list[Json] = [
    {"mechanism": {"kind": "gaussian", "noise_multiplier": noise}, "sampling": SHUFFLE, "steps": 3}
    for noise in (60.0, 40.0)
]


def test_a_plan_whose_noise_falls_inside_a_pass_makes_no_envelope(api: httpx.Client) -> None:
    """The second pass begins with more noise than it has, so that no item holds it."""
    given: Json = {"neighboring_relation": "replace_special", "dataset_size": 60_000}
    asked = given | {"events": FALLING, "delta": DELTA, "as_envelope": True}
    refusal = api.post("/v1/plan", json=asked)
    assert refusal.status_code == 422, refusal.text
    assert "falls" in refusal.json()["errors"][0]["message"]
    even = [FALLING[0] | {"steps": 4}, FALLING[1] | {"steps": 2}]
    assert api.post("/v1/plan", json=asked | {"events": even}).status_code == 200


@pytest.mark.parametrize(
    ("steps", "limit", "kind"), [(3, 0.14, "fixed_order_renyi"), (4, 0.12, "envelope")]
)
def test_a_budget_is_an_envelope_of_a_plan_that_it_holds(
    api: httpx.Client, steps: int, limit: float, kind: str
) -> None:
    plan = [FALLING[0] | {"steps": steps}, FALLING[1] | {"first_step": steps, "steps": 6 - steps}]
    budget: Json = {"epsilon": limit, "delta": DELTA}
    given: Json = {"neighboring_relation": "replace_special", "for": {"events": plan}}
    setup(api, dataset_given=given | {"budget": budget})
    assert api.get("/v1/datasets/data").json()["budget"]["filter"]["kind"] == kind
    taken = charge(api, plan[0] | {"first_step": 0}, plan[1]).status_code
    assert taken == (201 if kind == "envelope" else 409)
