"""API keys: who may call what, and when no key is needed."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import httpx
import pytest
from sqlalchemy import Connection, Engine

from benchmarks.servers import START_TOKEN
from service.app import FIRST_KEY, create_app
from service.errors import ConflictError, NotFoundError, StartupError
from service.identity import authentication
from service.identity.authentication import KeyRing, fresh_keys
from service.identity.keys import (
    KEY_PREFIX,
    SHOWN_CHARACTERS,
    Role,
    create_key,
    digest_of,
    list_keys,
    revoke_key,
)
from service.settings import Settings
from service.storage.engine import transaction
from tests.conftest import AS_ADMIN
from tests.service.dumps import dump
from tests.service.samples import AUDIT, SAMPLING, Json, dataset, event, run
from tests.service.sse import until

Serve = Callable[..., AbstractContextManager[str]]
ANYWHERE: Final = "0.0.0.0"  # noqa: S104 (it is what must be refused)
WRITES: Final[dict[str, tuple[Role, Json]]] = {
    "/v1/datasets": (Role.OWNER, dataset("new")),
    "/v1/runs": (Role.TRAINER, run("new", dataset="unknown")),
    "/v1/runs/{run}/branches": (
        Role.TRAINER,
        {"name": "new", "writer": "writer-of-the-tests-1", "from_step": 0},
    ),
    "/v1/runs/{run}/events": (Role.TRAINER, {"events": [event(0, 1)]}),
    "/v1/runs/{run}/releases": (Role.TRAINER, {"step": 0}),
    "/v1/runs/{run}:finish": (Role.TRAINER, {"state": "finished"}),
    "/v1/datasets/{dataset}": (Role.OWNER, {"reason": "x"}),
    "/v1/datasets/{dataset}/explain": (Role.VIEWER, {"events": [event(0, 1)]}),
    "/v1/runs/{run}/reservations": (
        Role.TRAINER,
        {"name": "new", "event": event(0, 1), "ttl_seconds": 60},
    ),
    "/v1/reservations/{reservation}:release": (Role.TRAINER, {"last_step": 0}),
    "/v1/reservations/{reservation}:void": (Role.OWNER, {"reason": "x"}),
    "/v1/runs/{run}/corrections": (
        Role.OWNER,
        {**event(0, 1), "reason": "x"},
    ),
    "/v1/runs/{run}/findings": (Role.TRAINER, SAMPLING),
    "/v1/runs/{run}/audits": (Role.TRAINER, AUDIT),
    "/v1/runs/{run}/audits/{audit}:result": (Role.TRAINER, {"correct": 50}),
    "/v1/incidents/{incident}/notes": (Role.TRAINER, {"action": "comment", "text": "x"}),
    "/v1/plan": (
        Role.VIEWER,
        {"neighboring_relation": "replace_one", "events": [event(0, 1)], "delta": 1e-5},
    ),
    "/v1/datasets/{dataset}/requests": (
        Role.TRAINER,
        {"reason": "x", "budget": {"epsilon": 9.0, "delta": 1e-5}},
    ),
    "/v1/requests/{change_request}:approve": (Role.APPROVER, {"reason": "x"}),
    "/v1/requests/{change_request}:reject": (Role.APPROVER, {"reason": "x"}),
    "/v1/requests/{change_request}:withdraw": (Role.TRAINER, {"reason": "x"}),
    "/v1/strategies": (Role.TRAINER, {"strategy": {"kind": "identity"}}),
    "/v1/datasets/{dataset}/checkpoint:compare": (Role.VIEWER, {}),
    "/v1/keys": (Role.ADMIN, {"name": "new", "scope": "viewer"}),
    "/v1/keys/{key}:rotate": (Role.ADMIN, {}),
    "/v1/keys/{key}:revoke": (Role.ADMIN, {"reason": "x"}),
    "/v1/log:recover": (Role.ADMIN, {"reason": "x"}),
    "/v1/log:reconcile": (Role.ADMIN, {"reason": "x"}),
}


def key(engine: Engine, scope: Role, name: str | None = None) -> str:
    with transaction(engine) as connection:
        return create_key(connection, name=name or scope, scope=scope)


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def test_a_refused_caller_changes_nothing(engine: Engine, serve: Serve) -> None:
    viewer = key(engine, Role.VIEWER)
    before = dump(engine)
    with serve() as address, httpx.Client(base_url=address) as api:
        for path, (scope, body) in WRITES.items():
            sent = path.replace("{run}", "run").replace("{dataset}", "data")
            sent = sent.replace("{reservation}", "lease").replace("{audit}", "1")
            sent = sent.replace("{change_request}", "asked")
            sent = sent.replace("{incident}", "incident-1-1")
            sent = sent.replace("{key}", "viewer")
            method = "PATCH" if path.endswith("{dataset}") else "POST"
            if scope is not Role.VIEWER:
                refused = api.request(method, sent, json=body, headers=bearer(viewer))
                assert refused.status_code == 403, path
            unknown = api.request(method, sent, json=body, headers=bearer("unknown"))
            assert unknown.status_code == 401, path
    assert dump(engine) == before


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer unknown", "Basic {key}", "{key}", "Bearer  {key}",
     "Bearer {key} x", "Bearer {key}x", "Bearer {digest}", "Bearer dpl_", "Token {key}",
     "Bearer caf\u00e9", "Bearer,{key}"],
)  # fmt: skip
def test_a_malformed_or_unknown_key_is_401_and_asks_for_one(
    engine: Engine, serve: Serve, header: str
) -> None:
    secret = key(engine, Role.ADMIN)
    sent = header.format(key=secret, digest=digest_of(secret)).encode("latin-1")
    with serve() as address, httpx.Client(base_url=address) as api:
        answer = api.get("/v1/runs", headers=[(b"authorization", sent)])
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["content-type"] == "application/problem+json"
        assert secret not in answer.text
        known = api.get("/v1/runs", headers={"authorization": f"bearer {secret}"})
        assert known.status_code == 200


def test_the_first_key_ends_the_start_token(engine: Engine, serve: Serve) -> None:
    with serve() as address, httpx.Client(base_url=address, headers=AS_ADMIN) as api:
        assert api.post("/v1/datasets", json=dataset()).status_code == 201
        secret = key(engine, Role.TRAINER)
        until(lambda: api.get("/v1/datasets").status_code != 200)
        assert "start token ended" in api.get("/v1/datasets").json()["detail"]
        assert api.get("/v1/datasets", headers=bearer(secret)).status_code == 200
        # Any Host header is answered: a page of another site has no key.
        far = bearer(secret) | {"host": "ledger.example"}
        assert api.get("/v1/datasets", headers=far).status_code == 200


def test_a_revoked_key_stops_and_does_not_open_the_service(engine: Engine, serve: Serve) -> None:
    secret = key(engine, Role.ADMIN, "leaked")
    with serve() as address, httpx.Client(base_url=address) as api:
        assert api.get("/v1/datasets", headers=bearer(secret)).status_code == 200
        with transaction(engine) as connection:
            revoke_key(connection, "leaked")
        until(lambda: api.get("/v1/datasets", headers=bearer(secret)).status_code != 200)
        assert api.get("/v1/datasets").status_code == 401
    with serve() as address:
        assert httpx.get(f"{address}/v1/datasets").status_code == 401


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock by which keys are read again."""
    present = [1000.0]
    read = SimpleNamespace(monotonic=lambda: present[0], time=time.time)
    monkeypatch.setattr(authentication, "time", read)
    return present


