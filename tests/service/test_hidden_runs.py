"""Runs that declare that they hide their iterates, over HTTP."""

import json
import math
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from accounting.gaussian import gaussian_epsilon
from service.cli.main import app
from tests.service.samples import Json, append, dataset, event, run, setup

CYCLIC: Json = {"kind": "cyclic", "batch_size": 100, "steps_per_pass": 20}
NOISE: Json = {"kind": "gaussian", "noise_multiplier": 2.0}
STEPS = 60
ACCEPT = ["published", "declared", "conditional"]
ASSUMPTIONS: Json = {
    "data_order": "cyclic",
    "loss_smoothness": 1.0,
    "loss_convexity": 0.0,
    "learning_rate": 0.1,
    "max_grad_norm": 1.0,
    "gradient_divisor": 100.0,
    "projection_diameter": None,
    "clipping_can_be_active": False,
    "generalized_linear_model": False,
    "initialization_data_independent": True,
}
SMALL: Json = {"dataset_size": 2000, "neighboring_relation": "replace_one", "accept": ACCEPT}


def planned(first_step: int = 0, steps: int = STEPS, **given: Json) -> Json:
    return event(first_step, steps, **({"mechanism": NOISE, "sampling": CYCLIC} | given))


def hiding(**given: object) -> Json:
    base: Json = {"release": "last_iterate", "assumptions": ASSUMPTIONS, "plan": [planned()]}
    return base | {"delta": 1e-5} | given


def start(api: httpx.Client, **given: object) -> None:
    setup(api, dataset_given=SMALL, **hiding(**given))


def finish(api: httpx.Client, state: str = "finished") -> Json:
    answer = api.post("/v1/runs/run:finish", json={"state": state})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def guarantee(api: httpx.Client, **query: float) -> Json:
    found: Json = api.get("/v1/runs/run/guarantee", params=query).json()
    return found


def release(api: httpx.Client, step: int, **given: object) -> httpx.Response:
    return api.post("/v1/runs/run/releases", json={"step": step} | given)


def test_a_finished_run_that_followed_its_plan_is_told_the_smaller_bound(
    api: httpx.Client,
) -> None:
    start(api)
    assert append(api, planned(steps=40), planned(40, 20)).status_code == 201
    before = guarantee(api)
    assert before["release"] == "every_step"
    assert before["release_reason"] == (
        "The run has not finished: until then every step counts as shown."
    )
    after = finish(api)["guarantee"]
    assert after["epsilon"] < before["epsilon"]
    assert after["release"] == "last_iterate"
    assert after["status"] == "conditional"
    assert after["accountant"] == "last_iterate"
    assert {"hidden_iterates", "loss_curvature", "clipping_inactive"} <= set(after["assumptions"])
    # Three passes of 20 convex steps, the last record: as sqrt(2/20 + 1) releases of it.
    mu = math.sqrt(2 / 20 + 1)
    assert after["epsilon"] == pytest.approx(gaussian_epsilon(1e-5, mu=mu), rel=1e-9)
    # Linear losses: three shifts under the noise of sixty steps.
    linear = gaussian_epsilon(1e-5, mu=3 / math.sqrt(60))
    assert after["epsilon_lower"] == pytest.approx(linear, rel=1e-6)
    assert guarantee(api) == after


def test_a_list_of_runs_says_what_is_certified_after_an_iterate_was_shown(
    api: httpx.Client,
) -> None:
    def listed() -> float:
        page = api.get("/v1/runs", params={"certified": True}).json()
        found: float = page["certified"]["run"]["epsilon"]
        return found

    start(api)
    assert append(api, planned()).status_code == 201
    hidden = finish(api)["guarantee"]["epsilon"]
    assert listed() == hidden
    assert release(api, 10).status_code == 201
    assert listed() == guarantee(api)["epsilon"] > hidden


