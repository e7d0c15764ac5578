"""No write is committed after the ledger was suspended, whenever it began and whatever it names."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy import Connection, Engine, text, update

from service.ledger.append.write_access import state_of
from service.storage.engine import DedicatedConnection, transaction
from service.storage.tables import installation
from service.transparency.recovery import standing
from service.transparency.signing import Signer
from tests.conftest import AS_ADMIN
from tests.service.restored import put_back, taken
from tests.service.samples import BUDGET, FULL, GAUSSIAN, Json, append, dataset, event, run, setup
from tests.service.sockets import request

Serve = Callable[..., AbstractContextManager[str]]
PART = "/v1/datasets/data/checkpoint"
_WAITING = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
LONGEST = 60.0  # seconds, for what takes none


@pytest.fixture
def api(serve: Serve, tmp_path: Path) -> Iterator[httpx.Client]:
    """A service that signs, on both databases."""
    Signer.create(tmp_path / "signing_key")
    with (
        serve(signing_key_file=tmp_path / "signing_key") as address,
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


def told(engine: Engine, state: str) -> None:
    """What another process has made of the ledger."""
    said = json.dumps({"state": state, "reason": "an older database", "lost": []})
    with transaction(engine) as connection:
        connection.execute(update(installation).values(suspended=said))


def suspended(api: httpx.Client, kept: Json) -> None:
    assert api.post(f"{PART}:compare", json=kept).json()["state"] == "suspended"


def test_steps_whose_body_comes_after_the_suspension_are_not_recorded(
    api: httpx.Client, kept: Json
) -> None:
    body = json.dumps({"events": [event(2, 1)]}).encode()
    address = urlsplit(str(api.base_url))
    with socket.create_connection((address.hostname or "", address.port or 0), 60) as slow:
        headers = [b"Content-Type: application/json", b"Expect: 100-continue"]
        headers.append(b"Content-Length: %d" % len(body))
        slow.sendall(request("POST", "/v1/runs/run/events", headers, end=True))
        assert b"100 Continue" in slow.recv(1000)  # it was let in, and its body is read
        suspended(api, kept)
        slow.sendall(body)
        answer = b"".join(iter(lambda: slow.recv(65536), b""))
    assert answer.split()[1] == b"503"
    assert b"/problems/ledger-suspended" in answer
    assert api.get("/v1/runs/run").json()["steps"] == 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/datasets", dataset("other")),
        ("/v1/runs", run("other")),
        ("/v1/runs/run/branches", {"name": "b", "writer": "writer-of-the-b-1", "from_step": 1}),
        ("/v1/runs/run/releases", {"step": 1}),
        ("/v1/runs/run:finish", {"state": "finished"}),
        ("/v1/runs/run/events", {"events": [event(2, 1)]}),
        (
            "/v1/runs/run/corrections",
            {"first_step": 0, "steps": 1, "reason": "x", "mechanism": GAUSSIAN, "sampling": FULL},
        ),
    ],
)
def test_what_a_gate_lets_in_that_has_not_looked_yet_is_not_written(
    api: httpx.Client, engine: Engine, path: str, body: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api)
    append(api, event(0, 2))
    with monkeypatch.context() as late:
        late.setattr("service.web.middleware.STATUS_REFRESH_SECONDS", 1e9)
        told(engine, "suspended")
        answer = api.post(path, json=body)
    assert "x-ledger-state" not in answer.headers  # the gate does not know
    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/ledger-suspended")
    with transaction(engine) as connection:
        connection.execute(update(installation).values(suspended=None))
    found = api.get("/v1/runs/run").json()
    assert (found["steps"], found["state"]) == (2, "active")


@contextmanager
def as_the_writer(engine: Engine) -> Iterator[Connection]:
    """A transaction of the thread that writes for many."""
    line = DedicatedConnection(engine)
    with line.transaction() as connection:
        yield connection
    line.close()


@pytest.mark.parametrize("begun", [transaction, as_the_writer])
def test_whoever_suspends_waits_for_those_who_write(
    api: httpx.Client,
    kept: Json,
    engine: Engine,
    begun: Callable[[Engine], AbstractContextManager[Connection]],
) -> None:
    """Whether a request writes by itself, or the writer for many."""
    with ThreadPoolExecutor(1) as pool:
        with begun(engine) as connection:
            assert state_of(connection) == "open"
            showing = pool.submit(suspended, api, kept)
            if engine.dialect.name == "postgresql":
                ends = time.monotonic() + LONGEST
                while not connection.scalar(_WAITING):
                    assert not showing.done(), "it did not wait"
                    assert time.monotonic() < ends
                    time.sleep(0.01)
            assert standing(engine).state == "open"
        showing.result(LONGEST)
    with transaction(engine) as connection:
        assert state_of(connection) == "suspended"


def test_those_who_write_do_not_wait_for_each_other(engine: Engine, api: httpx.Client) -> None:
    """But for SQLite, which has one writer."""
    setup(api)
    with transaction(engine) as connection:
        state_of(connection)
        if engine.dialect.name == "postgresql":
            assert append(api, event(0, 1)).status_code == 201


def test_a_plan_is_not_admitted_while_the_ledger_recovers_and_one_that_was_is_there(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    plan = [{"steps": 10, "mechanism": GAUSSIAN, "sampling": FULL}]
    planned = run("planned", plan=plan, budget={"epsilon": 100.0, "delta": 1e-5})
    assert api.post("/v1/runs", json=planned).status_code == 201
    told(engine, "recovering")
    new = planned | {"name": "other"}
    answer = api.post("/v1/runs", json=new)
    assert (answer.status_code, answer.json()["state"]) == (503, "recovering")
    assert api.get("/v1/runs/other").status_code == 404
    assert api.post("/v1/runs", json=planned).status_code == 200
    assert api.post("/v1/runs", json=run("free", plan=plan)).status_code == 201


def test_what_a_dataset_is_called_does_not_decide_what_is_let_through(
    api: httpx.Client, engine: Engine
) -> None:
    for name in ("explain", "certificate"):
        assert api.post("/v1/datasets", json=dataset(name)).status_code == 201
    told(engine, "suspended")
    ends = time.monotonic() + LONGEST
    while "x-ledger-state" not in api.get("/v1/datasets").headers:  # until the gate has looked
        assert time.monotonic() < ends
        time.sleep(0.01)
    change = {"budget": BUDGET, "reason": "x"}
    refused = api.patch("/v1/datasets/explain", json=change, headers={"if-match": '"1"'})
    assert (refused.status_code, refused.json()["type"]) == (503, "/problems/ledger-suspended")
    assert api.get("/v1/datasets/explain").json()["budget"] is None
    assert api.get("/v1/datasets/certificate").status_code == 200
    stated = api.get("/v1/datasets/certificate/certificate")
    assert stated.json()["type"] == "/problems/ledger-suspended"
    explained = api.post(
        "/v1/datasets/explain/explain",
        json={"events": [{"steps": 1, "mechanism": GAUSSIAN, "sampling": FULL}]},
    )
    assert explained.status_code != 503


@pytest.mark.parametrize("count", [1, 2])
def test_steps_of_a_run_that_was_lost_wait_while_the_ledger_is_suspended(
    api: httpx.Client, engine: Engine, count: int
) -> None:
    """What is not there may have been lost: a trainer must not take it for a refusal."""
    events = [event(step, 1) for step in range(count)]
    assert append(api, *events, run="lost").json()["type"] == "/problems/not-found"
    told(engine, "suspended")
    answer = append(api, *events, run="lost")
    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/ledger-suspended")
