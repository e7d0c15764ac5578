"""Who asks too much is refused for next to nothing, and who has no key takes turns."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from service.identity.authentication import KeyRing
from service.identity.keys import Role, Terms, create_key, revoke_key
from service.identity.rate_limit import Pace
from service.storage.engine import transaction
from service.web import middleware
from service.web.middleware import Arrivals
from tests.service.samples import append, event, setup
from tests.service.sse import until
from tests.service.test_keys import bearer
from tests.service.test_limits import Clock

Serve = Callable[..., AbstractContextManager[str]]
SLOW = {"keyless_requests_per_second": 5.0}  # ten at once, as much as two seconds are worth
SAVED = 10


def make(engine: Engine, name: str, scope: Role = Role.VIEWER, **terms: Any) -> str:
    with transaction(engine) as connection:
        return create_key(connection, name=name, scope=scope, terms=Terms(**terms))


def test_turns_come_at_a_pace_and_some_are_saved_up() -> None:
    clock = Clock()
    pace = Pace(5.0, clock=clock)
    waits = [pace.turn(100.0) for _ in range(15)]
    assert waits == pytest.approx([0.0] * (SAVED + 1) + [0.2, 0.4, 0.6, 0.8])
    clock.present += 0.9
    assert pace.turn(100.0) == pytest.approx(0.1)
    clock.present += 3600
    assert [pace.turn(100.0) for _ in range(12)][-2:] == pytest.approx([0.0, 0.2])


def test_who_would_wait_too_long_takes_no_turn_and_makes_nobody_wait() -> None:
    pace = Pace(5.0, clock=Clock())
    waits = [pace.turn(1.1) for _ in range(1000)]
    assert max(waits) == pytest.approx(1.2)
    assert waits.count(waits[-1]) == 1000 - (SAVED + 1) - 5


@contextmanager
def asking(address: str, key: str | None = None) -> Iterator[httpx.Client]:
    headers = {} if key is None else bearer(key)
    with httpx.Client(base_url=address, headers=headers, timeout=30) as api:
        yield api


def seconds(api: httpx.Client, path: str, count: int, status: int, **given: Any) -> float:
    """How long so many requests take, one after another."""
    started = time.monotonic()
    for _ in range(count):
        assert api.get(path, **given).status_code == status
    return time.monotonic() - started


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [
        ("/v1/runs", "dpl_unknown", 401),
        ("/v1/runs", None, 401),
        ("/v1/openapi.json", None, 200),
        ("/sign-in", None, 200),
        ("/docs", None, 200),
        ("/problems/not-found", None, 200),
        ("/v1/none", None, 404),
    ],
)
def test_without_a_key_in_force_requests_take_turns(
    engine: Engine, serve: Serve, path: str, key: str | None, status: int
) -> None:
    make(engine, "known")
    with serve(**SLOW) as address, asking(address, key) as api:
        assert seconds(api, path, SAVED + 6, status) >= 0.9


def test_a_key_in_force_waits_for_no_stranger_and_no_probe_is_kept_waiting(
    engine: Engine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    doors: list[Arrivals] = []
    waits: list[tuple[Pace, float]] = []
    begin, turn = Arrivals.__init__, Pace.turn

    def begun(self: Arrivals, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        doors.append(self)

    def noted(self: Pace, seconds_max: float) -> float:
        waits.append((self, turn(self, seconds_max)))
        return waits[-1][1]

    monkeypatch.setattr(Arrivals, "__init__", begun)
    monkeypatch.setattr(Pace, "turn", noted)
    admin = make(engine, "admin", Role.ADMIN)
    with serve(**SLOW) as address, asking(address, admin) as api, asking(address) as stranger:
        setup(api)
        seconds(stranger, "/v1/runs", SAVED + 2, 401)
        with httpx.Client(base_url=address, timeout=30) as other:
            # A hundred turns from now: yet the keyed, the signed in and the probes do not wait.
            asyncio.run(_flood(address, 30))
            assert append(api, event(0, 1)).status_code == 201
            assert other.get("/", headers={"cookie": "dpledger=x"}).status_code in (303, 401)
            assert other.get("/healthz").status_code == 200
            assert other.get("/readyz").status_code == 200
        until(lambda: max(wait for _, wait in waits) > 0)  # of a stranger
        (door,) = doors
        assert [wait for pace, wait in waits if pace is not door._strangers] == [0.0] * 3
        for _ in range(2 * SAVED):
            assert api.get("/healthz").status_code == 200


async def _flood(address: str, count: int) -> None:
    """Ask so often at once, and do not wait for the answers."""
    port = int(address.rpartition(":")[2])
    for _ in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await writer.drain()
        writer.close()


def test_the_line_of_strangers_is_bounded_in_time_and_then_refuses(
    engine: Engine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "WAIT_SECONDS_MAX", 0.5)
    make(engine, "known")

    async def answers(address: str) -> tuple[list[int], float]:
        limits = httpx.Limits(max_connections=40)
        async with httpx.AsyncClient(base_url=address, timeout=30, limits=limits) as api:
            started = time.monotonic()
            found = await asyncio.gather(*(api.get("/v1/runs") for _ in range(40)))
            for one in found:
                assert one.status_code == 401 or int(one.headers["retry-after"]) >= 1
            return [one.status_code for one in found], time.monotonic() - started

    with serve(**SLOW) as address:
        statuses, took = asyncio.run(answers(address))
    assert set(statuses) == {401, 503}
    assert statuses.count(401) <= SAVED + 1 + 5 * took
    assert took < 60.0


def test_a_key_beyond_its_rate_is_refused_before_anything_else_is_asked(
    engine: Engine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = make(engine, "slow", requests_per_second=0.01)
    passed: list[str] = []
    turn = Arrivals._turn

    async def watched(self: Arrivals, scope: Any) -> Any:
        refusal = await turn(self, scope)
        if refusal is None:
            passed.append(scope["path"])
        return refusal

    monkeypatch.setattr(Arrivals, "_turn", watched)
    with serve(new=True) as address, asking(address, slow) as api:
        assert api.get("/v1/runs").status_code == 200  # which takes one token, not two
        for path in ("/v1/runs", "/v1/none", "/", "/metrics"):
            refused = api.get(path)
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) > 50
            assert refused.headers["x-request-id"]
        assert api.post("/v1/runs/run/events", content=b"x").status_code == 429
        assert api.get("/healthz").status_code == 200
    assert passed == ["/v1/runs", "/healthz"]


def test_a_request_takes_one_token_of_its_key(engine: Engine, serve: Serve) -> None:
    key = make(engine, "five", Role.ADMIN, requests_per_second=5.0)
    slow = make(engine, "slow", Role.ADMIN, requests_per_second=0.02)
    with serve() as address:
        with asking(address, key) as api:
            assert [api.get("/v1/runs").status_code for _ in range(5)] == [200] * 5
        with asking(address, slow) as api:
            assert append(api, event(0, 1)).status_code == 404
            assert append(api, event(0, 1)).status_code == 429


def test_nobody_is_let_in_by_what_is_known_at_the_door(engine: Engine, serve: Serve) -> None:
    key = make(engine, "gone", Role.ADMIN)
    with serve() as address, asking(address, key) as api:
        assert api.get("/v1/runs").status_code == 200
        with transaction(engine) as connection:
            revoke_key(connection, "gone")
        until(lambda: api.get("/v1/runs").status_code == 401)
    ring = KeyRing(engine)
    assert ring.sender(b"Bearer " + key.encode()) is None  # nothing was read yet
    ring.refresh()
    for sent in (b"", b"Bearer", b"Basic x", b"Bearer \xff\xfe", b"Bearer " + key.encode()):
        assert ring.sender(sent) is None
