"""Who spent what, and what would make a refused request fit."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest
from sqlalchemy import Engine, update

import accounting
from accounting.event_counts import count_events
from accounting.events import NeighboringRelation
from service.guarantees import attribution, event_costs, fit_suggestions, replay
from service.schemas.event_codec import spans_of
from service.schemas.requests import PlannedEvent
from service.storage.engine import transaction
from service.storage.tables import reservations
from tests.service.samples import BUDGET, FULL, Json, append, dataset, event, run, setup

RELATION = NeighboringRelation.REPLACE_SPECIAL
QUIET: Json = {"kind": "gaussian", "noise_multiplier": 8.0}
NONE: Json = {"kind": "none"}
CYCLIC: Json = {"kind": "cyclic", "batch_size": 600, "steps_per_pass": 100}  # 100 steps a pass
FIXED: Json = {"kind": "fixed_size", "batch_size": 600}


def start(api: httpx.Client, *names: str, budget: Json | None = BUDGET, **given: object) -> None:
    """A dataset and runs in it."""
    first, *others = names or ("run",)
    given = {"neighboring_relation": RELATION, "budget": budget, **given}
    setup(api, dataset_given=given, name=first)
    for name in others:
        assert api.post("/v1/runs", json=run(name)).status_code == 201


def explain(api: httpx.Client, name: str = "data", **query: float) -> Json:
    answer = api.get(f"/v1/datasets/{name}/explain", params=query)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def ask(api: httpx.Client, *events: Json, name: str = "data") -> Json:
    answer = api.post(f"/v1/datasets/{name}/explain", json={"events": list(events)})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def charge(api: httpx.Client, *events: Json, name: str = "run") -> int:
    return append(api, *events, run=name, mode="charge").status_code


def rdp(*events: Json) -> float:
    spans = [
        spans_of(
            [PlannedEvent.model_validate(one | {"first_step": 0})], dataset_size=60000, first_step=0
        )
        for one in events
    ]
    found = accounting.guarantee(
        count_events(spans), relation=RELATION, delta=1e-5, accountant="rdp"
    ).epsilon
    assert found is not None
    return found


def test_each_run_has_its_share_and_the_largest_is_told_first(api: httpx.Client) -> None:
    start(api, "small", "large", "idle")
    small, large = event(0, 100, mechanism=QUIET), event(0, 1000)
    append(api, small, run="small")
    append(api, large, run="large")
    found = explain(api)
    assert [one["run"] for one in found["runs"]] == ["large", "small"]
    first, second = found["runs"]
    assert (first["steps"], second["steps"]) == (1000, 100)
    assert first["epsilon"] == pytest.approx(rdp(large), rel=1e-12)
    assert first["epsilon_without"] == pytest.approx(rdp(small), rel=1e-12)
    assert second["epsilon_without"] == pytest.approx(rdp(large), rel=1e-12)
    assert found["epsilon"] == pytest.approx(rdp(small, large), rel=1e-12)
    assert first["share"] + second["share"] == pytest.approx(1.0, abs=1e-15)
    assert first["share"] > 0.99
    assert found["others"] is None
    assert (found["accountant"], found["valid_for"]) == ("rdp", "fixed_schedule")
    assert found["budget"]["order"] == found["budget"]["filter"]["orders"][0]
    assert found["order"] != found["budget"]["order"]
    assert found["datasets"] == [
        {"dataset": "data", "runs": 2, "steps": 1100, "share": pytest.approx(1.0, abs=1e-15)}
    ]


def test_runs_beyond_a_number_are_told_together(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("one", "two", "three", "four")
    start(api, *names)
    for number, name in enumerate(names, start=1):
        append(api, event(0, 10 * number), run=name)
    monkeypatch.setattr(attribution, "ATTRIBUTED_RUNS_MAX", 1)
    found = explain(api)
    assert [one["run"] for one in found["runs"]] == ["four"]
    rest = found["others"]
    assert (rest["runs"], rest["steps"]) == (3, 60)
    assert rest["share"] == pytest.approx(0.6, abs=1e-15)
    assert rest["epsilon"] == pytest.approx(rdp(event(0, 60)), rel=1e-12)
    assert rest["epsilon_without"] == pytest.approx(rdp(event(0, 40)), rel=1e-12)


def test_with_many_different_events_epsilons_are_upper_bounds_still(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(api)
    append(api, event(0, 100), event(100, 50, sampling=FULL, mechanism=QUIET))
    exact = explain(api)["runs"][0]["epsilon"]
    monkeypatch.setattr(event_costs, "_FEW", 0)
    rough = explain(api)["runs"][0]["epsilon"]
    assert exact <= rough <= 1.05 * exact
    monkeypatch.setattr(event_costs, "_SOME", 0)
    assert rough <= explain(api)["runs"][0]["epsilon"] <= 1.2 * exact


def test_passes_are_counted_whole_and_nothing_is_nothing(api: httpx.Client) -> None:
    start(api)
    empty = explain(api)
    assert (empty["epsilon"], empty["order"], empty["runs"], empty["others"]) == (0, None, [], None)
    assert empty["datasets"] == [{"dataset": "data", "runs": 0, "steps": 0, "share": None}]
    append(api, event(0, 101, sampling=CYCLIC))
    found = explain(api)
    assert found["epsilon"] == pytest.approx(rdp(event(0, 2, sampling=FULL)), rel=1e-12)
    assert found["runs"][0]["share"] == 1.0
    assert found["runs"][0]["epsilon_without"] == 0


def test_what_has_no_bound_comes_first_and_has_no_figure(api: httpx.Client) -> None:
    start(api, "fine", "wild")
    append(api, event(0, 1000), run="fine")
    append(api, event(0, 1, mechanism=NONE), event(1, 5), run="wild")
    found = explain(api)
    wild, fine = found["runs"]
    assert (wild["run"], wild["epsilon"], wild["share"]) == ("wild", None, None)
    assert wild["epsilon_without"] == pytest.approx(rdp(event(0, 1000)), rel=1e-12)
    assert (fine["epsilon_without"], found["epsilon"]) == (None, None)
    assert fine["share"] > 0.9


def test_probabilities_of_failure_come_off_delta(api: httpx.Client) -> None:
    start(api)
    append(api, event(0, 4, mechanism={"kind": "approximate_dp", "epsilon": 0.1, "delta": 2e-6}))
    full: Json = {"mechanism": {"kind": "approximate_dp", "epsilon": 0.1, "delta": 2e-6}}
    found = explain(api)
    assert found["epsilon"] is not None
    assert explain(api, delta=8e-6)["epsilon"] is None
    append(api, event(4, 1, **full))
    assert explain(api)["epsilon"] is None


def test_delta_is_that_of_the_query_else_of_the_budget(api: httpx.Client) -> None:
    start(api, budget=None)
    append(api, event(0, 100))
    answer = api.get("/v1/datasets/data/explain")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["location"] == "query.delta"
    found = explain(api, delta=1e-5)
    assert found["epsilon"] == pytest.approx(rdp(event(0, 100)), rel=1e-12)
    assert found["budget"] is None
    assert found["runs"][0]["share"] == 1.0
    assert api.get("/v1/datasets/none/explain", params={"delta": 1e-5}).status_code == 404


def test_what_is_reserved_and_what_expired_have_their_shares(
    api: httpx.Client, engine: Engine
) -> None:
    start(api)
    append(api, event(0, 100))
    for name, steps in (("kept", 200), ("lost", 100)):
        wanted = event(0, steps)
        del wanted["first_step"]
        body = {"name": name, "event": wanted, "ttl_seconds": 3600}
        assert api.post("/v1/runs/run/reservations", json=body).status_code == 201
    late = datetime.now(UTC) - timedelta(seconds=1)
    with transaction(engine) as connection:
        expired = update(reservations).where(reservations.c.name == "lost")
        connection.execute(expired.values(expires_at=late))
    found = explain(api)
    assert found["pending"] == {"steps": 200, "share": pytest.approx(0.5, abs=1e-12)}
    assert found["forfeited"] == {"steps": 100, "share": pytest.approx(0.25, abs=1e-12)}
    assert found["runs"][0]["share"] == pytest.approx(0.25, abs=1e-12)
    assert found["runs"][0]["epsilon_without"] == 0


def test_a_guarantee_is_told_with_and_without_what_is_reserved(api: httpx.Client) -> None:
    start(api)
    append(api, event(0, 100))
    before = api.get("/v1/datasets/data/guarantee").json()
    assert before["without_reservations"]["epsilon"] == before["epsilon"]
    wanted = event(0, 200)
    del wanted["first_step"]
    body = {"name": "kept", "event": wanted, "ttl_seconds": 3600}
    assert api.post("/v1/runs/run/reservations", json=body).status_code == 201
    found = api.get("/v1/datasets/data/guarantee", params={"accountant": "rdp"}).json()
    assert found["epsilon"] == pytest.approx(rdp(event(0, 300)), rel=1e-12)
    without = found["without_reservations"]
    assert without["epsilon"] == pytest.approx(rdp(event(0, 100)), rel=1e-12)
    assert (found["steps"], without["steps"]) == (100, 100)
    assert found["epsilon_lower"] == without["epsilon_lower"]
    then = api.get("/v1/datasets/data/guarantee", params={"accountant": "rdp", "as_of": 1}).json()
    assert then["epsilon"] == without["epsilon"]


def test_datasets_that_were_made_from_it_are_told_by_name(api: httpx.Client) -> None:
    start(api)
    made = dataset(
        "made", neighboring_relation=RELATION, parents=["data"],
        rows_per_parent_record="at_most_one", dataset_size=30000,
    )  # fmt: skip
    assert api.post("/v1/datasets", json=made).status_code == 201
    api.post("/v1/runs", json=run("below", dataset="made", delta=1e-5))
    append(api, event(0, 100))
    append(api, event(0, 300), run="below")
    append(api, event(300, 1, sampling={"kind": "fixed_size", "batch_size": 10}), run="below")
    found = explain(api)
    assert [(one["dataset"], one["runs"], one["steps"]) for one in found["datasets"]] == [
        ("data", 1, 100), ("made", 1, 301),
    ]  # fmt: skip
    assert [(one["run"], one["dataset"]) for one in found["runs"]] == [
        ("below", "made"), ("run", "data"),
    ]  # fmt: skip
    # Another record may stand in for one that was left out: two norm bounds, and no amplification.
    stand_in = event(0, 1, sampling=FULL, mechanism={"kind": "gaussian", "noise_multiplier": 0.55})
    whole = rdp(event(0, 400), stand_in)
    assert found["epsilon"] == pytest.approx(whole, rel=1e-12)
    guarantee = api.get("/v1/datasets/data/guarantee", params={"accountant": "rdp"}).json()
    assert guarantee["epsilon"] == pytest.approx(whole, rel=1e-12)
    assert guarantee["epsilon_lower"] is None
    then = api.get("/v1/datasets/data/guarantee", params={"as_of": 1, "accountant": "rdp"}).json()
    assert then["epsilon"] == pytest.approx(whole, rel=1e-12)
    assert then["epsilon_lower"] is None


def test_a_look_back_at_a_dataset_takes_in_what_its_descendants_had_done_by_then(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(api)
    made = dataset(
        "made",
        neighboring_relation=RELATION,
        parents=["data"],
        rows_per_parent_record="exactly_one",
    )
    assert api.post("/v1/datasets", json=made).status_code == 201
    api.post("/v1/runs", json=run("below", dataset="made", delta=1e-5))
    append(api, event(0, 100))
    append(api, event(0, 10), run="below")
    append(api, event(100, 100))
    append(api, event(10, 10), run="below")
    steps = [
        api.get("/v1/datasets/data/guarantee", params={"as_of": sequence}).json()["steps"]
        for sequence in range(3)
    ]
    assert steps == [0, 110, 220]
    monkeypatch.setattr(replay, "FOLD_MAX", 3)  # entries of all of them count together
    answer = api.get("/v1/datasets/data/guarantee", params={"as_of": 2})
    assert answer.json()["type"].endswith("too-expensive")
    assert api.get("/v1/datasets/data/guarantee", params={"as_of": 1}).status_code == 200


@pytest.mark.parametrize("limit", ["PRICED_EVENTS_MAX", "_ROWS_MAX"])
def test_what_would_take_long_to_explain_is_refused(
    api: httpx.Client, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(api)
    append(api, event(0, 100), event(100, 5, sampling=FULL))
    owner = event_costs if limit == "PRICED_EVENTS_MAX" else attribution
    monkeypatch.setattr(owner, limit, 1)
    answer = api.get("/v1/datasets/data/explain")
    assert answer.status_code == 422
    assert answer.json()["type"].endswith("too-expensive")


def test_of_steps_that_fit_nothing_need_be_changed(api: httpx.Client) -> None:
    start(api)
    found = ask(api, event(0, 10))
    assert (found["fits"], found["failing_scopes"]) == (True, [])
    for remedy in ("fewer_steps", "more_noise", "lower_rate"):
        assert found[remedy]["reason"] == "It fits as it is."
    assert api.get("/v1/datasets/data").json()["budget"]["spent"] == 0


def test_without_a_budget_everything_fits(api: httpx.Client) -> None:
    start(api, budget=None)
    assert ask(api, event(0, 10**6, sampling=FULL))["fits"] is True


def test_each_remedy_is_admitted_and_a_little_less_of_it_is_not(api: httpx.Client) -> None:
    start(api)
    assert charge(api, event(0, 2000)) == 201
    wanted = event(2000, 20000)
    asked = ask(api, wanted | {"first_step": 0})
    assert asked["fits"] is False
    assert [one["scope"] for one in asked["failing_scopes"]] == ["dataset:data"]
    steps = asked["fewer_steps"]["value"]
    assert charge(api, wanted | {"steps": steps + 1}) == 409
    noise = asked["more_noise"]["noise_multiplier"]
    rate = asked["lower_rate"]["sampling_probability"]
    assert asked["lower_rate"]["batch_size"] is None
    less_noise: Json = {"kind": "gaussian", "noise_multiplier": noise * (1 - 3e-6)}
    more_often: Json = {"kind": "poisson", "sampling_probability": rate * (1 + 3e-6)}
    assert charge(api, wanted | {"mechanism": less_noise}) == 409
    assert charge(api, wanted | {"sampling": more_often}) == 409
    for change in (
        {"steps": steps},
        {"mechanism": {"kind": "gaussian", "noise_multiplier": noise}},
        {"sampling": {"kind": "poisson", "sampling_probability": rate}},
    ):
        assert ask(api, wanted | {"first_step": 0} | change)["fits"] is True
    assert charge(api, wanted | {"steps": steps}) == 201


def test_batches_are_made_smaller_where_they_are_drawn_afresh(api: httpx.Client) -> None:
    start(api)
    wanted = event(0, 10**6, sampling=FIXED, mechanism=QUIET)
    asked = ask(api, wanted)
    size = asked["lower_rate"]["batch_size"]
    assert 1 <= size < 600
    assert asked["lower_rate"]["sampling_probability"] is None
    fits = [
        ask(api, wanted | {"sampling": FIXED | {"batch_size": one}})["fits"]
        for one in (size, size + 1)
    ]
    assert fits == [True, False]


def test_of_several_events_all_are_changed_by_one_factor(api: httpx.Client) -> None:
    start(api)
    two = [event(0, 5000), event(5000, 500, mechanism=QUIET, sampling=FULL)]
    asked = ask(api, *two)
    factor = asked["more_noise"]["noise_multiplier"] / 1.1
    louder = [
        one | {"mechanism": {"kind": "gaussian", "noise_multiplier": noise * factor}}
        for one, noise in zip(two, (1.1, 8.0), strict=True)
    ]
    assert ask(api, *louder)["fits"] is True
    assert asked["lower_rate"]["reason"] == "No change of this kind makes it fit."


def test_a_remedy_that_there_is_not_says_why(api: httpx.Client) -> None:
    start(api)
    box: Json = {"kind": "approximate_dp", "epsilon": 5.0, "delta": 0.0}
    asked = ask(api, event(0, 1, mechanism=box, sampling=FULL))
    assert asked["fewer_steps"] == {"value": None, "reason": "Not even its first step fits."}
    assert asked["more_noise"]["reason"] == "None of its steps has a noise multiplier."
    assert "sampling probability or a batch" in asked["lower_rate"]["reason"]
    endless = ask(api, event(0, 1, mechanism=NONE), event(1, 1))
    assert endless["more_noise"]["reason"] == "No change of this kind makes it fit."


def test_a_remedy_that_takes_long_to_find_is_not_waited_for(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(api)
    monkeypatch.setattr(fit_suggestions, "SEARCH_POINTS", 500)
    asked = ask(api, event(0, 10**6))
    assert asked["more_noise"] == {"noise_multiplier": None, "reason": fit_suggestions.REASON_LONG}
    assert asked["fewer_steps"]["value"] > 0


def test_the_budgets_of_what_a_dataset_was_made_from_must_hold_it_too(api: httpx.Client) -> None:
    start(api, budget={"epsilon": 1.0, "delta": 1e-5})
    made = dataset(
        "made", neighboring_relation=RELATION, parents=["data"],
        rows_per_parent_record="exactly_one", budget=BUDGET,
    )  # fmt: skip
    assert api.post("/v1/datasets", json=made).status_code == 201
    wanted = event(0, 2000, mechanism=QUIET)
    wanted["sampling"] = {"kind": "poisson", "sampling_probability": 0.1}
    asked = ask(api, wanted, name="made")
    assert [one["scope"] for one in asked["failing_scopes"]] == ["dataset:data"]
    fewer = wanted | {"steps": asked["fewer_steps"]["value"]}
    assert ask(api, fewer, name="made")["fits"] is True


@pytest.mark.parametrize(
    "body",
    [{}, {"events": []}, {"events": [event(5, 1)]}, {"events": [event(0, 1)], "delta": 1e-5}],
)
def test_a_question_that_is_none_is_refused(api: httpx.Client, body: Json) -> None:
    start(api)
    answer = api.post("/v1/datasets/data/explain", json=body)
    assert answer.status_code == 422
    assert api.post("/v1/datasets/none/explain", json={"events": [event(0, 1)]}).status_code == 404
