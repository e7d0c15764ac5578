"""Services that are broken on purpose, each on a database of its own."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest

from benchmarks.fault_postgres import Postgres, own_postgres
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect
from tests.conftest import AS_ADMIN, running

WAIT_SECONDS = 0.4  # for a lock; then the answer is 503

Serving = Callable[[str], AbstractContextManager[httpx.Client]]


@contextmanager
def serving(url: str, *, wait_seconds: float = WAIT_SECONDS) -> Iterator[httpx.Client]:
    """A service in this process that waits for nothing long; its client."""
    engine = connect(url, busy_timeout_seconds=60)
    migrations.upgrade(engine)
    engine.dispose()
    settings = Settings(database_url=url, busy_timeout_seconds=wait_seconds)
    with (
        running(settings) as address,
        httpx.Client(base_url=address, timeout=90, headers=AS_ADMIN) as api,
    ):
        yield api


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question whether a service is ready writes, where the last attempt went wrong."""
    monkeypatch.setattr("service.operations.health.PROBE_GAP_SECONDS", 0.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a SQLite ledger will be."""
    return tmp_path / "ledger.db"


@pytest.fixture(scope="session")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A PostgreSQL server that tests stop and kill; never the one that other tests use."""
    with own_postgres(tmp_path_factory.mktemp("own") / "pg") as server:
        yield server


@pytest.fixture
def postgres(own_server: Postgres) -> Iterator[Postgres]:
    """The same, running, with an empty database."""
    if not own_server.running():
        own_server.start()
    own_server.empty()
    yield own_server
    if not own_server.running():
        own_server.start()
