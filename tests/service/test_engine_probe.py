"""A server that only pretends is found out before it serves: each property is taken away in turn.

The server is a real PostgreSQL; statements to it are rewritten into what such a server would make
of them.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import psycopg
import pytest
from sqlalchemy import Connection, Engine, event, make_url, text

from service.app import create_app
from service.errors import StartupError
from service.operations.diagnostics.database import ledger
from service.settings import Settings
from service.storage import engine_probe, migrations
from service.storage.engine import connect, transaction
from service.storage.engine_probe import require_reliable
from service.storage.tables import installation

Rewrite = tuple[str, str]
TRY: Final = r"pg_try_advisory_xact_lock\("
PRETENDERS: Final[dict[str, tuple[list[Rewrite], str]]] = {
    "old": ([(r"SHOW server_version_num", "SELECT 130000")], "version: it is 130000"),
    "no Unicode": (
        [(r"SHOW server_encoding", "SELECT 'LATIN1'")],
        "encoding: it is LATIN1; make the database with ENCODING 'UTF8'",
    ),
    "locks nothing": (
        [(r"pg_(try_)?advisory_xact_lock(_shared)?\(%\(key\)s\)", "true")],
        "advisory locks: two connections hold",
    ),
    "no exclusive lock": (
        [(r"pg_advisory_xact_lock\(%\(key\)s\)", "true")],
        "advisory locks: two connections hold",
    ),
    "no shared lock": (
        [(r"pg_try_advisory_xact_lock_shared", "pg_try_advisory_xact_lock")],
        "advisory locks: a shared lock excludes",
    ),
    "locks of sessions": (
        [(r"pg_advisory_xact_lock\(", "pg_advisory_lock(")],
        "advisory locks: a lock stays",
    ),
    "no such function": ([(TRY, "pg_no_such_lock(")], "advisory locks: function pg_no_such_lock"),
    "no row locks": ([(r"FOR UPDATE( SKIP LOCKED)?", "")], "row locks: two connections hold"),
    "no trigger on update": (
        [(r"UPDATE entries SET sequence=entries.sequence", "SELECT 1 FROM entries")],
        "insert-only triggers: UPDATE of recorded entries",
    ),
    "no trigger on delete": (
        [(r"DELETE FROM entries", "SELECT 1 FROM entries")],
        "insert-only triggers: DELETE of recorded entries",
    ),
    "another refusal": (
        [(r"DELETE FROM entries", "DELETE FROM no_such_entries")],
        'insert-only triggers: relation "no_such_entries"',
    ),
    "changes nothing": (
        [(r"UPDATE installation SET log_size=installation.log_size", "SELECT 1")],
        "snapshots: a transaction does not see its own change",
    ),
}


def pretend(engine: Engine, rewrites: list[Rewrite]) -> None:
    """Let a server make something else of statements."""

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def rewritten(_one: Any, _two: Any, statement: str, given: Any, *_more: Any) -> Any:
        for pattern, other in rewrites:
            statement = re.sub(pattern, other, statement)
        return statement, {} if "%(" not in statement else given


@pytest.fixture
def postgres(backend_urls: dict[str, str]) -> Iterator[Engine]:
    engine = connect(backend_urls["postgres"])
    yield engine
    engine.dispose()


@pytest.mark.parametrize("kind", PRETENDERS)
def test_a_server_that_pretends_is_refused(postgres: Engine, kind: str) -> None:
    rewrites, told = PRETENDERS[kind]
    pretend(postgres, rewrites)
    with pytest.raises(StartupError, match=re.escape(f"cannot hold a ledger: {told}")):
        require_reliable(postgres)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "EUC_JP"])
def test_a_database_without_unicode_is_refused(backend_urls: dict[str, str], encoding: str) -> None:
    server = make_url(backend_urls["postgres"])
    name = f"{server.database}_encoded"
    plain = server.set(drivername="postgresql").render_as_string(hide_password=False)
    drop = f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode()
    create = f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'".encode()
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(drop)
        connection.execute(create)
        engine = connect(server.set(database=name).render_as_string(hide_password=False))
        try:
            migrations.upgrade(engine)
            with pytest.raises(StartupError, match=f"encoding: it is {encoding}"):
                require_reliable(engine)
        finally:
            engine.dispose()
            connection.execute(drop)


def test_texts_are_sent_as_they_are_whatever_the_environment_says(
    backend_urls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    engine = connect(backend_urls["postgres"])
    with engine.connect() as connection:
        assert connection.execute(text("SELECT :it"), {"it": "für 日本"}).scalar_one() == "für 日本"
    engine.dispose()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("extra_float_digits", "0"),
        ("extra_float_digits", "-10"),
        ("datestyle", "German"),
        ("datestyle", "SQL,DMY"),
        ("standard_conforming_strings", "off"),
        ("bytea_output", "escape"),
        ("client_min_messages", "error"),
    ],
)
def test_nothing_is_read_or_written_otherwise_than_it_is(
    backend_urls: dict[str, str], monkeypatch: pytest.MonkeyPatch, setting: str, value: str
) -> None:
    """A server, a database or a role may set the same; a session's options do it most easily."""
    monkeypatch.setenv("PGOPTIONS", f"-c {setting}={value}")
    number, moment = 0.1 + 0.2, datetime(2026, 3, 4, 5, 6, 7, 890123, UTC)
    hashes, heard = [b"\0\\x'", bytes(range(256))], list[object]()
    engine = connect(backend_urls["postgres"])
    with engine.connect() as connection:
        cursor: Any = connection.connection.cursor()
        cursor.connection.add_notice_handler(heard.append)
        cursor.execute("DO $$ BEGIN RAISE WARNING 'lacking'; END $$")
        cursor.execute("SELECT %s::float8, %s::timestamptz, %s::bytea[]", (number, moment, hashes))
        assert cursor.fetchone() == (number, moment, hashes)
    engine.dispose()
    assert len(heard) == 1