@pytest.mark.parametrize("field", sorted(ASSUMPTIONS))
def test_an_assumption_that_is_missing_is_named_and_nothing_is_registered(
    api: httpx.Client, field: str
) -> None:
    api.post("/v1/datasets", json=dataset(**SMALL))
    left = {key: value for key, value in ASSUMPTIONS.items() if key != field}
    answer = api.post("/v1/runs", json=run(**hiding(assumptions=left)))
    assert answer.status_code == 422
    assert answer.json()["errors"] == [
        {"location": f"body.assumptions.{field}", "message": "must be given: it has no default"}
    ]
    assert api.get("/v1/runs/run").status_code == 404


def test_every_missing_assumption_is_named_at_once(api: httpx.Client) -> None:
    api.post("/v1/datasets", json=dataset(**SMALL))
    answer = api.post("/v1/runs", json=run(**hiding(assumptions={})))
    assert answer.status_code == 422
    named = {
        fault["location"].removeprefix("body.assumptions.") for fault in answer.json()["errors"]
    }
    assert named == set(ASSUMPTIONS)


@pytest.mark.parametrize(
    ("given", "location"),
    [
        ({"loss_smoothness": -1.0}, "assumptions.loss_smoothness"),
        ({"learning_rate": 0.0}, "assumptions.learning_rate"),
        ({"learning_rate": "small"}, "assumptions.learning_rate"),
        ({"learning_rate": [{"first_step": 5, "learning_rate": 0.1}]}, "assumptions"),
        ({"initialization_data_independent": False}, "assumptions.initialization_data_independent"),
        ({"clipping_can_be_active": 1.0}, "assumptions.clipping_can_be_active"),
        ({"momentum": 0.9}, "assumptions.momentum"),
        ({"loss_convexity": 2.0}, "assumptions"),
        ({"data_order": "sorted"}, "assumptions.data_order"),
        ({"data_order": "shuffle_once"}, "assumptions.data_order"),
        ({"loss_convexity": 0.5}, "assumptions"),
    ],
)
def test_an_impossible_assumption_is_refused_by_name(
    api: httpx.Client, given: Json, location: str
) -> None:
    api.post("/v1/datasets", json=dataset(**SMALL))
    answer = api.post("/v1/runs", json=run(**hiding(assumptions=ASSUMPTIONS | given)))
    assert answer.status_code == 422
    assert [fault["location"] for fault in answer.json()["errors"]] == [f"body.{location}"]
    assert api.get("/v1/runs/run").status_code == 404


def test_a_relation_without_a_bound_is_refused(api: httpx.Client) -> None:
    given = SMALL | {"neighboring_relation": "add_or_remove_one"}
    api.post("/v1/datasets", json=dataset(**given))
    answer = api.post("/v1/runs", json=run(**hiding()))
    assert answer.status_code == 422
    assert "add_or_remove_one" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("aborted", "The run was aborted: every step counts as shown."),
        ("finished", "The run did not follow its plan: every step counts as shown."),
    ],
)
def test_a_run_that_stopped_early_shows_every_step(
    api: httpx.Client, state: str, reason: str
) -> None:
    start(api)
    append(api, planned(steps=59))
    found = finish(api, state)["guarantee"]
    assert (found["release"], found["release_reason"]) == ("every_step", reason)


def test_an_aborted_run_that_took_every_step_shows_every_step(api: httpx.Client) -> None:
    start(api)
    append(api, planned())
    assert finish(api, "aborted")["guarantee"]["release"] == "every_step"


def test_another_step_than_planned_shows_every_step(api: httpx.Client) -> None:
    start(api)
    louder = planned(59, 1, mechanism={"kind": "gaussian", "noise_multiplier": 3.0})
    append(api, planned(steps=59), louder)
    assert finish(api)["guarantee"]["release"] == "every_step"


def test_a_branch_with_steps_shows_every_step(api: httpx.Client) -> None:
    start(api)
    append(api, planned())
    fork = {"name": "fork", "writer": "another-writer-12345", "from_step": 20, "order": "fresh"}
    api.post("/v1/runs/run/branches", json=fork)
    assert append(api, planned(20, 1), branch="fork").status_code == 201
    assert finish(api)["guarantee"]["release_reason"].startswith("The run did not follow")


