"""Streams: every entry once and in order, whoever wrote it."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, Engine

from service.identity import authentication
from service.identity.keys import Role, create_key, revoke_key
from service.ledger.lookups import find_dataset
from service.operations import event_feed, feed_messages
from service.storage.engine import snapshot, transaction
from tests.conftest import ANSWER_SECONDS, AS_ADMIN
from tests.service.samples import BUDGET, append, event, run, setup
from tests.service.sse import DATA, RUN, ids, own, record, step, take, until, watching
from tests.service.test_incidents import happen

Serve = Callable[..., AbstractContextManager[str]]


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
    assert told.data.pop("traceparent") is None
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
    count = 2 * feed_messages.FEED_PAGE_SIZE + 10
    record(api, 0, count)
    record(api, 0, 5, "other")
    for path, after, expected in (
        (DATA, 0, range(1, count + 6)),
        (DATA, count + 3, range(count + 4, count + 6)),
        (RUN, feed_messages.FEED_PAGE_SIZE, range(feed_messages.FEED_PAGE_SIZE + 1, count + 1)),
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
        with httpx.Client(base_url=address, timeout=30, headers=AS_ADMIN) as mine:
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


def test_a_reader_that_is_ahead_of_the_feed_is_not_told_twice(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, held = feed_messages.tell, threading.Event()

    def late(*args: Any, **given: Any) -> feed_messages.Told:
        if held.is_set():
            time.sleep(0.01)
            return feed_messages.Told(given["since"], dict.fromkeys(given["watched"], b""))
        return whole(*args, **given)

    monkeypatch.setattr(feed_messages, "tell", late)
    with own(database_url) as (api, feed):
        setup(api)
        with watching(api, DATA) as stream:
            take(stream, 1)
            held.set()
            record(api, 0, 3)
            with watching(api, DATA, **{"last-event-id": "3"}) as ahead:
                until(lambda: feed.subscribers == 2)
                time.sleep(0.3)
                record(api, 3, 1)
                held.clear()
                assert ids(take(ahead, 1)) == [4]
                assert ids(take(stream, 4)) == [1, 2, 3, 4]


def test_what_another_process_writes_is_told_too(api: httpx.Client, serve: Serve) -> None:
    setup(api)
    with (
        serve() as elsewhere,
        httpx.Client(base_url=elsewhere, headers=AS_ADMIN) as other,
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
        httpx.Client(base_url=address, headers=AS_ADMIN) as second,
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
        count = feed_messages.FEED_PAGE_SIZE + 5
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
def test_unknown_names_are_refused(api: httpx.Client) -> None:
    setup(api)
    for path in ("/v1/runs/nobody/stream", "/v1/datasets/nobody/stream"):
        assert api.get(path).json()["type"] == "/problems/not-found"


def test_a_stream_ends_when_its_key_is_revoked(
    engine: Engine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a second, by which it ends: the rest is for the look itself.
    assert authentication.KEY_REFRESH_SECONDS + event_feed.RECHECK_SECONDS < 0.75
    monkeypatch.setattr(authentication, "KEY_REFRESH_SECONDS", 0.1)
    keys = {}
    with transaction(engine) as connection:
        for name, scope in (("admin", Role.ADMIN), ("one", Role.VIEWER), ("two", Role.VIEWER)):
            key = create_key(connection, name=name, scope=scope)
            keys[name] = {"authorization": f"Bearer {key}"}
    with (
        serve() as address,
        httpx.Client(base_url=address, headers=keys["admin"]) as api,
        httpx.Client(base_url=address, headers=AS_ADMIN) as second,
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
            assert list(ending) == []  # the end, not an error
            record(third, 0, 1)
            assert ids(take(lasting, 1)) == [1]


def test_the_end_of_the_service_waits_for_a_look_at_the_database(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that comes back after the pool is gone would be left open."""
    looking, used_at_the_end = threading.Event(), []
    heads, dispose = feed_messages.heads, Engine.dispose

    def slowly(connection: Connection, datasets: set[int]) -> Any:
        looking.set()
        time.sleep(0.5)
        return heads(connection, datasets)

    def disposed(engine: Engine) -> None:
        used_at_the_end.append(engine.pool.checkedout())  # type: ignore[attr-defined]
        dispose(engine)

    with serve(new=True) as address, httpx.Client(base_url=address, headers=AS_ADMIN) as api:
        setup(api)
        with watching(api, DATA) as stream:
            take(stream, 1)
            monkeypatch.setattr(feed_messages, "heads", slowly)
            monkeypatch.setattr(Engine, "dispose", disposed)
            assert looking.wait(30)
    assert used_at_the_end == [0]


def test_a_silent_stream_shows_that_it_lives(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api)
    monkeypatch.setattr(event_feed, "HEARTBEAT_SECONDS", 0.3)
    with api.stream("GET", DATA) as stream:
        comments = (line for line in stream.iter_lines() if line.startswith(":"))
        assert [next(comments) for _ in range(2)] == [":", ":"]


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the feed look and send nothing unasked for longer than a client waits for a byte."""
    for name in ("IDLE_SECONDS", "HEARTBEAT_SECONDS"):
        monkeypatch.setattr(event_feed, name, 10 * ANSWER_SECONDS)


def test_the_writers_word_wakes_the_feed_at_once(
    database_url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent(monkeypatch)
    with own(database_url) as (api, feed):
        setup(api)
        with snapshot(engine) as connection:
            home = find_dataset(connection, "data").id
        feed.moved([home])  # nobody watches
        with watching(api, DATA) as stream:
            take(stream, 1)
            for number in range(3):
                record(api, number, 1)
                feed.moved([home])
                assert ids(take(stream, 1)) == [number + 1]


def test_the_end_of_a_run_and_other_settings_wake_the_feed_at_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own(database_url) as (api, _):
        setup(api, dataset_given={"budget": BUDGET})
        with watching(api, DATA) as stream, watching(api, RUN) as own_stream:
            take(stream, 1)
            take(own_stream, 1)
            silent(monkeypatch)
            time.sleep(1)  # the last rounds that ask unasked
            api.post("/v1/runs/run:finish", json={"state": "aborted"}).raise_for_status()
            (ended,) = take(own_stream, 1)
            assert (ended.event, ended.data["state"]["state"]) == ("state", "aborted")
            assert [one.event for one in take(stream, 1)] == ["state"]
            given = {"frozen": True, "reason": "a leak"}
            answer = api.patch("/v1/datasets/data", json=given, headers={"If-Match": "1"})
            answer.raise_for_status()
            told = take(stream, 2)
            assert [one.event for one in told] == ["incident", "state"]
            assert told[1].data["state"]["frozen"] is True


def test_updates_that_are_close_together_share_a_write(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    whole = feed_messages.tell

    def counted(*args: Any, **given: Any) -> feed_messages.Told:
        told = whole(*args, **given)
        rounds.append(told.position.sequence - given["since"].sequence)
        return told

    monkeypatch.setattr(feed_messages, "tell", counted)
    with own(database_url) as (api, _):
        setup(api)
        with watching(api, DATA) as stream, watching(api, RUN) as other:
            take(stream, 1)
            take(other, 1)
            started = time.monotonic()
            for number in range(100):
                append(api, step(number))
            assert ids(take(stream, 100)) == ids(take(other, 100)) == list(range(1, 101))
            lasted = time.monotonic() - started
    assert sum(rounds) == 100  # each entry was read and encoded once for both
    assert len(rounds) <= lasted / event_feed.GAP_SECONDS + 2
