"""Samplings over HTTP: recorded, read back, recomputed offline; hostile values are refused."""

import json
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter
from sqlalchemy import Engine

import accounting
from accounting import events as core
from accounting.events import NeighboringRelation
from accounting.guarantees import Status
from service.errors import InvalidRequestError
from service.schemas.event_codec import content_of, event_of, to_event
from service.schemas.ledger_document import LedgerDocument
from service.schemas.requests import PlannedEvent, StepMessage
from service.schemas.samplings import SamplingMessage
from tests.service.dumps import dump
from tests.service.samples import (
    BALLS,
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

SIZE = 60000  # of the samples' dataset
RELATION = NeighboringRelation.REPLACE_SPECIAL  # every sampling has a bound under it
ACCEPT = ["published", "derived"]
EACH: list[Json] = [TRUNCATED, DRAWS, BALLS, RANDOM, WEIGHTED]
EVERY = pytest.mark.parametrize("sampling", EACH, ids=lambda one: one["kind"])
ANY_SAMPLING: TypeAdapter[SamplingMessage] = TypeAdapter(SamplingMessage)
ANY_NOISE: Json = {"kind": "gaussian"}


def sampling_of(sampling: Json, size: int | None = SIZE) -> core.Sampling:
    message = StepMessage.model_validate({"mechanism": GAUSSIAN, "sampling": sampling})
    return to_event(message, dataset_size=size, location="here").sampling


def start(api: httpx.Client, **given: Any) -> None:
    setup(
        api, dataset_given={"neighboring_relation": RELATION, "accept": ACCEPT} | given, delta=1e-5
    )


def read(api: httpx.Client, path: str) -> Json:
    answer = api.get(path)
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def plan(api: httpx.Client, *events: Json, **given: Any) -> httpx.Response:
    asked: Json = {"neighboring_relation": RELATION, "dataset_size": SIZE, "accept": ACCEPT}
    return api.post("/v1/plan", json=asked | {"events": list(events), "delta": 1e-5} | given)


def test_every_kind_of_the_core_has_its_message() -> None:
    kinds = {part["const"] for part in _kinds(ANY_SAMPLING.json_schema())}
    assert kinds == {
        "full", "unknown", "poisson", "truncated_poisson", "fixed_size", "with_replacement",
        "cyclic", "shuffle", "balls_and_bins", "random_allocation", "non_uniform",
        "min_separation", "cyclic_poisson",
    }  # fmt: skip
    # Of records with several rows the service makes events itself.
    assert len(kinds) == len(core.Sampling.__args__) - 1


def _kinds(schema: Json) -> list[Json]:
    return [message["properties"]["kind"] for message in schema["$defs"].values()]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (TRUNCATED, core.TruncatedPoisson(
            sampling_probability=0.01, max_batch_size=700, dataset_size=SIZE)),
        (TRUNCATED | {"sampling_probability": 1, "max_batch_size": 10**12}, core.TruncatedPoisson(
            sampling_probability=1.0, max_batch_size=10**12, dataset_size=SIZE)),
        (DRAWS, core.WithReplacement(batch_size=600, dataset_size=SIZE)),
        (DRAWS | {"batch_size": 10**12},
         core.WithReplacement(batch_size=10**12, dataset_size=SIZE)),
        (BALLS, core.BallsAndBins(steps_per_pass=100)),
        (BALLS | {"steps_per_pass": 10**12}, core.BallsAndBins(steps_per_pass=10**12)),
        (RANDOM, core.RandomAllocation(steps_per_pass=100, participations=3)),
        (RANDOM | {"participations": 1},
         core.RandomAllocation(steps_per_pass=100, participations=1)),
        (RANDOM | {"participations": 100},
         core.RandomAllocation(steps_per_pass=100, participations=100)),
        (WEIGHTED, core.NonUniform(max_weight=0.001)),
        (WEIGHTED | {"max_weight": 1 / SIZE}, core.NonUniform(max_weight=1 / SIZE)),
        (WEIGHTED | {"max_weight": 1}, core.NonUniform(max_weight=1.0)),
        ({"kind": "shuffle", "batch_size": 600, "reshuffle": "once", "steps_per_pass": 100},
         core.Shuffle(
            batch_size=600, steps_per_pass=100, reshuffle=core.Reshuffle.ONCE, dataset_size=SIZE)),
    ],
    ids=str,
)  # fmt: skip
def test_the_stored_form_of_a_sampling_is_the_same_event(
    sampling: Json, expected: core.Sampling
) -> None:
    assert sampling_of(sampling) == expected
    step = core.Event(mechanism=core.Gaussian(noise_multiplier=1.1), sampling=expected)
    content = content_of(step)
    assert event_of(content, SIZE) == step
    assert content_of(event_of(content, SIZE)) == content
    assert "dataset_size" not in content
    assert len(content) <= 512


