"""Envelopes over HTTP: all listed steps are admitted, in any order, and one more is refused."""

import random
from typing import Any

import httpx
import pytest

from tests.service.samples import BUDGET, FULL, Json, append, dataset, event, run
from tests.service.test_corrections import correct
from tests.service.test_reservations import reserve
from tests.service.test_settings_changes import change

# Target, delta, rate, steps, noise, and what is certified of all steps together.
CALIBRATED = [
    (3.0, 1e-5, 0.05, 400, 1.6260, 2.9861),
    (1.0, 1e-5, 0.01, 1000, 1.4258, 0.9884),
    (8.0, 1e-5, 0.01, 5000, 0.7532, 7.9855),
    (2.0, 1e-5, 0.001, 10_000, 0.6299, 1.9810),
    (2.0, 1.1e-10, 4.08e-5, 100_000, 0.614, 1.7105),
]
RATE: Json = {"kind": "poisson", "sampling_probability": 0.05}
PASS: Json = {"kind": "cyclic", "batch_size": 600, "steps_per_pass": 100}


def gaussian(noise: float) -> Json:
    return {"kind": "gaussian", "noise_multiplier": noise}


def poisson(rate: float) -> Json:
    return {"kind": "poisson", "sampling_probability": rate}


def item(noise: float, sampling: Json, steps: int, **given: Any) -> Json:
    return {"mechanism": gaussian(noise), "sampling": sampling, "steps": steps} | given


def envelope(*items: Json, **given: Any) -> Json:
    return BUDGET | {"filter": "envelope", "envelope": list(items)} | given


def create(api: httpx.Client, limit: Json | None, name: str = "data", **given: Any) -> Any:
    body = dataset(name, **({"budget": limit} if limit else {}) | given)
    return api.post("/v1/datasets", json=body)


def state(api: httpx.Client, name: str = "data") -> Any:
    return api.get(f"/v1/datasets/{name}").json()["budget"]


def charge(
    api: httpx.Client, first: int, steps: int, noise: float, sampling: Json, **on: Any
) -> Any:
    sent = event(first, steps, mechanism=gaussian(noise), sampling=sampling)
    return append(api, sent, **{"mode": "charge"} | on)


@pytest.fixture
def limited(api: httpx.Client) -> httpx.Client:
    """Two kinds of steps, 100 each."""
    assert create(api, envelope(item(2.0, RATE, 100), item(40.0, FULL, 100))).status_code == 201
    assert api.post("/v1/runs", json=run()).status_code == 201
    return api


@pytest.mark.parametrize(("epsilon", "delta", "rate", "steps", "noise", "certified"), CALIBRATED)
def test_every_step_of_a_calibrated_training_is_admitted_and_no_further_one(
    api: httpx.Client, epsilon: float, delta: float, rate: float, steps: int, noise: float,
    certified: float,
) -> None:  # fmt: skip
    limit = envelope(item(noise, poisson(rate), steps), epsilon=epsilon, delta=delta)
    assert create(api, limit).status_code == 201
    assert api.post("/v1/runs", json=run()).status_code == 201
    assert state(api)["spent"] == 0
    answer = charge(api, 0, steps, noise, poisson(rate))
    assert (answer.status_code, answer.json()["verdict"]) == (201, "within")
    refused = charge(api, steps, 1, noise, poisson(rate))
    assert (refused.status_code, refused.json()["admissible_steps"]) == (409, 0)
    found = state(api)
    assert found["spent"] == pytest.approx(certified, abs=1e-4)
    assert (found["remaining_steps"], found["overdrawn"]) == (0, False)
    assert found["filter"]["theorem"] == "envelope-filter"
    assert (found["valid_for"], found["filter"]["status"]) == ("adaptive", "derived")


