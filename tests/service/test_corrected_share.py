"""What corrections added to what is spent: a part of its own in who spent what."""

import httpx
import pytest
from sqlalchemy import Engine

from service.formatting import percent_up
from service.guarantees import attribution
from tests.service.samples import BUDGET, FULL, Json, append, dataset, event, run
from tests.service.test_explain import CYCLIC, QUIET, RELATION, explain, start
from tests.service.test_spending import grown


@pytest.mark.parametrize("sampling", [FULL, CYCLIC], ids=["by step", "by pass"])
def test_what_a_correction_adds_is_a_part_of_its_own_and_all_parts_are_the_whole(
    api: httpx.Client, sampling: Json
) -> None:
    start(api, budget=BUDGET | {"epsilon": 900.0})
    first, second = event(0, 100, sampling=sampling), event(100, 50, sampling=sampling)
    append(api, first, second)
    assert explain(api)["corrected"] == {"steps": 0, "share": 0.0}
    louder = {"kind": "gaussian", "noise_multiplier": 0.9}
    body = event(0, 60, mechanism=louder, sampling=sampling)
    made = api.post("/v1/runs/run/corrections", json=body | {"reason": "the log says so"})
    assert made.status_code == 201, made.text
    held = event(0, 10, sampling=sampling)
    del held["first_step"]
    body = {"name": "kept", "event": held, "ttl_seconds": 3600}
    assert api.post("/v1/runs/run/reservations", json=body).status_code == 201
    found = explain(api)
    assert found["corrected"]["steps"] == 60
    assert found["corrected"]["share"] > 0.01
    parts = [*found["runs"], found["corrected"], found["pending"], found["forfeited"]]
    assert sum(part["share"] for part in parts) == pytest.approx(1, abs=1e-9)
    text = api.get("/datasets/data").text
    assert "what corrections added" in text
    assert str(percent_up(found["corrected"]["share"])) in text


EARLY: Json = {"kind": "shuffle", "batch_size": 600, "steps_per_pass": 99, "reshuffle": "each_pass"}


def corrected(api: httpx.Client, really: Json, **given: str) -> None:
    body = really | {"reason": "the log says so", **given}
    answer = api.post("/v1/runs/run/corrections", json=body)
    assert answer.status_code == 201, answer.text


def guaranteed(api: httpx.Client, path: str) -> float:
    """Epsilon of the guarantee, by the accountant of an explanation."""
    asked = "delta=1e-5&accountant=rdp"
    found: float = api.get(f"/v1/{path}/guarantee?{asked}").json()["epsilon"]
    return found


@pytest.mark.parametrize("noise", [0.9, 4.0])
@pytest.mark.parametrize("sampling", [FULL, CYCLIC], ids=["by step", "by pass"])
def test_epsilons_hold_for_the_recorded_and_for_the_corrected_steps(
    api: httpx.Client, sampling: Json, noise: float
) -> None:
    start(api, "run", "other")
    append(api, event(0, 300, sampling=sampling))
    append(api, event(0, 40), run="other")
    before = explain(api)
    really = {"mechanism": {"kind": "gaussian", "noise_multiplier": noise}, "sampling": sampling}
    corrected(api, event(50, 120, **really))
    found = explain(api)
    assert found["epsilon"] == pytest.approx(guaranteed(api, "datasets/data"), rel=1e-9)
    by_run = {one["run"]: one for one in found["runs"]}
    for name, other in (("run", "other"), ("other", "run")):
        assert by_run[name]["epsilon"] == pytest.approx(guaranteed(api, f"runs/{name}"), rel=1e-9)
        assert by_run[name]["epsilon_without"] == by_run[other]["epsilon"]
    assert (found["epsilon"] > before["epsilon"] * (1 + 1e-9)) is (noise < 1)
    # What is recorded after it is read with it, too.
    append(api, event(300, 100, **really))
    assert explain(api)["epsilon"] == pytest.approx(guaranteed(api, "datasets/data"), rel=1e-9)
    corrected(api, event(200, 90, sampling=FULL, mechanism=QUIET))
    assert explain(api)["epsilon"] == pytest.approx(guaranteed(api, "datasets/data"), rel=1e-9)