def test_the_longest_forms_fit_their_column() -> None:
    longest = {
        "truncated": TRUNCATED | {"sampling_probability": 1.2345678901234567e-12,
                                  "max_batch_size": 10**12},
        "allocation": RANDOM | {"steps_per_pass": 10**12, "participations": 10**12},
    }  # fmt: skip
    noise = {"kind": "randomized_response", "categories": 10**6}
    noise["probability_of_truth"] = 1.2345678901234567e-12
    for sampling in longest.values():
        message = StepMessage.model_validate({"mechanism": noise, "sampling": sampling})
        assert len(content_of(to_event(message, dataset_size=10**12, location=""))) < 256


def test_one_participation_is_another_fact_than_balls_and_bins() -> None:
    one = sampling_of(RANDOM | {"participations": 1})
    assert one != sampling_of(BALLS)
    contents = {
        content_of(core.Event(mechanism=core.NoNoise(), sampling=sampling))
        for sampling in (one, sampling_of(BALLS))
    }
    assert len(contents) == 2


@pytest.mark.parametrize("sampling", [TRUNCATED, DRAWS], ids=lambda one: one["kind"])
def test_a_size_of_the_dataset_that_is_needed_is_asked_for(
    api: httpx.Client, sampling: Json
) -> None:
    with pytest.raises(InvalidRequestError, match=r"^here.sampling.*needs a dataset_size"):
        sampling_of(sampling, None)
    answer = plan(api, event(0, 5, sampling=sampling), dataset_size=None)
    assert answer.status_code == 422
    (fault,) = answer.json()["errors"]
    assert fault == {
        "location": "body.events[0].sampling", "message": "this sampling needs a dataset_size",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (BALLS, core.BallsAndBins(steps_per_pass=100)),
        (RANDOM, core.RandomAllocation(steps_per_pass=100, participations=3)),
        (WEIGHTED | {"max_weight": 1e-12}, core.NonUniform(max_weight=1e-12)),
        ({"kind": "shuffle", "batch_size": 6, "reshuffle": "each_pass", "steps_per_pass": 9},
         core.Shuffle(batch_size=6, steps_per_pass=9, reshuffle=core.Reshuffle.EACH_PASS)),
    ],
    ids=lambda one: one["kind"] if isinstance(one, dict) else "",
)  # fmt: skip
def test_without_a_dataset_size_what_needs_none_is_taken(
    sampling: Json, expected: core.Sampling
) -> None:
    assert sampling_of(sampling, None) == expected


NO_NUMBERS: list[Any] = [True, "5", None, [5], {}, 10**400, -(10**400)]
COUNTS: list[Any] = [0, -1, 10**12 + 1, 10**30]
CHANCES: list[Any] = [0, -0.0, -0.5, 1.5, 1e-13, 5e-324]
WRONG: list[tuple[Json, str, list[Any], str]] = [
    (TRUNCATED, "sampling_probability", CHANCES, "[1e-12, 1]"),
    (TRUNCATED, "max_batch_size", COUNTS, "[1, 1e+12]"),
    (DRAWS, "batch_size", COUNTS, "[1, 1e+12]"),
    (BALLS, "steps_per_pass", COUNTS, "[1, 1e+12]"),
    (RANDOM, "steps_per_pass", COUNTS, "[1, 1e+12]"),
    (RANDOM, "participations", COUNTS, "[1, 1e+12]"),
    (RANDOM, "participations", [101, 10**12], "[1, steps_per_pass]"),
    (WEIGHTED, "max_weight", CHANCES, "[1e-12, 1]"),
]


@pytest.mark.parametrize(
    ("sampling", "field", "values", "interval"), WRONG, ids=lambda value: str(value)[:24]
)
def test_a_value_out_of_range_is_refused_with_its_field_and_range(
    api: httpx.Client, engine: Engine, sampling: Json, field: str, values: list[Any], interval: str
) -> None:
    start(api)
    before = dump(engine)
    for value in [*values, *NO_NUMBERS]:
        answer = append(api, event(0, 1, sampling=sampling | {field: value}))
        assert answer.status_code == 422, value
        (fault,) = answer.json()["errors"]
        assert fault["location"] == f"body.events[0].sampling.{field}"
        if value in values and not isinstance(value, bool):
            assert interval in fault["message"]
    if field not in ("sampling_probability", "max_weight"):
        assert append(api, event(0, 1, sampling=sampling | {field: 2.0})).status_code == 422
    assert dump(engine) == before


