"""Correlated noise over HTTP: kept strategies, passes, what is refused, what is certified."""

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text

from service.schemas.ledger_document import LedgerDocument
from service.storage.engine import snapshot, transaction
from service.transparency.certificates.verify import verify_bytes
from service.transparency.signing import Signer
from service.transparency.verification.ledger import verify
from tests.service.certifying import certified, said, signer_of
from tests.service.correlated import (
    ACCEPT,
    NOISE,
    begin,
    guaranteed,
    keep,
    noisy,
    rows,
    separated,
    square_root,
    toeplitz,
)
from tests.service.samples import GAUSSIAN, POISSON, WRITER, Json, append, event, run
from tests.service.test_corrections import correct
from tests.service.test_reservations import reserve

DIGEST = "sha256:" + 64 * "0"


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return signer_of(tmp_path)


def refused(answer: httpx.Response, status: int, kind: str, words: str = "") -> None:
    assert answer.status_code == status, answer.text
    assert answer.json()["type"].endswith(kind), answer.text
    assert words in answer.text, answer.text


def sound(engine: Engine) -> list[str]:
    with snapshot(engine) as connection:
        return [one.text for one in verify(connection).broken]


# Strategies


def test_a_strategy_is_kept_once_and_named_by_its_content(api: httpx.Client) -> None:
    body = {"strategy": {"kind": "toeplitz", "coefficients": [1, 0.5]}}
    first = api.post("/v1/strategies", json=body)
    again = api.post("/v1/strategies", json=body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    content = json.dumps(first.json()["strategy"], sort_keys=True, separators=(",", ":"))
    assert first.json()["digest"] == f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"
    found = api.get(f"/v1/strategies/{first.json()['digest']}")
    assert found.json() == first.json()
    refused(api.get(f"/v1/strategies/{DIGEST}"), 404, "not-found")


GOLDEN: list[tuple[Json, int, int, int | None, float]] = [
    ({"kind": "toeplitz", "coefficients": square_root(64)}, 64, 8, None, 50.15585143397344),
    ({"kind": "toeplitz", "coefficients": square_root(64)}, 64, 8, 3, 12.936953309984117),
    ({"kind": "toeplitz", "coefficients": square_root(1000)}, 1000, 100, 10, 83.79650325012167),
    ({"kind": "toeplitz", "coefficients": square_root(2048)}, 2048, 128, 16, 196.78954352464535),
    ({"kind": "toeplitz", "coefficients": square_root(2048)}, 2048, 2048, 1, 3.4932286006780044),
    ({"kind": "toeplitz", "coefficients": [1, 0.5, 0.375, 0.3125]}, 16, 4, 4, 5.953125),
    ({"kind": "toeplitz", "coefficients": [1, 0.5, 0.375, 0.3125]}, 16, 4, 2, 2.9765625),
    ({"kind": "toeplitz", "coefficients": [1, 0.5, 0.375, 0.3125]}, 16, 3, 6, 11.56640625),
    ({"kind": "toeplitz", "coefficients": [1, 0.2, 0.9]}, 8, 3, 3, 4.74),
    ({"kind": "toeplitz", "coefficients": [1, -0.9]}, 8, 1, 8, 26.27),
    ({"kind": "blt", "buffer_decay": [0.99, 0.8], "output_scale": [0.2, 0.3]},
     1000, 100, 10, 62.006273891423334),
    ({"kind": "blt", "buffer_decay": [0.99, 0.8], "output_scale": [0.2, 0.3]},
     64, 8, 8, 77.56469498130525),
    ({"kind": "blt", "buffer_decay": [0.99, 0.8], "output_scale": [0.2, 0.3]},
     2052, 342, 6, 23.844792065706354),
    ({"kind": "tree"}, 16, 4, 4, 36.0),
    ({"kind": "tree"}, 15, 4, 4, 15.0),
    ({"kind": "tree"}, 15, 4, 2, 10.0),
    ({"kind": "identity"}, 64, 8, 5, 5.0),
    ({"kind": "toeplitz", "coefficients": square_root(8), "column_normalized": True},
     64, 8, 8, 8.0),
]  # fmt: skip


@pytest.mark.parametrize(("strategy", "n", "b", "k", "squared"), GOLDEN)
def test_sensitivities_are_those_of_others(
    api: httpx.Client, strategy: Json, n: int, b: int, k: int | None, squared: float
) -> None:
    digest = keep(api, **strategy)
    query: Json = {"steps_per_pass": n, "min_separation": b}
    query |= {} if k is None else {"participations": k}
    found = api.get(f"/v1/strategies/{digest}/sensitivity", params=query).json()
    assert found["sensitivity_squared"] == pytest.approx(squared, rel=1e-12)


@pytest.mark.parametrize(
    ("strategy", "query", "words"),
    [
        ({"kind": "toeplitz", "coefficients": [1.0, 0.5]}, (8, 9, 1), "min_separation"),
        ({"kind": "toeplitz", "coefficients": [1.0, 0.5]}, (8, 4, 3), "participations"),
        ({"kind": "toeplitz", "coefficients": [1.0, 0.5], "column_normalized": True}, (8, 1, 2),
         "min_separation of at least 2"),
        ({"kind": "blt", "buffer_decay": [0.5], "output_scale": [0.5], "column_normalized": True},
         (8, 4, 2), "column-normalized"),
        ({"kind": "tree"}, (4096, 4, 4), "at most 2048 steps"),
        ({"kind": "banded", "rows": [[1.0], [0.5, 1.0]]}, (8, 4, 2), "the 2 rows given"),
    ],
)  # fmt: skip
def test_what_no_rule_serves_is_refused_by_name(
    api: httpx.Client, strategy: Json, query: tuple[int, int, int], words: str
) -> None:
    digest = keep(api, **strategy)
    names = ("steps_per_pass", "min_separation", "participations")
    asked = dict(zip(names, query, strict=True))
    refused(
        api.get(f"/v1/strategies/{digest}/sensitivity", params=asked), 422, "invalid-request", words
    )


def test_work_is_bounded_before_it_is_begun(api: httpx.Client) -> None:
    digest = keep(api, kind="toeplitz", coefficients=[1.0, -0.9])
    asked = {"steps_per_pass": 2048, "min_separation": 1}
    answer = api.get(f"/v1/strategies/{digest}/sensitivity", params=asked)
    refused(answer, 422, "too-expensive", "processor time")


@pytest.mark.parametrize(
    ("strategy", "where"),
    [
        ({"kind": "toeplitz", "coefficients": []}, "coefficients"),
        ({"kind": "toeplitz", "coefficients": [0.0, 1.0]}, "coefficients"),
        ({"kind": "toeplitz", "coefficients": [1.0, 1e-70]}, "coefficients[1]"),
        ({"kind": "blt", "buffer_decay": [1.5], "output_scale": [1.0]}, "buffer_decay[0]"),
        ({"kind": "blt", "buffer_decay": [0.5], "output_scale": [1.0, 2.0]}, "same length"),
        ({"kind": "banded", "rows": [[1.0, 1.0]]}, "row i, from 0"),
        ({"kind": "banded", "rows": [[1.0], [1.0, 0.0]]}, "row i, from 0"),
        ({"kind": "tree", "arity": 3}, "arity"),
        ({"kind": "circulant"}, "kind must be one of"),
    ],
)
def test_a_faulty_strategy_is_refused_where_it_is_wrong(
    api: httpx.Client, strategy: Json, where: str
) -> None:
    refused(api.post("/v1/strategies", json={"strategy": strategy}), 422, "request", where)


# Passes


EPSILONS = [
    (64, 8, 8, 9.499816013276556),
    (64, 8, 3, 4.331813352752875),
    (1000, 100, 10, 12.958170554048339),
    (2048, 128, 16, 22.190439375848367),
    (2048, 2048, 1, 2.092622774426979),
]


@pytest.mark.parametrize(("n", "b", "k", "epsilon"), EPSILONS)
def test_a_pass_is_charged_whole_with_its_first_step(
    api: httpx.Client, engine: Engine, n: int, b: int, k: int, epsilon: float
) -> None:
    begin(api)
    digest = toeplitz(api, n)
    for first, steps in ((0, 1), (1, n - 1)):
        answer = append(api, rows(first, steps, digest, n=n, b=b, k=k), mode="charge")
        assert answer.status_code == 201, answer.text
        for path in ("runs/run", "datasets/data"):
            found = guaranteed(api, path)
            assert found["epsilon"] == pytest.approx(epsilon, abs=1e-6)
            assert found["status"] == "derived"
    assert sound(engine) == []


def test_a_step_after_the_pass_is_refused_ahead_and_has_no_bound_afterwards(
    api: httpx.Client, engine: Engine
) -> None:
    begin(api)
    digest = toeplitz(api)
    append(api, rows(0, 64, digest), mode="charge")
    refused(append(api, rows(64, 1, digest), mode="charge"), 422, "unsupported-event", "used again")
    refused(
        reserve(api, "ahead", 1, event={"mechanism": noisy(digest), "sampling": separated()}),
        422, "unsupported-event",
    )  # fmt: skip
    assert append(api, rows(64, 1, digest)).status_code == 201
    found = guaranteed(api)
    assert found["epsilon"] is None
    assert "used again" in found["reason"]
    assert sound(engine) == []


def test_a_pass_after_a_pass_needs_noise_that_restarts(api: httpx.Client) -> None:
    begin(api)
    digest = toeplitz(api)
    given: Json = {"noise_restarts_each_pass": True}
    for first in (0, 64):
        answer = append(api, rows(first, 64, digest, **given), mode="charge")
        assert answer.status_code == 201
    twice = guaranteed(api)["epsilon"]
    mu = (2 * 50.15585143397344 / NOISE**2) ** 0.5
    plan = {
        "neighboring_relation": "add_or_remove_one", "delta": 1e-6, "accept": ACCEPT,
        "events": [{"steps": 1, "mechanism": {"kind": "gaussian", "noise_multiplier": 1 / mu},
                    "sampling": {"kind": "full"}}],
    }  # fmt: skip
    assert twice == pytest.approx(api.post("/v1/plan", json=plan).json()["epsilon"], abs=1e-6)


def test_rows_may_lie_between_other_steps(api: httpx.Client, engine: Engine) -> None:
    begin(api)
    digest = toeplitz(api)
    assert api.post("/v1/runs", json=run("other")).status_code == 201
    append(api, rows(0, 30, digest), event(30, 5), rows(35, 34, digest), mode="charge")
    append(api, event(0, 7), run="other")
    whole = guaranteed(api, "datasets/data")["epsilon"]
    plan: Json = {
        "neighboring_relation": "add_or_remove_one", "delta": 1e-6, "accept": ACCEPT,
        "events": [
            {"steps": 64, "mechanism": noisy(digest), "sampling": separated()},
            {"steps": 12, "mechanism": GAUSSIAN, "sampling": POISSON},
        ],
    }  # fmt: skip
    assert whole == pytest.approx(api.post("/v1/plan", json=plan).json()["epsilon"], rel=1e-9)
    assert sound(engine) == []


def test_rows_of_two_strategies_are_refused_ahead_and_have_no_bound(
    api: httpx.Client, engine: Engine
) -> None:
    begin(api)
    one, other = toeplitz(api), keep(api, kind="tree")
    append(api, rows(0, 30, one, noise_restarts_each_pass=True))
    spliced = rows(30, 1, other, noise_restarts_each_pass=True)
    refused(append(api, spliced, mode="charge"), 422, "unsupported-event", "unfinished")
    append(api, spliced)
    assert guaranteed(api)["epsilon"] is None
    assert sound(engine) == []


def test_noise_that_falls_in_a_pass_counts_at_its_least(api: httpx.Client, engine: Engine) -> None:
    begin(api, budget={"epsilon": 50.0, "delta": 1e-6})
    digest = toeplitz(api)
    append(api, rows(0, 30, digest), rows(30, 4, digest, noise=3.0), rows(34, 30, digest))
    plan: Json = {
        "neighboring_relation": "add_or_remove_one", "delta": 1e-6, "accept": ACCEPT,
        "events": [{"steps": 64, "mechanism": noisy(digest, 3.0), "sampling": separated()}],
    }  # fmt: skip
    found = guaranteed(api)["epsilon"]
    assert found == pytest.approx(api.post("/v1/plan", json=plan).json()["epsilon"], rel=1e-12)
    assert sound(engine) == []


@pytest.mark.parametrize(
    ("given", "covered"),
    [
        ({"from_step": 20}, False),
        ({"from_step": 20, "order": "continued"}, False),
        ({"from_step": 20, "order": "fresh"}, False),
        ({"from_step": 20, "order": "fresh", "noise": "fresh"}, True),
        ({"from_step": 30, "order": "continued"}, True),  # it takes the pass and goes on in it
    ],
)
def test_a_branch_inside_a_pass_needs_fresh_noise(
    api: httpx.Client, engine: Engine, given: Json, covered: bool
) -> None:
    begin(api)
    digest = toeplitz(api)
    append(api, rows(0, 30, digest))
    once = guaranteed(api)["epsilon"]
    about = {"name": "again", "writer": "writer-of-the-tests-2"} | given
    assert api.post("/v1/runs/run/branches", json=about).status_code == 201
    further = rows(given["from_step"], 10, digest)
    charged = append(api, further, branch="again", mode="charge")
    assert charged.status_code == (201 if covered else 422), charged.text
    append(api, further, branch="again")
    found = guaranteed(api)["epsilon"]
    if not covered:
        assert found is None
    elif "noise" in given:
        assert found > 1.3 * once
    else:
        assert found == once
    assert sound(engine) == []
    document = api.get("/v1/runs/run/ledger").json()
    assert [one["name"] for one in document["branches"]] == ["again"]


def test_fresh_noise_is_of_a_branch_in_a_fresh_order(api: httpx.Client) -> None:
    begin(api)
    about = {"name": "again", "writer": WRITER, "from_step": 0, "noise": "fresh"}
    refused(api.post("/v1/runs/run/branches", json=about), 422, "request", "needs order fresh")


def test_a_budget_holds_passes_and_refuses_one_too_many(api: httpx.Client) -> None:
    begin(api, budget={"epsilon": 12.0, "delta": 1e-6, "filter": "gaussian_dp"})
    digest = toeplitz(api)
    assert append(api, rows(0, 64, digest), mode="charge").status_code == 201
    api.post("/v1/runs", json=run("other"))
    answer = append(api, rows(0, 1, digest), mode="charge", run="other")
    refused(answer, 409, "budget-exhausted")


@pytest.mark.parametrize("filter_", ["fixed_order_renyi", "union_of_orders", "gaussian_dp"])
def test_filters_hold_passes(api: httpx.Client, engine: Engine, filter_: str) -> None:
    begin(api, budget={"epsilon": 30.0, "delta": 1e-6, "filter": filter_})
    digest = toeplitz(api)
    sampling = separated()
    ahead = {"mechanism": noisy(digest), "sampling": sampling}
    assert reserve(api, "ahead", 10, event=ahead).status_code == 201
    held = api.get("/v1/datasets/data").json()["budget"]
    assert append(api, rows(0, 64, digest), mode="charge").status_code == 201
    spent = api.get("/v1/datasets/data").json()["budget"]
    assert spent["spent"] == pytest.approx(held["reserved"], rel=1e-9)
    assert sound(engine) == []


def test_an_envelope_holds_a_pass(api: httpx.Client) -> None:
    probe = toeplitz(api)
    item = {"steps": 64, "mechanism": noisy(probe), "sampling": separated()}
    begin(api, budget={"epsilon": 12.0, "delta": 1e-6, "filter": "envelope", "envelope": [item]})
    assert append(api, rows(0, 64, probe, noise=5.0), mode="charge").status_code == 201
    spent = api.get("/v1/datasets/data").json()["budget"]["items"][0]
    assert (spent["used"], spent["allowed"]) == (64, 64)
    api.post("/v1/runs", json=run("other"))
    refused(append(api, rows(0, 1, probe), mode="charge", run="other"), 409, "budget-exhausted")


def test_a_plan_finds_the_noise_of_a_pass(api: httpx.Client) -> None:
    digest = toeplitz(api)
    open_noise = noisy(digest)
    del open_noise["noise_multiplier"]
    asked: Json = {
        "neighboring_relation": "add_or_remove_one", "delta": 1e-6, "accept": ACCEPT,
        "epsilon": 9.499816013276556 + 1e-9, "solve_for": "noise_multiplier",
        "events": [{"steps": 64, "mechanism": open_noise, "sampling": separated()}],
    }  # fmt: skip
    answer = api.post("/v1/plan", json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.json()["solved"]["value"] == pytest.approx(4.0, rel=1e-6)


# Groups in turns


def turns(q: float, b: int, n: int, **given: Any) -> Json:
    return {
        "kind": "cyclic_poisson", "sampling_probability": q, "cycle_length": b,
        "steps_per_pass": n, "placement": "by_record",
    } | given  # fmt: skip


@pytest.mark.parametrize(
    ("noise", "n", "b", "q", "epsilon"),
    [(1.0, 1000, 10, 0.1, 7.0466), (2.0, 2000, 16, 0.16, 4.4158), (1.0, 1000, 1, 0.01, 1.82824)],
)
def test_a_pass_in_turns(
    api: httpx.Client, engine: Engine, noise: float, n: int, b: int, q: float, epsilon: float
) -> None:
    begin(api)
    digest = keep(api, kind="toeplitz", coefficients=[1.0] + [0.0] * (b - 1))
    answer = append(
        api, event(0, n, mechanism=noisy(digest, noise), sampling=turns(q, b, n)), mode="charge"
    )
    assert answer.status_code == 201, answer.text
    assert guaranteed(api, delta=1e-5)["epsilon"] == pytest.approx(epsilon, rel=3e-4)
    assert sound(engine) == []


def test_turns_need_as_many_groups_as_bands(api: httpx.Client) -> None:
    begin(api)
    digest = keep(api, kind="toeplitz", coefficients=[1.0, 0.5, 0.25])
    step = event(0, 8, mechanism=noisy(digest), sampling=turns(0.1, 2, 8))
    refused(append(api, step), 422, "invalid-request", "at least 3 groups")
    assert append(api, step | {"sampling": turns(0.1, 3, 8)}).status_code == 201


def test_noise_that_falls_in_turns_is_refused_ahead_and_has_no_bound(api: httpx.Client) -> None:
    begin(api)
    digest = keep(api, kind="identity")
    step = event(0, 4, mechanism=noisy(digest, 2.0), sampling=turns(0.1, 2, 8))
    append(api, step, mode="charge")
    less = step | {"first_step": 4, "mechanism": noisy(digest, 1.0)}
    refused(append(api, less, mode="charge"), 422, "unsupported-event", "fell")
    append(api, less)
    assert guaranteed(api)["epsilon"] is None


# Relations


@pytest.mark.parametrize(
    ("relation", "placement", "factor"),
    [
        ("replace_special", "by_slot", 1), ("replace_special", "by_record", 1),
        ("replace_one", "by_slot", 2), ("replace_one", "by_record", 2),
        ("add_or_remove_one", "by_record", 1), ("add_or_remove_one", "by_slot", None),
    ],
)  # fmt: skip
def test_relations(api: httpx.Client, relation: str, placement: str, factor: int | None) -> None:
    begin(api, neighboring_relation=relation)
    digest = toeplitz(api)
    answer = append(api, rows(0, 64, digest, noise=8.0, placement=placement), mode="charge")
    if factor is None:
        refused(answer, 422, "unsupported-event", "by_slot")
        return
    assert answer.status_code == 201
    begun = guaranteed(api)["epsilon"]
    plan: Json = {
        "neighboring_relation": "replace_special", "delta": 1e-6, "accept": ACCEPT,
        "events": [{"steps": 64, "mechanism": noisy(digest, 8.0 / factor),
                    "sampling": separated(placement=placement)}],
    }  # fmt: skip
    assert begun == pytest.approx(api.post("/v1/plan", json=plan).json()["epsilon"], rel=1e-12)


# What a request may not say


@pytest.mark.parametrize(
    ("mechanism", "sampling", "words"),
    [
        ({"strategy": DIGEST}, {}, "is not a strategy of this ledger"),
        ({"strategy": "sha256:abc"}, {}, "strategy"),
        ({"sensitivity_squared": 1.0}, {}, "must be 50.15585143397344 here"),
        ({}, {"min_separation": 65}, "min_separation"),
        ({}, {"participations": 9}, "participations"),
        ({}, {"kind": "poisson"}, "sampling"),
        ({}, {"placement": "anywhere"}, "placement"),
    ],
)
def test_a_step_that_contradicts_its_strategy_is_refused(
    api: httpx.Client, mechanism: Json, sampling: Json, words: str
) -> None:
    begin(api)
    digest = toeplitz(api)
    step = event(0, 1, mechanism=noisy(digest) | mechanism, sampling=separated() | sampling)
    refused(append(api, step), 422, "request", words)
    line = json.dumps(step)
    answer = api.post(
        "/v1/runs/run/events", content=line, headers={"content-type": "application/x-ndjson"}
    )
    refused(answer, 422, "request", words)


def test_correlated_noise_and_its_samplings_belong_together(api: httpx.Client) -> None:
    begin(api)
    digest = toeplitz(api)
    refused(append(api, event(0, 1, mechanism=noisy(digest))), 422, "request", "sampling.kind")
    refused(
        append(api, event(0, 1, mechanism=GAUSSIAN, sampling=separated())), 422, "request",
        "must be matrix_gaussian",
    )  # fmt: skip
    none = event(0, 1, mechanism={"kind": "none"}, sampling=separated())
    assert append(api, none).status_code == 201
    assert guaranteed(api)["epsilon"] is None


def test_a_name_that_is_written_otherwise_is_looked_up_alike(api: httpx.Client) -> None:
    begin(api)
    digest = toeplitz(api)
    body = json.dumps({"events": [event(
        0, 1, mechanism=noisy(digest, sensitivity_squared=1.0), sampling=separated()
    )]}).replace("matrix_gaussian", "\\u006datrix_gaussian")  # fmt: skip
    answer = api.post(
        "/v1/runs/run/events", content=body, headers={"content-type": "application/json"}
    )
    refused(answer, 422, "request", "must be 50.15585143397344 here")


# Corrections


def test_a_correction_may_say_less_noise_or_none(api: httpx.Client, engine: Engine) -> None:
    begin(api, budget={"epsilon": 40.0, "delta": 1e-6})
    digest = toeplitz(api)
    append(api, rows(0, 64, digest))
    other = {"mechanism": GAUSSIAN, "sampling": POISSON, "first_step": 3, "steps": 2}
    refused(correct(api, other), 422, "invalid-request", "correlated noise can say")
    less = {
        "mechanism": noisy(digest, 3.0), "sampling": separated(), "first_step": 3, "steps": 2,
    }  # fmt: skip
    answer = correct(api, less)
    assert answer.status_code == 201, answer.text
    plan: Json = {
        "neighboring_relation": "add_or_remove_one", "delta": 1e-6, "accept": ACCEPT,
        "events": [{"steps": 64, "mechanism": noisy(digest, 3.0), "sampling": separated()}],
    }  # fmt: skip
    found = guaranteed(api)["epsilon"]
    assert found == pytest.approx(api.post("/v1/plan", json=plan).json()["epsilon"], rel=1e-12)
    none = {"mechanism": {"kind": "none"}, "sampling": {"kind": "full"}, "first_step": 9,
            "steps": 1}  # fmt: skip
    assert correct(api, none).status_code == 201
    assert guaranteed(api)["epsilon"] is None
    assert sound(engine) == []


# Evidence


def test_a_certificate_is_verified_offline_from_its_strategies(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    begin(api)
    digest = toeplitz(api)
    append(api, rows(0, 10, digest))
    other = keep(api, kind="identity")
    api.post("/v1/runs", json=run("other"))
    ahead = {"mechanism": noisy(other), "sampling": separated()}
    assert reserve(api, "ahead", 10, run_name="other", event=ahead).status_code == 201
    for kind, name in (("run", "run"), ("dataset", "data")):
        raw = certified(engine, signer, name, kind=kind)
        found = verify_bytes(raw, public_key=signer.public_key)
        assert found.subject == f"{kind} {name}"
        home = said(raw)["facts"]["homes"][0]
        assert list(home["runs"][0]["ledger"]["strategies"]) == [digest]
        assert list(home.get("strategies", {})) == ([other] if kind == "dataset" else [])


@pytest.mark.parametrize("lie", ["missing", "another", "smaller"])
def test_a_document_that_understates_a_strategy_is_refused(api: httpx.Client, lie: str) -> None:
    begin(api)
    digest = toeplitz(api)
    append(api, rows(0, 10, digest))
    document = api.get("/v1/runs/run/ledger").json()
    LedgerDocument.model_validate(document)
    match lie:
        case "missing":
            del document["strategies"]
        case "another":
            document["strategies"][digest]["coefficients"][1] = 0.25
        case "smaller":
            document["events"][0]["mechanism"]["sensitivity_squared"] = 50.0
    with pytest.raises(ValueError, match=r"missing|another one|smaller sensitivity"):
        LedgerDocument.model_validate(document)


def test_verification_finds_a_strategy_that_was_changed(api: httpx.Client, engine: Engine) -> None:
    begin(api)
    digest = toeplitz(api)
    append(api, rows(0, 10, digest))
    with pytest.raises(Exception, match="insert-only"), transaction(engine) as connection:
        connection.execute(text("UPDATE strategies SET content = '{}'"))
    with transaction(engine) as connection:
        connection.execute(
            text("INSERT INTO strategies VALUES (:digest, :content, NULL, :at)"),
            {"digest": DIGEST, "content": '{"kind":"identity"}', "at": "2026-01-01 00:00:00"},
        )
    (broken,) = sound(engine)
    assert "another one than its digest says" in broken
