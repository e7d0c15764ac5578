"""A process dies, stands still or runs out of memory in the middle of what it does."""

import json
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from benchmarks.fault_postgres import Postgres
from benchmarks.fault_trainers import step
from benchmarks.servers import Server, free_port, start_token_file
from benchmarks.servers import running as serving_processes
from service.ledger.append.append import Append
from service.ledger.append.unit_of_work import UnitOfWork
from service.ledger.append.writer import Writer
from tests.conftest import AS_ADMIN
from tests.service.faults.answers import (
    begin,
    insisted,
    record,
    require_exactly,
    require_taken,
    require_unavailable,
)
from tests.service.faults.conftest import serving
from tests.service.samples import run

STEPS = 3
LINES = 10_000
PADDING = " " * 200  # so that a batch is large; JSON has room for spaces
ATTEMPTS = 3


@contextmanager
def trapped(
    url: str, folder: Path, moment: str, name: str, *, wait_seconds: float = 2.0
) -> Iterator[tuple[Server, Path]]:
    """A worker of its own that sends itself a signal at a moment, once the file is there."""
    port, trap = free_port(), folder / "trap"
    words = ["benchmarks.fault_worker", moment, "1", name, str(trap), "serve", "--port", str(port)]
    server = Server(
        arguments=[*words, "--database", url],
        port=port,
        log=folder / f"{port}.log",
        settings={
            # PostgreSQL ends a session that stands still after six times as long.
            "DPLEDGER_BUSY_TIMEOUT_SECONDS": str(wait_seconds),
            "DPLEDGER_START_TOKEN_FILE": str(start_token_file(folder)),
        },
    )
    with serving_processes(server):
        yield server, trap


def client_of(server: Server) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{server.port}", headers=AS_ADMIN)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, file: Path) -> str:
    """A database of each kind, that nobody else uses."""
    if request.param == "sqlite":
        return f"sqlite:///{file}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.url


def test_a_worker_killed_between_insert_and_commit_leaves_nothing_of_the_batch(
    url: str, tmp_path: Path
) -> None:
    with trapped(url, tmp_path, "commit", "SIGKILL") as (server, trap), client_of(server) as api:
        begin(api, STEPS)
        trap.touch()
        with ThreadPoolExecutor(4) as pool:  # several wait for the one commit
            for sent in [pool.submit(record, api, STEPS) for _ in range(4)]:
                assert isinstance(sent.exception(), httpx.TransportError)
        assert not trap.exists()
    with serving(url) as api:
        require_exactly(api, STEPS)
        require_taken(api, STEPS)
        require_exactly(api, STEPS + 1)


def test_a_worker_that_stands_still_with_the_lock_keeps_others_no_longer_than_the_wait(
    url: str, tmp_path: Path
) -> None:
    with (
        trapped(url, tmp_path, "commit", "SIGSTOP", wait_seconds=0.8) as (server, trap),
        client_of(server) as stopping,
        serving(url) as api,
    ):
        begin(api, STEPS)
        trap.touch()
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(record, stopping, STEPS)
            wait_until(lambda: not trap.exists())
            require_unavailable(record(api, STEPS))
            require_exactly(api, STEPS)
            if not url.startswith("sqlite"):  # the server ends the session that stands still
                wait_until(lambda: record(api, STEPS).status_code == 201)
            assert server.process is not None
            server.process.send_signal(signal.SIGCONT)
            answer = sent.result()
        assert answer.status_code in ((201, 503) if url.startswith("sqlite") else (503,))
        require_taken(api, STEPS)  # whoever wrote it, it is there once
        require_exactly(api, STEPS + 1)


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_worker_without_memory_refuses_and_goes_on_when_it_has_some(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with trapped(url, tmp_path, "commit", "SIGKILL") as (server, _), client_of(server) as api:
        begin(api, STEPS)
        assert server.process is not None
        pid = server.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_AS)
        # It keeps what it has, and gets nothing more.
        resource.prlimit(pid, resource.RLIMIT_AS, (1, before[1]))
        answers = [large(api, STEPS) for _ in range(ATTEMPTS)]
        taken = [answer is not None and answer.status_code in (200, 201) for answer in answers]
        assert not all(taken)
        if server.process.poll() is None:
            resource.prlimit(pid, resource.RLIMIT_AS, before)
        else:
            server.kill()
            server.start()
            server.wait()
        last = large(api, STEPS)
        assert last is not None
        assert last.status_code == (200 if any(taken) else 201), last.text
        require_exactly(api, STEPS + LINES)


def large(api: httpx.Client, first: int) -> httpx.Response | None:
    """A batch of many different lines; none where the process has died of it."""
    lines = [json.dumps(step(first + number)) + PADDING for number in range(LINES)]
    body = "\n".join(lines)
    try:
        answer = api.post(
            "/v1/runs/run/events", content=body, headers={"Content-Type": "application/x-ndjson"}
        )
    except httpx.TransportError:
        return None
    assert answer.status_code in (200, 201, 500, 503), answer.text
    if answer.status_code == 503:
        require_unavailable(answer)
    return answer


def test_a_writer_that_has_ended_is_told_and_keeps_nobody_waiting(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(_writer: Writer, _group: object) -> None:
        raise SystemExit  # what no handler takes for a failed request

    with serving(f"sqlite:///{file}") as api:
        begin(api, STEPS)
        monkeypatch.setattr(Writer, "_serve", dies)
        monkeypatch.setattr(threading, "excepthook", lambda _: None)
        with ThreadPoolExecutor(4) as pool:
            for answer in pool.map(lambda _: record(api, STEPS), range(4)):
                require_unavailable(answer)
        assert "has stopped" in require_unavailable(record(api, STEPS))
        ready = api.get("/readyz")
        require_unavailable(ready)
        assert ready.json()["checks"]["writer"] == "stopped"
        require_exactly(api, STEPS)


def test_a_request_that_finds_no_memory_is_told_to_come_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starved(_given: object, *_more: object) -> None:
        raise MemoryError

    with serving(f"sqlite:///{file}") as api:
        begin(api, STEPS)
        for place, name in ((Append, "apply"), (Writer, "_answer")):
            with (
                monkeypatch.context() as patched,
                httpx.Client(base_url=api.base_url, headers=AS_ADMIN) as other,
            ):
                patched.setattr(place, name, starved)
                require_unavailable(record(other, STEPS))
        require_taken(api, STEPS)  # the writer is still there
        require_exactly(api, STEPS + 1)


def test_who_was_told_to_come_again_is_not_recorded_behind_its_back(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, slow, told = UnitOfWork.write, threading.Event(), threading.Event()

    def late(work: UnitOfWork) -> list[int]:
        if not slow.is_set():
            slow.set()
            told.wait()
        return whole(work)

    with serving(f"sqlite:///{file}") as api:
        begin(api, STEPS)
        other = insisted(partial(api.post, "/v1/runs", json=run("other")))
        assert other.status_code in (200, 201)
        monkeypatch.setattr(UnitOfWork, "write", late)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(record, api, STEPS)
            slow.wait()
            body = {"events": [step(0)]}
            second = pool.submit(api.post, "/v1/runs/other/events", json=body)
            try:
                require_unavailable(first.result())  # it is still being written
                require_unavailable(second.result())
            finally:
                told.set()
        answer = insisted(partial(record, api, STEPS))  # which waits for what is being written
        assert answer.status_code == 200
        require_exactly(api, STEPS + 1)
        assert api.get("/v1/runs/other").json()["steps"] == 0
