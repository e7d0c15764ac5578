"""Fixed plans: a run's own budget held by its whole plan, and by its filter once that is left."""

from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from service.ledger.append.unit_of_work import DatasetCache
from service.storage.engine import transaction
from tests.service.samples import FULL, POISSON, Json, append, dataset, event, run
from tests.service.test_reservations import reserve

DELTA = 1e-5
NOISE: Json = {"kind": "gaussian", "noise_multiplier": 1.0}
QUIET: Json = {"kind": "gaussian", "noise_multiplier": 2.0}
LOUD: Json = {"kind": "gaussian", "noise_multiplier": 0.5}
# 1000 steps at rate 0.01 and noise 1: 1.828 as a fixed schedule, 2.108 at the best single order.
PLAN: list[Json] = [{"mechanism": NOISE, "sampling": POISSON, "steps": 1000}]
OWN: Json = {"epsilon": 1.9, "delta": DELTA, "orders": [7.0]}
WIDE: Json = {"epsilon": 8.0, "delta": DELTA}


def step(first_step: int, steps: int, mechanism: Json = NOISE) -> Json:
    return event(first_step, steps, mechanism=mechanism, sampling=POISSON)


def planned_run(api: httpx.Client, *, budget: Json = OWN, **given: Any) -> httpx.Response:
    return api.post("/v1/runs", json=run(**{"plan": PLAN, "budget": budget} | given))


@pytest.fixture
def limited(api: httpx.Client) -> httpx.Client:
    assert api.post("/v1/datasets", json=dataset(budget=WIDE)).status_code == 201
    return api


@pytest.fixture
def on_plan(limited: httpx.Client) -> httpx.Client:
    answer = planned_run(limited)
    assert answer.status_code == 201, answer.text
    return limited


def of_run(api: httpx.Client, name: str = "run") -> Any:
    return api.get(f"/v1/runs/{name}").json()


def of_dataset(api: httpx.Client, name: str = "data") -> Any:
    return api.get(f"/v1/datasets/{name}").json()["budget"]


def charge(api: httpx.Client, *events: Json, **given: Any) -> httpx.Response:
    return append(api, *events, mode="charge", **given)


def only_scope(answer: httpx.Response) -> Any:
    assert answer.status_code == 409, answer.text
    assert answer.json()["type"] == "/problems/budget-exhausted"
    (scope,) = answer.json()["failing_scopes"]
    return scope


def test_a_plan_is_held_where_no_filter_would_hold_it(limited: httpx.Client) -> None:
    answer = planned_run(limited).json()
    assert answer["on_plan"] is True
    budget = answer["budget"]
    assert (budget["valid_for"], budget["overdrawn"]) == ("fixed_schedule", False)
    assert budget["spent"] == pytest.approx(1.828, abs=1e-3)
    assert budget["remaining"] == pytest.approx(1.9 - 1.828, abs=1e-3)
    limited.post("/v1/runs", json=run("chosen", budget=OWN))
    refused = charge(limited, step(0, 1000), run="chosen")
    assert only_scope(refused)["scope"] == "run:chosen"
    assert refused.json()["admissible_steps"] < 1000


def test_the_whole_plan_is_reserved_and_following_it_needs_nothing_more(
    on_plan: httpx.Client,
) -> None:
    held = of_dataset(on_plan)
    assert (held["spent"], held["reserved"]) == (0, pytest.approx(8.0 - held["remaining"]))
    # Others take all that is left; the plan has its place.
    on_plan.post("/v1/runs", json=run("others"))
    fits = charge(on_plan, step(0, 10**9), run="others").json()["admissible_steps"]
    assert charge(on_plan, step(0, fits), run="others").status_code == 201
    assert charge(on_plan, step(fits, 1), run="others").status_code == 409
    for first in range(0, 1000, 250):
        answer = charge(on_plan, step(first, 250))
        assert (answer.status_code, answer.json()["verdict"]) == (201, "within")
    found = of_run(on_plan)
    assert (found["on_plan"], found["budget"]["overdrawn"]) == (True, False)
    assert of_dataset(on_plan)["reserved"] == 0
    assert charge(on_plan, step(1000, 1)).status_code == 409


