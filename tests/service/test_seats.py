"""Expensive requests share a few places; a key has a share of them, and nothing else waits."""

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from sqlalchemy import Engine

from benchmarks.servers import START_TOKEN
from service.errors import TooManyRequestsError, UnavailableError
from service.guarantees import guarantee
from service.identity.keys import Role, create_key
from service.settings import Settings
from service.storage.engine import connect, transaction
from service.transparency.signing import Signer
from service.web import strict_json, strict_requests
from service.web.concurrency_limit import TURN_SECONDS, ConcurrencyLimiter
from tests.conftest import AS_ADMIN, clear, running
from tests.service.samples import append, event, setup
from tests.service.sockets import Talk, request
from tests.service.sse import until
from tests.service.test_keys import WRITES, bearer
from tests.service.test_scopes import SEEN, Call, calls, fill

DEAR: Final = {
    "GET /v1/runs/{run}/guarantee", "GET /v1/runs/{run}/history", "GET /v1/runs/{run}/curve",
    "GET /v1/runs/{run}/ledger", "GET /v1/runs/{run}/certificate",
    "GET /v1/datasets/{dataset}/guarantee", "GET /v1/datasets/{dataset}/explain",
    "POST /v1/datasets/{dataset}/explain", "GET /v1/datasets/{dataset}/certificate",
    "POST /v1/plan", "GET /v1/datasets", "GET /v1/runs", "GET /v1/acts", "GET /v1/keys",
    "GET /v1/datasets/{dataset}/acts", "GET /v1/datasets/{dataset}/settings",
    "GET /v1/datasets/{dataset}/incidents", "GET /v1/datasets/{dataset}/reservations",
    "GET /v1/runs/{run}/corrections", "GET /v1/runs/{run}/findings",
    "GET /v1/strategies/{digest}/sensitivity", "GET /v1/runs/{run}/audits",
    "GET /v1/requests",
    "GET /v1/runs/{run}/audits/{audit}", "POST /v1/runs/{run}/audits/{audit}:result",
    "GET /v1/incidents",
}  # fmt: skip
PATIENCE: Final = 60.0


class Room:
    """Askers that sit until they are told to go."""

    def __init__(self, seats: ConcurrencyLimiter) -> None:
        self.seats = seats
        self.seated: list[str] = []
        self.go: dict[str, asyncio.Event] = {}

    def ask(self, name: str) -> "asyncio.Task[None]":
        """An asker; the first letter of its name is its key."""
        return asyncio.create_task(self._sit(name))

    async def _sit(self, name: str) -> None:
        self.go[name] = asyncio.Event()
        async with self.seats.taken(name[0]):
            self.seated.append(name)
            await self.go[name].wait()

    async def settled(self) -> list[str]:
        for _ in range(20):
            await asyncio.sleep(0)
        return self.seated


def in_room(seats: Callable[[], ConcurrencyLimiter], test: Callable[[Room], Any]) -> None:
    async def whole() -> None:
        await test(Room(seats()))

    asyncio.run(whole())


def test_a_key_waits_for_itself_and_leaves_the_last_seat_to_another() -> None:
    async def test(room: Room) -> None:
        tasks = [room.ask(name) for name in ("a1", "a2", "a3", "b1", "b2")]
        assert await room.settled() == ["a1", "a2", "b1"]
        assert room.seats.waiting == 2
        room.go["b1"].set()  # a3 was before b2, but its key has its seats
        assert (await room.settled())[3:] == ["b2"]
        room.go["a1"].set()
        assert (await room.settled())[4:] == ["a3"]
        for name in ("a2", "a3", "b2"):
            room.go[name].set()
        await asyncio.gather(*tasks)
        assert room.seats.waiting == 0

    in_room(lambda: ConcurrencyLimiter(3, 10), test)