@pytest.mark.parametrize(("epsilon", "delta", "rate", "steps", "noise", "_"), CALIBRATED)
def test_eight_runs_share_an_envelope_in_random_order(
    api: httpx.Client, epsilon: float, delta: float, rate: float, steps: int, noise: float, _: float
) -> None:
    limit = envelope(item(noise, poisson(rate), steps), epsilon=epsilon, delta=delta)
    assert create(api, limit).status_code == 201
    draw, sampling = random.Random(8), poisson(rate)
    for index in range(8):
        assert api.post("/v1/runs", json=run(f"run-{index}")).status_code == 201
    done, left = [0] * 8, steps
    while left:
        index, count = draw.randrange(8), min(left, draw.randint(1, steps // 8))
        answer = charge(api, done[index], count, noise, sampling, run=f"run-{index}")
        assert answer.status_code == 201, answer.text
        done[index], left = done[index] + count, left - count
    assert state(api)["remaining_steps"] == 0
    for index in range(8):
        refused = charge(api, done[index], 1, noise, sampling, run=f"run-{index}")
        assert refused.status_code == 409


def test_an_envelope_that_exceeds_its_budget_is_refused_with_the_steps_that_fit(
    api: httpx.Client,
) -> None:
    refused = create(api, envelope(item(40.0, FULL, 100), item(1.6260, RATE, 500)))
    assert refused.status_code == 409
    assert refused.json()["type"].endswith("budget-exhausted")
    fit = refused.json()["admissible_steps"]
    assert 0 < fit < 400
    assert api.get("/v1/datasets/data").status_code == 404
    for steps, status in ((fit + 1, 409), (fit, 201)):
        limit = envelope(item(40.0, FULL, 100), item(1.6260, RATE, steps))
        assert create(api, limit).status_code == status


def test_each_item_says_what_is_used_reserved_and_left(limited: httpx.Client) -> None:
    assert charge(limited, 0, 30, 2.0, RATE).status_code == 201
    ahead = {"mechanism": gaussian(40.0), "sampling": FULL}
    assert reserve(limited, "ahead", 25, event=ahead).status_code == 201
    sampled, full = state(limited)["items"]
    assert (sampled["allowed"], sampled["used"], sampled["reserved"]) == (100, 30, 0)
    assert (full["used"], full["reserved"], full["remaining"]) == (0, 25, 75)
    assert (sampled["sampling"], full["mechanism"]) == (RATE, gaussian(40.0))
    assert state(limited)["remaining_steps"] == 145


def test_a_step_that_tells_less_is_charged_to_an_item_that_covers_it(api: httpx.Client) -> None:
    items = (item(2.0, FULL, 10), item(2.0, RATE, 50), item(3.0, RATE, 50))
    assert create(api, envelope(*items, epsilon=20.0)).status_code == 201
    assert api.post("/v1/runs", json=run()).status_code == 201

    def used() -> list[int]:
        return [one["used"] for one in state(api)["items"]]

    assert charge(api, 0, 40, 3.0, RATE).status_code == 201
    assert charge(api, 40, 10, 9.0, poisson(0.001)).status_code == 201
    assert used() == [0, 0, 50]
    assert charge(api, 50, 55, 3.0, RATE).status_code == 201
    assert used() == [5, 50, 50]
    assert charge(api, 105, 5, 2.0, FULL).status_code == 201
    assert charge(api, 110, 1, 400.0, poisson(0.001)).status_code == 409
    found = state(api)
    assert (found["overdrawn"], found["remaining_steps"]) == (False, 0)


@pytest.mark.parametrize(
    ("noise", "sampling", "nearest", "would_fit"),
    [
        (1.9, RATE, 0, "noise_multiplier at least 2"),
        (2.0, poisson(0.06), 0, "sampling_probability at most 0.05"),
        (39.0, FULL, 1, "noise_multiplier at least 40"),
        (2.0, PASS, 0, "Poisson with sampling_probability 0.05"),
    ],
)
def test_a_charge_outside_names_the_nearest_item_and_what_would_make_it_fit(
    limited: httpx.Client, noise: float, sampling: Json, nearest: int, would_fit: str
) -> None:
    refused = charge(limited, 0, 10, noise, sampling)
    assert refused.status_code == 409
    (scope,) = refused.json()["failing_scopes"]
    assert (scope["reason"], scope["nearest_item"]) == ("outside_envelope", nearest)
    assert scope["would_fit"] == would_fit
    assert would_fit in refused.json()["detail"]
    assert state(limited)["items"][0]["used"] == 0
    assert charge(limited, 0, 10, 2.0, RATE).status_code == 201


def test_a_recorded_step_outside_ends_the_guarantee_for_good(limited: httpx.Client) -> None:
    assert charge(limited, 0, 10, 2.0, RATE).status_code == 201
    answer = charge(limited, 10, 1, 1.0, RATE, mode="record")
    assert (answer.status_code, answer.json()["verdict"]) == (201, "overdraft")
    found = state(limited)
    assert (found["spent"], found["overdrawn"], found["remaining_steps"]) == (None, True, 0)
    assert charge(limited, 11, 1, 2.0, RATE).status_code == 409


def test_a_recorded_step_beyond_an_item_is_an_overdraft(limited: httpx.Client) -> None:
    assert charge(limited, 0, 100, 2.0, RATE).status_code == 201
    answer = charge(limited, 100, 1, 2.0, RATE, mode="record")
    assert answer.json()["verdict"] == "overdraft"
    assert state(limited)["spent"] is None


def test_an_envelope_is_replaced_before_the_first_answer_and_never_after(
    limited: httpx.Client,
) -> None:
    other = envelope(item(1.6260, RATE, 400))
    answer = change(limited, 1, budget=other)
    assert answer.status_code == 200, answer.text
    assert [one["allowed"] for one in answer.json()["budget"]["items"]] == [400]
    lower = change(limited, 2, budget=BUDGET | {"epsilon": 2.9})
    assert lower.status_code == 409  # 2.986 is certified of the 400 steps
    assert change(limited, 2, budget=BUDGET | {"epsilon": 2.99}).status_code == 200
    assert charge(limited, 0, 1, 1.6260, RATE).status_code == 201
    for sent in (other, BUDGET | {"epsilon": 4.0}, BUDGET | {"filter": "fixed_order_renyi"}):
        assert change(limited, 3, budget=sent).status_code == 422
    assert charge(limited, 1, 399, 1.6260, RATE).status_code == 201


def test_a_dataset_without_answers_takes_an_envelope_and_gives_it_up(api: httpx.Client) -> None:
    assert create(api, BUDGET).status_code == 201
    assert change(api, 1, budget=envelope(item(1.6260, RATE, 400))).status_code == 200
    assert state(api)["remaining_steps"] == 400
    assert change(api, 2, budget=BUDGET | {"filter": "fixed_order_renyi"}).status_code == 200
    assert state(api)["remaining_steps"] is None


def test_a_run_may_have_an_envelope_of_its_own(api: httpx.Client) -> None:
    assert create(api, None).status_code == 201
    own = envelope(item(1.6260, RATE, 400))
    both = run(budget=own, plan=[item(1.6260, RATE, 400)])
    assert api.post("/v1/runs", json=both).status_code == 422
    assert api.post("/v1/runs", json=run(budget=own)).status_code == 201
    assert charge(api, 0, 400, 1.6260, RATE).status_code == 201
    assert charge(api, 400, 1, 1.6260, RATE).status_code == 409
    found = api.get("/v1/runs/run").json()["budget"]
    assert (found["remaining_steps"], found["items"][0]["used"]) == (0, 400)


def test_a_parent_is_charged_item_by_item(api: httpx.Client) -> None:
    limit = envelope(item(2.0, RATE, 50), item(3.0, RATE, 50))
    assert create(api, limit, "parent").status_code == 201
    made: Json = {"parents": ["parent"], "rows_per_parent_record": "at_most_one"}
    assert create(api, None, **made).status_code == 201
    assert api.post("/v1/runs", json=run()).status_code == 201
    assert charge(api, 0, 70, 3.0, RATE).status_code == 201
    assert [one["used"] for one in state(api, "parent")["items"]] == [20, 50]
    refused = charge(api, 70, 31, 3.0, RATE)
    assert refused.json()["failing_scopes"][0]["scope"] == "dataset:parent"
    assert refused.json()["admissible_steps"] == 30


def test_a_correction_takes_an_item_besides_the_one_that_was_charged(
    limited: httpx.Client,
) -> None:
    assert charge(limited, 0, 10, 2.0, RATE).status_code == 201
    really = event(0, 4, mechanism=gaussian(40.0), sampling=FULL)
    assert correct(limited, really).status_code == 201
    assert [one["used"] for one in state(limited)["items"]] == [10, 4]
    assert correct(limited, event(4, 1, mechanism=gaussian(1.0), sampling=FULL)).status_code == 201
    assert state(limited)["overdrawn"] is True


def test_passes_are_charged_when_they_begin_and_leave_with_falling_noise(
    api: httpx.Client,
) -> None:
    limit = envelope(item(4.0, PASS, 200), item(8.0, PASS, 200))
    given = {"neighboring_relation": "replace_special"}
    assert create(api, limit, **given).status_code == 201
    assert api.post("/v1/runs", json=run()).status_code == 201
    assert charge(api, 0, 1, 4.0, PASS).status_code == 201
    assert [one["used"] for one in state(api)["items"]] == [100, 0]
    assert charge(api, 1, 99, 5.0, PASS).status_code == 201
    assert charge(api, 100, 10, 9.0, PASS).status_code == 201
    falling = charge(api, 110, 1, 4.0, PASS)  # it began as the other item
    assert falling.status_code == 409
    assert charge(api, 110, 90, 8.0, PASS).status_code == 201
    assert [one["used"] for one in state(api)["items"]] == [100, 100]


@pytest.mark.parametrize(
    ("limit", "place"),
    [
        (BUDGET | {"filter": "envelope"}, "budget.envelope"),
        (envelope(item(2.0, RATE, 1), orders=[8.0, 9.0]), "budget.orders"),
        (envelope(item(2.0, RATE, 1), orders=[0.5]), "budget.orders"),
        (BUDGET | {"envelope": [item(2.0, RATE, 1)]}, "budget.envelope"),
        (envelope(item(2.0, {"kind": "fixed_size", "batch_size": 70_000}, 1)), "envelope[0]"),
        (envelope(), "envelope"),
    ],
)
def test_what_is_no_envelope_is_refused_by_its_field(
    api: httpx.Client, limit: Json, place: str
) -> None:
    refused = create(api, limit)
    assert refused.status_code == 422
    assert place in refused.json()["errors"][0]["location"]
    assert api.get("/v1/datasets/data").status_code == 404


@pytest.mark.parametrize(
    ("mechanism", "sampling"),
    [({"kind": "none"}, FULL), ({"kind": "zcdp", "rho": 0.01}, FULL), (gaussian(4.0), PASS)],
)
def test_items_without_a_pair_are_never_certified(
    api: httpx.Client, mechanism: Json, sampling: Json
) -> None:
    refused = create(api, envelope({"mechanism": mechanism, "sampling": sampling, "steps": 1}))
    assert (refused.status_code, refused.json()["admissible_steps"]) == (409, 0)


def test_a_status_that_a_certificate_rests_on_stays_accepted(api: httpx.Client) -> None:
    assert create(api, envelope(item(2.0, RATE, 10)), accept=["published", "derived"]).is_success
    assert change(api, 1, accept=["published"]).status_code == 422
    assert change(api, 1, accept=["published", "derived", "declared"]).status_code == 200


def test_who_spent_what_and_the_history_of_spending_add_up_in_steps(limited: httpx.Client) -> None:
    assert limited.post("/v1/runs", json=run("other")).status_code == 201
    assert charge(limited, 0, 30, 2.0, RATE).status_code == 201
    assert charge(limited, 0, 10, 40.0, FULL, run="other").status_code == 201
    found = limited.get("/v1/datasets/data/explain").json()
    assert [(one["run"], one["share"]) for one in found["runs"]] == [("run", 0.75), ("other", 0.25)]
    assert found["budget"]["share"] == pytest.approx(0.2)
    assert limited.get("/datasets/data").status_code == 200


def test_a_plan_is_answered_as_the_budget_that_its_steps_fit(api: httpx.Client) -> None:
    plan = {
        "neighboring_relation": "add_or_remove_one", "dataset_size": 60000, "delta": 1e-5,
        "events": [item(1.6260, RATE, 200), item(40.0, FULL, 3), item(1.6260, RATE, 200)],
    }  # fmt: skip
    assert api.post("/v1/plan", json=plan).json()["envelope"] is None
    answer = api.post("/v1/plan", json=plan | {"as_envelope": True})
    assert answer.status_code == 200, answer.text
    budget = answer.json()["envelope"]
    assert [one["steps"] for one in budget["envelope"]] == [400, 3]
    assert budget["epsilon"] == pytest.approx(answer.json()["epsilon"], rel=1e-6)
    assert create(api, budget).status_code == 201
    open_steps = {"mechanism": gaussian(1.6260), "sampling": RATE}
    target = plan | {"events": [open_steps], "epsilon": 3.0, "solve_for": "steps"}
    found = api.post("/v1/plan", json=target | {"as_envelope": True}).json()
    assert found["envelope"]["epsilon"] == 3.0
    assert found["envelope"]["envelope"][0]["steps"] == found["solved"]["value"]
    assert create(api, found["envelope"], "solved").status_code == 201


def test_a_plan_makes_an_envelope_only_where_its_status_is_accepted(api: httpx.Client) -> None:
    plan: Json = {"for": {"events": [item(0.6299, poisson(0.001), 10_000)]}}
    limit = BUDGET | {"epsilon": 2.0}
    without = create(api, limit, "without", accept=["published"], **plan)
    assert without.json()["budget"]["filter"]["kind"] == "fixed_order_renyi"
    made = create(api, limit, accept=["published", "derived"], **plan)
    assert made.json()["budget"]["filter"]["kind"] == "envelope"


def test_an_envelope_is_not_chosen_after_what_an_opening_balance_showed(api: httpx.Client) -> None:
    spent = [item(2.0, RATE, 10)]
    refused = create(api, envelope(item(2.0, RATE, 100)), opening_balance=spent)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["location"] == "body.opening_balance"
    step = item(0.6299, poisson(0.001), 10_000)
    limit = BUDGET | {"epsilon": 2.0}
    plan: Json = {"for": {"events": [step]}}
    fits = create(api, limit, **plan)
    assert fits.json()["budget"]["filter"]["kind"] == "envelope"
    other = create(api, limit, "other", opening_balance=spent, **plan)
    assert other.json()["budget"]["filter"]["kind"] == "fixed_order_renyi"
    assert create(api, BUDGET, "third", opening_balance=spent).status_code == 201
    changed = {"reason": "second study", "budget": envelope(item(2.0, RATE, 100))}
    answer = api.patch("/v1/datasets/third", json=changed, headers={"If-Match": '"1"'})
    assert answer.status_code == 422

    assert create(api, envelope(item(2.0, RATE, 100)), "parent").status_code == 201
    made: Json = {"parents": ["parent"], "rows_per_parent_record": "exactly_one"}
    child = create(api, None, "child", opening_balance=spent, **made)
    assert child.status_code == 422
    assert child.json()["errors"][0]["location"] == "body.opening_balance"
    assert api.get("/v1/datasets/child").status_code == 404


def test_a_pass_that_a_correction_lets_begin_at_another_item_is_outside(api: httpx.Client) -> None:
    balls = {"kind": "balls_and_bins", "steps_per_pass": 4}
    limit = envelope(item(8.0, balls, 4), item(16.0, balls, 4))
    assert create(api, limit, neighboring_relation="replace_special").status_code == 201
    assert api.post("/v1/runs", json=run()).status_code == 201
    assert charge(api, 0, 4, 8.0, balls, mode="record").json()["verdict"] == "within"
    within = correct(api, event(1, 1, mechanism=gaussian(9.0), sampling=balls))
    assert within.status_code == 201
    assert state(api)["overdrawn"] is False  # the same item covers it
    fell = correct(api, event(0, 1, mechanism=gaussian(16.0), sampling=balls))
    assert fell.status_code == 201
    assert state(api)["overdrawn"] is True
