"""Readings: every number can be recomputed from the document, and caches equal their folds."""

import json
import random
from collections import Counter
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, select

import accounting
from accounting.event_counts import EventCounts, count_events
from accounting.events import NeighboringRelation
from service.guarantees.event_counts import dataset_counts, run_counts
from service.guarantees.recorded_facts import refold_run
from service.ledger.lookups import find_dataset, find_run
from service.schemas.event_codec import spans_of
from service.schemas.ledger_document import LedgerDocument
from service.schemas.requests import PlannedEvent
from service.storage.engine import snapshot
from service.storage.tables import runs
from tests.service.samples import (
    BALLS,
    BUDGET,
    DRAWS,
    FULL,
    GAUSSIAN,
    POISSON,
    RANDOM,
    TRUNCATED,
    WEIGHTED,
    WRITER,
    Json,
    append,
    event,
    run,
    setup,
)

RELATION = NeighboringRelation.REPLACE_SPECIAL  # every sampling has a bound under it
CYCLIC: Json = {"kind": "cyclic", "batch_size": 600, "steps_per_pass": 100}  # 100 steps a pass
SHUFFLE: Json = CYCLIC | {"kind": "shuffle", "reshuffle": "each_pass"}
FIXED: Json = {"kind": "fixed_size", "batch_size": 60}
BY_STEP: list[Json] = [POISSON, TRUNCATED, FULL, FIXED, DRAWS, WEIGHTED, {"kind": "unknown"}]
BY_PASS: list[Json] = [CYCLIC, SHUFFLE, BALLS, RANDOM]
QUIET: Json = GAUSSIAN | {"noise_multiplier": 8.0}
MNIST = event(0, 14040, sampling={"kind": "poisson", "sampling_probability": 256 / 60000})


def start(api: httpx.Client, *, budget: Json | None = None, **run_given: Any) -> None:
    """A dataset and a run in it."""
    setup(api, dataset_given={"neighboring_relation": RELATION, "budget": budget}, **run_given)


def guarantee(api: httpx.Client, path: str = "runs/run", **query: object) -> Json:
    answer = api.get(f"/v1/{path}/guarantee", params=query)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def counts(*events: Json, size: int = 60000) -> EventCounts:
    messages = [PlannedEvent.model_validate(sent) for sent in events]
    return count_events([spans_of(messages, dataset_size=size, first_step=0)])


def epsilon_of(found: EventCounts, delta: float = 1e-5) -> float | None:
    return accounting.guarantee(found, relation=RELATION, delta=delta).epsilon


def document(api: httpx.Client, name: str = "run") -> LedgerDocument:
    return LedgerDocument.model_validate_json(api.get(f"/v1/runs/{name}/ledger").text)


def test_the_delta_comes_from_the_query_else_the_run_else_the_budget(api: httpx.Client) -> None:
    start(api, budget={"epsilon": 3.0, "delta": 1e-4})
    api.post("/v1/runs", json=run("own", delta=1e-6))
    append(api, event(0, 100))
    append(api, event(0, 100), run="own")
    assert guarantee(api)["delta"] == 1e-4
    assert guarantee(api, "runs/own")["delta"] == 1e-6
    assert guarantee(api, "runs/own", delta=1e-7)["delta"] == 1e-7
    assert guarantee(api, "datasets/data")["delta"] == 1e-4
    assert guarantee(api, "datasets/data", delta=1e-3)["delta"] == 1e-3
    readings = [guarantee(api, delta=delta)["epsilon"] for delta in (1e-3, 1e-5, 1e-9, 1e-300)]
    assert readings == sorted(set(readings))


def test_without_any_delta_one_is_asked_for(api: httpx.Client) -> None:
    start(api)
    for path in ("runs/run/guarantee", "runs/run/history", "datasets/data/guarantee"):
        answer = api.get(f"/v1/{path}")
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["location"] == "query.delta"
        assert api.get(f"/v1/{path}", params={"delta": 1e-5}).status_code == 200


def test_an_epsilon_is_answered_with_its_delta(api: httpx.Client) -> None:
    start(api, delta=1e-5)
    append(api, event(0, 1000))
    at = guarantee(api)
    found = guarantee(api, epsilon=at["epsilon"])
    assert found["epsilon"] == at["epsilon"]
    assert found["delta"] == pytest.approx(1e-5, rel=1e-6)
    deltas = [guarantee(api, epsilon=epsilon)["delta"] for epsilon in (0, 0.5, 1, 2)]
    assert deltas == sorted(deltas, reverse=True)