def test_steps_after_the_end_show_every_step(api: httpx.Client) -> None:
    start(api)
    append(api, planned())
    finish(api)
    append(api, planned(60, 1))
    found = guarantee(api)
    assert found["release"] == "every_step"
    assert found["release_reason"].startswith("The run went on after its end")


def test_a_run_without_a_plan_shows_every_step(api: httpx.Client) -> None:
    start(api, plan=None)
    append(api, planned())
    found = finish(api)["guarantee"]
    assert found["release_reason"] == "The run registered no plan before its first step."


def test_the_smaller_bound_stands_aside_where_conditional_is_not_accepted(
    api: httpx.Client,
) -> None:
    given = SMALL | {"accept": ["published"]}
    setup(api, dataset_given=given, **hiding())
    append(api, planned())
    found = finish(api)["guarantee"]
    assert found["release"] == "every_step"
    assert found["status"] == "published"
    assert found["release_reason"] == (
        "The bound for hidden iterates is conditional: not accepted."
    )
    (aside,) = [one for one in found["alternatives"] if one["accountant"] == "last_iterate"]
    assert aside["epsilon"] < found["epsilon"]


def test_the_dataset_is_charged_as_if_every_step_were_shown(api: httpx.Client) -> None:
    budget = {"epsilon": 50.0, "delta": 1e-5}
    setup(api, dataset_given=SMALL | {"budget": budget}, **hiding())
    append(api, planned())
    before = api.get("/v1/datasets/data").json()
    told = api.get("/v1/datasets/data/guarantee").json()
    finish(api)
    after = api.get("/v1/datasets/data").json()
    assert after["spent"] == before["spent"]
    assert after["remaining"] == before["remaining"]
    assert api.get("/v1/datasets/data/guarantee").json() == told


def test_an_iterate_that_was_shown_ends_the_hiding_up_to_it(api: httpx.Client) -> None:
    start(api)
    append(api, planned())
    hidden = finish(api)["guarantee"]["epsilon"]
    answer = release(api, 19)
    assert answer.status_code == 201
    assert answer.json()["step"] == 19
    assert release(api, 19).status_code == 200
    assert release(api, 19).json() == answer.json()
    shown = guarantee(api)["epsilon"]
    assert shown > hidden
    assert api.get("/v1/runs/run").json()["releases"] == 1
    for step in range(STEPS):
        release(api, step)
    assert guarantee(api)["release_reason"] == "Showing every step costs no more."


@pytest.mark.parametrize("step", [60, 10**12])
def test_a_step_that_was_not_recorded_cannot_have_been_shown(api: httpx.Client, step: int) -> None:
    start(api)
    append(api, planned())
    answer = release(api, step)
    assert answer.status_code == 409
    assert answer.json()["expected_step"] == 60
    assert release(api, 3, branch="nowhere").status_code == 404
    assert api.get("/v1/runs/run").json()["releases"] == 0


def test_a_branch_shows_only_what_it_recorded_itself(api: httpx.Client) -> None:
    start(api)
    append(api, planned())
    fork = {"name": "fork", "writer": "another-writer-12345", "from_step": 20, "order": "fresh"}
    api.post("/v1/runs/run/branches", json=fork)
    append(api, planned(20, 5), branch="fork")
    assert release(api, 19, branch="fork").status_code == 409
    assert release(api, 20, branch="fork").status_code == 201


@pytest.mark.parametrize("word", ["every_pass", "every_epoch"])
def test_a_run_that_shows_every_pass_is_charged_for_each(api: httpx.Client, word: str) -> None:
    shuffled = {
        "kind": "shuffle",
        "batch_size": 100,
        "reshuffle": "each_pass",
        "steps_per_pass": 20,
    }
    declared = ASSUMPTIONS | {"data_order": "shuffle_each_pass"}
    steps = planned(sampling=shuffled)
    start(api, release=word, plan=[steps], assumptions=declared)
    append(api, steps)
    found = finish(api)["guarantee"]
    assert found["release"] == "every_pass"
    assert found["bound"] == "random-order-pass"
    assert api.get("/v1/runs/run").json()["release"] == "every_pass"


