"""Connections and transactions: the only file that knows which database it is."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from service.errors import DamagedError, StartupError, UnavailableError
from service.settings import ADDRESS_FORMS, address_of
from service.storage.driver_errors import (
    DATABASE_DAMAGED,
    DRIVER_ERRORS,
    SQLITE_BROKEN,
    UNAVAILABLE,
    sqlite_code,
    translated_errors,
)
from service.storage.postgres_session import PostgresSession, connect_to_primary
from service.storage.sqlite_file import LedgerFile, OpenFile
from service.storage.write_health import Attempts

_IDLE_SECONDS = 5.0  # after which a connection is looked at before it is used
POOL_SIZE = 16  # connections kept; requests beyond wait for one
_READ_ONLY = "dpledger_read_only"
_FILE = "dpledger_file"  # what a connection to SQLite has opened
_WAIT = "dpledger_wait"  # seconds that a thread waits for its turn to write
_ATTEMPTS = "dpledger_attempts"  # to write, of one engine
_DEDICATED = "dpledger_dedicated"  # a connection that begins on the driver's own cursor
# A worker that stands still in the middle of a transaction holds a dataset's lock no longer than
# so many times what others wait for it; what it did by then is undone.
STANDSTILL: Final = 6
STANDSTILL_SECONDS_MIN: Final = 5.0
SILENCE: Final = 3  # waits without a word, after which a server is left
SILENCE_SECONDS_MIN: Final = 5.0
_WHOLE: Final = 5_701_482  # the number by which PostgreSQL knows the lock of the whole ledger
# How a dedicated connection begins: in PostgreSQL a second statement would wait for an answer more.
_BEGIN: Final = {
    "sqlite": "BEGIN IMMEDIATE",
    "postgresql": f"BEGIN; SELECT pg_advisory_xact_lock_shared({_WHOLE})",
}
_KEEPALIVES: Final = 3  # without an answer, after which a server is gone


def connect(
    url: str, *, busy_timeout_seconds: float = 10.0, new: bool = False, serving: bool = False
) -> Engine:
    """An engine for a SQLite file or a Postgres server.

    Args:
        url: where it is.
        busy_timeout_seconds: how long to wait for a lock, a connection or a turn.
        new: whether a SQLite ledger may be begun where there was one before.
        serving: whether a connection is left to a PostgreSQL server that says nothing for three
            waits; a migration or a verification may wait longer for one statement.

    Raises:
        StartupError: the address is neither.
    """
    address = address_of(url)
    kind = address.get_backend_name()
    if kind == "sqlite":
        engine = _sqlite(address, busy_timeout_seconds, new=new)
    elif kind == "postgresql":
        engine = _postgres(address, busy_timeout_seconds, serving=serving)
    else:
        raise StartupError(ADDRESS_FORMS)
    return engine


def wait_of(engine: Engine) -> float:
    """The seconds that locks, connections and turns are waited for."""
    return float(engine.get_execution_options()[_WAIT])


def attempts_of(engine: Engine) -> Attempts:
    """How writing goes through this engine."""
    found: Attempts = engine.get_execution_options()[_ATTEMPTS]
    return found


def sqlite_path(engine: Engine) -> Path | None:
    """The file of a SQLite database."""
    return Path(engine.url.database or "") if engine.dialect.name == "sqlite" else None


def _sqlite(address: URL, wait: float, *, new: bool) -> Engine:
    if not address.database or address.database == ":memory:":
        raise StartupError("database_url: SQLite needs a file; memory forgets the ledger.")
    engine = create_engine(
        address.set(drivername="sqlite+pysqlite"),
        pool_size=POOL_SIZE,
        max_overflow=POOL_SIZE,
        pool_timeout=wait,
        execution_options={_WAIT: wait, _ATTEMPTS: Attempts()},
        connect_args={"timeout": wait, "check_same_thread": False, "uri": True},
    )
    file = LedgerFile(Path(address.database), new=new)

    def place(_dialect: Any, _record: Any, arguments: list[Any], _given: Any) -> None:
        arguments[0] = file.address()

    def opened(connection: Any, record: Any) -> None:
        try:
            _sqlite_on_connect(connection)
        except sqlite3.Error as error:
            if sqlite_code(error) in SQLITE_BROKEN:  # a new connection reads the first page at once
                raise file.condemn(DATABASE_DAMAGED) from error
            raise
        record.info[_FILE] = file.opened()

    event.listen(engine, "do_connect", place)
    event.listen(engine, "connect", opened)
    event.listen(engine, "begin", _sqlite_on_begin)
    return engine


def _postgres(address: URL, wait: float, *, serving: bool) -> Engine:
    wait_ms = int(wait * 1000)
    standstill_ms = int(1000 * max(STANDSTILL_SECONDS_MIN, STANDSTILL * wait))
    seconds = max(1, int(wait))
    chosen: dict[str, Any] = {
        "connect_timeout": seconds,
        # A network that swallows everything would be waited for as long as for a quarter hour.
        "tcp_user_timeout": wait_ms,
        "keepalives_idle": seconds,
        "keepalives_interval": seconds,
        "keepalives_count": _KEEPALIVES,
    }
    engine = create_engine(
        address.set(drivername="postgresql+psycopg"),
        pool_size=POOL_SIZE,
        max_overflow=POOL_SIZE,
        pool_timeout=wait,
        pool_pre_ping=True,
        execution_options={_WAIT: wait, _ATTEMPTS: Attempts()},
        connect_args={name: value for name, value in chosen.items() if name not in address.query},
    )
    # By then every append that waits was answered 503.
    limit = max(SILENCE_SECONDS_MIN, SILENCE * wait) if serving else None

    # A server that is only read from may be behind: its numbers would be too low.
    any_server = "target_session_attrs" in address.query

    def begin(session: PostgresSession) -> bool:
        writes = session.begin(limit_seconds=limit, lock_ms=wait_ms, idle_ms=standstill_ms)
        return writes or any_server

    def opened(_dialect: Any, _record: Any, _given: Any, arguments: Any) -> PostgresSession:
        return connect_to_primary(arguments, begin)

    event.listen(engine, "do_connect", opened)
    return engine


def _sqlite_on_connect(connection: Any) -> None:
    # SQLAlchemy begins transactions itself (below); sqlite3 must not begin its own.
    connection.isolation_level = None
    cursor = connection.cursor()
    # Without the last, INSERT OR REPLACE would delete a fact and no trigger would know.
    for pragma in (
        "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "recursive_triggers=ON",
    ):  # fmt: skip
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _sqlite_on_begin(connection: Connection) -> None:
    # A deferred transaction that reads, then writes, fails when another wrote in between.
    options = connection.get_execution_options()
    if not options.get(_DEDICATED, False):
        _require_same(connection)
        driver: Any = connection.connection.driver_connection
        driver.execute("BEGIN" if options.get(_READ_ONLY, False) else _BEGIN["sqlite"])


def _require_same(connection: Connection) -> None:
    """Refuse to go on, or to acknowledge, where the file of SQLite is not there any more."""
    opened: OpenFile | None = connection.info.get(_FILE)
    if opened is not None:
        opened.require_same()


def _require_replicated(connection: Connection) -> None:
    """Do not acknowledge a commit that a standby was to have and may not have.

    What is sent again waits anew: its transaction locks a row, so that its commit is replicated.
    """
    if getattr(connection.connection.driver_connection, "unreplicated", False):
        raise UnavailableError(UNAVAILABLE)


# Threads of one process queue here rather than poll SQLite's lock, which is unfair and slow.
_writing = threading.Lock()


@contextmanager
def _turn(engine: Engine) -> Iterator[None]:
    """Wait for the turn to write, no longer than for a lock of the database."""
    if engine.dialect.name != "sqlite":
        yield
        return
    if not _writing.acquire(timeout=wait_of(engine)):
        raise UnavailableError(UNAVAILABLE)
    try:
        yield
    finally:
        _writing.release()


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """A unit of work: committed when the block ends, rolled back when it raises.

    Raises:
        UnavailableError: the database is locked, unreachable or restarted; nothing was written
            unless the commit itself was cut off, in which case sending again is harmless.
    """
    with attempts_of(engine).one(), _turn(engine), _answering(engine) as connection:
        yield connection


def hold(connection: Connection, *, alone: bool = False) -> None:
    """Hold the whole ledger until the transaction ends: with others who write, or alone.

    No row is written or locked for it. What is read after it was there when it was taken. SQLite
    has one writer at a time, who is always alone.
    """
    dedicated = connection.get_execution_options().get(_DEDICATED, False)
    if connection.dialect.name == "postgresql" and (alone or not dedicated):
        shared = "" if alone else "_shared"
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock{shared}({_WHOLE})")


class DedicatedConnection:
    """A connection that stays open between the transactions of one thread.

    Taking one from the pool and giving it back costs as much as a small transaction, and so does
    what SQLAlchemy does to begin and to commit. Each transaction holds the ledger with others who
    write, as `hold` does.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None
        self._used_at = 0.0

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A unit of work, as `transaction`."""
        # A server that was restarted meanwhile is found out by the pool, not by a request.
        if time.monotonic() - self._used_at > _IDLE_SECONDS:
            self.close()
        with attempts_of(self._engine).one(), _turn(self._engine):
            try:
                with translated_errors():
                    if self._connection is None:
                        self._connection = _dedicated(self._engine)
                with _unit(self._connection):
                    yield self._connection
            except BaseException:
                self.close()
                raise
        self._used_at = time.monotonic()

    def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with suppress(DBAPIError, *DRIVER_ERRORS):
                connection.close()


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """A consistent view for reading."""
    read_only: dict[str, Any] = {_READ_ONLY: True}
    if engine.dialect.name == "postgresql":
        read_only = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    reader = engine.execution_options(**read_only)
    with attempts_of(engine).reading(), _answering(reader) as connection:
        yield connection


@contextmanager
def _answering(engine: Engine) -> Iterator[Connection]:
    with translated_errors():
        connection = engine.connect()
    try:
        with _unit(connection):
            yield connection
    finally:
        with suppress(DBAPIError, *DRIVER_ERRORS):
            connection.close()


@contextmanager
def _unit(connection: Connection) -> Iterator[None]:
    """A transaction on a connection, which is not used again if the database failed in it."""
    try:
        with translated_errors():
            with _begun(connection):
                yield
            _require_same(connection)
            _require_replicated(connection)
    except UnavailableError as error:
        if not connection.closed and not connection.invalidated:
            _let_go(connection, error)
        raise


def _dedicated(engine: Engine) -> Connection:
    options: dict[str, Any] = {_DEDICATED: True}
    if engine.dialect.name == "postgresql":
        options["isolation_level"] = "AUTOCOMMIT"  # the driver sends no BEGIN of its own
    return engine.connect().execution_options(**options)


@contextmanager
def _begun(connection: Connection) -> Iterator[None]:
    """A transaction, on the driver's own cursor where the connection is dedicated."""
    if not connection.get_execution_options().get(_DEDICATED, False):
        with connection.begin():
            yield
        return
    _require_same(connection)
    _order(connection, _BEGIN[connection.dialect.name])
    try:
        yield
        _commit(connection)
    except BaseException:
        with suppress(*DRIVER_ERRORS):
            _order(connection, "ROLLBACK")
        raise


