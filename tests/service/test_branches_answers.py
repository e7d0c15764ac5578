"""Branches: what this model cost, and what all that was trained cost, are two answers."""

import math

import httpx
import pytest
from sqlalchemy import Engine, text

import accounting
from accounting.event_counts import count_events
from accounting.events import NeighboringRelation
from accounting.gaussian import gaussian_epsilon
from service.schemas.event_codec import spans_of
from service.schemas.requests import PlannedEvent
from service.storage.engine import transaction
from tests.service.samples import FULL, GAUSSIAN, WRITER, Json, append, event, run, setup

QUIET: Json = {"kind": "gaussian", "noise_multiplier": 8.0}
CYCLIC: Json = {"kind": "cyclic", "batch_size": 600, "steps_per_pass": 100}  # 100 steps a pass
RELATION = NeighboringRelation.REPLACE_SPECIAL


def fork(api: httpx.Client, name: str, from_step: int, **given: object) -> httpx.Response:
    body = {"name": name, "writer": WRITER, "from_step": from_step, "order": "fresh"} | given
    return api.post("/v1/runs/run/branches", json=body)


def guarantee(api: httpx.Client, **query: object) -> Json:
    answer = api.get("/v1/runs/run/guarantee", params=query)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def epsilon_of(*segments: list[Json]) -> float | None:
    """Epsilon of segments each of which opens a pass of its own."""
    spans = [
        spans_of(
            [PlannedEvent.model_validate(sent) for sent in events],
            dataset_size=60000,
            first_step=events[0]["first_step"],
        )
        for events in segments
    ]
    return accounting.guarantee(count_events(spans), relation=RELATION, delta=1e-5).epsilon


def start(api: httpx.Client) -> None:
    """Main of 100 steps; side from 60, of 50 quieter ones; leaf from 80 of side, of 10."""
    setup(api, dataset_given={"neighboring_relation": RELATION}, delta=1e-5)
    append(api, event(0, 70), event(70, 30, mechanism=QUIET))
    assert fork(api, "side", 60).status_code == 201
    append(api, event(60, 50, mechanism=QUIET), branch="side")
    assert fork(api, "leaf", 80, from_branch="side").status_code == 201
    append(api, event(80, 10, sampling=FULL), branch="leaf")


def test_a_model_costs_what_is_on_its_path_to_the_root(api: httpx.Client) -> None:
    start(api)
    common, side = event(0, 60), event(60, 20, mechanism=QUIET)
    leaf = event(80, 10, sampling=FULL)
    found = guarantee(api, branch="leaf")
    assert (found["branch"], found["steps"]) == ("leaf", 90)
    assert found["epsilon"] == epsilon_of([common], [side], [leaf])
    assert guarantee(api, branch="side")["epsilon"] == epsilon_of(
        [common], [event(60, 50, mechanism=QUIET)]
    )
    whole = [event(0, 70), event(70, 30, mechanism=QUIET)]
    assert guarantee(api, branch="main")["epsilon"] == epsilon_of(whole)


def test_the_whole_runs_figure_stands_beside_that_of_a_model(api: httpx.Client) -> None:
    start(api)
    tree, model = guarantee(api), guarantee(api, branch="side")
    assert (tree["branch"], tree["whole_run_epsilon"], tree["steps"]) == (None, None, 160)
    assert model["whole_run_epsilon"] == pytest.approx(tree["epsilon"], rel=1e-6)
    assert model["epsilon"] < model["whole_run_epsilon"]
    assert model["epsilon_lower"] <= model["epsilon"]


def test_every_bound_on_a_model_says_what_it_assumes_of_the_other_branches(
    api: httpx.Client,
) -> None:
    start(api)
    model, tree = guarantee(api, branch="side"), guarantee(api)
    for bound in (model, *model["alternatives"]):
        assert "other_branches_unused" in bound["assumptions"]
    for bound in (tree, *tree["alternatives"]):
        assert "other_branches_unused" not in bound["assumptions"]


def test_a_pass_that_was_open_at_the_fork_counts_whole_and_the_branch_opens_another(
    api: httpx.Client,
) -> None:
    setup(api, dataset_given={"neighboring_relation": RELATION}, delta=1e-5)
    append(api, event(0, 250, sampling=CYCLIC))
    fork(api, "side", 150)
    append(api, event(150, 10, sampling=CYCLIC), branch="side")
    found = guarantee(api, branch="side", accountant="gdp")
    # Two passes of main were begun by step 150, and one of the branch.
    mu = math.sqrt(3) / 1.1
    assert found["epsilon"] == pytest.approx(gaussian_epsilon(1e-5, mu=mu), rel=1e-9)


def test_a_branch_begins_on_main_where_main_has_come_so_far(api: httpx.Client) -> None:
    start(api)
    assert fork(api, "again", 70).json()["from_branch"] == "main"
    assert fork(api, "beyond", 105).json()["from_branch"] == "side"
    branches = {
        one["name"]: one["from_branch"] for one in api.get("/v1/runs/run").json()["branches"]
    }
    assert branches == {
        "main": None, "side": "main", "leaf": "side", "again": "main", "beyond": "side",
    }  # fmt: skip


