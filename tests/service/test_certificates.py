"""Certificates: what they say is what the service answers, and the log tells of each once."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, update

import accounting
from service.errors import LedgerSuspendedError, TooExpensiveError
from service.identity.keys import Role, Terms, create_key
from service.schemas.event_codec import canonical
from service.schemas.provenance import DELTAS
from service.storage.engine import transaction
from service.storage.tables import installation
from service.transparency.certificates import facts as facts_module
from service.transparency.certificates import issue, statements, verify
from service.transparency.certificates.envelope import InvalidCertificateError
from service.transparency.certificates.verify import verify_bytes
from service.transparency.signing import Signer
from tests.service.certifying import certified, full_world, said, signer_of, signing, told
from tests.service.samples import (
    BATCH_SIZES,
    BUDGET,
    FULL,
    GAUSSIAN,
    POISSON,
    Json,
    append,
    dataset,
    event,
    run,
    setup,
)
from tests.service.test_fixed_plans import PLAN
from tests.service.test_hidden_runs import SMALL, hiding, planned
from tests.service.test_reservations import reserve

STATED = ("epsilon", "epsilon_lower", "reason", "bound", "theorems", "status", "assumptions",
          "valid_for", "release", "release_reason", "unamplified_epsilon", "steps")  # fmt: skip


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return signer_of(tmp_path)


def agree(api: httpx.Client, certificate: Json) -> None:
    """Every number is the one that GET guarantee answers."""
    subject = certificate["facts"]["subject"]
    path = f"/v1/{subject['kind']}s/{subject['name']}/guarantee"
    for one in certificate["statements"]:
        query = {"delta": one["delta"], "accountant": one["accountant"]}
        answer = api.get(path, params=query).json()
        if subject["kind"] == "dataset" and not one["reservations"]:
            answer = answer["without_reservations"]
        names = (*STATED, "corrected_epsilon", "so_far_epsilon", "planned_steps")
        assert {name: one[name] for name in names} == {name: answer[name] for name in names}
    for one in certificate["standing"]:
        audits = api.get(f"/v1/runs/{one['run']}/audits").json()["audits"]
        ended = [audit["number"] for audit in audits if audit["correct"] is not None]
        assert [audit["number"] for audit in one["audits"]] == ended


def plain(api: httpx.Client) -> None:
    setup(api, delta=1e-6)
    append(api, event(0, 100))


def infinite(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 3, mechanism={"kind": "none"}, sampling=FULL))


def nothing(api: httpx.Client) -> None:
    setup(api)


def on_plan(api: httpx.Client) -> None:
    setup(api, plan=PLAN, budget={"epsilon": 9.0, "delta": 1e-5})
    append(api, PLAN[0] | {"first_step": 0, "steps": 5})


def hidden(api: httpx.Client) -> None:
    setup(api, dataset_given=SMALL, **hiding())
    append(api, planned())
    api.post("/v1/runs/run:finish", json={"state": "finished"})


def unfinished(api: httpx.Client) -> None:
    setup(api, dataset_given=SMALL, **hiding())
    append(api, planned(steps=30))


WORLDS = (plain, infinite, nothing, on_plan, hidden, unfinished, full_world)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__name__)
@pytest.mark.parametrize("kind", ["run", "dataset"])
def test_every_number_is_the_one_the_service_answers_and_verifies(
    api: httpx.Client,
    engine: Engine,
    signer: Signer,
    world: Callable[[httpx.Client], None],
    kind: str,
) -> None:
    world(api)
    name = "run" if kind == "run" else "data"
    raw = certified(engine, signer, name, kind=kind, deltas=(1e-5, 1e-7))
    agree(api, said(raw))
    found = verify_bytes(raw, public_key=signer.public_key)
    assert (found.subject, found.pinned) == (f"{kind} {name}", True)


def test_what_is_reserved_is_stated_beside_what_was_recorded(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 100))
    assert reserve(api, "ahead", 50).status_code == 201
    raw = certified(engine, signer, "data", kind="dataset")
    certificate = said(raw)
    without, with_ = certificate["statements"][:2]
    assert (without["reservations"], with_["reservations"]) == (False, True)
    assert with_["epsilon"] > without["epsilon"]
    assert with_["steps"] == without["steps"] == 100
    agree(api, certificate)
    verify_bytes(raw, public_key=signer.public_key)


@pytest.mark.parametrize(
    ("relation", "rows"),
    [
        ("add_or_remove_one", "at_most_one"),
        ("replace_one", "at_most_one"),
        ("replace_special", "exactly_one"),
    ],
)
def test_a_certificate_of_a_dataset_counts_what_was_made_from_it(
    database_url: str, engine: Engine, signer: Signer, relation: str, rows: str
) -> None:
    with signing(database_url, signer) as api:
        given = {"neighboring_relation": relation, "accept": ["published", "declared", "derived"]}
        setup(api, dataset_given=given)
        size = 60000 if rows == "exactly_one" else 6000
        made = {"parents": ["data"], "rows_per_parent_record": rows, "dataset_size": size}
        assert api.post("/v1/datasets", json=dataset("child", **given, **made)).status_code == 201
        api.post("/v1/runs", json=run("small", dataset="child"))
        append(api, event(0, 100))
        append(api, event(0, 50, sampling={"kind": "fixed_size", "batch_size": 600}), run="small")
        append(api, event(50, 50), run="small")
        raw = api.get("/v1/datasets/data/certificate", params={"delta": [1e-5]}).content
        certificate = said(raw)
        assert [home["dataset"] for home in certificate["facts"]["homes"]] == ["data", "child"]
        agree(api, certificate)
    verify_bytes(raw, public_key=signer.public_key)


def test_the_ledger_in_a_certificate_is_the_ledger_document(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    full_world(api)
    facts = said(certified(engine, signer, "data", kind="dataset"))["facts"]
    for one in facts["homes"][0]["runs"]:
        name = one["ledger"]["run"]
        assert canonical(one["ledger"]) == api.get(f"/v1/runs/{name}/ledger").text


def test_a_certificate_says_what_an_auditor_asks_for(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    full_world(api)
    api.post("/v1/runs/run/findings", json=BATCH_SIZES)
    change = {"reason": "the officer agreed", "budget": {"epsilon": 4.0, "delta": 1e-5}}
    etag = api.get("/v1/datasets/data").headers["ETag"]
    assert api.patch("/v1/datasets/data", json=change, headers={"If-Match": etag}).is_success
    certificate = said(certified(engine, signer))
    (standing,) = certificate["standing"]
    answer = api.get("/v1/runs/run").json()
    assert standing["sampling_status"] == answer["sampling_status"] == "contradicted"
    assert standing["outside_guarantee"] == answer["outside_guarantee"] != []
    assert (standing["steps_beyond_a_limit"], standing["branches"], standing["releases"]) == (
        2, 2, 1,
    )  # fmt: skip
    facts = certificate["facts"]
    kinds = {one["kind"]: one["count"] for one in facts["homes"][0]["runs"][0]["incidents"]}
    assert kinds == {"batch_sizes_refuted": 1, "overdraft": 1, "sampling_contradicted": 1}
    assert [one["reason"] for one in facts["dataset"]["limits"]] == [
        "creation", "the officer agreed",
    ]  # fmt: skip
    used = {name for one in certificate["statements"] for name in one["theorems"]}
    assert {one["id"] for one in certificate["theorems"]} == used
    assert all(one["source"] and one["statement"] for one in certificate["theorems"])
    assert certificate["versions"]["dpledger"] == accounting.__version__
    assert set(certificate["versions"]) == {"dpledger", "numpy", "python", "scipy"}
    assert "opacus-adaclip-accounting" in {one["id"] for one in certificate["advisories"]}


def test_what_is_infinite_is_null_for_a_reason(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    infinite(api)
    for one in said(certified(engine, signer))["statements"]:
        assert one["epsilon"] is None
        assert one["reason"]


def test_without_deltas_it_is_read_at_the_run_s_own_and_some_powers_of_ten(
    database_url: str, signer: Signer
) -> None:
    with signing(database_url, signer) as api:
        setup(api, delta=3e-7)
        found = api.get("/v1/runs/run/certificate").json()["certificate"]
        asked = list(dict.fromkeys(one["delta"] for one in found["statements"]))
        assert asked == sorted({*DELTAS, 3e-7}, reverse=True)
        several: dict[str, Any] = {"delta": [1e-3, 1e-9], "model_sha256": "ab" * 32}
        found = api.get("/v1/runs/run/certificate", params=several).json()["certificate"]
        assert {one["delta"] for one in found["statements"]} == {1e-3, 1e-9}
        assert found["model_sha256"] == "ab" * 32
        bad: dict[str, Any]
        for bad in ({"delta": [0.1 ** (i + 1) for i in range(9)]}, {"delta": 1.0},
                    {"model_sha256": "AB" * 32}, {"deltas": 1e-5}):  # fmt: skip
            assert api.get("/v1/runs/run/certificate", params=bad).status_code == 422
        assert api.get("/v1/runs/nobody/certificate").status_code == 404
        assert api.get("/v1/datasets/nothing/certificate").status_code == 404


def test_the_same_certificate_asked_for_again_is_told_once(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    plain(api)
    first, again = said(certified(engine, signer)), said(certified(engine, signer))
    assert first["issued_at"] == again["issued_at"]
    assert first["log"]["position"] == again["log"]["position"]
    assert len(told(engine, "certificate")) == len(told(engine, "certificate_facts")) == 1
    certified(engine, signer, model_sha256="ab" * 32)
    certified(engine, signer, deltas=(1e-7,))
    assert len(told(engine, "certificate")) == 3
    assert len(told(engine, "certificate_facts")) == 1  # the same facts are kept once
    append(api, event(100, 1))
    certified(engine, signer)
    assert len(told(engine, "certificate")) == 4
    assert len(told(engine, "certificate_facts")) == 2


def test_of_many_who_ask_at_once_one_is_told_of(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    plain(api)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: certified(engine, signer), range(16)))
    assert len(told(engine, "certificate")) == 1
    assert len({said(raw)["issued_at"] for raw in found}) == 1
    for raw in found:
        verify_bytes(raw, public_key=signer.public_key)


def test_an_older_certificate_stays_provable_while_the_log_grows(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    plain(api)
    old = certified(engine, signer)
    for index in range(5):
        append(api, event(100 + index, 1))
    certified(engine, signer, model_sha256="cd" * 32)
    assert said(old)["facts"]["sequence"] == 1
    verify_bytes(old, public_key=signer.public_key)


def test_without_a_key_it_says_which_setting_is_missing(database_url: str) -> None:
    with signing(database_url, None) as api:
        plain(api)
        answer = api.get("/v1/runs/run/certificate")
    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/unavailable")
    assert "DPLEDGER_SIGNING_KEY_FILE" in answer.json()["detail"]


def test_a_suspended_ledger_certifies_nothing_even_what_it_certified_before(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    plain(api)
    certified(engine, signer)
    why = json.dumps({"state": "suspended", "generation": 0, "lost": [], "reason": "rolled back"})
    with transaction(engine) as connection:
        connection.execute(update(installation).values(suspended=why))
    with pytest.raises(LedgerSuspendedError):
        certified(engine, signer)
    assert len(told(engine, "certificate")) == 1


def test_too_many_different_events_are_refused_by_name(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    setup(api)
    noises = [{"kind": "gaussian", "noise_multiplier": 1 + i / 1000} for i in range(401)]
    append(api, *(event(i, 1, mechanism=noise) for i, noise in enumerate(noises)))
    with pytest.raises(TooExpensiveError, match="at most 400 different events"):
        certified(engine, signer)
    assert told(engine, "certificate") == []


@pytest.mark.parametrize(
    ("limit", "said_of_it"),
    [("_ROWS_MAX", "at most 3 entries"), ("_EVENTS_MAX", "at most 3 changes")],
)
def test_too_many_entries_are_refused_by_name(
    api: httpx.Client,
    engine: Engine,
    signer: Signer,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    said_of_it: str,
) -> None:
    full_world(api)
    monkeypatch.setattr(facts_module, limit, 3)
    for name, kind in (("run", "run"), ("data", "dataset")):
        with pytest.raises(TooExpensiveError, match=said_of_it):
            certified(engine, signer, name, kind=kind)


def test_further_deltas_are_stated_while_they_take_little_work(
    api: httpx.Client, engine: Engine, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain(api)
    monkeypatch.setattr(statements, "ISSUE_POINTS", 0)
    own = json.loads(certified(engine, signer))["certificate"]["statements"]
    assert len({one["delta"] for one in own}) == 1
    asked = issue.CertificateInputs(kind="run", name="run", deltas=(1e-5, 1e-6))
    with pytest.raises(TooExpensiveError, match="ask for fewer"):
        issue.issue(engine, signer, asked, by="test")


def test_facts_that_take_more_work_than_any_that_are_certified_do_not_verify(
    api: httpx.Client, engine: Engine, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain(api)
    raw = certified(engine, signer)
    verify.verify_bytes(raw)
    monkeypatch.setattr(verify, "VERIFY_POINTS", 10)
    with pytest.raises(InvalidCertificateError, match="more work than any certificate"):
        verify.verify_bytes(raw)


def test_a_key_that_does_not_reach_what_was_made_from_a_dataset_is_not_shown_it(
    database_url: str, engine: Engine, signer: Signer
) -> None:
    with signing(database_url, signer) as api:
        setup(api)
        made = {"parents": ["data"], "rows_per_parent_record": "at_most_one"}
        assert api.post("/v1/datasets", json=dataset("child", **made)).status_code == 201
        with transaction(engine) as connection:
            part = Terms(datasets=frozenset({"data"}))
            key = create_key(connection, name="part", scope=Role.VIEWER, terms=part)
            whole = create_key(connection, name="whole", scope=Role.VIEWER)
    with signing(database_url, signer) as api:
        path = "/v1/datasets/data/certificate"
        answer = api.get(path, headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == 404
        path_of_run = "/v1/runs/run/certificate"
        answer = api.get(path_of_run, headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == 200
        answer = api.get(path, headers={"Authorization": f"Bearer {whole}"})
        assert answer.status_code == 200
        assert answer.json()["certificate"]["log"]["by"] == "whole"


def test_a_step_of_a_certificate_s_own_making_is_no_fact_of_the_dataset(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 10, mechanism=GAUSSIAN, sampling=POISSON))
    before = api.get("/v1/datasets/data").json()
    certified(engine, signer)
    assert api.get("/v1/datasets/data").json() == before
    assert append(api, event(10, 1)).json()["sequence"] == 2