def _commit(connection: Connection) -> None:
    """Commit what a dedicated connection has begun."""
    done = _order(connection, "COMMIT")
    # PostgreSQL answers ROLLBACK, and no error, where a statement had failed before.
    if connection.dialect.name == "postgresql" and done.statusmessage != "COMMIT":
        raise UnavailableError(UNAVAILABLE)


def _order(connection: Connection, statement: str) -> Any:
    """Send what begins or ends a transaction, in one message: to prepare it would take two."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "postgresql":
        return driver.execute(statement, prepare=False)
    return driver.execute(statement)


def _let_go(connection: Connection, error: UnavailableError) -> None:
    opened: OpenFile | None = connection.info.get(_FILE)
    if opened is None:
        # It may lead to a server that is none any more, or that only copies another.
        connection.invalidate()
    elif isinstance(error, DamagedError):
        opened.file.condemn(error.detail)
    elif sqlite_code(error.__cause__) == sqlite3.SQLITE_FULL:
        _make_room(connection)


def _make_room(connection: Connection) -> None:
    """Move SQLite's log into its file, so that the log's room is used again.

    SQLite does so after every thousandth page that is committed, which a full disk may never see.
    """
    driver: Any = connection.connection.driver_connection
    with suppress(sqlite3.Error):  # the disk is full, or another connection reads
        driver.execute("PRAGMA wal_checkpoint(PASSIVE)")


def upsert(dialect_name: str, table: Table) -> Any:
    """An insert that can say what to do about a row that is there: `on_conflict_do_...`."""
    dialect = postgresql if dialect_name == "postgresql" else sqlite
    return dialect.insert(table)