def test_a_plan_beyond_its_runs_budget_is_refused_and_the_name_stays_free(
    limited: httpx.Client,
) -> None:
    small = {"epsilon": 1.0, "delta": DELTA}
    before = limited.get("/v1/datasets/data").json()
    answer = planned_run(limited, budget=small)
    scope = only_scope(answer)
    assert (scope["scope"], scope["limit"], scope["spent"]) == ("run:run", 1.0, 0)
    assert scope["requested"] == pytest.approx(1.828, abs=1e-3)
    fits = answer.json()["admissible_steps"]
    assert limited.get("/v1/runs/run").status_code == 404
    assert limited.get("/v1/datasets/data").json() == before
    shorter = [PLAN[0] | {"steps": fits + 1}]
    assert planned_run(limited, budget=small, plan=shorter).status_code == 409
    shorter = [PLAN[0] | {"steps": fits}]
    assert planned_run(limited, budget=small, plan=shorter).status_code == 201


def test_leading_steps_are_counted_across_the_events_of_a_plan(limited: httpx.Client) -> None:
    small = {"epsilon": 1.0, "delta": DELTA}
    plan = [{"mechanism": QUIET, "sampling": POISSON, "steps": 100}, *PLAN]
    fits = planned_run(limited, budget=small, plan=plan).json()["admissible_steps"]
    assert 100 < fits < 1100
    assert planned_run(limited, budget=small, plan=[plan[0], PLAN[0] | {"steps": fits - 100}])
    assert of_run(limited)["on_plan"] is True


def test_a_plan_beyond_its_datasets_budget_is_refused_and_the_name_stays_free(
    api: httpx.Client,
) -> None:
    api.post("/v1/datasets", json=dataset(budget={"epsilon": 3.0, "delta": DELTA}))
    louder = {"kind": "gaussian", "noise_multiplier": 0.9}
    plan = [PLAN[0] | {"steps": 400}, {"mechanism": louder, "sampling": POISSON, "steps": 3000}]
    answer = planned_run(api, plan=plan, budget={"epsilon": 9.0, "delta": DELTA})
    assert only_scope(answer)["scope"] == "dataset:data"
    assert 400 < answer.json()["admissible_steps"] < 3400
    assert api.get("/v1/runs/run").status_code == 404
    fitting = [plan[0], plan[1] | {"steps": answer.json()["admissible_steps"] - 400}]
    held = planned_run(api, plan=fitting, budget={"epsilon": 9.0, "delta": DELTA})
    assert held.status_code == 201, held.text


def test_a_plan_that_a_filter_cannot_count_is_named(api: httpx.Client) -> None:
    api.post("/v1/datasets", json=dataset(budget=WIDE | {"filter": "gaussian_dp"}))
    box = {"kind": "approximate_dp", "epsilon": 0.1, "delta": 1e-9}
    answer = planned_run(api, plan=[PLAN[0] | {"sampling": FULL, "steps": 1},
                                    {"mechanism": box, "sampling": FULL, "steps": 1}],
                         budget=WIDE)  # fmt: skip
    assert (answer.status_code, answer.json()["location"]) == (422, "body.plan[1]")
    none = [{"mechanism": {"kind": "none"}, "sampling": FULL, "steps": 1}]
    assert only_scope(planned_run(api, plan=none))["requested"] is None


def test_the_same_registration_again_is_found_whatever_has_been_spent_since(
    on_plan: httpx.Client,
) -> None:
    held = of_dataset(on_plan)
    again = planned_run(on_plan)
    assert (again.status_code, again.json()["on_plan"]) == (200, True)
    assert of_dataset(on_plan) == held
    other = planned_run(on_plan, budget={"epsilon": 1.0, "delta": DELTA})
    assert (other.status_code, other.json()["type"]) == (409, "/problems/conflict")


@pytest.mark.parametrize("how", ["another event", "beyond its end", "another branch"])
def test_leaving_the_plan_is_for_good_and_its_filter_counts_from_the_beginning(
    limited: httpx.Client, how: str
) -> None:
    plan = [PLAN[0] | {"steps": 100}]
    assert planned_run(limited, plan=plan).status_code == 201
    assert charge(limited, step(0, 50)).status_code == 201
    if how == "another event":
        answer = charge(limited, step(50, 1, QUIET))
    elif how == "beyond its end":
        answer = charge(limited, step(50, 51))
    else:
        body = {"name": "b", "writer": "writer-of-the-tests-1", "from_step": 20, "order": "fresh"}
        assert limited.post("/v1/runs/run/branches", json=body).status_code == 201
        assert of_run(limited)["on_plan"] is True
        answer = charge(limited, step(20, 1), branch="b")
    assert (answer.status_code, answer.json()["verdict"]) == (201, "within")
    found = of_run(limited)
    assert found["on_plan"] is False
    assert (found["budget"]["valid_for"], found["budget"]["overdrawn"]) == ("adaptive", False)
    assert 0 < found["budget"]["delta_share"] < 1  # the plan has used the rest
    before = found["budget"]["spent"]
    # The same steps in a run without a plan, under the same filter, are read a little lower.
    limited.post("/v1/runs", json=run("same", budget=OWN))
    last = QUIET if how == "another event" else NOISE
    steps = found["steps"]
    append(limited, step(0, steps - 1), step(steps - 1, 1, last), run="same")
    assert before - 0.01 < of_run(limited, "same")["budget"]["spent"] <= before
    at = {"run": "run", "branch": "b"} if how == "another branch" else {}
    first = 21 if at else found["next_step"]
    refused = charge(limited, step(first, 10**6), **at).json()
    assert "run:run" in {scope["scope"] for scope in refused["failing_scopes"]}
    fits = refused["admissible_steps"]
    assert charge(limited, step(first, fits), **at).status_code == 201
    assert charge(limited, step(first + fits, 1), **at).status_code == 409