def test_a_guarantee_says_what_it_rests_on(api: httpx.Client) -> None:
    start(api, delta=1e-5)
    append(api, event(0, 1000))
    found = guarantee(api)
    assert found["epsilon"] == epsilon_of(counts(event(0, 1000)))
    assert found["unamplified_epsilon"] > found["epsilon"]
    assert (found["neighboring_relation"], found["status"]) == (RELATION, "published")
    assert (found["steps"], found["sequence"]) == (1000, 1)
    known = {bound["id"] for bound in api.get("/v1/bounds").json()["bounds"]}
    assert found["theorems"]
    assert set(found["theorems"]) <= known
    assert guarantee(api, accountant="rdp")["accountant"] == "rdp"
    assert guarantee(api, accountant="gdp")["epsilon"] > found["epsilon"]


def test_without_a_bound_the_guarantee_says_why(api: httpx.Client) -> None:
    setup(api, delta=1e-5)
    append(api, event(0, 1), event(1, 1, sampling=CYCLIC))
    found = guarantee(api)
    assert (found["epsilon"], found["bound"], found["steps"]) == (None, None, 2)
    assert "batch" in found["reason"]


def test_nothing_recorded_is_nothing_spent(api: httpx.Client) -> None:
    start(api, delta=1e-5)
    assert guarantee(api)["epsilon"] == 0
    assert api.get("/v1/runs/run/history").json()["points"] == []
    assert document(api).events == []


def test_a_dataset_composes_all_its_runs(api: httpx.Client) -> None:
    start(api, budget=BUDGET)
    api.post("/v1/runs", json=run("other"))
    append(api, event(0, 100), event(100, 10, sampling=FULL, mechanism=QUIET))
    append(api, event(0, 50), run="other")
    found = guarantee(api, "datasets/data")
    together = counts(event(0, 150), event(150, 10, sampling=FULL, mechanism=QUIET))
    assert found["epsilon"] == epsilon_of(together)
    assert (found["steps"], found["sequence"], found["dataset"]) == (160, 3, "data")
    assert found["without_reservations"]["epsilon"] == found["epsilon"]
    assert found["budget"]["spent"] >= found["epsilon"]
    for name in ("run", "other"):
        assert guarantee(api, f"runs/{name}", delta=1e-5)["epsilon"] < found["epsilon"]


@pytest.mark.parametrize("points", [1, 2, 7, 100, 1000])
def test_history_only_grows_and_ends_at_the_guarantee(api: httpx.Client, points: int) -> None:
    start(api, delta=1e-5)
    append(api, event(0, 100))
    append(api, event(100, 37, mechanism=QUIET), event(137, 100, sampling=CYCLIC))
    open_branch(api, "b", 50)
    append(api, event(50, 60), branch="b")
    append(api, event(237, 3, sampling=FULL))
    found = api.get("/v1/runs/run/history", params={"points": points}).json()
    assert (found["run"], found["delta"]) == ("run", 1e-5)
    steps = [point["steps"] for point in found["points"]]
    epsilons = [point["epsilon"] for point in found["points"]]
    sequences = [point["sequence"] for point in found["points"]]
    assert len(steps) == min(points, 300)
    assert steps == sorted(set(steps))
    assert epsilons == sorted(epsilons)
    assert sequences == sorted(sequences)
    assert (steps[-1], sequences[-1]) == (300, 5)
    assert epsilons[-1] == guarantee(api)["epsilon"]
    assert all(0 <= point["epsilon_lower"] <= point["epsilon"] for point in found["points"])


def test_history_tells_where_the_guarantee_was_lost(api: httpx.Client) -> None:
    start(api, delta=1e-5)
    append(api, event(0, 5), event(5, 1, mechanism={"kind": "none"}), event(6, 4))
    points = api.get("/v1/runs/run/history", params={"points": 10}).json()["points"]
    assert [point["epsilon"] is None for point in points] == [False] * 5 + [True] * 5