def test_runs_that_are_told_together_are_told_as_corrected(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(api, "run", "other")
    append(api, event(0, 10))
    append(api, event(0, 40), run="other")
    monkeypatch.setattr(attribution, "ATTRIBUTED_RUNS_MAX", 1)
    corrected(api, event(0, 10, sampling=FULL))
    found = explain(api)
    assert found["others"]["epsilon"] == pytest.approx(guaranteed(api, "runs/run"), rel=1e-9)
    assert found["runs"][0]["epsilon_without"] == found["others"]["epsilon"]


def test_a_correction_that_leaves_passes_which_no_entry_counts_is_in_the_epsilons(
    api: httpx.Client,
) -> None:
    start(api, budget=None, accept=["published", "declared", "derived"])
    append(api, event(0, 150, sampling=EARLY))
    branch = {
        "name": "b", "from_branch": "main", "from_step": 20, "writer": "w" * 24
    }  # fmt: skip
    assert api.post("/v1/runs/run/branches", json=branch).status_code == 201
    append(api, event(20, 150, sampling=FULL), branch="b")
    corrected(api, event(30, 100, sampling=EARLY), branch="b")
    found = explain(api, delta=1e-5)
    assert found["epsilon"] >= guaranteed(api, "runs/run") * (1 - 1e-9)


def test_a_parent_sees_what_was_corrected_in_a_dataset_made_from_it(api: httpx.Client) -> None:
    start(api)
    child = dataset("child", parents=["data"], rows_per_parent_record="exactly_one")
    child["neighboring_relation"] = RELATION
    assert api.post("/v1/datasets", json=child).status_code == 201
    assert api.post("/v1/runs", json=run("heir", dataset="child")).status_code == 201
    append(api, event(0, 300), run="heir")
    really = event(0, 300, sampling=FULL) | {"reason": "the log says so"}
    assert api.post("/v1/runs/heir/corrections", json=really).status_code == 201
    found = explain(api)
    assert found["epsilon"] == pytest.approx(guaranteed(api, "datasets/data"), rel=1e-9)
    assert found["runs"][0]["epsilon"] == found["epsilon"]


@pytest.mark.parametrize("noise", [0.7, 4.0])
def test_a_chart_of_epsilon_counts_corrections_from_the_first_on(
    api: httpx.Client, engine: Engine, noise: float
) -> None:
    start(api, budget=None)
    append(api, event(0, 500))
    before = explain(api, delta=1e-5)["epsilon"]
    mechanism = {"kind": "gaussian", "noise_multiplier": noise}
    corrected(api, event(100, 300, mechanism=mechanism))
    found = grown(engine)
    after = explain(api, delta=1e-5)["epsilon"]
    assert found.moments[-1].spent == after
    assert before in [one.spent for one in found.moments]
    assert (after > before) is (noise < 1)
    append(api, event(500, 50))
    corrected(api, event(500, 50, mechanism=mechanism))
    found = grown(engine)
    assert found.moments[-1].spent == explain(api, delta=1e-5)["epsilon"]
    told = [one.spent or 0.0 for one in found.moments]
    assert told == sorted(told)


@pytest.mark.parametrize("once", [False, True])
def test_orders_that_may_be_used_again_count_as_known(api: httpx.Client, once: bool) -> None:
    start(api, budget=None, accept=["published", "declared", "derived"])
    secret = EARLY | {"steps_per_pass": 50}
    append(api, event(0, 500, sampling=secret, mechanism=QUIET))
    hidden = explain(api, delta=1e-5)["epsilon"]
    branch = {"name": "b", "from_branch": "main", "from_step": 20, "writer": "w" * 24}
    assert api.post("/v1/runs/run/branches", json=branch).status_code == 201
    order = secret | ({"reshuffle": "once"} if once else {})
    append(api, event(20, 5, sampling=order, mechanism=QUIET), branch="b")
    found = explain(api, delta=1e-5)
    assert found["epsilon"] == pytest.approx(guaranteed(api, "datasets/data"), rel=1e-9)
    assert found["epsilon"] > 2 * hidden