def test_a_weight_below_the_even_one_is_refused_where_the_dataset_is_known(
    api: httpx.Client, engine: Engine
) -> None:
    start(api)
    before = dump(engine)
    light = event(0, 1, sampling=WEIGHTED | {"max_weight": 0.99 / SIZE})
    for answer, place in (
        (append(api, light), "body.events[0].sampling.max_weight"),
        (append(api, light, mode="charge"), "body.events[0].sampling.max_weight"),
        (plan(api, light), "body.events[0].sampling.max_weight"),
        (api.post("/v1/runs", json=run("other", plan=[light])), "body.plan[0].sampling.max_weight"),
    ):
        assert answer.status_code == 422
        (fault,) = answer.json()["errors"]
        message = f"must lie in [1/{SIZE}, 1] for this dataset"
        assert fault == {"location": place, "message": message}
    assert dump(engine) == before


def test_an_allocation_with_a_wrong_pass_has_one_fault(api: httpx.Client) -> None:
    start(api)
    wrong = RANDOM | {"steps_per_pass": 0, "participations": 7654321}
    answer = append(api, event(0, 1, sampling=wrong))
    (fault,) = answer.json()["errors"]
    assert fault["location"].endswith("events[0].sampling.steps_per_pass")
    assert "7654321" not in answer.text


@EVERY
def test_a_sampling_has_its_fields_and_no_others(
    api: httpx.Client, engine: Engine, sampling: Json
) -> None:
    start(api)
    before = dump(engine)
    for field in set(sampling) - {"kind"}:
        rest = {name: value for name, value in sampling.items() if name != field}
        answer = append(api, event(0, 1, sampling=rest))
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["location"] == f"body.events[0].sampling.{field}"
    surplus = ("seed", "dataset_size", "realised_batch_size", "expected_batch_size", "weights")
    for field in surplus:
        answer = append(api, event(0, 1, sampling=sampling | {field: 5}))
        assert answer.status_code == 422
        assert answer.json()["errors"] == [
            {"location": f"body.events[0].sampling.{field}", "message": "unknown field"}
        ]
    for kind in (sampling["kind"].title(), sampling["kind"] + " ", "bernoulli", ""):
        assert append(api, event(0, 1, sampling=sampling | {"kind": kind})).status_code == 422
    assert dump(engine) == before


@EVERY
def test_numbers_that_json_does_not_have_are_refused(api: httpx.Client, sampling: Json) -> None:
    start(api)
    for field in set(sampling) - {"kind"}:
        body = json.dumps({"events": [event(0, 1, sampling=sampling | {field: "@@"})]})
        for text in ("NaN", "Infinity", "-Infinity", "1" * 5000):
            answer = api.post(
                "/v1/runs/run/events",
                content=body.replace('"@@"', text).encode(),
                headers={"content-type": "application/json"},
            )
            assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed-body")


@EVERY
def test_a_sampling_is_recorded_and_anyone_can_recompute_its_guarantee(
    api: httpx.Client, sampling: Json
) -> None:
    start(api)
    sent = event(0, 40, sampling=sampling)
    assert append(api, sent).status_code == 201
    answer = append(api, sent, event(40, 80, sampling=sampling))  # the first again: a duplicate
    assert answer.status_code == 201, answer.text
    assert (answer.json()["accepted"], answer.json()["duplicates"]) == (80, 40)
    other = append(api, event(0, 40, sampling=FULL))
    assert (other.status_code, other.json()["type"]) == (409, "/problems/conflict")
    found = read(api, "/v1/runs/run/guarantee")
    assert found["epsilon"] > 0
    ledger = read(api, "/v1/runs/run/ledger")
    assert ledger["events"] == [sent | {"steps": 120}]
    offline = accounting.guarantee(
        LedgerDocument.model_validate_json(json.dumps(ledger)).counts(),
        relation=RELATION,
        delta=1e-5,
        accept=frozenset(Status(status) for status in ACCEPT),
    )
    assert offline.epsilon == found["epsilon"] <= found["unamplified_epsilon"]
    assert plan(api, event(0, 120, sampling=sampling)).json()["epsilon"] == found["epsilon"]
    known = {bound["id"] for bound in read(api, "/v1/bounds")["bounds"]}
    assert found["theorems"]
    assert set(found["theorems"]) <= known


