"""Connections and transactions: the only file that knows which database it is."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final

import psycopg
from sqlalchemy import Connection, Engine, Table, create_engine, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from service.errors import StartupError, UnavailableError

IDLE_SECONDS = 5.0  # after which a connection is looked at before it is used
POOL_SIZE = 16  # connections kept; requests beyond wait for one
ADDRESS_FORMS = "database_url: sqlite:///FILE or postgresql://USER@HOST/NAME."
_READ_ONLY = "dpledger_read_only"
_UNAVAILABLE = "The database does not answer now; send the same request again."


# What drivers say themselves, where statements went to them directly.
_DRIVERS: Final = (sqlite3.OperationalError, psycopg.OperationalError)


def connect(url: str, *, busy_timeout_seconds: float = 10.0) -> Engine:
    """An engine for a SQLite file or a Postgres server.

    Raises:
        StartupError: the address is neither.
    """
    try:
        address = make_url(url)
    except ArgumentError:
        raise StartupError(ADDRESS_FORMS) from None
    timeout_ms = int(busy_timeout_seconds * 1000)
    if address.get_backend_name() == "sqlite":
        if not address.database or address.database == ":memory:":
            raise StartupError("database_url: SQLite needs a file; memory forgets the ledger.")
        engine = create_engine(
            address.set(drivername="sqlite+pysqlite"),
            pool_size=POOL_SIZE,
            max_overflow=POOL_SIZE,
            pool_timeout=busy_timeout_seconds,
            connect_args={"timeout": busy_timeout_seconds, "check_same_thread": False},
        )
        event.listen(engine, "connect", _sqlite_on_connect)
        event.listen(engine, "begin", _sqlite_on_begin)
        return engine
    if address.get_backend_name() == "postgresql":
        return create_engine(
            address.set(drivername="postgresql+psycopg"),
            pool_size=POOL_SIZE,
            max_overflow=POOL_SIZE,
            pool_timeout=busy_timeout_seconds,
            pool_pre_ping=True,
            connect_args={
                "connect_timeout": max(1, int(busy_timeout_seconds)),
                "options": f"-c lock_timeout={timeout_ms} -c timezone=UTC",
            },
        )
    raise StartupError(ADDRESS_FORMS)


def _sqlite_on_connect(connection: Any, _record: Any) -> None:
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
    read_only = connection.get_execution_options().get(_READ_ONLY, False)
    driver = connection.connection.driver_connection
    driver.execute("BEGIN" if read_only else "BEGIN IMMEDIATE")  # type: ignore[union-attr]


# Threads of one process queue here rather than poll SQLite's lock, which is unfair and slow.
_writing = threading.Lock()


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """A unit of work: committed when the block ends, rolled back when it raises.

    Raises:
        UnavailableError: the database is locked, unreachable or restarted; nothing was written
            unless the commit itself was cut off, in which case sending again is harmless.
    """
    if engine.dialect.name == "sqlite":
        with _writing, _answering(engine) as connection:
            yield connection
    else:
        with _answering(engine) as connection:
            yield connection


class Line:
    """A connection that stays open between the transactions of one thread.

    Taking one from the pool and giving it back costs as much as a small transaction.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None
        self._used_at = 0.0

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A unit of work, as `transaction`."""
        # A server that was restarted meanwhile is found out by the pool, not by a request.
        if time.monotonic() - self._used_at > IDLE_SECONDS:
            self.close()
        with _writing if self._engine.dialect.name == "sqlite" else nullcontext():
            try:
                with _translated():
                    if self._connection is None:
                        self._connection = self._engine.connect()
                    with self._connection.begin():
                        yield self._connection
            except BaseException:
                self.close()
                raise
        self._used_at = time.monotonic()

    def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with suppress(DBAPIError, *_DRIVERS):
                connection.close()


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """A consistent view for reading."""
    read_only: dict[str, Any] = {_READ_ONLY: True}
    if engine.dialect.name == "postgresql":
        read_only = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    with _answering(engine.execution_options(**read_only)) as connection:
        yield connection


@contextmanager
def _answering(engine: Engine) -> Iterator[Connection]:
    with _translated(), engine.begin() as connection:
        yield connection


@contextmanager
def _translated() -> Iterator[None]:
    """Say what a driver's failure is for a caller."""
    try:
        yield
    except (OperationalError, PoolTimeoutError, *_DRIVERS) as error:
        raise UnavailableError(_UNAVAILABLE) from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise UnavailableError(_UNAVAILABLE) from error
        raise


def upsert(dialect_name: str, table: Table) -> Any:
    """An insert that can say what to do about a row that is there: `on_conflict_do_...`."""
    dialect = postgresql if dialect_name == "postgresql" else sqlite
    return dialect.insert(table)


def ping(engine: Engine) -> None:
    """Ask the database for an answer.

    Raises:
        UnavailableError: it gives none.
    """
    with snapshot(engine) as connection:
        connection.execute(text("SELECT 1"))
