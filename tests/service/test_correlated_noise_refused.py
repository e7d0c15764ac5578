"""Correlated noise: steps, corrections and documents that contradict a strategy."""

import json
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine, text

from service.schemas.ledger_document import LedgerDocument
from service.storage.engine import transaction
from service.transparency.certificates.verify import verify_bytes
from service.transparency.signing import Signer
from service.web.strict_requests import JSON
from tests.service.certifying import certified, said, signer_of
from tests.service.correlated import (
    ACCEPT,
    NOT_KEPT,
    begin,
    guaranteed,
    keep,
    noisy,
    refused,
    rows,
    separated,
    sound,
    toeplitz,
)
from tests.service.samples import GAUSSIAN, POISSON, Json, append, event, run
from tests.service.test_corrections import correct
from tests.service.test_reservations import reserve


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return signer_of(tmp_path)


# What a request may not say


@pytest.mark.parametrize(
    ("mechanism", "sampling", "words"),
    [
        ({"strategy": NOT_KEPT}, {}, "is not a strategy of this ledger"),
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


@pytest.mark.parametrize("said", ["much", {}, [None], -1.0, 0.0, 1e251, True])
def test_what_cannot_be_a_sensitivity_is_refused_in_every_body(
    api: httpx.Client, said: object
) -> None:
    begin(api, budget={"epsilon": 40.0, "delta": 1e-6})
    step = {"mechanism": noisy(NOT_KEPT, sensitivity_squared=said), "sampling": POISSON}
    budget = {"epsilon": 5.0, "delta": 1e-6, "envelope": [step | {"name": "all", "steps": 1}]}
    answer = api.patch("/v1/datasets/data", json={"budget": budget, "reason": "A second study."})
    refused(answer, 422, "request", "sensitivity_squared")


@pytest.mark.parametrize(
    "name",
    ["\0", "\ud800", "sha256:" + "\u0661" * 64, "x" * 70_000],
    ids=["NUL", "half a pair", "other digits", "long"],
)
def test_what_is_no_name_of_a_strategy_is_not_looked_up(api: httpx.Client, name: str) -> None:
    begin(api)
    step = event(0, 1, mechanism=noisy(name), sampling=separated())
    plan = {"neighboring_relation": "add_or_remove_one", "delta": 1e-5, "events": [step]}
    for path, body in (("/v1/runs/run/events", {"events": [step]}), ("/v1/plan", plan)):
        answer = api.post(path, content=json.dumps(body), headers={"content-type": JSON})
        refused(answer, 422, "request", "body.events[0].mechanism.strategy: ")
        assert "of this ledger" not in answer.text


def test_a_refusal_names_the_step_or_the_line(api: httpx.Client) -> None:
    begin(api)
    digest = toeplitz(api)
    good = event(0, 1, mechanism=noisy(digest), sampling=separated())
    other = event(1, 1, mechanism=noisy(NOT_KEPT), sampling=separated())
    short = event(1, 1, mechanism=noisy(digest), sampling=separated(min_separation=65))
    refused(append(api, good, other), 422, "request", "body.events[1].mechanism.strategy: is not")
    refused(append(api, good, short), 422, "request", "body.events[1]: ")
    lines = f"{json.dumps(good)}\n{json.dumps(other)}"
    answer = api.post(
        "/v1/runs/run/events", content=lines, headers={"content-type": "application/x-ndjson"}
    )
    refused(answer, 422, "request", "line 2.mechanism.strategy: is not")


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
            {"digest": NOT_KEPT, "content": '{"kind":"identity"}', "at": "2026-01-01 00:00:00"},
        )
    (broken,) = sound(engine)
    assert "another one than its digest says" in broken