def test_what_a_process_knows_of_keys_is_half_a_second_old_at_most(
    engine: Engine, clock: list[float]
) -> None:
    leaked = digest_of(key(engine, Role.ADMIN, "leaked"))
    ring = KeyRing(engine)
    ring.refresh()
    with transaction(engine) as connection:
        revoke_key(connection, "leaked")
    clock[0] += 0.25
    ring.refresh()
    assert ring.holder(leaked) is not None
    clock[0] += 0.25
    ring.refresh()
    assert ring.holder(leaked) is None


def test_a_request_is_not_answered_from_a_reading_that_began_long_before_it(
    engine: Engine, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    leaked = digest_of(key(engine, Role.ADMIN, "leaked"))
    ring = KeyRing(engine)
    request: Any = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(keys=ring)))
    begun, go_on = threading.Event(), threading.Event()

    def slowly(connection: Connection) -> Any:
        rows = list_keys(connection)
        begun.set()
        assert go_on.wait(60)
        return rows

    async def ask() -> bool:
        await fresh_keys(request)
        return ring.holder(leaked) is not None

    async def in_turn() -> list[bool]:
        before = asyncio.create_task(ask())
        await asyncio.to_thread(begun.wait)
        with transaction(engine) as connection:
            revoke_key(connection, "leaked")
        clock[0] += 1.0
        after = asyncio.create_task(ask())
        await asyncio.sleep(0)  # until it waits for the reading that goes on
        go_on.set()
        return [await before, await after]

    monkeypatch.setattr(authentication, "list_keys", slowly)
    assert asyncio.run(in_turn()) == [True, False]


