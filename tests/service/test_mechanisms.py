"""Mechanisms over HTTP: recorded, read back, recomputed offline; hostile values are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner

import accounting
from accounting.bounds.event_bounds import REASON_FULL_OR_POISSON, REASON_MISSING_ANSWER
from accounting.events import NeighboringRelation
from service.cli.main import app
from service.schemas.event_codec import content_of, event_of, to_event
from service.schemas.ledger_document import LedgerDocument
from service.schemas.requests import StepMessage
from tests.service.dumps import dump
from tests.service.samples import BUDGET, FULL, GAUSSIAN, POISSON, Json, append, event, run, setup

LAPLACE: Json = {"kind": "laplace", "noise_multiplier": 20.0}
RESPONSE: Json = {"kind": "randomized_response", "probability_of_truth": 0.6, "categories": 3}
DECLARED: Json = {"kind": "approximate_dp", "epsilon": 0.1, "delta": 1e-9}
ZCDP: Json = {"kind": "zcdp", "rho": 0.001}
EACH: list[Json] = [LAPLACE, RESPONSE, DECLARED, ZCDP]
EVERY = pytest.mark.parametrize("mechanism", EACH, ids=lambda one: one["kind"])
STATUSES = {
    "laplace": "published", "randomized_response": "published",
    "approximate_dp": "declared", "zcdp": "declared",
}  # fmt: skip


def start(api: httpx.Client, relation: str = "replace_special", **dataset_given: Any) -> None:
    setup(api, dataset_given={"neighboring_relation": relation} | dataset_given, delta=1e-5)


def read(api: httpx.Client, path: str) -> Json:
    answer = api.get(path)
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


@EVERY
@pytest.mark.parametrize("sampling", [FULL, {"kind": "unknown"}, POISSON], ids=lambda s: s["kind"])
def test_a_mechanism_is_recorded_and_anyone_can_recompute_its_guarantee(
    api: httpx.Client, mechanism: Json, sampling: Json
) -> None:
    start(api)
    sent = event(0, 40, mechanism=mechanism, sampling=sampling)
    assert append(api, sent).status_code == 201
    more = event(40, 10, mechanism=mechanism, sampling=sampling)
    answer = append(api, sent, more)  # the first again: a duplicate
    assert answer.status_code == 201, answer.text
    assert (answer.json()["accepted"], answer.json()["duplicates"]) == (10, 40)
    found = read(api, "/v1/runs/run/guarantee")
    assert found["status"] == STATUSES[mechanism["kind"]]
    reading = read(api, "/v1/runs/run/guarantee?accountant=rdp")  # the cheapest, by Renyi curves
    assert answer.json()["guarantee"]["epsilon"] == reading["epsilon"] >= found["epsilon"]
    ledger = read(api, "/v1/runs/run/ledger")
    assert ledger["events"] == [sent | {"steps": 50}]
    offline = accounting.guarantee(
        LedgerDocument.model_validate_json(json.dumps(ledger)).counts(),
        relation=NeighboringRelation.REPLACE_SPECIAL,
        delta=1e-5,
    )
    assert offline.epsilon == found["epsilon"] > 0
    known = {bound["id"] for bound in read(api, "/v1/bounds")["bounds"]}
    assert set(found["theorems"]) <= known


def test_the_command_line_reads_what_the_service_recorded(
    api: httpx.Client, tmp_path: Path
) -> None:
    start(api)
    first_step = 0
    for mechanism in [*EACH, GAUSSIAN]:
        assert append(api, event(first_step, 2, mechanism=mechanism)).status_code == 201
        first_step += 2
    file = tmp_path / "ledger.json"
    file.write_text(api.get("/v1/runs/run/ledger").text)
    result = CliRunner().invoke(app, ["epsilon", str(file), "--delta", "1e-5", "--json"])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.output)
    found = read(api, "/v1/runs/run/guarantee")
    assert answer["epsilon"] == found["epsilon"]
    assert found["status"] == "declared"


@EVERY
@pytest.mark.parametrize(
    "sampling",
    [{"kind": "fixed_size", "batch_size": 10},
     {"kind": "cyclic", "batch_size": 600, "steps_per_pass": 100},
     {"kind": "shuffle", "batch_size": 600, "reshuffle": "once", "steps_per_pass": 100}],
    ids=lambda s: s["kind"],
)  # fmt: skip
def test_what_has_no_bound_is_recorded_but_not_charged(
    api: httpx.Client, mechanism: Json, sampling: Json
) -> None:
    start(api, budget=BUDGET)
    noisy = event(0, 3, sampling=sampling)
    assert append(api, noisy).status_code == 201
    step = event(3, 5, mechanism=mechanism, sampling=sampling)
    refused = append(api, step, mode="charge")
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/unsupported-event")
    assert REASON_FULL_OR_POISSON in refused.json()["detail"]
    recorded = append(api, step)
    assert (recorded.status_code, recorded.json()["verdict"]) == (201, "overdraft")
    # The rest of the pass has noise again; splitting and order change nothing.
    assert append(api, event(8, 200, sampling=sampling)).status_code == 201
    found = read(api, "/v1/runs/run/guarantee")
    assert (found["epsilon"], found["reason"]) == (None, REASON_FULL_OR_POISSON)
    assert len(read(api, "/v1/runs/run/ledger")["events"]) == 3


def test_an_answer_left_out_has_no_bound(api: httpx.Client) -> None:
    start(api, "add_or_remove_one")
    step = event(0, 5, mechanism=RESPONSE, sampling=FULL)
    refused = append(api, step, mode="charge")
    assert REASON_MISSING_ANSWER in refused.json()["detail"]
    assert append(api, step).status_code == 201
    assert read(api, "/v1/runs/run/guarantee")["reason"] == REASON_MISSING_ANSWER


def test_a_budget_admits_no_step_that_may_fail(api: httpx.Client) -> None:
    start(api, budget=BUDGET)
    step = event(0, 5, mechanism=DECLARED, sampling=FULL)
    refused = append(api, step, mode="charge")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/budget-exhausted")
    assert refused.json()["admissible_steps"] == 0
    pure = event(0, 5, mechanism=DECLARED | {"delta": 0}, sampling=FULL)
    assert append(api, pure, mode="charge").status_code == 201
    assert append(api, event(5, 1, mechanism=DECLARED)).json()["verdict"] == "overdraft"


def test_failures_that_take_all_of_delta_leave_no_finite_epsilon(api: httpx.Client) -> None:
    start(api)
    append(api, event(0, 20_000, mechanism=DECLARED, sampling=FULL))
    assert read(api, "/v1/runs/run/guarantee")["epsilon"] is None
    assert read(api, "/v1/runs/run/guarantee?delta=1e-4")["epsilon"] > 0


@EVERY
def test_a_plan_may_hold_any_mechanism(api: httpx.Client, mechanism: Json) -> None:
    start(api)
    body = {
        "neighboring_relation": "replace_special",
        "events": [{"steps": 10, "mechanism": mechanism, "sampling": FULL}],
        "delta": 1e-5,
    }
    planned = api.post("/v1/plan", json=body)
    assert planned.status_code == 200, planned.text
    assert api.post("/v1/runs", json=run("other", plan=body["events"])).status_code == 201
    append(api, event(0, 10, mechanism=mechanism, sampling=FULL))
    assert planned.json()["epsilon"] == read(api, "/v1/runs/run/guarantee")["epsilon"]


@pytest.mark.parametrize(
    "mechanism",
    [*EACH, GAUSSIAN, {"kind": "none"}, DECLARED | {"epsilon": 0, "delta": 0},
     DECLARED | {"epsilon": -0.0, "delta": -0.0}, LAPLACE | {"noise_multiplier": 3},
     RESPONSE | {"probability_of_truth": 1.2345678901234567e-12, "categories": 10**6}],
    ids=json.dumps,
)  # fmt: skip
def test_the_stored_form_of_a_mechanism_is_the_same_event(mechanism: Json) -> None:
    message = StepMessage.model_validate({"mechanism": mechanism, "sampling": FULL})
    step = to_event(message, dataset_size=None, location="here")
    content = content_of(step)
    assert event_of(content, 10) == step
    assert content_of(event_of(content, 10)) == content
    assert ":-0" not in content
    assert len(content) <= 512


NO_NUMBERS: list[Any] = [True, "0.5", None, [0.5], {}, 10**400, -(10**400)]
WRONG: list[tuple[Json, str, list[Any], str]] = [
    (LAPLACE, "noise_multiplier", [0, -1, 1e-10, 1e10], "[1e-09, 1e+09]"),
    (RESPONSE, "probability_of_truth", [0, 1, -0.5, 1.5, 1e-13], "[1e-12, 1)"),
    (RESPONSE, "categories", [0, 1, -3, 10**6 + 1, 10**30], "[2, 1e+06]"),
    (DECLARED, "epsilon", [-1e-9, 10001], "[0, 10000]"),
    (DECLARED, "delta", [-1e-9, 1, 2], "[0, 1)"),
    (ZCDP, "rho", [0, -1, 1e-13, 10001], "[1e-12, 10000]"),
]


@pytest.mark.parametrize(
    ("mechanism", "field", "values", "interval"), WRONG, ids=lambda value: str(value)[:24]
)
def test_a_value_out_of_range_is_refused_with_its_field_and_range(
    api: httpx.Client, engine: Engine, mechanism: Json, field: str, values: list[Any], interval: str
) -> None:
    start(api)
    before = dump(engine)
    place = f"body.events[0].mechanism.{field}"
    for value in [*values, *NO_NUMBERS]:
        answer = append(api, event(0, 1, mechanism=mechanism | {field: value}))
        assert answer.status_code == 422, value
        (fault,) = answer.json()["errors"]
        assert fault["location"] == place
        if value in values and not isinstance(value, bool):
            assert interval in answer.text
    if field == "categories":
        assert append(api, event(0, 1, mechanism=RESPONSE | {field: 2.0})).status_code == 422
    assert dump(engine) == before


@EVERY
def test_a_mechanism_has_its_fields_and_no_others(
    api: httpx.Client, engine: Engine, mechanism: Json
) -> None:
    start(api)
    before = dump(engine)
    for field in set(mechanism) - {"kind"}:
        rest = {name: value for name, value in mechanism.items() if name != field}
        answer = append(api, event(0, 1, mechanism=rest))
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["location"] == f"body.events[0].mechanism.{field}"
    for field in ("sigma", "scale", "sensitivity", "seed", "true_answer"):
        answer = append(api, event(0, 1, mechanism=mechanism | {field: 0.5}))
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["location"] == f"body.events[0].mechanism.{field}"
    for kind in ("Laplace", "laplace ", "exponential", ""):
        assert append(api, event(0, 1, mechanism=mechanism | {"kind": kind})).status_code == 422
    assert dump(engine) == before


@EVERY
def test_numbers_that_json_does_not_have_are_refused(
    api: httpx.Client, mechanism: Json, broken: Callable[[Json, str], bytes]
) -> None:
    start(api)
    for text in ("NaN", "Infinity", "-Infinity"):
        answer = api.post(
            "/v1/runs/run/events",
            content=broken(mechanism, text),
            headers={"content-type": "application/json"},
        )
        assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed-body")


@pytest.fixture
def broken() -> Callable[[Json, str], bytes]:
    """A batch whose mechanism holds the raw text in place of a number."""

    def write(mechanism: Json, text: str) -> bytes:
        field = next(name for name in mechanism if name != "kind")
        body = json.dumps({"events": [event(0, 1, mechanism=mechanism | {field: "@@"})]})
        return body.replace('"@@"', text).encode()

    return write