def test_a_fixed_order_gains_nothing_when_each_pass_is_shown(api: httpx.Client) -> None:
    start(api, release="every_pass")
    append(api, planned())
    found = finish(api)["guarantee"]
    assert found["release"] == "every_step"
    assert found["release_reason"] == "Showing every step costs no more."


def test_a_schedule_of_learning_rates_may_be_declared(api: httpx.Client) -> None:
    stages = [{"first_step": 0, "learning_rate": 0.2}, {"first_step": 30, "learning_rate": 0.1}]
    start(api, assumptions=ASSUMPTIONS | {"learning_rate": stages})
    append(api, planned())
    assert finish(api)["guarantee"]["release"] == "last_iterate"
    assert api.get("/v1/runs/run").json()["assumptions"]["learning_rate"] == stages


@pytest.mark.parametrize(
    ("constant", "theorem"),
    [({}, "sampled-last-iterate"), ({"sampled_constant": "sharp"}, "sampled-last-iterate-sharp")],
)
def test_batches_drawn_afresh_have_two_constants(
    api: httpx.Client, constant: Json, theorem: str
) -> None:
    steps = planned(steps=4000, sampling={"kind": "fixed_size", "batch_size": 200})
    declared = {"data_order": "fixed_size", "projection_diameter": 1e-4, "gradient_divisor": 200.0}
    asked = {
        "neighboring_relation": "replace_one",
        "dataset_size": 2000,
        "delta": 1e-5,
        "accept": [*ACCEPT, "derived"],
        "events": [steps],
        "release": "last_iterate",
        "assumptions": ASSUMPTIONS | declared | constant,
    }
    found = api.post("/v1/plan", json=asked).json()
    assert (found["bound"], found["status"]) == (theorem, "conditional")


def test_a_plan_says_what_hiding_would_be_worth(api: httpx.Client) -> None:
    asked = {
        "neighboring_relation": "replace_one",
        "dataset_size": 2000,
        "delta": 1e-5,
        "accept": ACCEPT,
        "events": [planned()],
    }
    shown = api.post("/v1/plan", json=asked).json()
    declared = {"release": "last_iterate", "assumptions": ASSUMPTIONS}
    hidden = api.post("/v1/plan", json=asked | declared).json()
    assert hidden["release"] == "last_iterate"
    assert hidden["epsilon"] < shown["epsilon"]
    refused = api.post("/v1/plan", json=asked | {"release": "last_iterate"})
    assert refused.status_code == 422


def test_the_ledger_document_gives_the_same_number_offline(
    api: httpx.Client, tmp_path: Path
) -> None:
    start(api)
    append(api, planned())
    release(api, 9)
    found = finish(api)["guarantee"]
    document = tmp_path / "ledger.json"
    document.write_text(api.get("/v1/runs/run/ledger").text)
    assert json.loads(document.read_text())["releases"] == [{"branch": "main", "step": 9}]
    told = CliRunner().invoke(app, ["epsilon", str(document), "--delta", "1e-5", "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["epsilon"] == found["epsilon"]


def test_assumptions_of_a_run_that_shows_every_step_are_free(api: httpx.Client) -> None:
    given = {"optimizer": "sgd", "projection_diameter": None}
    setup(api, assumptions=given)
    assert api.get("/v1/runs/run").json()["assumptions"] == given


def test_a_history_has_no_lower_end_for_what_is_shown_may_be_less(api: httpx.Client) -> None:
    start(api)
    append(api, planned())
    (point,) = api.get("/v1/runs/run/history", params={"points": 1}).json()["points"]
    assert point["epsilon"] > 0
    assert point["epsilon_lower"] is None
