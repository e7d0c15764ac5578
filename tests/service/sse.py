"""Reading server-sent events as a browser does, and servers to read them from."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from benchmarks.servers import free_port
from service.app import create_app
from service.operations.event_feed import Feed
from service.settings import Settings
from service.web.server import Server
from tests.conftest import AS_ADMIN
from tests.service.samples import append, event

DATA = "/v1/datasets/data/stream"
RUN = "/v1/runs/run/stream"


@dataclass(frozen=True)
class Frame:
    """One event."""

    event: str
    id: str | None
    data: Any


def frames(lines: Iterator[str]) -> Iterator[Frame]:
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields:  # a comment, which shows that the stream lives, has none
            yield Frame(fields["event"], fields.get("id"), json.loads(fields["data"]))
        fields = {}


@contextmanager
def watching(api: httpx.Client, path: str, **headers: str) -> Iterator[Iterator[Frame]]:
    """The frames of a stream, as they come."""
    with api.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        yield frames(answer.iter_lines())


def take(stream: Iterator[Frame], count: int) -> list[Frame]:
    return [next(stream) for _ in range(count)]


def step(number: int) -> dict[str, Any]:
    """A step that is never merged with the one before."""
    mechanism = {"kind": "gaussian", "noise_multiplier": 1.0 + number % 3}
    return event(number, 1, mechanism=mechanism)


def record(api: httpx.Client, first: int, count: int, name: str = "run") -> None:
    """Entries of one step each, a thousand a request."""
    for start in range(first, first + count, 1000):
        steps = [step(number) for number in range(start, min(start + 1000, first + count))]
        assert append(api, *steps, run=name).status_code == 201


def ids(found: list[Frame]) -> list[int]:
    assert all(frame.event == "entry" for frame in found)
    assert all(frame.id == str(frame.data["sequence"]) for frame in found)
    return [frame.data["sequence"] for frame in found]


@contextmanager
def own(url: str, **given: Any) -> Iterator[tuple[httpx.Client, Feed]]:
    """A server of our own, with its feed."""
    application = create_app(Settings(database_url=url, **given))
    port = free_port()
    config = uvicorn.Config(application, host="127.0.0.1", port=port, log_config=None)
    server = Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.002)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=AS_ADMIN) as api:
            yield api, application.state.feed
    finally:
        server.should_exit = True
        thread.join()


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds
        time.sleep(0.01)
