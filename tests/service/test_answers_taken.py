"""Answers that nobody takes, or takes slowly, and requests that wait for no answer."""

import gc
import json
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from benchmarks.servers import free_port
from service.app import create_app
from service.identity import authentication
from service.settings import Settings
from service.web import direct_appends, middleware, problems
from service.web.server import (
    PIPELINED_MAX,
    TAKEN_BYTES_MIN,
    Connection,
    Server,
    connection_limits,
    send_whole,
)
from tests.conftest import AS_ADMIN, clear, running
from tests.service.samples import append, event, setup
from tests.service.sockets import Talk, request, steps
from tests.service.sse import until

Serve = Callable[..., AbstractContextManager[str]]
LARGE = "/problems/large"
SIZE = 16 * 1024 * 1024  # of an answer that no buffer of the system holds
PATIENCE = 60.0


@pytest.fixture
def url(backend_urls: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty ledger; on which database says nothing about connections."""
    monkeypatch.setattr(problems, "problem_page", lambda _slug: "x" * SIZE)
    clear(backend_urls["sqlite"])
    return backend_urls["sqlite"]


@pytest.fixture
def serve(url: str) -> Serve:
    return lambda **given: running(Settings(database_url=url, **given))


@contextmanager
def narrow(address: str, *, end: bool = False) -> Iterator[socket.socket]:
    """A connection that has asked for a large answer and takes nothing by itself."""
    with socket.socket() as talk:
        talk.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        talk.connect(("127.0.0.1", httpx.URL(address).port))
        talk.settimeout(PATIENCE)
        talk.sendall(request("GET", LARGE, end=end))
        yield talk


def was_reset(talk: socket.socket) -> bool:
    """Whether the other side ends the connection, while nothing is read from it."""
    waiting = select.poll()
    waiting.register(talk, 0)
    return bool(waiting.poll(PATIENCE * 1000))


def until_answered(address: str) -> None:
    until(lambda: httpx.get(f"{address}/healthz").status_code == 200, PATIENCE)


@pytest.mark.parametrize("end", [False, True], ids=["open", "closing"])
def test_who_takes_nothing_of_its_answer_is_let_go(serve: Serve, end: bool) -> None:
    with serve(write_seconds=0.1, connections_max=1) as address, narrow(address, end=end) as talk:
        assert was_reset(talk)
        until_answered(address)  # its place is another's, though it has closed nothing


def test_who_takes_nothing_of_a_small_rest_is_let_go_too(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Connection.connection_made

    def connection_made(self: Connection, transport: Any) -> None:
        made(self, transport)
        transport.set_write_buffer_limits(high=2 * SIZE)  # so that all of it is a small rest

    monkeypatch.setattr(Connection, "connection_made", connection_made)
    with serve(write_seconds=0.1) as address, narrow(address, end=True) as talk:
        assert was_reset(talk)


@contextmanager
def watched(url: str) -> Iterator[tuple[str, Server]]:
    """A service whose connections are looked at when a test says so."""
    settings = Settings(database_url=url, write_seconds=600)
    port = free_port()
    server = Server(
        uvicorn.Config(
            create_app(settings), port=port, log_config=None, **connection_limits(settings)
        )
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started, PATIENCE)
    try:
        yield f"http://127.0.0.1:{port}", server
    finally:
        server.should_exit = True
        thread.join()


def test_who_takes_its_answer_slowly_gets_all_of_it(url: str) -> None:
    with watched(url) as (address, server), narrow(address) as talk:
        until(lambda: bool(server.server_state.connections), PATIENCE)
        (connection,) = server.server_state.connections
        assert isinstance(connection, Connection)
        until(lambda: left(connection) > SIZE // 2, PATIENCE)
        # Else the system takes megabytes of it at once, and there is less to look at.
        sending = connection.transport.get_extra_info("socket")
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * TAKEN_BYTES_MIN)
        taken = looks = 0
        while taken < SIZE:
            part = talk.recv(1 << 20)
            assert part
            before = left(connection)
            taken += len(part)
            if before > SIZE // 4 and looks < 8 and taken > looks * SIZE // 16:
                look(connection)
                looks += 1
                target = left(connection) - 2 * TAKEN_BYTES_MIN  # from what was seen, or less
                while left(connection) > target:
                    taken += len(talk.recv(1 << 20))
        assert looks == 8


def left(connection: Connection) -> int:
    return int(connection.transport.get_write_buffer_size())


def look(connection: Connection) -> None:
    looked = threading.Event()

    def now() -> None:
        connection._looking.cancel()
        connection._look()
        looked.set()

    connection.loop.call_soon_threadsafe(now)
    assert looked.wait(PATIENCE)


def test_whoever_asks_without_end_before_it_is_answered_is_let_go(serve: Serve) -> None:
    with serve() as address:
        with Talk(address) as talk:
            talk.send(request("GET", "/healthz") * (PIPELINED_MAX + 1))
            found = [talk.answer() for _ in range(PIPELINED_MAX + 1)]
            assert [one.status for one in found if one] == [200] * (PIPELINED_MAX + 1)
        with Talk(address) as talk:
            talk.send(request("GET", "/healthz") * (PIPELINED_MAX + 2))
            assert talk.answers() == []


def test_what_was_recorded_is_never_answered_by_a_refusal_of_what_follows(serve: Serve) -> None:
    body = steps(0)
    headers = [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    with serve() as address:
        with httpx.Client(base_url=address, headers=AS_ADMIN) as api:
            setup(api)
        with Talk(address) as talk:
            first = request("POST", "/v1/runs/run/events", headers, body)
            talk.send(first + request("GET", "/healthz") * (PIPELINED_MAX + 1))
            assert talk.answers() == []
        with httpx.Client(
            base_url=address, headers=AS_ADMIN
        ) as api:  # who knows nothing sends it again
            assert append(api, event(0, 1)).status_code in (200, 201)


def test_an_append_is_answered_in_one_write_and_as_in_two(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: list[bool] = []

    def watched_send(*given: Any) -> bool:
        whole.append(send_whole(*given))
        return whole[-1]

    monkeypatch.setattr(direct_appends, "send_whole", watched_send)
    # The service reads neither keys nor its state again, however slow the machine is.
    monkeypatch.setattr(authentication, "KEY_REFRESH_SECONDS", 600.0)
    monkeypatch.setattr(middleware, "STATUS_REFRESH_SECONDS", 600.0)

    def sent(first_step: int, *, end: bool = False) -> bytes:
        body = steps(first_step)
        headers = [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
        return request("POST", "/v1/runs/run/events", headers, body, end=end)

    with serve() as address:
        with httpx.Client(base_url=address, headers=AS_ADMIN) as api:
            setup(api)
            assert append(api, event(0, 1)).status_code == 201  # by now the key is known
        whole.clear()
        with Talk(address) as talk:
            talk.send(sent(1) + sent(2) + request("GET", "/healthz") + sent(3))
            found = [talk.answer() for _ in range(4)]
            talk.send(sent(4, end=True))  # whose answer says that the connection is closed
            last = talk.answer()
            assert talk.answer() is None
    assert whole == [True, True, True, False]
    assert last is not None
    assert last.headers.pop("connection") == "close"
    told = [one for one in found if one is not None]
    assert [one.status for one in (*told, last)] == [201, 201, 200, 201, 201]
    for at, one in ((1, told[0]), (2, told[1]), (3, told[3])):
        assert json.loads(one.body)["next_step"] == at + 1
        assert list(one.headers) == list(last.headers)
        assert one.headers["content-type"] == last.headers["content-type"]
        assert int(one.headers["content-length"]) == len(one.body)


def test_no_request_leaves_a_cycle_behind(serve: Serve) -> None:
    """The service looks for cycles seldom: until then they would hold what was sent."""
    with serve() as address, httpx.Client(base_url=address, headers=AS_ADMIN) as api:
        setup(api)
        gc.collect()
        gc.disable()
        try:
            for step in range(20):
                assert append(api, event(step, 1)).status_code == 201
                assert api.get("/healthz").status_code == 200
            left = [one for one in gc.get_objects() if isinstance(one, RequestResponseCycle)]
        finally:
            gc.enable()
    assert len(left) <= 2  # that of the connection, and one that is ending