@EVERY
def test_a_run_may_plan_any_sampling_and_a_charge_is_held_against_its_budget(
    api: httpx.Client, sampling: Json
) -> None:
    start(api)
    planned = run("other", plan=[event(0, 5, sampling=sampling)])
    planned["budget"] = {"epsilon": 1e5, "delta": 1e-5}
    registered = api.post("/v1/runs", json=planned)
    assert registered.status_code == 201, registered.text
    quiet, loud = (GAUSSIAN | {"noise_multiplier": noise} for noise in (100.0, 1e-9))
    charged = event(0, 5, mechanism=quiet, sampling=sampling)
    answer = append(api, charged, run="other", mode="charge")
    assert answer.status_code == 201, answer.text
    assert answer.json()["budget"]["spent"] > 0
    beyond = event(5, 10**9, mechanism=loud, sampling=sampling)
    answer = append(api, beyond, run="other", mode="charge")
    assert answer.json()["type"] == "/problems/budget-exhausted"


@pytest.mark.parametrize("sampling", [BALLS, RANDOM], ids=lambda one: one["kind"])
def test_what_lands_by_pass_is_counted_by_pass(api: httpx.Client, sampling: Json) -> None:
    start(api)
    passes = [
        plan(api, event(0, 100 * count, sampling=sampling)).json()["epsilon"] for count in (1, 2, 3)
    ]
    assert passes == sorted(set(passes))
    for first, steps in ((0, 60), (60, 30), (90, 10)):  # one pass of 100 steps, in three batches
        append(api, event(first, steps, sampling=sampling))
        assert read(api, "/v1/runs/run/guarantee")["epsilon"] == passes[0]
    append(api, event(100, 1, sampling=sampling))  # a pass that was begun costs as a whole one
    assert read(api, "/v1/runs/run/guarantee")["epsilon"] == passes[1]
    body = {"name": "b", "writer": WRITER, "from_step": 50, "order": "fresh"}
    assert api.post("/v1/runs/run/branches", json=body).status_code == 201
    append(api, event(50, 1, sampling=sampling), branch="b")
    assert read(api, "/v1/runs/run/guarantee")["epsilon"] == passes[2]
    document = LedgerDocument.model_validate(read(api, "/v1/runs/run/ledger"))
    assert list(document.counts().passes.values()) == [3]


@EVERY
def test_the_least_noise_is_found_for_any_sampling(api: httpx.Client, sampling: Json) -> None:
    def ask(mechanism: Json, **given: Any) -> Json:
        step = event(0, 100, mechanism=mechanism, sampling=sampling)
        answer = plan(api, step, accountant="gdp", **given)  # the quickest
        assert answer.status_code == 200, answer.text
        body: Json = answer.json()
        return body

    found = ask(ANY_NOISE, solve_for="noise_multiplier", epsilon=2.0)
    value = found["solved"]["value"]
    assert found["epsilon"] <= 2.0
    assert ask(ANY_NOISE | {"noise_multiplier": value}) == found | {"solved": None}
    assert ask(ANY_NOISE | {"noise_multiplier": value * 0.999998})["epsilon"] > 2.0


@pytest.mark.parametrize("open_rate", [{}, {"sampling_probability": None}], ids=str)
def test_the_highest_rate_is_found_for_truncated_batches(
    api: httpx.Client, open_rate: Json
) -> None:
    rateless = {"kind": "truncated_poisson", "max_batch_size": 700}
    steps, target = event(0, 100, sampling=rateless | open_rate), 2.0
    answer = plan(api, steps, accountant="rdp", solve_for="sampling_probability", epsilon=target)
    assert answer.status_code == 200, answer.text
    rate = answer.json()["solved"]["value"]
    closed = event(0, 100, sampling=TRUNCATED | {"sampling_probability": rate})
    at = plan(api, closed, accountant="rdp").json()
    assert at["epsilon"] == answer.json()["epsilon"] <= target


def test_a_limit_that_no_batch_can_reach_is_no_limit(api: httpx.Client) -> None:
    unlimited = TRUNCATED | {"max_batch_size": SIZE}
    found = plan(api, event(0, 100, sampling=unlimited)).json()
    poisson = plan(api, event(0, 100, sampling=POISSON)).json()
    assert found["epsilon"] >= poisson["epsilon_lower"]


def test_the_messages_of_a_plan_and_of_an_event_are_the_same() -> None:
    for sampling in EACH:
        planned = PlannedEvent.model_validate(
            {"steps": 1, "mechanism": GAUSSIAN, "sampling": sampling}
        )
        assert planned.sampling == ANY_SAMPLING.validate_python(sampling)
