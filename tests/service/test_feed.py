"""The feed: nobody is waited for, nothing is held in silence, and it ends when it is told."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from benchmarks.servers import free_port
from service.errors import UnavailableError
from service.identity.keys import Role, create_key
from service.operations import event_feed, feed_messages
from service.operations.event_feed import Feed
from service.storage.engine import transaction
from tests.conftest import AS_ADMIN, clear
from tests.service.samples import setup
from tests.service.sockets import request
from tests.service.sse import DATA, RUN, ids, own, record, take, until, watching
from tests.service.test_incidents import happen
from tests.service.test_keys import bearer


def test_nothing_is_held_while_nobody_watches(database_url: str) -> None:
    with own(database_url) as (api, feed):
        setup(api)
        for _ in range(2):
            with watching(api, DATA) as stream:
                take(stream, 1)
                assert feed.subscribers == 1
                assert feed.working
            until(lambda: feed.subscribers == 0)
            until(lambda: not feed.working)
            assert feed.engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_a_reader_that_never_reads_is_dropped_and_nobody_waits_for_it(
    database_url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "BACKLOG_MAX", 4)
    with own(database_url) as (api, feed), socket.socket() as silent:
        setup(api)
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect((api.base_url.host, api.base_url.port))
        silent.sendall(request("GET", DATA))
        with watching(api, DATA) as stream:
            take(stream, 1)
            until(lambda: feed.subscribers == 2)
            told = 0
            while feed.subscribers == 2:
                assert told < 200
                happen(engine, told, reason="x" * 1_000_000)
                assert [frame.data["sequence"] for frame in take(stream, 1)] == [told]
                told += 1
            record(api, 0, 1)
            assert ids(take(stream, 1)) == [1]


def test_beyond_the_limit_streams_are_refused_and_the_others_go_on(
    database_url: str, engine: Engine
) -> None:
    with own(database_url) as (api, _):
        setup(api)
    with transaction(engine) as connection:
        mine, other, third = (
            bearer(create_key(connection, name=name, scope=Role.ADMIN))
            for name in ("mine", "other", "third")
        )
    with own(database_url, connections_max=4) as (api, feed):
        api.headers.update(third)
        with watching(api, DATA, **mine) as one:
            take(one, 1)
            # Half of all that there may be are one key's.
            answer = api.get(DATA, headers=mine)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "5")
            assert answer.json()["type"] == "/problems/too-many-requests"
            with watching(api, RUN, **other) as two:
                take(two, 1)
                answer = api.get(DATA)
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
                assert answer.json()["type"] == "/problems/unavailable"
                record(api, 0, 1)
                assert ids(take(one, 1)) == ids(take(two, 1)) == [1]
        until(lambda: feed.subscribers == 0)
        with watching(api, DATA) as stream:
            assert take(stream, 1)[0].event == "state"


def test_two_thousand_readers_at_once(backend_urls: dict[str, str]) -> None:
    """A thousand are served, a thousand are told to come back, and appends go on."""
    clear(backend_urls["sqlite"])  # one is enough: it is the sockets that are many

    async def reader(port: int) -> tuple[asyncio.StreamWriter, asyncio.StreamReader, bytes]:
        source, sink = await asyncio.open_connection("127.0.0.1", port)
        sink.write(request("GET", DATA))
        return sink, source, await source.readuntil(b"\r\n")

    async def all_of_them(api: httpx.Client, feed: Feed) -> None:
        port = api.base_url.port or 0
        found = await asyncio.gather(*(reader(port) for _ in range(2000)))
        served = [(sink, source) for sink, source, status in found if b" 200 " in status]
        assert len(served) == 1000 == feed.subscribers
        assert sum(b" 429 " in status for _, _, status in found) == 1000
        await asyncio.gather(*(source.readuntil(b"event: state") for _, source in served))
        await asyncio.to_thread(record, api, 0, 1)
        await asyncio.gather(*(source.readuntil(b"event: entry") for _, source in served))
        for sink, *_ in found:
            sink.close()
        await asyncio.gather(*(sink.wait_closed() for sink, *_ in found), return_exceptions=True)

    with own(backend_urls["sqlite"], connections_max=4000) as (api, feed):
        setup(api)
        asyncio.run(all_of_them(api, feed))
        until(lambda: feed.subscribers == 0)


def test_a_database_that_does_not_answer_for_a_while_ends_no_stream(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, failing = feed_messages.heads, threading.Event()
    asked: list[bool] = []

    def heads(*given: Any) -> Any:
        asked.append(failing.is_set())
        if failing.is_set():
            raise UnavailableError("The database does not answer now.")
        return whole(*given)

    monkeypatch.setattr(feed_messages, "heads", heads)
    with own(database_url) as (api, _):
        setup(api)
        with watching(api, DATA) as stream:
            take(stream, 1)
            failing.set()
            until(lambda: asked[-1])
            record(api, 0, 1)
            with watching(api, RUN) as late:  # cannot be let in, and is told so by its end
                assert list(late) == []
            failing.clear()
            assert ids(take(stream, 1)) == [1]


def test_a_defect_of_the_feed_ends_the_streams_rather_than_silencing_them(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own(database_url) as (api, _):
        setup(api)
        with watching(api, DATA) as stream, monkeypatch.context() as patch:
            take(stream, 1)
            patch.setattr(feed_messages, "entry_frame", lambda _row: 1 / 0)
            record(api, 0, 1)
            assert list(stream) == []
        with watching(api, DATA, **{"last-event-id": "0"}) as stream:
            assert ids(take(stream, 1)) == [1]


def test_a_service_that_is_stopped_ends_its_streams_and_exits(
    api: httpx.Client, database_url: str, tmp_path: Path
) -> None:
    setup(api)
    port = free_port()
    environment = os.environ | {"DPLEDGER_SHUTDOWN_SECONDS": "600"}
    command = [sys.executable, "-c", "from service.cli.main import main; main()", "serve"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port), "--database", database_url],
            env=environment,
            stderr=log,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=AS_ADMIN) as other:
            until(lambda: _ready(other))
            with watching(other, DATA) as one, watching(other, RUN) as two:
                take(one, 1)
                take(two, 1)
                process.send_signal(signal.SIGTERM)
                assert list(one) == list(two) == []
                assert process.wait(timeout=120) == 0
    finally:
        process.kill()
        process.wait()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line for line in lines if line["level"] == "error"] == []


def _ready(api: httpx.Client) -> bool:
    try:
        return api.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_a_feed_that_was_closed_takes_no_more(database_url: str) -> None:
    with own(database_url) as (api, feed):
        setup(api)
        feed.close()
        assert api.get(DATA).status_code == 503
