"""Requests that arrive slowly, never end, or come too many at once, over real sockets."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from service.settings import Settings
from service.storage.engine import connect
from tests.conftest import AS_ADMIN, clear, running
from tests.service.dumps import dump
from tests.service.samples import setup
from tests.service.sockets import Talk, request, steps
from tests.service.sse import until

Serve = Callable[..., AbstractContextManager[str]]
EVENTS = "/v1/runs/run/events"
JSON = b"Content-Type: application/json"


@pytest.fixture
def serve(backend_urls: dict[str, str]) -> Serve:
    """A service of one's own; which database it is on says nothing about connections."""
    url = backend_urls["sqlite"]
    clear(url)

    def start(**given: Any) -> AbstractContextManager[str]:
        return running(Settings(database_url=url, **given))

    return start


@pytest.fixture
def engine(backend_urls: dict[str, str]) -> Iterator[Engine]:
    engine = connect(backend_urls["sqlite"])
    yield engine
    engine.dispose()


def prepare(serve: Serve) -> None:
    """Register a run with a service that waits long."""
    with serve() as address, httpx.Client(base_url=address, headers=AS_ADMIN) as api:
        setup(api)


@pytest.mark.parametrize("path", [EVENTS, "/v1/datasets"])
def test_a_body_that_trickles_is_given_up_and_writes_nothing(
    serve: Serve, engine: Engine, path: str
) -> None:
    prepare(serve)
    before = dump(engine)
    with serve(body_seconds=0.3) as address:
        with Talk(address) as talk:
            body = steps(0)
            talk.send(request("POST", path, [JSON, b"Content-Length: %d" % len(body)]))
            talk.send(*(body[i : i + 1] for i in range(8)), pause=0.06)
            (answer,) = talk.answers()
        assert (answer.status, answer.slug) == (408, "request-timeout")
        assert answer.headers["connection"] == "close"
        assert dump(engine) == before


def test_a_chunked_body_without_an_end_is_given_up(serve: Serve, engine: Engine) -> None:
    prepare(serve)
    before = dump(engine)
    with serve(body_seconds=0.2) as address:
        with Talk(address) as talk:
            body = steps(0)
            talk.send(request("POST", EVENTS, [JSON, b"Transfer-Encoding: chunked"]))
            talk.send(b"%x\r\n%b\r\n" % (len(body), body))
            (answer,) = talk.answers()
        assert (answer.status, answer.slug) == (408, "request-timeout")
        assert dump(engine) == before


def test_a_body_in_time_may_come_in_parts(serve: Serve) -> None:
    prepare(serve)
    with serve(body_seconds=60.0) as address:
        with Talk(address) as talk:
            body = steps(0)
            talk.send(request("POST", EVENTS, [JSON, b"Content-Length: %d" % len(body)], end=True))
            talk.send(body[:9], body[9:20], body[20:], pause=0.02)
            (answer,) = talk.answers()
        assert answer.status == 201


def test_a_stream_is_open_for_longer_than_a_body_may_take(serve: Serve) -> None:
    prepare(serve)
    with (
        serve(body_seconds=1.0, header_seconds=1.0) as address,
        httpx.Client(base_url=address, headers=AS_ADMIN) as api,
        api.stream("GET", "/v1/runs/run/stream") as stream,
    ):
        frames = stream.iter_lines()
        assert next(frames).startswith("retry")
        time.sleep(2.0)
        told = api.post(EVENTS, content=steps(0), headers={"content-type": "application/json"})
        assert told.status_code == 201
        assert any(line == "event: entry" for line in frames)


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (b"GET",),
        (b"GET /healthz HTTP/1.1\r\n",),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", *[b"X-A: b\r\n"] * 6),
    ],
    ids=["nothing", "a method", "a line", "a header at a time"],
)
def test_a_head_that_trickles_is_given_up(serve: Serve, parts: tuple[bytes, ...]) -> None:
    with serve(header_seconds=0.3) as address, Talk(address) as talk:
        talk.send(*parts, pause=0.04)
        assert talk.answers() == []


def test_a_second_head_that_trickles_is_given_up_too(serve: Serve) -> None:
    with serve(header_seconds=1.0) as address, Talk(address) as talk:
        talk.send(request("GET", "/healthz"))
        answer = talk.answer()
        assert answer is not None
        assert answer.status == 200
        talk.send(b"GET /healthz HTTP/1.1\r\nHo")
        assert talk.answers() == []


def test_too_many_connections_are_told_to_come_again_and_then_may(serve: Serve) -> None:
    with serve(connections_max=2) as address:
        with Talk(address) as first, Talk(address) as second:
            for talk in (first, second):
                talk.send(request("GET", "/healthz"))
                answer = talk.answer()
                assert answer is not None
                assert answer.status == 200
            with Talk(address) as third:
                (answer,) = third.answers()
            assert (answer.status, answer.slug) == (503, "unavailable")
            assert answer.headers["retry-after"] == "1"
            assert answer.headers["content-type"] == "application/problem+json"
        until(lambda: status(address) == 200)  # a connection that was closed does not count


def status(address: str) -> int:
    with Talk(address) as talk:
        talk.send(request("GET", "/healthz", end=True))
        return talk.answers()[0].status