def open_branch(api: httpx.Client, name: str, from_step: int, run_name: str = "run") -> None:
    body = {"name": name, "writer": WRITER, "from_step": from_step, "order": "fresh"}
    assert api.post(f"/v1/runs/{run_name}/branches", json=body).status_code == 201


def test_the_document_is_canonical_and_recomputes_to_the_same_bits(api: httpx.Client) -> None:
    start(
        api,
        budget=BUDGET,
        labels={"note": "Größe 病"},
        assumptions={"convex": True, "smoothness": 2.5},
        plan=[MNIST],
    )
    append(api, event(0, 100), event(100, 50))
    append(api, event(150, 30, sampling=CYCLIC), event(180, 10, mechanism=QUIET, sampling=SHUFFLE))
    open_branch(api, "retry", 120)
    append(api, event(120, 80, sampling=CYCLIC), branch="retry")
    answer = api.get("/v1/runs/run/ledger")
    value = json.loads(answer.content)
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert answer.content == canonical.encode()
    assert (value["format"], value["run"], value["dataset"]) == ("dpledger/1", "run", "data")
    assert [part["steps"] for part in value["events"]] == [150, 30, 10]
    assert [(found["name"], found["from_step"]) for found in value["branches"]] == [("retry", 120)]
    found = LedgerDocument.model_validate_json(answer.content)
    assert found.labels == {"note": "Größe 病"}
    assert found.delta == BUDGET["delta"]
    assert epsilon_of(found.counts()) == guarantee(api)["epsilon"]
    assert WRITER not in answer.text


def test_passes_are_counted_across_batches_and_begin_anew_on_a_branch(api: httpx.Client) -> None:
    start(api, delta=1e-5)
    for first, steps in ((0, 60), (60, 30), (90, 10)):  # one pass of 100 steps, in three batches
        append(api, event(first, steps, sampling=CYCLIC))
    one_pass = guarantee(api)["epsilon"]
    assert one_pass is not None
    assert one_pass == epsilon_of(counts(event(0, 100, sampling=CYCLIC)))
    append(api, event(100, 1, sampling=CYCLIC))  # a pass that was begun costs as a whole one
    assert guarantee(api)["epsilon"] == epsilon_of(counts(event(0, 200, sampling=CYCLIC)))
    open_branch(api, "b", 50)
    append(api, event(50, 1, sampling=CYCLIC), branch="b")
    assert guarantee(api)["epsilon"] == epsilon_of(counts(event(0, 300, sampling=CYCLIC)))
    append(api, event(51, 99, sampling=CYCLIC), branch="b")
    assert guarantee(api)["epsilon"] == epsilon_of(counts(event(0, 300, sampling=CYCLIC)))
    append(api, event(101, 99, sampling=CYCLIC))
    assert guarantee(api)["epsilon"] == epsilon_of(counts(event(0, 300, sampling=CYCLIC)))


def test_less_noise_inside_a_pass_makes_the_whole_pass_cost_more(api: httpx.Client) -> None:
    start(api, delta=1e-5)
    append(api, event(0, 60, sampling=SHUFFLE, mechanism=QUIET))
    quiet = guarantee(api)["epsilon"]
    append(api, event(60, 40, sampling=SHUFFLE))
    loud = guarantee(api)["epsilon"]
    assert loud > quiet
    assert loud == epsilon_of(document(api).counts())


def random_events(rng: random.Random, first: int) -> list[Json]:
    """A batch of contiguous events of every kind there is."""
    found = []
    for _ in range(rng.randint(1, 4)):
        steps = rng.choice([1, 2, 40, 100, 250])
        mechanism = rng.choice([GAUSSIAN, QUIET, GAUSSIAN, {"kind": "none"}])
        sampling = rng.choice([*BY_STEP, *BY_PASS, *BY_PASS])
        found.append(event(first, steps, mechanism=mechanism, sampling=sampling))
        first += steps
    return found