def test_with_one_seat_a_key_may_have_it() -> None:
    async def test(room: Room) -> None:
        task = room.ask("a1")
        assert await room.settled() == ["a1"]
        room.go["a1"].set()
        await task

    in_room(lambda: ConcurrencyLimiter(1, 0), test)


def test_a_key_has_half_of_the_places_and_a_full_line_takes_nobody() -> None:
    async def test(room: Room) -> None:
        tasks = [room.ask(f"{key}{number}") for key in "ab" for number in range(3)]
        await room.settled()
        with pytest.raises(TooManyRequestsError):
            await room.ask("a9")
        with pytest.raises(UnavailableError):
            await room.ask("c1")
        for name in ("a0", "a1", "a2", "b0", "b1", "b2"):
            room.go[name].set()
        await asyncio.gather(*tasks)
        again = room.ask("a9")
        assert "a9" in await room.settled()
        room.go["a9"].set()
        await again

    in_room(lambda: ConcurrencyLimiter(2, 4), test)


def test_who_waits_too_long_is_told_so_and_stands_in_nobodys_way() -> None:
    async def test(room: Room) -> None:
        first = room.ask("a1")
        await room.settled()
        with pytest.raises(UnavailableError):
            await room.ask("b1")
        assert room.seats.waiting == 0
        room.go["a1"].set()
        await first

    in_room(lambda: ConcurrencyLimiter(1, 4, patience_seconds=0.01), test)


@pytest.mark.parametrize("called", [False, True])
def test_who_leaves_the_line_keeps_no_seat(called: bool) -> None:
    async def test(room: Room) -> None:
        first, second, third = room.ask("a1"), room.ask("b1"), room.ask("c1")
        await room.settled()
        if called:  # it has been given the seat, and does not know it yet
            room.go["a1"].set()
            while room.seats.waiting == 2:
                await asyncio.sleep(0)
        second.cancel()
        room.go["a1"].set()
        assert await room.settled() == ["a1", "c1"]
        room.go["c1"].set()
        await asyncio.gather(first, third)
        with pytest.raises(asyncio.CancelledError):
            await second

    in_room(lambda: ConcurrencyLimiter(1, 4), test)


Serve = Callable[..., AbstractContextManager[str]]


@pytest.fixture
def url(backend_urls: dict[str, str]) -> str:
    """An empty ledger; who waits for whom is the same on any database."""
    clear(backend_urls["sqlite"])
    return backend_urls["sqlite"]


@pytest.fixture
def serve(url: str) -> Serve:
    return lambda **given: running(Settings(database_url=url, **given))


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = connect(url)
    yield engine
    engine.dispose()