def test_only_the_hash_of_a_key_is_stored(engine: Engine) -> None:
    secret = key(engine, Role.ADMIN)
    stored = repr(dump(engine))
    assert secret.startswith(KEY_PREFIX)
    assert len(secret) >= 43
    assert secret not in stored
    assert secret[SHOWN_CHARACTERS:] not in stored
    assert digest_of(secret) in stored


def test_a_key_name_is_used_once_even_after_it_was_revoked(engine: Engine) -> None:
    key(engine, Role.ADMIN, "one")
    with transaction(engine) as connection:
        revoke_key(connection, "one")
    with pytest.raises(ConflictError):
        key(engine, Role.ADMIN, "one")
    with pytest.raises(NotFoundError), transaction(engine) as connection:
        revoke_key(connection, "two")


def test_revoking_again_keeps_the_time_of_the_first(engine: Engine) -> None:
    key(engine, Role.ADMIN, "one")
    times = set()
    for _ in range(2):
        with transaction(engine) as connection:
            revoke_key(connection, "one")
            times |= {row.revoked_at for row in list_keys(connection)}
    assert len(times) == 1


def started(settings: Settings) -> Any:
    """An application's state; its connections are closed."""
    app = create_app(settings)
    app.state.engine.dispose()
    return app.state


@pytest.mark.parametrize("host", [ANYWHERE, "192.0.2.1", "ledger.example", "", "127.0.0.1.example"])
def test_an_address_that_others_reach_needs_a_key(
    engine: Engine, database_url: str, host: str
) -> None:
    settings = Settings(database_url=database_url, host=host)
    with pytest.raises(StartupError, match="dpledger keys create"):
        create_app(settings)
    key(engine, Role.ADMIN)
    assert started(settings).keys.start_token is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
@pytest.mark.usefixtures("engine")
def test_a_loopback_address_has_a_start_token(database_url: str, host: str) -> None:
    found = started(Settings(database_url=database_url, host=host)).keys.start_token
    assert found.text == START_TOKEN


def test_the_first_key_may_come_from_a_file(
    engine: Engine, serve: Serve, database_url: str, tmp_path: Path
) -> None:
    file, secret = tmp_path / "key", "a-secret-of-more-than-thirty-two-characters"
    file.write_text(f"{secret}\n", encoding="utf-8")
    with (
        serve(host=ANYWHERE, admin_key_file=file) as address,
        httpx.Client(base_url=address) as api,
    ):
        assert api.get("/v1/datasets").status_code == 401
        answer = api.post("/v1/datasets", json=dataset(), headers=bearer(secret))
        assert answer.status_code == 201
    assert secret not in repr(dump(engine))
    # Later starts keep the keys there are, whatever the file holds.
    before = dump(engine)
    file.write_text("another secret of more than thirty-two characters", encoding="utf-8")
    started(Settings(database_url=database_url, host=ANYWHERE, admin_key_file=file))
    assert dump(engine) == before
    with transaction(engine) as connection:
        assert [row.name for row in list_keys(connection)] == [FIRST_KEY]


@pytest.mark.parametrize("text", ["", "\n", "short", "x" * 31, " " * 40 + "x"])
def test_a_key_file_with_a_guessable_key_is_refused(
    engine: Engine, database_url: str, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "key"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(StartupError, match="DPLEDGER_ADMIN_KEY_FILE"):
        create_app(Settings(database_url=database_url, host=ANYWHERE, admin_key_file=file))
    assert dump(engine)["api_keys"] == []


def test_a_key_from_a_file_closes_a_loopback_address_too(
    engine: Engine, serve: Serve, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("k" * 32, encoding="utf-8")
    with serve(admin_key_file=file) as address, httpx.Client(base_url=address) as api:
        assert api.get("/v1/runs").status_code == 401
        assert api.get("/v1/runs", headers=AS_ADMIN).status_code == 401
        assert api.get("/v1/runs", headers=bearer("k" * 32)).status_code == 200
    assert len(dump(engine)["api_keys"]) == 1