def test_a_refused_step_off_the_plan_leaves_the_run_on_it(on_plan: httpx.Client) -> None:
    assert charge(on_plan, step(0, 990)).status_code == 201
    assert only_scope(charge(on_plan, step(990, 1, LOUD)))["scope"] == "run:run"
    assert of_run(on_plan)["on_plan"] is True
    assert charge(on_plan, step(990, 10)).status_code == 201


def test_a_cheaper_step_than_planned_is_still_held_by_the_filter(on_plan: httpx.Client) -> None:
    # The plan is more than the filter admits: that something like it was admitted is no excuse.
    assert charge(on_plan, step(0, 990)).status_code == 201
    assert of_run(on_plan)["budget"]["overdrawn"] is False
    refused = charge(on_plan, step(990, 1, QUIET))
    assert only_scope(refused)["scope"] == "run:run"
    assert refused.json()["admissible_steps"] == 0
    told = append(on_plan, step(990, 1, QUIET)).json()
    assert told["verdict"] == "overdraft"
    assert of_run(on_plan)["budget"]["overdrawn"] is True
    assert charge(on_plan, step(991, 9)).status_code == 409  # as planned, but that is over


def test_what_was_left_stays_left_for_every_other_process(
    on_plan: httpx.Client, engine: Engine
) -> None:
    append(on_plan, step(0, 5, QUIET))
    with transaction(engine) as connection:  # another process, which then writes the run's row
        work = DatasetCache().open(connection, [("run", "main")])
        state, held = work.run("run")
        assert held.on_plan is False
        state.notes.runs[held.id], state.notes.touched = held, True
        work.write()
    assert of_run(on_plan)["on_plan"] is False
    before = of_dataset(on_plan)
    assert before["reserved"] > 0  # late steps have their place until the end of the run
    on_plan.post("/v1/runs/run:finish", json={"state": "finished"})
    after = of_dataset(on_plan)
    assert (after["reserved"], after["spent"]) == (0, before["spent"])


def test_finishing_returns_what_the_plan_still_holds_and_a_reopened_run_keeps_to_it(
    on_plan: httpx.Client,
) -> None:
    charge(on_plan, step(0, 400))
    for _ in range(2):
        answer = on_plan.post("/v1/runs/run:finish", json={"state": "finished"})
        assert answer.status_code == 200
        assert of_dataset(on_plan)["reserved"] == 0
    spent = of_dataset(on_plan)["spent"]
    late = append(on_plan, step(400, 100)).json()
    assert late["verdict"] == "within"
    found = of_run(on_plan)
    assert (found["state"], found["on_plan"]) == ("reopened", True)
    assert of_dataset(on_plan)["spent"] > spent
    assert charge(on_plan, step(500, 500)).json()["verdict"] == "within"
    assert of_run(on_plan)["budget"]["overdrawn"] is False


def test_a_run_on_its_plan_takes_no_other_reservation(on_plan: httpx.Client) -> None:
    # Admitted by a filter beside a plan, and used after the plan is done, it would add to both.
    refused = reserve(on_plan, "lease", 1)
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/conflict")
    append(on_plan, step(0, 1, QUIET))
    assert reserve(on_plan, "lease", 1, event={"sampling": POISSON}).status_code == 201
    state = of_run(on_plan)["budget"]
    assert 0 < state["reserved"] < 0.1  # the lease, and not the plan


