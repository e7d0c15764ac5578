"""Private selections over HTTP: taken, stored, read back, planned, and verified offline."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

import accounting
from accounting.bounds.event_bounds import REASON_SELECTION
from accounting.bounds.selection_bounds import REASON_MAY_FAIL, REASON_ONE_ORDER, REASON_WHOLE
from accounting.events import NeighboringRelation
from accounting.guarantees import Status
from service.schemas.event_codec import content_of, event_of, to_event
from service.schemas.ledger_document import LedgerDocument
from service.schemas.requests import StepMessage
from service.transparency.certificates.envelope import InvalidCertificateError
from service.transparency.certificates.verify import verify_bytes
from tests.service.certifying import certified, resealed, signer_of
from tests.service.dumps import dump
from tests.service.samples import BALLS, FULL, POISSON, Json, append, event, run, setup
from tests.service.test_hidden_runs import ASSUMPTIONS

BINOMIAL: Json = {
    "kind": "truncated_negative_binomial", "shape": 1.0, "halting_probability": 0.1,
}  # fmt: skip
BASE: Json = {
    "mechanism": {"kind": "gaussian", "noise_multiplier": 1.0}, "sampling": POISSON, "steps": 1000,
}  # fmt: skip
ACCEPT: Json = {"accept": ["published", "declared", "derived"]}
HIDDEN: Json = {"release": "last_iterate", "assumptions": ASSUMPTIONS | {"data_order": "full"}}
LIMIT: Json = {"epsilon": 8.0, "delta": 1e-5}
WIDE: Json = LIMIT | {"orders": [7.3]}


def selection(repetitions: Json = BINOMIAL, **base: Any) -> Json:
    return {"kind": "selection", "repetitions": repetitions, "base": BASE | base}


def sweep(first_step: int = 0, steps: int = 1, **given: Any) -> Json:
    return event(first_step, steps, mechanism=selection(**given), sampling=FULL)


def start(api: httpx.Client, **given: Any) -> None:
    setup(api, dataset_given={**ACCEPT, **given}, delta=1e-5)


def read(api: httpx.Client, path: str) -> Json:
    answer = api.get(path)
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def test_a_sweep_is_charged_once_and_anyone_can_recompute_it(api: httpx.Client) -> None:
    start(api, budget=WIDE)
    taken = append(api, sweep(), mode="charge")
    assert taken.status_code == 201, taken.text
    again = append(api, sweep(), mode="charge")
    assert (again.json()["accepted"], again.json()["duplicates"]) == (0, 1)
    found = read(api, "/v1/runs/run/guarantee")
    assert found["epsilon"] == pytest.approx(4.10327, abs=2e-5)
    assert (found["status"], found["accountant"]) == ("derived", "rdp")
    assert "trial_count_secret" in found["assumptions"]
    ledger = read(api, "/v1/runs/run/ledger")
    assert ledger["events"] == [sweep()]
    document = LedgerDocument.model_validate_json(json.dumps(ledger))
    offline = accounting.guarantee(
        document.counts(),
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        delta=1e-5,
        accept=frozenset({Status.PUBLISHED, Status.DECLARED, Status.DERIVED}),
    )
    assert offline.epsilon == found["epsilon"]


def test_other_steps_go_on_beside_a_sweep(api: httpx.Client) -> None:
    start(api, budget=WIDE)
    assert append(api, sweep(), event(1, 500), mode="charge").status_code == 201
    assert read(api, "/v1/runs/run/guarantee")["epsilon"] > 4.11
    over = append(api, sweep(501, 3), mode="charge")
    assert (over.status_code, over.json()["type"]) == (409, "/problems/budget-exhausted")
    assert over.json()["admissible_steps"] == 1


def test_a_dataset_that_accepts_no_derived_theorem_takes_no_sweep(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": WIDE}, delta=1e-5)
    refused = append(api, sweep(), mode="charge")
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/unsupported-event")
    assert "derived" in refused.json()["detail"]


@pytest.mark.parametrize("kind", ["gaussian_dp", "approximate_dp"])
def test_a_filter_without_renyi_curves_refuses_a_sweep(api: httpx.Client, kind: str) -> None:
    start(api, budget=LIMIT | {"filter": kind})
    refused = append(api, sweep(), mode="charge")
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/unsupported-event")
    assert "no bound for this event" in refused.json()["detail"]


def test_a_filter_of_several_orders_takes_a_sweep(api: httpx.Client) -> None:
    start(api, budget=LIMIT | {"filter": "union_of_orders"})
    assert append(api, sweep(), mode="charge").status_code == 201


def test_an_envelope_refuses_a_sweep(api: httpx.Client) -> None:
    item = {"steps": 1, "mechanism": selection(), "sampling": FULL}
    body = ACCEPT | {
        "name": "held", "dataset_size": 60000, "neighboring_relation": "add_or_remove_one",
        "privacy_unit": "example", "budget": LIMIT | {"filter": "envelope", "envelope": [item]},
    }  # fmt: skip
    refused = api.post("/v1/datasets", json=body)
    assert refused.status_code == 422, refused.text
    assert REASON_SELECTION in refused.text


@pytest.mark.parametrize(
    ("mechanism", "outer", "reason"),
    [
        (selection(mechanism={"kind": "approximate_dp", "epsilon": 0.1, "delta": 0}), FULL,
         REASON_MAY_FAIL),
        (selection(sampling={"kind": "with_replacement", "batch_size": 10}), FULL,
         REASON_MAY_FAIL),
        (selection(sampling={"kind": "shuffle", "batch_size": 600, "reshuffle": "once",
                             "steps_per_pass": 100}), FULL, REASON_ONE_ORDER),
        (selection(), POISSON, REASON_WHOLE),
    ],
    ids=["fails", "draws", "once", "sampled"],
)  # fmt: skip
def test_what_no_theorem_covers_is_recorded_and_never_charged(
    api: httpx.Client, mechanism: Json, outer: Json, reason: str
) -> None:
    start(api, budget=WIDE, neighboring_relation="replace_special")
    step = event(0, 1, mechanism=mechanism, sampling=outer)
    refused = append(api, step, mode="charge")
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/unsupported-event")
    assert reason in refused.json()["detail"]
    assert append(api, step).json()["verdict"] == "overdraft"
    assert read(api, "/v1/runs/run/guarantee")["reason"] == reason


def test_a_mean_is_solved_and_not_kept(api: httpx.Client) -> None:
    start(api, budget=WIDE)
    law = {"kind": "truncated_negative_binomial", "shape": 1, "mean": 10}
    assert append(api, sweep(repetitions=law), mode="charge").status_code == 201
    assert append(api, sweep(), mode="charge").json()["duplicates"] == 1
    assert read(api, "/v1/runs/run/ledger")["events"] == [sweep()]


WRONG: list[tuple[str, Json, str, str]] = [
    ("shape", BINOMIAL | {"shape": -1}, "repetitions.shape", "(-1, 100]"),
    ("halting", BINOMIAL | {"halting_probability": 1}, "repetitions.halting_probability", "[1e-12"),
    ("both", BINOMIAL | {"mean": 10}, "repetitions", "not both"),
    ("neither", {"kind": BINOMIAL["kind"], "shape": 1.0}, "repetitions", "or mean"),
    ("no law", {"kind": BINOMIAL["kind"], "shape": -0.99, "mean": 10}, "repetitions", "this mean"),
    ("text", {"kind": BINOMIAL["kind"], "shape": 1, "mean": "10"}, "repetitions.mean", "number"),
    ("huge", {"kind": BINOMIAL["kind"], "shape": 1, "mean": 10**400}, "repetitions.mean", ""),
    ("few", {"kind": "poisson", "mean": 0.5}, "repetitions.mean", "[1, 1e+06]"),
    ("kind", {"kind": "fixed", "mean": 5}, "repetitions", "must be one of"),
]


@pytest.mark.parametrize(("_name", "law", "place", "text"), WRONG, ids=[one[0] for one in WRONG])
def test_a_law_that_is_none_is_refused_by_its_field(
    api: httpx.Client, engine: Engine, _name: str, law: Json, place: str, text: str
) -> None:
    start(api)
    before = dump(engine)
    refused = append(api, sweep(repetitions=law))
    assert refused.status_code == 422, refused.text
    (fault,) = refused.json()["errors"]
    assert fault["location"] == f"body.events[0].mechanism.{place}"
    assert text in fault["message"]
    assert dump(engine) == before


def test_a_selection_of_selections_is_refused(api: httpx.Client) -> None:
    start(api)
    refused = append(api, sweep(mechanism=selection()))
    (fault,) = refused.json()["errors"]
    assert fault["location"] == "body.events[0].mechanism.base.mechanism"
    assert "kind must be one of" in fault["message"]


@pytest.mark.parametrize(
    "mechanism",
    [
        selection(),
        selection({"kind": "poisson", "mean": 12.3456789012345678}),
        selection(BINOMIAL | {"shape": -0.0}),
        selection(sampling={"kind": "fixed_size", "batch_size": 10}),
        selection(sampling={"kind": "shuffle", "batch_size": 2, "reshuffle": "each_pass",
                            "steps_per_pass": 3, "left_out": 4}),
        selection(
            BINOMIAL | {"shape": -0.12345678901234567,
                        "halting_probability": 1.2345678901234567e-12},
            mechanism={"kind": "randomized_response", "categories": 10**6,
                       "probability_of_truth": 1.2345678901234567e-12},
            sampling={"kind": "truncated_poisson", "max_batch_size": 10**12,
                      "sampling_probability": 1.2345678901234567e-12},
            steps=10**9,
        ),
    ],
    ids=["plain", "poisson", "zero", "sized", "shuffled", "longest"],
)  # fmt: skip
def test_the_stored_form_of_a_selection_is_the_same_event(mechanism: Json) -> None:
    message = StepMessage.model_validate({"mechanism": mechanism, "sampling": FULL})
    step = to_event(message, dataset_size=10, location="here")
    content = content_of(step)
    assert event_of(content, 10) == step
    assert content_of(event_of(content, 10)) == content
    assert ":-0.0" not in content
    assert "dataset_size" not in content
    assert len(content) <= 512


def plan(mechanism: Json, **given: Any) -> Json:
    return {
        "neighboring_relation": "add_or_remove_one",
        "events": [{"steps": 1, "mechanism": mechanism, "sampling": FULL}],
        "delta": 1e-5,
        **ACCEPT,
    } | given


# What composing so many runs costs, by a public PLD accountant.
@pytest.mark.parametrize(("mean", "theirs"), [(5, 4.20390), (10, 6.19098), (100, 25.5897)])
def test_a_plan_says_what_composing_the_trials_costs(
    api: httpx.Client, mean: float, theirs: float
) -> None:
    law = {"kind": "truncated_negative_binomial", "shape": 0, "mean": mean}
    answer = api.post("/v1/plan", json=plan(selection(law)))
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["composed"]["trials"] == mean
    assert theirs - 2e-3 * theirs < body["composed"]["epsilon"] <= theirs + 1e-5
    assert body["epsilon"] < body["composed"]["epsilon"]
    assert body["orders"]["best_share"] > 0


def test_a_plan_of_passes_counts_the_passes_of_each_trial(api: httpx.Client) -> None:
    mechanism = selection({"kind": "poisson", "mean": 3}, sampling=BALLS, steps=150)
    planned = api.post("/v1/plan", json=plan(mechanism)).json()
    apart = plan(BASE["mechanism"])
    apart["events"] = [{"steps": 600, "mechanism": BASE["mechanism"], "sampling": BALLS}]
    same = api.post("/v1/plan", json=apart).json()
    assert planned["composed"] == {"trials": 3, "epsilon": pytest.approx(same["epsilon"], rel=1e-6)}
    assert same["composed"] is None


def test_what_is_left_open_beside_a_selection_is_found(api: httpx.Client) -> None:
    events = [
        {"steps": 1, "mechanism": selection(), "sampling": FULL},
        {"steps": 100, "mechanism": {"kind": "gaussian"}, "sampling": POISSON},
    ]
    asked = plan(selection(), events=events, epsilon=6.0, solve_for="noise_multiplier")
    answer = api.post("/v1/plan", json=asked)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["epsilon"] <= 6.0
    assert body["composed"]["trials"] == 10


def test_a_plan_with_a_selection_makes_no_envelope(api: httpx.Client) -> None:
    answer = api.post("/v1/plan", json=plan(selection(), as_envelope=True))
    (fault,) = answer.json()["errors"]
    assert fault["location"] == "body.as_envelope"
    assert "cannot be an item of an envelope" in fault["message"]


def test_a_plan_of_hidden_iterates_takes_no_sweep(api: httpx.Client) -> None:
    asked = plan(selection(), dataset_size=60000, neighboring_relation="replace_special")
    refused = api.post("/v1/plan", json=asked | HIDDEN)
    (fault,) = refused.json()["errors"]
    assert fault["location"] == "body.release"
    assert "every step adds Gaussian noise" in fault["message"]


def test_a_correction_to_a_sweep_counts_as_the_sweep(api: httpx.Client) -> None:
    start(api)
    append(api, event(0, 2))
    body = {
        "first_step": 1, "steps": 1, "mechanism": selection(), "sampling": FULL, "reason": "sweep",
    }  # fmt: skip
    answer = api.post("/v1/runs/run/corrections", json=body)
    assert answer.status_code == 201, answer.text
    assert read(api, "/v1/runs/run/guarantee")["epsilon"] > 4.1


def test_a_child_with_missing_rows_leaves_a_sweep_uncovered(api: httpx.Client) -> None:
    relation = {"neighboring_relation": "replace_special"}
    setup(api, dataset_given=ACCEPT | relation | {"name": "data"})
    child = ACCEPT | relation | {
        "name": "child", "dataset_size": 1000, "privacy_unit": "example", "parents": ["data"],
        "rows_per_parent_record": "at_most_one",
    }  # fmt: skip
    assert api.post("/v1/datasets", json=child).status_code == 201
    assert api.post("/v1/runs", json=run("of-child") | {"dataset": "child"}).status_code == 201
    assert append(api, sweep(), run="of-child").status_code == 201
    assert read(api, "/v1/datasets/child/guarantee?delta=1e-5")["epsilon"] > 0
    assert read(api, "/v1/datasets/data/guarantee?delta=1e-5")["epsilon"] is None


def test_a_certificate_of_a_sweep_is_verified_offline(
    api: httpx.Client, engine: Engine, tmp_path: Path
) -> None:
    start(api, budget=WIDE)
    append(api, sweep(), event(1, 100), mode="charge")
    signer = signer_of(tmp_path)
    raw = certified(engine, signer)
    verify_bytes(raw, public_key=signer.public_key)

    def fewer(certificate: Json) -> None:
        text = json.dumps(certificate)
        lower = json.loads(text.replace('"halting_probability": 0.1', '"halting_probability": 0.5'))
        assert lower != certificate
        certificate.clear()
        certificate.update(lower)

    with pytest.raises(InvalidCertificateError):
        verify_bytes(resealed(raw, signer, fewer), public_key=signer.public_key)


def test_pages_show_a_run_with_a_sweep(api: httpx.Client) -> None:
    start(api, budget=WIDE)
    append(api, sweep(), mode="charge")
    for path in ("/runs/run", "/datasets/data", "/runs", "/compare?runs=run"):
        page = api.get(path, headers={"accept": "text/html"})
        assert page.status_code == 200, path
    assert SAID in page.text


SAID = (
    "A private selection: the best of a secret number of trials, 10 on average. A trial takes at "
    "most 1,000 steps: Gaussian, noise multiplier 1 · Poisson, sampling probability 0.01"
)


def test_the_schedule_of_a_run_says_a_sweep_in_words(api: httpx.Client) -> None:
    start(api)
    single = event(6, 2, mechanism=selection(steps=1), sampling=FULL)
    append(api, sweep(), event(1, 5), single)
    first, trained, last = read(api, "/runs/run/schedule.json")["spans"]
    assert (first["selection"], trained["selection"]) == (f"{SAID}.", None)
    assert "2 private selections, each: the best of a" in last["selection"]
    assert "at most 1 step: Gaussian" in last["selection"]
    for swept in (first, last):  # it is no step that takes every record
        assert (swept["noise_multiplier"], swept["sampling_rate"]) == (None, None)
    assert trained["sampling_rate"] == {"least": 0.01, "most": 0.01}
