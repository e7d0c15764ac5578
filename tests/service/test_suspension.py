"""Suspension: a ledger that contradicts what it signed takes nothing until it is whole again."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine, select, update

from service.errors import ConflictError
from service.identity.keys import Role, Terms, create_key
from service.ledger.log.merkle import Frontier
from service.storage.engine import transaction
from service.storage.tables import acts, datasets, entries
from service.transparency.recovery import Reconciled, reconcile, recover, standing
from service.transparency.signing import Signer
from service.transparency.stored_tree import Tree
from service.web.middleware import STATUS_REFRESH_SECONDS, SuspensionState
from tests.conftest import AS_ADMIN, without_triggers
from tests.service.office import key_of_each
from tests.service.restored import put_back, taken
from tests.service.samples import AUDIT, WRITER, Json, append, dataset, event, run, setup
from tests.service.test_keys import WRITES

Serve = Callable[..., AbstractContextManager[str]]
PART = "/v1/datasets/data/checkpoint"
READS = {"/v1/plan", "/v1/datasets/{dataset}/explain"}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    Signer.create(tmp_path / "signing_key")
    return tmp_path / "signing_key"


@pytest.fixture
def api(serve: Serve, key_file: Path) -> Iterator[httpx.Client]:
    """A service that signs, on both databases."""
    with (
        serve(signing_key_file=key_file) as address,
        httpx.Client(base_url=address, timeout=60, headers=AS_ADMIN) as client,
    ):
        yield client


@pytest.fixture
def kept(api: httpx.Client, engine: Engine) -> Json:
    """What was signed of five steps, of which the database has but two."""
    setup(api)
    append(api, event(0, 2))
    before = taken(engine)
    append(api, event(2, 3))
    part: Json = api.get(PART).json()
    put_back(engine, before)
    return part


def shown(api: httpx.Client, part: Json) -> httpx.Response:
    return api.post(f"{PART}:compare", json=part)


def test_a_database_that_was_put_back_is_found_out_and_says_what_is_missing(
    api: httpx.Client, kept: Json, engine: Engine
) -> None:
    answer = shown(api, kept)
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (503, "/problems/ledger-suspended")
    assert problem["state"] == "suspended"
    assert "retry-after" not in answer.headers  # nobody knows when
    assert f"{kept['head']['size']} leaves were signed" in problem["detail"]
    found = api.get("/v1/log").json()
    assert found["state"] == "suspended"
    assert found["lost"] == [
        {
            "dataset": "data", "size": kept["head"]["size"], "root": kept["head"]["root"],
            "steps": 5, "recorded_steps": 2, "missing_steps": 3,
        }
    ]  # fmt: skip
    acts = api.get("/v1/acts").json()["acts"]
    assert [act["kind"] for act in acts][-1] == "suspended"
    (incident,) = api.get("/v1/datasets/data/incidents").json()["incidents"]
    assert incident["kind"] == "ledger_suspended"
    assert standing(engine).state == "suspended"


def rewrite(engine: Engine) -> None:
    """What somebody does who may write to the database and knows how the log is made."""
    with transaction(engine) as connection, without_triggers(connection):
        change = update(entries).where(entries.c.sequence == 1)
        connection.execute(change.values(steps=1, leaf=b"x" * 32))
        row = connection.execute(select(datasets)).one()
        leaves = Tree(connection, row.id, row.log_size).leaves(0, row.log_size)
        frontier = Frontier().extended(leaves)[0].to_bytes()
        connection.execute(update(datasets).values(log_frontier=frontier))


@pytest.mark.parametrize("later", [0, 2])
def test_a_rewritten_log_is_found_out_by_who_kept_a_head(
    api: httpx.Client, engine: Engine, later: int
) -> None:
    setup(api)
    append(api, event(0, 2))
    part = api.get(PART).json()
    for step in range(2, 2 + later):
        append(api, event(step, 1))
    rewrite(engine)
    problem = shown(api, part).json()
    assert problem["type"] == "/problems/ledger-suspended"
    assert "are not those that were signed" in problem["detail"]


def test_a_dataset_that_is_gone_is_found_out(api: httpx.Client, engine: Engine) -> None:
    empty = taken(engine)
    setup(api)
    part = api.get(PART).json()
    put_back(engine, empty)
    answer = shown(api, part)
    assert (answer.status_code, answer.json()["state"]) == (503, "suspended")
    assert "There is no dataset data" in answer.json()["detail"]


def test_nothing_is_written_while_the_ledger_is_suspended_and_all_is_read(
    api: httpx.Client, kept: Json
) -> None:
    # One that is there: what a refused request would write to.
    lease = {"name": "lease", "event": event(2, 1), "ttl_seconds": 3600}
    assert api.post("/v1/runs/run/reservations", json=lease).status_code == 201
    assert api.post("/v1/runs/run/audits", json=AUDIT).status_code == 201
    shown(api, kept)
    document = api.get("/v1/openapi.json").json()
    (incident, *_) = api.get("/v1/incidents").json()["incidents"]
    refused = 0
    for route, operations in sorted(document["paths"].items(), reverse=True):
        path = route.replace("{run}", "run").replace("{dataset}", "data")
        path = path.replace("{reservation}", "lease").replace("{slug}", "conflict")
        path = path.replace("{audit}", "1").replace("{change_request}", "asked")
        path = path.replace("{incident}", incident["id"])
        path = path.replace("{key}", "unknown")
        for method in operations:
            if route.endswith(("/stream", ":compare", ":recover", ":reconcile")):
                continue  # the one does not end, and the others are what this is about
            body = WRITES.get(route, (None, None))[1]
            answer = api.request(method, path.replace("{bound}", "gaussian-renyi"), json=body)
            problem = answer.headers["content-type"] == "application/problem+json"
            suspended = problem and answer.json()["type"] == "/problems/ledger-suspended"
            reads = method == "get" and not route.endswith("/certificate")
            allowed = reads or route in READS
            assert suspended != allowed, (method, route, answer.text)
            refused += suspended
            if route.startswith("/v1"):
                assert answer.headers["x-ledger-state"] == "suspended"
    assert refused >= 12
    assert api.get("/v1/runs/run").json()["steps"] == 2


def test_a_run_that_was_lost_is_not_said_to_be_unknown_to_who_writes_to_it(
    api: httpx.Client, kept: Json, engine: Engine
) -> None:
    shown(api, kept)
    with transaction(engine) as connection:
        terms = Terms(datasets=frozenset({"data"}))
        key = create_key(connection, name="one", scope=Role.TRAINER, terms=terms)
    api.headers["authorization"] = f"Bearer {key}"
    while api.get("/v1/runs").status_code == 401:  # the service has not read it yet
        time.sleep(0.05)
    for path, body in (("events", {"events": [event(0, 1)]}), ("releases", {"step": 1})):
        answer = api.post(f"/v1/runs/lost/{path}", json=body)
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/ledger-suspended")
    assert api.get("/v1/runs/lost").status_code == 404


def test_an_unknown_method_of_a_known_path_is_refused_as_ever(
    api: httpx.Client, kept: Json
) -> None:
    shown(api, kept)
    answer = api.delete("/v1/runs/run")
    assert (answer.status_code, answer.json()["type"]) == (405, "/problems/method-not-allowed")
    assert answer.headers["x-ledger-state"] == "suspended"
    assert api.get("/v1/runs/run").json()["steps"] == 2
    assert api.get("/healthz").status_code == 200


def test_while_it_recovers_facts_are_recorded_and_nothing_is_admitted(
    api: httpx.Client, kept: Json
) -> None:
    shown(api, kept)
    assert append(api, event(2, 3)).status_code == 503
    found = api.post("/v1/log:recover", json={"reason": "the disk was replaced"}).json()
    assert found["state"] == "recovering"
    charged = append(api, event(2, 1), mode="charge")
    assert (charged.status_code, charged.json()["state"]) == (503, "recovering")
    lines = '{"first_step":2,"steps":1,"mechanism":{"kind":"gaussian","noise_multiplier":2.0},'
    lines += '"sampling":{"kind":"full"}}\n'
    charged = api.post(
        "/v1/runs/run/events?mode=charge", content=lines,
        headers={"content-type": "application/x-ndjson"},
    )  # fmt: skip
    assert charged.json()["type"] == "/problems/ledger-suspended"
    reservation = {"name": "lease", "event": event(2, 1), "ttl_seconds": 60}
    assert api.post("/v1/runs/run/reservations", json=reservation).status_code == 503
    certified = api.get("/v1/runs/run/certificate").json()
    assert certified["type"] == "/problems/ledger-suspended"
    assert append(api, event(2, 2)).status_code == 201
    assert api.post("/v1/runs", json=run("other")).status_code == 201
    assert api.post("/v1/datasets", json=dataset("other")).status_code == 201
    branch = {"name": "new", "writer": WRITER, "from_step": 1}
    assert api.post("/v1/runs/run/branches", json=branch).status_code == 201
    assert api.get("/v1/log").json()["lost"][0]["missing_steps"] == 1


def test_it_is_whole_only_when_all_steps_that_were_signed_are_recorded(
    api: httpx.Client, kept: Json
) -> None:
    shown(api, kept)
    api.post("/v1/log:recover", json={"reason": "the disk was replaced"})
    append(api, event(2, 2))
    refused = api.post("/v1/log:reconcile", json={"reason": "spools were sent"})
    assert (refused.status_code, refused.json()["missing_steps"]) == (409, {"data": 1})
    assert api.get("/v1/log").json()["state"] == "recovering"
    append(api, event(4, 1))
    done = api.post("/v1/log:reconcile", json={"reason": "spools were sent"})
    assert (done.status_code, done.json()["state"]) == (200, "open")
    assert append(api, event(5, 1), mode="charge").status_code == 201
    assert "x-ledger-state" not in api.get("/v1/log").headers
    acts = api.get("/v1/acts").json()["acts"]
    assert [act["kind"] for act in acts][-3:] == ["suspended", "recovering", "reconciled"]
    assert acts[-1]["content"]["abandoned"] == [kept["head"]]
    assert api.get(PART).json()["checkpoint"]["generation"] == 1


def test_steps_that_never_ran_are_attested_exactly(api: httpx.Client, kept: Json) -> None:
    """A charge that was refused its step by the death of its process is in no spool."""
    shown(api, kept)
    too_few = {"reason": "the process died", "not_taken": {"data": 2}}
    assert api.post("/v1/log:reconcile", json=too_few).status_code == 409
    assert (
        api.post("/v1/log:reconcile", json=too_few | {"not_taken": {"other": 9}}).status_code == 409
    )
    enough = {"reason": "the process died", "not_taken": {"data": 3}}
    assert api.post("/v1/log:reconcile", json=enough).json()["state"] == "open"
    assert api.get("/v1/acts").json()["acts"][-1]["content"]["not_taken"] == {"data": 3}


def reconciled(api: httpx.Client) -> None:
    api.post("/v1/log:recover", json={"reason": "x"})
    append(api, event(2, 3))
    answer = api.post("/v1/log:reconcile", json={"reason": "the disk was replaced"})
    assert answer.status_code == 200, answer.text


def test_who_still_holds_what_was_abandoned_is_told_by_whom_and_why(
    api: httpx.Client, kept: Json
) -> None:
    shown(api, kept)
    reconciled(api)
    answer = shown(api, kept)
    told = answer.json()
    assert (answer.status_code, told["verdict"], told["consistency"]) == (200, "abandoned", [])
    assert "start-token: the disk was replaced" in told["reason"]
    fresh = {name: told[name] for name in kept}
    append(api, event(5, 1))
    assert shown(api, fresh).json()["verdict"] == "extends"


def test_more_than_was_known_to_be_lost_suspends_again(api: httpx.Client, engine: Engine) -> None:
    setup(api)
    append(api, event(0, 1))
    before = taken(engine)
    append(api, event(1, 2))
    short = api.get(PART).json()
    append(api, event(3, 4))
    long = api.get(PART).json()
    put_back(engine, before)
    shown(api, short)
    api.post("/v1/log:recover", json={"reason": "x"})
    append(api, event(1, 2))
    assert api.post("/v1/log:reconcile", json={"reason": "x"}).status_code == 200
    assert shown(api, short).json()["verdict"] == "abandoned"
    assert shown(api, long).status_code == 503
    (lost,) = api.get("/v1/log").json()["lost"]
    assert (lost["steps"], lost["missing_steps"]) == (7, 4)


def test_after_it_was_reconciled_a_change_is_found_out_as_before(
    api: httpx.Client, kept: Json, engine: Engine
) -> None:
    shown(api, kept)
    reconciled(api)
    fresh = api.get(PART).json()
    rewrite(engine)
    assert shown(api, fresh).status_code == 503
    # What was abandoned before is no excuse for what is changed since.
    assert [one["size"] for one in api.get("/v1/log").json()["lost"]] == [fresh["head"]["size"]]


def test_a_database_from_before_the_reconciliation_is_found_out(
    api: httpx.Client, kept: Json, engine: Engine
) -> None:
    lost = taken(engine)
    shown(api, kept)
    reconciled(api)
    fresh = api.get(PART).json()
    put_back(engine, lost)
    assert shown(api, fresh).status_code == 503
    reconciled(api)
    assert api.get(PART).json()["checkpoint"]["generation"] == 2  # never one that was there before
    for old in (kept, fresh):
        assert shown(api, old).json()["verdict"] == "abandoned"


def test_a_generation_that_the_ledger_does_not_know_is_a_contradiction(
    api: httpx.Client, kept: Json, engine: Engine
) -> None:
    """The log of the dataset is whole; that of the installation is not."""
    shown(api, kept)
    reconciled(api)
    fresh = api.get(PART).json()
    with transaction(engine) as connection, without_triggers(connection):
        connection.execute(acts.delete().where(acts.c.kind == "reconciled"))
    answer = shown(api, fresh)
    assert answer.status_code == 503
    assert "Generation 1 was signed" in answer.json()["detail"]


def test_a_ledger_that_is_open_cannot_be_reconciled(api: httpx.Client, engine: Engine) -> None:
    setup(api)
    for path in ("/v1/log:recover", "/v1/log:reconcile"):
        answer = api.post(path, json={"reason": "x"})
        assert (answer.status_code, answer.json()["type"]) == (409, "/problems/conflict")
        for body in ({}, {"reason": ""}, {"reason": "x", "other": 1}):
            assert api.post(path, json=body).status_code == 422
    with transaction(engine) as connection:
        with pytest.raises(ConflictError):
            recover(connection, reason="x", by=None)
        with pytest.raises(ConflictError):
            reconcile(connection, Reconciled(reason="x"), by=None, signer=None)
    assert api.get("/v1/acts").json()["acts"] == []


def test_only_an_admin_opens_the_ledger_again(serve: Serve, engine: Engine, key_file: Path) -> None:
    keys = key_of_each(engine)
    with (
        serve(signing_key_file=key_file) as address,
        httpx.Client(base_url=address, headers=AS_ADMIN) as api,
    ):
        for path in ("/v1/log:recover", "/v1/log:reconcile"):
            for scope, key in keys.items():
                api.headers["authorization"] = f"Bearer {key}"
                answer = api.post(path, json={"reason": "x"})
                assert answer.status_code == (409 if scope is Role.ADMIN else 403)


def test_to_show_the_same_again_changes_nothing_and_is_logged_once(
    api: httpx.Client, kept: Json, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "dpledger.suspension"):
        for _ in range(3):
            assert shown(api, kept).status_code == 503
    assert [record.getMessage() for record in caplog.records] == ["ledger suspended"]
    kinds = [act["kind"] for act in api.get("/v1/acts").json()["acts"]]
    assert kinds.count("suspended") == 1
    assert len(api.get("/v1/datasets/data/incidents").json()["incidents"]) == 1


def test_another_process_refuses_within_half_a_second(
    api: httpx.Client, kept: Json, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("service.web.middleware.time.monotonic", lambda: clock[0])
    other = SuspensionState(engine)
    other.refresh()
    shown(api, kept)
    assert asyncio.run(other.current()).state == "open"  # it does not know yet
    clock[0] += STATUS_REFRESH_SECONDS
    assert other.stale
    other.refresh()
    assert asyncio.run(other.current()).state == "suspended"