def test_passes_are_planned_and_followed_in_any_pieces(api: httpx.Client) -> None:
    given = {"budget": {"epsilon": 21.0, "delta": DELTA}, "neighboring_relation": "replace_special"}
    _setup_dataset(api, **given)
    cyclic = {"kind": "cyclic", "batch_size": 6000, "steps_per_pass": 10}  # ten steps a pass
    plan = [
        {"mechanism": QUIET, "sampling": cyclic, "steps": 25},
        {"mechanism": NOISE, "sampling": cyclic, "steps": 13},
        {"mechanism": NOISE, "sampling": FULL, "steps": 1},
    ]
    answer = planned_run(api, plan=plan, budget={"epsilon": 19.0, "delta": DELTA})
    assert answer.status_code == 201, answer.text
    held = of_dataset(api)
    for first, steps, noise in ((0, 7, QUIET), (7, 18, QUIET), (25, 2, NOISE), (27, 11, NOISE)):
        found = charge(api, event(first, steps, mechanism=noise, sampling=cyclic)).json()
        assert found["verdict"] == "within"
        assert of_dataset(api)["remaining"] == pytest.approx(held["remaining"], rel=1e-12)
    assert charge(api, event(38, 1, mechanism=NOISE, sampling=FULL)).status_code == 201
    assert of_dataset(api)["reserved"] == 0
    assert of_run(api)["on_plan"] is True


def _setup_dataset(api: httpx.Client, **given: Any) -> None:
    answer = api.post("/v1/datasets", json=dataset(**given))
    assert answer.status_code == 201, answer.text


def test_every_ancestor_holds_the_plan(limited: httpx.Client) -> None:
    child = dataset("child", parents=["data"], rows_per_parent_record="at_most_one")
    assert limited.post("/v1/datasets", json=child).status_code == 201
    assert planned_run(limited, dataset="child").status_code == 201
    assert of_dataset(limited)["reserved"] > 2
    assert charge(limited, step(0, 500)).status_code == 201
    half = of_dataset(limited)
    assert half["spent"] > 1
    assert half["reserved"] > 0
    limited.post("/v1/runs/run:finish", json={"state": "aborted"})
    assert of_dataset(limited)["reserved"] == 0
    tight = dataset("tight", budget={"epsilon": 1.0, "delta": DELTA})
    limited.post("/v1/datasets", json=tight)
    both = dataset("both", parents=["tight"], rows_per_parent_record="at_most_one", budget=OWN)
    limited.post("/v1/datasets", json=both)
    refused = planned_run(limited, name="second", dataset="both")
    names = {scope["scope"] for scope in refused.json()["failing_scopes"]}
    assert names == {"dataset:tight", "dataset:both"}


def guarantee(api: httpx.Client, name: str = "run", **query: Any) -> Any:
    answer = api.get(f"/v1/runs/{name}/guarantee", params=query or {"delta": DELTA})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_run_on_its_plan_is_told_at_the_plans_end_with_what_was_recorded_beside(
    on_plan: httpx.Client,
) -> None:
    whole = planned_run(on_plan, name="whole").json()["budget"]["spent"]
    charge(on_plan, step(0, 10))
    on_plan.post("/v1/runs/run:finish", json={"state": "finished"})
    found = guarantee(on_plan)
    assert found["epsilon"] == whole
    assert (found["valid_for"], found["steps"], found["planned_steps"]) == (
        "fixed_schedule", 10, 1000,
    )  # fmt: skip
    on_plan.post("/v1/runs", json=run("ten"))
    append(on_plan, step(0, 10), run="ten")
    ten = guarantee(on_plan, "ten")
    assert found["so_far_epsilon"] == ten["epsilon"]
    assert found["epsilon_lower"] == ten["epsilon_lower"]  # no step that has not run attains it
    assert (ten["so_far_epsilon"], ten["planned_steps"]) == (None, None)
    asked = guarantee(on_plan, epsilon=1.0)
    assert asked["so_far_epsilon"] is None
    assert asked["delta"] > guarantee(on_plan, "ten", epsilon=1.0)["delta"]


def test_a_plan_that_is_done_or_was_left_is_told_as_what_was_recorded(
    on_plan: httpx.Client,
) -> None:
    charge(on_plan, step(0, 1000))
    done = guarantee(on_plan)
    assert (done["so_far_epsilon"], done["epsilon"]) == (None, pytest.approx(1.828, abs=1e-3))
    planned_run(on_plan, name="left")
    append(on_plan, step(0, 1, QUIET), run="left")
    left = guarantee(on_plan, "left")
    assert left["planned_steps"] is None
    assert left["epsilon"] < 1


def test_what_holds_at_any_time_is_told_of_what_was_recorded(api: httpx.Client) -> None:
    _setup_dataset(api, accept=["published", "derived"], budget=WIDE)
    assert planned_run(api).status_code == 201
    charge(api, step(0, 10))
    anytime = guarantee(api, accountant="odometer", delta=DELTA)
    assert (anytime["valid_for"], anytime["so_far_epsilon"]) == ("adaptive", None)
    assert anytime["planned_steps"] is None