class Blocked:
    """A question that is being worked out until it is told to end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self.end = threading.Event()
        self._whole = guarantee.run_guarantee
        monkeypatch.setattr(guarantee, "run_guarantee", self)

    def __call__(self, *given: Any) -> Any:
        self.begun += 1
        assert self.end.wait(PATIENCE)
        return self._whole(*given)


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Blocked]:
    found = Blocked(monkeypatch)
    yield found
    found.end.set()


def ask(address: str, path: str, key: str = START_TOKEN) -> Talk:
    talk = Talk(address)
    talk.socket.settimeout(PATIENCE)
    talk.send(request("GET", path, key=key))
    return talk


def told(api: httpx.Client, call: Call) -> httpx.Response:
    sent = api.build_request(call.method, call.path(SEEN), json=call.body(SEEN))
    answer = api.send(sent, stream=True)
    if not answer.headers["content-type"].startswith("text/event-stream"):
        answer.read()
    answer.close()
    return answer


def test_what_is_worked_out_waits_for_a_seat_and_nothing_else_does(
    serve: Serve,
    engine: Engine,
    blocked: Blocked,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.app.ConcurrencyLimiter", lambda: ConcurrencyLimiter(1, 0))
    signing_key = tmp_path / "signing_key"
    Signer.create(signing_key)
    with transaction(engine) as connection:
        keys = {
            name: create_key(connection, name=name, scope=Role.ADMIN) for name in ("one", "two")
        }
    with (
        serve(signing_key_file=signing_key) as address,
        httpx.Client(base_url=address, timeout=PATIENCE, headers=bearer(keys["two"])) as api,
    ):
        fill(api, SEEN, {})
        with ask(address, "/v1/runs/letters-run/guarantee", keys["one"]) as first:
            until(lambda: blocked.begun == 1, PATIENCE)
            waited = set()
            for call in calls():
                answer = told(api, call)
                if answer.status_code == 503:
                    assert answer.json()["type"] == "/problems/unavailable"
                    assert answer.headers["retry-after"] == "1"
                    waited.add(f"{call.method.upper()} {call.route}")
            assert waited == DEAR
            # One key is told that it is its own questions that are in the way.
            answer = api.get("/v1/runs/letters-run/curve", headers=bearer(keys["one"]))
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
            assert answer.json()["type"] == "/problems/too-many-requests"
            blocked.end.set()
            found = first.answer()
            assert found is not None
            assert found.status == 200
        assert api.get("/v1/runs/letters-run/curve").status_code == 200


def test_who_left_is_not_answered_and_who_sends_slowly_has_no_seat(
    serve: Serve,
    blocked: Blocked,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seats = ConcurrencyLimiter(1, 8)
    monkeypatch.setattr("service.app.ConcurrencyLimiter", lambda: seats)
    plan = WRITES["/v1/plan"][1]
    with (
        serve(new=True) as address,
        httpx.Client(base_url=address, timeout=PATIENCE, headers=AS_ADMIN) as api,
    ):
        setup(api)
        append(api, event(0, 1))
        with Talk(address) as slow:
            head = [b"Content-Type: application/json", b"Content-Length: 100"]
            slow.send(request("POST", "/v1/plan", head, b"{"))
            assert api.post("/v1/plan", json=plan).status_code == 200
        path = "/v1/runs/run/guarantee?delta=1e-5"
        with ask(address, path) as first:
            until(lambda: blocked.begun == 1, PATIENCE)
            gone = ask(address, path)
            until(lambda: seats.waiting == 1, PATIENCE)
            gone.socket.shutdown(socket.SHUT_RDWR)
            gone.socket.close()
            with ask(address, path) as last:
                until(lambda: seats.waiting == 2, PATIENCE)
                blocked.end.set()
                answers = [first.answer(), last.answer()]
        assert [answer.status for answer in answers if answer] == [200, 200]
        assert blocked.begun == 2
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


def test_a_large_body_is_read_by_a_thread_and_a_small_one_is_not(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, threads = strict_json.parse_json, []

    def parse_json(body: bytes) -> Any:
        threads.append(threading.current_thread())
        return whole(body)

    monkeypatch.setattr(strict_requests, "parse_json", parse_json)
    with (
        serve(new=True) as address,
        httpx.Client(base_url=address, timeout=PATIENCE, headers=AS_ADMIN) as api,
    ):
        for size in (10, strict_requests.INLINE_BYTES):
            assert api.post("/v1/datasets", json={"name": "x" * size}).status_code == 422
    small, large = threads
    assert small is not large
    assert large.name.startswith("AnyIO")


def test_threads_take_short_turns_while_a_seat_is_taken_and_only_then() -> None:
    usual = sys.getswitchinterval()

    async def turns() -> list[float]:
        seats, found = ConcurrencyLimiter(seats=2), []
        async with seats.taken("a"):
            found.append(sys.getswitchinterval())
            async with seats.taken("b"):
                found.append(sys.getswitchinterval())
            found.append(sys.getswitchinterval())
        found.append(sys.getswitchinterval())
        with pytest.raises(ValueError, match="worked out"):
            async with seats.taken("a"):
                raise ValueError("It could not be worked out.")
        return [*found, sys.getswitchinterval()]

    assert asyncio.run(turns()) == pytest.approx([TURN_SECONDS] * 3 + [usual] * 2)