def test_a_branch_may_begin_anywhere_on_the_branch_it_names_and_nowhere_else(
    api: httpx.Client,
) -> None:
    start(api)
    early = fork(api, "early", 59, from_branch="side")
    assert (early.status_code, early.json()["expected_step"]) == (409, 60)
    late = fork(api, "late", 111, from_branch="side")
    assert (late.status_code, late.json()["expected_step"]) == (409, 110)
    assert late.json()["type"].endswith("out-of-sequence")
    assert fork(api, "nowhere", 111).json()["expected_step"] == 110
    assert fork(api, "lost", 5, from_branch="unknown").status_code == 404
    assert fork(api, "first", 60, from_branch="side").status_code == 201
    assert fork(api, "last", 110, from_branch="side").status_code == 201
    found = guarantee(api, branch="first")
    assert (found["steps"], found["epsilon"]) == (60, epsilon_of([event(0, 60)]))


def test_opening_a_branch_again_is_one_branch_and_from_elsewhere_a_conflict(
    api: httpx.Client,
) -> None:
    start(api)
    assert fork(api, "side", 60).status_code == 200
    assert fork(api, "side", 60, from_branch="main").status_code == 200
    assert fork(api, "side", 60, from_branch="leaf").json()["type"].endswith("conflict")
    assert fork(api, "side", 61).json()["type"].endswith("conflict")


def test_a_branch_that_is_not_there_has_no_guarantee(api: httpx.Client) -> None:
    start(api)
    api.post("/v1/runs", json=run("other", delta=1e-5))
    assert api.get("/v1/runs/run/guarantee?branch=none").status_code == 404
    assert api.get("/v1/runs/other/guarantee?branch=side").status_code == 404
    assert api.get("/v1/runs/run/guarantee?branch=NONE").status_code == 422


def test_a_branch_whose_beginning_is_not_known_has_no_path(
    api: httpx.Client, engine: Engine
) -> None:
    start(api)
    with transaction(engine) as connection:  # as a ledger from before has it
        connection.execute(text("UPDATE branches SET from_branch_id = NULL WHERE name = 'side'"))
    for name in ("side", "leaf"):
        answer = api.get("/v1/runs/run/guarantee", params={"branch": name})
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["location"] == "query.branch"
    assert guarantee(api, branch="main")["epsilon"] > 0


def test_the_ledger_document_says_where_each_branch_began(api: httpx.Client) -> None:
    start(api)
    found = {one["name"]: one for one in api.get("/v1/runs/run/ledger").json()["branches"]}
    assert {name: one["from_branch"] for name, one in found.items()} == {
        "side": "main", "leaf": "side",
    }  # fmt: skip


def test_an_odometer_stands_beside_and_is_the_headline_only_if_it_is_asked_for(
    api: httpx.Client,
) -> None:
    setup(api, delta=1e-5)
    append(api, event(0, 1000, mechanism={"kind": "gaussian", "noise_multiplier": 1.0}))
    found = guarantee(api)
    (odometer,) = [one for one in found["alternatives"] if one["accountant"] == "odometer"]
    assert odometer["epsilon"] == pytest.approx(2.8809, abs=1e-4)
    assert odometer["epsilon"] > found["epsilon"]
    assert (odometer["valid_for"], odometer["status"]) == ("adaptive", "derived")
    assert odometer["bound"] == "renyi-odometer"
    assert found["valid_for"] == "fixed_schedule"
    assert "parameters_fixed_in_advance" not in odometer["assumptions"]
    asked = guarantee(api, accountant="odometer")
    assert asked["epsilon"] is None
    assert "derived, which is not accepted" in asked["reason"]
    assert [one["accountant"] for one in asked["alternatives"]] == ["odometer"]
    at = guarantee(api, epsilon=3.0)
    assert all(one["accountant"] != "odometer" for one in at["alternatives"])
    assert guarantee(api, epsilon=3.0, accountant="odometer")["epsilon"] is None


def test_where_derived_bounds_are_accepted_an_odometer_may_be_the_headline(
    api: httpx.Client,
) -> None:
    setup(api, dataset_given={"accept": ["published", "derived"]}, delta=1e-5)
    append(api, event(0, 1000, mechanism=GAUSSIAN))
    found = guarantee(api, accountant="odometer")
    assert (found["accountant"], found["valid_for"]) == ("odometer", "adaptive")
    assert found["epsilon_lower"] <= guarantee(api)["epsilon"] < found["epsilon"]
    whole = api.get("/v1/datasets/data/guarantee", params={"delta": 1e-5}).json()
    assert "odometer" in [one["accountant"] for one in whole["alternatives"]]
    assert "odometer" not in [
        one["accountant"] for one in guarantee(api, accountant="rdp")["alternatives"]
    ]


def test_an_odometer_of_what_has_no_bound_is_none(api: httpx.Client) -> None:
    setup(api, delta=1e-5)
    append(api, event(0, 1, mechanism={"kind": "approximate_dp", "epsilon": 0.1, "delta": 1e-6}))
    found = guarantee(api)
    assert found["epsilon"] is not None
    assert all(one["accountant"] != "odometer" for one in found["alternatives"])
    append(api, event(1, 1, mechanism={"kind": "none"}))
    assert guarantee(api)["alternatives"] == []
