"""A service that is told to end says so first, answers still, and loses nothing."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner

from benchmarks.servers import free_port
from service.cli.main import app
from tests.conftest import AS_ADMIN
from tests.service.dumps import dump
from tests.service.samples import append, dataset, event, run

WAIT_SECONDS = 120.0
LONG = 300.0  # to drain; a test that waited for it would fail
TRAINERS = 4


@dataclass(slots=True, kw_only=True)
class Process:
    """`dpledger serve` as a process of its own."""

    address: str
    process: subprocess.Popen[bytes]

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def status(self, path: str = "/readyz") -> int:
        """What it answers on a new connection; 0 when there is none to be had."""
        try:
            return httpx.get(f"{self.address}{path}", headers=AS_ADMIN).status_code
        except httpx.TransportError:
            return 0


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def started(database_url: str, **settings: object) -> Iterator[Process]:
    port = free_port()
    given = {f"DPLEDGER_{name.upper()}": str(value) for name, value in settings.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "service.cli.main", "serve", "--port", str(port)],
        env=os.environ | {"DPLEDGER_DATABASE_URL": database_url} | given,
        stderr=subprocess.DEVNULL,
    )
    try:
        found = Process(address=f"http://127.0.0.1:{port}", process=process)
        wait_until(lambda: found.status() == 200)
        yield found
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """A database of the test's own, where it makes no difference which kind it is."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@dataclass(slots=True)
class Trainer:
    """Records step after step until nobody answers, each over a connection that stays open."""

    address: str
    run: str
    acknowledged: int = 0
    answers: Counter[int] = field(default_factory=Counter)

    def train(self) -> None:
        with (
            httpx.Client(base_url=self.address, headers=AS_ADMIN) as api,
            suppress(httpx.TransportError),
        ):
            while True:
                answer = append(api, event(self.acknowledged, 1), run=self.run)
                self.answers[answer.status_code] += 1
                self.acknowledged += answer.status_code == 201


def prepared(address: str, runs: int) -> list[Trainer]:
    trainers = [Trainer(address, f"run-{number}") for number in range(runs)]
    with httpx.Client(base_url=address, headers=AS_ADMIN) as api:
        assert api.post("/v1/datasets", json=dataset()).status_code == 201
        for one in trainers:
            assert api.post("/v1/runs", json=run(one.run)).status_code == 201
    return trainers


def test_under_load_it_is_unready_at_once_answers_still_and_loses_nothing(
    database_url: str, engine: Engine
) -> None:
    with started(database_url, drain_seconds=LONG) as served:
        trainers = prepared(served.address, TRAINERS)
        threads = [threading.Thread(target=one.train) for one in trainers]
        for thread in threads:
            thread.start()
        wait_until(lambda: all(one.acknowledged for one in trainers))
        served.end()
        wait_until(lambda: served.status() == 503)  # a new connection, and it is answered
        refused = httpx.get(f"{served.address}/readyz")
        assert "draining" in refused.json()["detail"]
        assert "database" not in refused.json()["title"]
        assert refused.headers["retry-after"]
        assert served.status("/healthz") == 200
        before = {one.run: one.acknowledged for one in trainers}
        wait_until(lambda: all(one.acknowledged > before[one.run] for one in trainers))
        served.end()  # a second time: it does not wait any longer
        for thread in threads:
            thread.join(WAIT_SECONDS)
        assert served.process.wait(WAIT_SECONDS) == 0
    assert [set(one.answers) for one in trainers] == [{201}] * TRAINERS
    recorded = sum(row[5] for row in dump(engine)["entries"])
    acknowledged = sum(one.acknowledged for one in trainers)
    # The last step of each trainer may have been recorded and its answer not been read.
    assert acknowledged <= recorded <= acknowledged + TRAINERS


def test_streams_end_as_soon_as_it_drains_and_no_other_begins(file_url: str) -> None:
    with started(file_url, drain_seconds=LONG) as served:
        prepared(served.address, 1)
        with httpx.stream(
            "GET", f"{served.address}/v1/runs/run-0/stream", timeout=60, headers=AS_ADMIN
        ) as stream:
            chunks = stream.iter_bytes()
            next(chunks)
            served.end()
            for _ in chunks:  # until it is ended; a stream that stays open would time out
                pass
        assert served.process.poll() is None
        assert served.status("/v1/runs/run-0/stream") == 503


def test_it_ends_by_itself_when_the_time_is_over(file_url: str) -> None:
    with started(file_url, drain_seconds=0.5) as served:
        served.end()
        assert served.process.wait(WAIT_SECONDS) == 0


def test_an_interrupted_service_does_not_drain(file_url: str) -> None:
    with started(file_url, drain_seconds=LONG) as served:
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(WAIT_SECONDS) == 0


def test_a_request_that_never_ends_holds_up_the_end_no_longer_than_was_set(
    file_url: str,
) -> None:
    with started(file_url, shutdown_seconds=1) as served:
        prepared(served.address, 1)
        held = threading.Event()

        def slow() -> Iterator[bytes]:
            yield b'{"events": ['
            held.wait(WAIT_SECONDS)
            yield b"]}"

        def send() -> None:
            with suppress(httpx.TransportError):
                httpx.post(
                    f"{served.address}/v1/runs/run-0/events",
                    content=slow(),
                    headers=AS_ADMIN | {"content-type": "application/json"},
                )

        thread = threading.Thread(target=send)
        thread.start()
        time.sleep(0.3)  # until its first part has arrived
        served.end()
        assert served.process.wait(WAIT_SECONDS) == 0
        held.set()
        thread.join()


@pytest.mark.parametrize("value", ["-1", "301", "nan"])
def test_a_time_to_drain_that_makes_no_sense_is_refused(value: str) -> None:
    result = CliRunner().invoke(app, ["serve"], env={"DPLEDGER_DRAIN_SECONDS": value})
    assert result.exit_code == 2
    assert result.stderr.startswith("DPLEDGER_DRAIN_SECONDS")