def summed(every_count: list[EventCounts]) -> tuple[Counter[Any], ...]:
    counts = [(one.steps, one.passes, one.begun, one.starts) for one in every_count]
    return tuple(sum(map(Counter, part), Counter[Any]()) for part in zip(*counts, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_the_stored_balances_equal_the_fold_of_the_entries(
    api: httpx.Client, engine: Engine, seed: int
) -> None:
    rng = random.Random(seed)
    start(api, budget=BUDGET)
    api.post("/v1/runs", json=run("other", budget=BUDGET))
    ends = {("run", "main"): 0, ("other", "main"): 0}
    for turn in range(25):
        name, branch = rng.choice(list(ends))
        if turn % 6 == 5 and ends[name, branch]:
            from_step = rng.randrange(ends[name, branch])
            branch = f"b{turn}"
            open_branch(api, branch, from_step, name)
            ends[name, branch] = from_step
        events = random_events(rng, ends[name, branch])
        mode = rng.choice(["record", "charge"])
        if append(api, *events, run=name, branch=branch, mode=mode).status_code == 201:
            ends[name, branch] = events[-1]["first_step"] + events[-1]["steps"]
    with snapshot(engine) as connection:
        dataset = find_dataset(connection, "data")
        stored = []
        for row in connection.execute(select(runs)):
            stored.append(run_counts(connection, row.id, dataset.dataset_size))
            assert stored[-1] == refold_run(connection, row, dataset.dataset_size)
        assert summed(stored) == summed([dataset_counts(connection, dataset)])
    assert all(summed(stored))
    with snapshot(engine) as connection:
        for name in ("run", "other"):
            row = find_run(connection, name)
            assert document(api, name).counts() == run_counts(connection, row.id, 60000)


def plan(api: httpx.Client, *events: Json, **given: object) -> httpx.Response:
    asked = {"neighboring_relation": RELATION, "events": list(events), "delta": 1e-5} | given
    return api.post("/v1/plan", json=asked)


def test_a_plan_is_answered_with_the_golden_number(api: httpx.Client) -> None:
    answer = plan(api, MNIST)
    assert answer.status_code == 200
    assert answer.json()["epsilon"] == pytest.approx(2.3795545288, rel=1e-6)
    assert answer.json()["accountant"] == "pld"
    assert "rdp" not in [other["accountant"] for other in answer.json()["alternatives"]]
    assert answer.json()["sequence"] == 0
    batches = event(0, 14040, sampling={"kind": "poisson", "expected_batch_size": 256})
    same = plan(api, batches, dataset_size=60000)
    assert same.json() == answer.json()
    start(api, delta=1e-5)
    assert append(api, MNIST).json()["guarantee"]["accountant"] == "rdp"
    assert guarantee(api)["epsilon"] == answer.json()["epsilon"]


def test_a_plan_at_the_least_delta_is_answered_at_that_delta(api: httpx.Client) -> None:
    least, more = (plan(api, MNIST, delta=delta).json() for delta in (5e-324, 1e-300))
    assert least["delta"] == 5e-324
    assert least["epsilon"] > more["epsilon"]


@pytest.mark.parametrize(
    "unaccountable",
    [
        event(0, 1, mechanism={"kind": "none"}),
        event(0, 1, sampling=SHUFFLE | {"reshuffle": "once"}),
    ],
)
def test_a_plan_without_a_bound_names_the_event(api: httpx.Client, unaccountable: Json) -> None:
    after = unaccountable | {"first_step": 14040}
    relation = "add_or_remove_one"
    answer = plan(api, MNIST, after, dataset_size=60000, neighboring_relation=relation)
    assert answer.status_code == 422
    assert answer.json()["type"] == "/problems/unsupported-event"
    assert answer.json()["location"] == "body.events[1]"


@pytest.mark.parametrize(
    "sampling",
    [{"kind": "with_replacement", "batch_size": 6}, {"kind": "fixed_size", "batch_size": 6},
     {"kind": "poisson", "expected_batch_size": 6}],
)  # fmt: skip
def test_a_plan_asks_for_the_dataset_size_where_it_is_needed(
    api: httpx.Client, sampling: Json
) -> None:
    answer = plan(api, event(0, 1, sampling=sampling))
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["location"] == "body.events[0].sampling"
    assert plan(api, event(0, 1, sampling=sampling), dataset_size=60000).status_code == 200


def test_the_registry_lists_every_theorem(api: httpx.Client) -> None:
    listed = api.get("/v1/bounds").json()["bounds"]
    assert [bound["id"] for bound in listed] == [theorem.id for theorem in accounting.THEOREMS]
    for bound in listed:
        assert api.get(f"/v1/bounds/{bound['id']}").json() == bound
        assert all(bound[key] for key in ("statement", "source", "status", "relations"))
