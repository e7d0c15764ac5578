"""Several processes on one database: a key that is over is refused by all of them in a second."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from sqlalchemy import Engine, update

from benchmarks import servers
from service.clock import now
from service.identity.keys import Role, Terms, create_key, revoke_key
from service.storage.engine import transaction
from service.storage.tables import api_keys
from tests.service.test_keys import bearer

WORKERS: Final = 2
WITHIN_SECONDS: Final = 1.0
AFTER: Final = 5  # answers of each process that are looked at, behind the second
PATIENCE_SECONDS: Final = 60.0


@dataclass
class Watch:
    """What one process answers to a key: when each request was sent, and the status."""

    port: int
    key: str
    answers: list[tuple[float, int]] = field(default_factory=list)

    def after(self, moment: float) -> list[int]:
        return [status for sent, status in tuple(self.answers) if sent >= moment]

    def ask(self, stopped: threading.Event) -> None:
        with httpx.Client(headers=bearer(self.key), timeout=30) as api:
            while not stopped.is_set():
                sent = time.time()
                status = api.get(f"http://127.0.0.1:{self.port}/v1/acts").status_code
                self.answers.append((sent, status))
                stopped.wait(0.02)


@contextmanager
def asking(watches: list[Watch]) -> Iterator[None]:
    stopped = threading.Event()
    threads = [threading.Thread(target=watch.ask, args=(stopped,)) for watch in watches]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def wait_for(watches: list[Watch], moment: float, *, status: int | None = None) -> None:
    """Until every process has answered often enough to what was sent after a moment."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(
        sum(status in (None, one) for one in watch.after(moment)) < AFTER for watch in watches
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def make(engine: Engine, name: str, **terms: Any) -> str:
    with transaction(engine) as connection:
        return create_key(connection, name=name, scope=Role.ADMIN, terms=Terms(**terms))


@pytest.fixture
def workers(engine: Engine, database_url: str, tmp_path: Path) -> Iterator[list[servers.Server]]:
    make(engine, "first")
    processes = [servers.service(database_url, tmp_path) for _ in range(WORKERS)]
    with servers.running(*processes):
        yield processes


def test_a_key_that_is_revoked_or_expires_is_refused_by_every_process_within_a_second(
    engine: Engine, workers: list[servers.Server]
) -> None:
    leaked = make(engine, "leaked")
    short = make(engine, "short", expires_at=now() + timedelta(hours=1))
    of_leaked = [Watch(worker.port, leaked) for worker in workers]
    of_short = [Watch(worker.port, short) for worker in workers]
    with asking(of_leaked + of_short):
        wait_for(of_leaked + of_short, 0.0, status=200)
        expires_at = now() + timedelta(seconds=3)
        with transaction(engine) as connection:
            ends = update(api_keys).where(api_keys.c.name == "short")
            connection.execute(ends.values(expires_at=expires_at))
        with transaction(engine) as connection:
            revoke_key(connection, "leaked")
        revoked_at = time.time()
        wait_for(of_leaked, revoked_at + WITHIN_SECONDS)
        wait_for(of_short, expires_at.timestamp())
    for watch in of_leaked:
        assert set(watch.after(revoked_at + WITHIN_SECONDS)) == {401}
        assert {status for _, status in watch.answers} == {200, 401}
    for watch in of_short:
        assert set(watch.after(expires_at.timestamp())) == {401}  # at once: the clock decides
        assert {status for _, status in watch.answers} == {200, 401}
