"""Streams: every entry once and in order, whoever wrote it; nobody is waited for."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from sqlalchemy import Engine

from service import auth, frames, streams
from service.app import create_app
from service.auth import Scope, create_key, revoke_key
from service.catalog import find_dataset
from service.database import snapshot, transaction
from service.errors import UnavailableError
from service.server import Server
from service.settings import Settings
from service.streams import Feed
from tests.conftest import clear, free_port
from tests.service.samples import append, event, run, setup
from tests.service.sse import Frame, take, watching
from tests.service.test_incidents import happen

Serve = Callable[..., AbstractContextManager[str]]
DATA = "/v1/datasets/data/stream"
RUN = "/v1/runs/run/stream"


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
def own(url: str) -> Iterator[tuple[httpx.Client, Feed]]:
    """A server of our own, with its feed."""
    application = create_app(Settings(database_url=url))
    port = free_port()
    config = uvicorn.Config(application, host="127.0.0.1", port=port, log_config=None)
    server = Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.002)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as api:
            yield api, application.state.feed
    finally:
        server.should_exit = True
        thread.join()


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds
        time.sleep(0.01)


def test_a_stream_begins_with_how_things_stand(api: httpx.Client) -> None:
    setup(api)
    record(api, 0, 3)
    for path, name in ((DATA, "data"), (RUN, "run")):
        with watching(api, path) as stream:
            (state,) = take(stream, 1)
            assert (state.event, state.id, state.data["sequence"]) == ("state", "3", 3)
            assert state.data["state"] == api.get(path.removesuffix("/stream")).json()
            assert state.data["state"]["name"] == name


def test_an_entry_is_told_as_it_was_recorded(api: httpx.Client) -> None:
    setup(api)
    with watching(api, DATA) as stream:
        take(stream, 1)
        append(api, event(0, 5))
        (told,) = take(stream, 1)
    assert told.data.pop("recorded_at").endswith("+00:00")
    sent = event(0, 5)
    assert (told.event, told.id) == ("entry", "1")
    assert told.data == {
        "sequence": 1, "dataset": "data", "run": "run", "branch": "main", "mode": "record",
        "verdict": "within", "first_step": 0, "steps": 5, "next_step": 5,
        "event": {"mechanism": sent["mechanism"], "sampling": sent["sampling"]},
    }  # fmt: skip


def test_a_reader_that_comes_back_gets_what_it_missed_and_then_what_is_new(
    api: httpx.Client,
) -> None:
    setup(api)
    api.post("/v1/runs", json=run("other"))
    count = 2 * frames.PAGE_SIZE + 10
    record(api, 0, count)
    record(api, 0, 5, "other")
    for path, after, expected in (
        (DATA, 0, range(1, count + 6)),
        (DATA, count + 3, range(count + 4, count + 6)),
        (RUN, frames.PAGE_SIZE, range(frames.PAGE_SIZE + 1, count + 1)),
        (RUN, 0, range(1, count + 1)),
        ("/v1/runs/other/stream", 0, range(count + 1, count + 6)),
    ):
        with watching(api, path, **{"last-event-id": str(after)}) as stream:
            assert ids(take(stream, len(expected))) == list(expected)
    with watching(api, f"{RUN}?last_event_id={count + 5}") as stream:
        record(api, 5, 1, "other")
        record(api, count, 1)
        assert ids(take(stream, 1)) == [count + 7]


def test_readers_that_come_and_go_while_entries_arrive_miss_none_and_see_none_twice(
    address: str, api: httpx.Client
) -> None:
    setup(api)
    count = 300

    def read(reader: int) -> list[int]:
        found: list[int] = []
        with httpx.Client(base_url=address, timeout=30) as mine:
            while len(found) < count:
                resumed = {"last-event-id": str(found[-1] if found else 0)}
                with watching(mine, (DATA, RUN)[reader % 2], **resumed) as stream:
                    found += ids(take(stream, min(1 + 17 * reader, count - len(found))))
        return found

    with ThreadPoolExecutor(6) as pool:
        readers = [pool.submit(read, reader) for reader in range(2, 8)]
        for number in range(count):
            assert append(api, step(number)).status_code == 201
        for reader in readers:
            assert reader.result() == list(range(1, count + 1))


def test_what_another_process_writes_is_told_too(api: httpx.Client, serve: Serve) -> None:
    setup(api)
    with (
        serve() as elsewhere,
        httpx.Client(base_url=elsewhere) as other,
        watching(api, RUN) as stream,
    ):
        take(stream, 1)
        record(other, 0, 3)
        assert ids(take(stream, 3)) == [1, 2, 3]


def test_an_incident_reaches_who_watches_its_run_or_its_dataset(
    address: str, api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    api.post("/v1/runs", json=run("other"))
    with (
        watching(api, DATA) as whole,
        httpx.Client(base_url=address) as second,
        watching(second, RUN) as mine,
    ):
        assert [take(stream, 1)[0].event for stream in (whole, mine)] == ["state", "state"]
        happen(engine, 0, run="other", scope="run:other")
        happen(engine, 0, run=None, scope="dataset:data")
        happen(engine, 0, scope="run:run")
        told = take(whole, 3)
        assert [frame.data["run"] for frame in told] == ["other", None, "run"]
        assert [frame.data["run"] for frame in take(mine, 2)] == [None, "run"]
        assert {(frame.event, frame.id) for frame in told} == {("incident", None)}
        listed = api.get("/v1/datasets/data/incidents").json()["incidents"]
        assert [frame.data for frame in told] == listed


def test_more_incidents_than_a_page_are_all_told(api: httpx.Client, engine: Engine) -> None:
    setup(api)
    with watching(api, DATA) as stream:
        take(stream, 1)
        count = frames.PAGE_SIZE + 5
        happen(engine, *range(count))
        assert [frame.data["sequence"] for frame in take(stream, count)] == list(range(count))


@pytest.mark.parametrize(
    "sent", ["", "x", "-1", "1.0", "+1", "1,2", "4", "9223372036854775808", "1" * 400, "\u0661"]
)
def test_a_last_event_id_that_was_never_given_out_is_refused(api: httpx.Client, sent: str) -> None:
    setup(api)
    record(api, 0, 3)
    for path in (DATA, RUN):
        headers = [(b"last-event-id", sent.encode())]
        answer = api.get(path, headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request")
        assert answer.json()["errors"][0]["location"] == "header.last-event-id"
        asked = api.get(path, params={"last_event_id": sent})
        assert asked.status_code == 422
        assert asked.json()["errors"][0]["location"] == "query.last_event_id"


def test_the_header_wins_over_the_query(api: httpx.Client) -> None:
    setup(api)
    record(api, 0, 3)
    with watching(api, f"{DATA}?last_event_id=0", **{"last-event-id": "2"}) as stream:
        assert ids(take(stream, 1)) == [3]


@pytest.mark.usefixtures("engine")
def test_unknown_names_and_foreign_hosts_are_refused(api: httpx.Client) -> None:
    setup(api)
    for path in ("/v1/runs/nobody/stream", "/v1/datasets/nobody/stream"):
        assert api.get(path).json()["type"] == "/problems/not-found"
    answer = api.get(DATA, headers={"host": "ledger.example"})
    assert answer.json()["type"] == "/problems/host-not-allowed"


def test_a_stream_ends_when_its_key_is_revoked(
    engine: Engine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "REFRESH_SECONDS", 0.1)
    keys = {}
    with transaction(engine) as connection:
        for name, scope in (("admin", Scope.ADMIN), ("one", Scope.VIEWER), ("two", Scope.VIEWER)):
            key = create_key(connection, name=name, scope=scope)
            keys[name] = {"authorization": f"Bearer {key}"}
    with (
        serve() as address,
        httpx.Client(base_url=address, headers=keys["admin"]) as api,
        httpx.Client(base_url=address) as second,
        httpx.Client(base_url=address, headers=keys["admin"]) as third,
    ):
        setup(api)
        assert httpx.get(f"{address}{DATA}").status_code == 401
        with (
            watching(second, DATA, **keys["one"]) as ending,
            watching(api, DATA, **keys["two"]) as lasting,
        ):
            take(ending, 1)
            take(lasting, 1)
            with transaction(engine) as connection:
                revoke_key(connection, "one")
            revoked = time.monotonic()
            assert list(ending) == []  # the end, not an error
            assert time.monotonic() - revoked < streams.RECHECK_SECONDS + 2
            record(third, 0, 1)
            assert ids(take(lasting, 1)) == [1]


def test_a_silent_stream_shows_that_it_lives(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api)
    monkeypatch.setattr(streams, "HEARTBEAT_SECONDS", 0.3)
    with watching(api, DATA) as stream:
        assert [frame.event for frame in take(stream, 3)] == ["state", "comment", "comment"]


def test_the_writers_word_wakes_the_feed_at_once(
    database_url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "IDLE_SECONDS", 30.0)
    with own(database_url) as (api, feed):
        setup(api)
        with snapshot(engine) as connection:
            home = find_dataset(connection, "data").id
        feed.moved([home])  # nobody watches
        with watching(api, DATA) as stream:
            take(stream, 1)
            for number in range(3):
                started = time.monotonic()
                record(api, number, 1)
                feed.moved([home])
                assert ids(take(stream, 1)) == [number + 1]
                assert time.monotonic() - started < 10


def test_updates_that_are_close_together_share_a_write(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    whole = frames.tell

    def counted(*args: Any, **given: Any) -> frames.Told:
        told = whole(*args, **given)
        rounds.append(told.position.sequence - given["since"].sequence)
        return told

    monkeypatch.setattr(frames, "tell", counted)
    with own(database_url) as (api, _):
        setup(api)
        with watching(api, DATA) as stream, watching(api, RUN) as other:
            take(stream, 1)
            take(other, 1)
            started = time.monotonic()
            for number in range(100):
                append(api, step(number))
            lasted = time.monotonic() - started
            assert ids(take(stream, 100)) == ids(take(other, 100)) == list(range(1, 101))
    assert sum(rounds) == 100  # each entry was read and encoded once for both
    assert len(rounds) <= lasted / streams.GAP_SECONDS + 2


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
    monkeypatch.setattr(streams, "BACKLOG_MAX", 4)
    with own(database_url) as (api, feed), socket.socket() as silent:
        setup(api)
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect((api.base_url.host, api.base_url.port))
        silent.sendall(f"GET {DATA} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        with watching(api, DATA) as stream:
            take(stream, 1)
            until(lambda: feed.subscribers == 2)
            told = 0
            while feed.subscribers == 2:
                assert told < 200
                happen(engine, told, reason="x" * 200_000)
                assert [frame.data["sequence"] for frame in take(stream, 1)] == [told]
                told += 1
            record(api, 0, 1)
            assert ids(take(stream, 1)) == [1]


def test_beyond_the_limit_streams_are_refused_and_the_others_go_on(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SUBSCRIBERS_MAX", 2)
    with own(database_url) as (api, feed):
        setup(api)
        with watching(api, DATA) as one, watching(api, RUN) as two:
            take(one, 1)
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
        sink.write(f"GET {DATA} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return sink, source, await source.readuntil(b"\r\n")

    async def all_of_them(api: httpx.Client, feed: Feed) -> None:
        port = api.base_url.port or 0
        found = await asyncio.gather(*(reader(port) for _ in range(2000)))
        served = [(sink, source) for sink, source, status in found if b" 200 " in status]
        assert len(served) == streams.SUBSCRIBERS_MAX == feed.subscribers
        assert sum(b" 503 " in status for _, _, status in found) == 1000
        await asyncio.gather(*(source.readuntil(b"event: state") for _, source in served))
        await asyncio.to_thread(record, api, 0, 1)
        await asyncio.gather(*(source.readuntil(b"event: entry") for _, source in served))
        for sink, *_ in found:
            sink.close()
        await asyncio.gather(*(sink.wait_closed() for sink, *_ in found), return_exceptions=True)

    with own(backend_urls["sqlite"]) as (api, feed):
        setup(api)
        asyncio.run(all_of_them(api, feed))
        until(lambda: feed.subscribers == 0)


def test_a_database_that_does_not_answer_for_a_while_ends_no_stream(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, failing = frames.heads, threading.Event()
    asked: list[bool] = []

    def heads(*given: Any) -> Any:
        asked.append(failing.is_set())
        if failing.is_set():
            raise UnavailableError("The database does not answer now.")
        return whole(*given)

    monkeypatch.setattr(frames, "heads", heads)
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
            patch.setattr(frames, "entry_frame", lambda _row: 1 / 0)
            record(api, 0, 1)
            assert list(stream) == []
        with watching(api, DATA, **{"last-event-id": "0"}) as stream:
            assert ids(take(stream, 1)) == [1]


def test_a_service_that_is_stopped_ends_its_streams_and_exits(
    api: httpx.Client, database_url: str, tmp_path: Path
) -> None:
    setup(api)
    port = free_port()
    environment = os.environ | {"DPLEDGER_SHUTDOWN_SECONDS": "60"}
    command = [sys.executable, "-c", "from service.cli import main; main()", "serve"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port), "--database", database_url],
            env=environment,
            stderr=log,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as other:
            until(lambda: _ready(other), 30)
            with watching(other, DATA) as one, watching(other, RUN) as two:
                take(one, 1)
                take(two, 1)
                process.send_signal(signal.SIGTERM)
                stopped = time.monotonic()
                assert list(one) == list(two) == []
                assert process.wait(timeout=30) == 0
                assert time.monotonic() - stopped < 10
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