def test_a_reader_without_a_snapshot_is_found(
    postgres: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.storage.engine_probe.snapshot", transaction)
    with pytest.raises(StartupError, match="snapshots: a transaction for reading sees"):
        require_reliable(postgres)


def test_dirty_reads_are_found(postgres: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server here has them: the third who reads is told of a version that is not committed."""
    real, readers = engine_probe._version_of_row, itertools.count()

    def seen(connection: Connection) -> str:
        return "7" if next(readers) == 2 else real(connection)

    monkeypatch.setattr(engine_probe, "_version_of_row", seen)
    with pytest.raises(StartupError, match="snapshots: another connection sees what is not"):
        require_reliable(postgres)


def test_a_commit_that_is_lost_is_found(postgres: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def lost(engine: Engine) -> Iterator[Connection]:
        with transaction(engine) as connection, connection.begin_nested() as undone:
            yield connection
            undone.rollback()

    monkeypatch.setattr("service.storage.engine_probe.transaction", lost)
    with pytest.raises(StartupError, match="snapshots: another connection does not see"):
        require_reliable(postgres)


def test_several_processes_try_it_at_once(engine: Engine) -> None:
    with ThreadPoolExecutor() as pool:
        for tried in [pool.submit(require_reliable, engine) for _ in range(12)]:
            tried.result()


def test_what_is_reliable_is_served_and_unchanged(
    engine: Engine, database_url: str, serve: Callable[..., Any]
) -> None:
    with engine.connect() as connection:
        before = connection.execute(text(f"SELECT * FROM {installation.name}")).one()  # noqa: S608
    require_reliable(engine)
    with engine.connect() as connection:
        after = connection.execute(text(f"SELECT * FROM {installation.name}")).one()  # noqa: S608
    assert before == after
    found = {one.name: one for one in ledger(engine, Settings(database_url=database_url))}
    assert found["engine"].level == "ok"


def test_the_service_does_not_start_on_a_server_that_pretends(
    postgres: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(postgres, PRETENDERS["locks nothing"][0])
    monkeypatch.setattr("service.app.connect", lambda *_given, **_more: postgres)
    settings = Settings(database_url=postgres.url.render_as_string(hide_password=False))
    with pytest.raises(StartupError, match="advisory locks"):
        create_app(settings)
    found = {one.name: one for one in ledger(postgres, settings)}
    assert found["engine"].level == "fail"
