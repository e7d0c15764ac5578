"""Transactions, and what a failure of the database is for a caller.

`sqlite` and `postgres` make the connections; the latter, 10 MiB, is loaded where it is used.
"""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Dialect, Engine, Table, event
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from service.errors import DamagedError, StartupError, UnavailableError
from service.settings import ADDRESS_FORMS, address_of
from service.storage.sqlite import (
    DATABASE_DAMAGED,
    OPEN_FILE,
    SQLITE_BROKEN,
    OpenFile,
    make_room,
    sqlite_code,
    sqlite_engine,
)

UNAVAILABLE = "The database does not answer now; send the same request again."
_REFUSED = "The database does not let the service's role do this; its operator has to see to it."
# Of PostgreSQL's errors by their codes: not the primary server any more, and a transaction that the
# server ended because it took too long.
_ELSEWHERE: Final = frozenset({"25006", "25P03", "25P04"})
_NOT_ALLOWED: Final = "42501"  # a right that the service's role has not, or no more
_BROKEN: Final = "XX"  # a page or an index that is not what it should be
FAILED: Final = "a write failed"
WAITING: Final = "a write waits"
_IDLE_SECONDS = 5.0  # after which a connection is looked at before it is used
POOL_SIZE = 16  # connections kept; requests beyond wait for one
_READ_ONLY = "dpledger_read_only"
_WAIT = "dpledger_wait"  # seconds that a thread waits for its turn to write
_ATTEMPTS = "dpledger_attempts"  # to write, of one engine
_DEDICATED = "dpledger_dedicated"  # a connection that begins on the driver's own cursor
_WHOLE: Final = 5_701_482  # the number by which PostgreSQL knows the lock of the whole ledger
# How a dedicated connection begins: in PostgreSQL a second statement would wait for an answer more.
_BEGIN: Final = {
    "sqlite": "BEGIN IMMEDIATE",
    "postgresql": f"BEGIN; SELECT pg_advisory_xact_lock_shared({_WHOLE})",
}


class Attempts:
    """Attempts to write to one database."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.read_failures = 0  # of the database, since this process started, as are the next
        self.write_failures = 0
        self._failed = False
        self._begun: dict[object, float] = {}

    @contextmanager
    def one(self) -> Iterator[None]:
        """Attempt to write; a failure of the database is noted.

        Success is not: a small write succeeds on a disk that has no room for a large one.
        """
        mark = object()
        with self._lock:
            self._begun[mark] = time.monotonic()
        try:
            yield
        except UnavailableError as error:
            # What refuses without a driver's failure behind it says nothing of the database.
            if error.__cause__ is not None:
                with self._lock:
                    self._failed = True
                    self.write_failures += 1
            raise
        finally:
            with self._lock:
                del self._begun[mark]

    def mended(self, failures: int) -> None:
        """Note that as much was written as a large append takes.

        Args:
            failures: `write_failures` before it was tried; what failed meanwhile still counts.
        """
        with self._lock:
            if self.write_failures == failures:
                self._failed = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read; whether the database failed is noted."""
        try:
            yield
        except UnavailableError as error:
            if error.__cause__ is not None:
                self.read_failures += 1
            raise

    def trouble(self, seconds_max: float) -> str | None:
        """What is wrong, or nothing; an attempt that takes longer than so long waits."""
        if self._failed:
            return FAILED
        with self._lock:
            first = min(self._begun.values(), default=None)
        return WAITING if first is not None and time.monotonic() - first > seconds_max else None


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
    address, wait = address_of(url), busy_timeout_seconds
    kind = address.get_backend_name()
    pool: dict[str, Any] = {
        "pool_size": POOL_SIZE,
        "max_overflow": POOL_SIZE,
        "pool_timeout": wait,
        "execution_options": {_WAIT: wait, _ATTEMPTS: Attempts()},
    }
    if kind == "sqlite":
        engine = sqlite_engine(address, wait, new=new, **pool)
        event.listen(engine, "begin", _sqlite_on_begin)
    elif kind == "postgresql":
        from service.storage.postgres import postgres_engine

        engine = postgres_engine(address, wait, serving=serving, **pool)
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


def _sqlite_on_begin(connection: Connection) -> None:
    # A deferred transaction that reads, then writes, fails when another wrote in between.
    options = connection.get_execution_options()
    if not options.get(_DEDICATED, False):
        _require_same(connection)
        driver: Any = connection.connection.driver_connection
        driver.execute("BEGIN" if options.get(_READ_ONLY, False) else _BEGIN["sqlite"])


def _require_same(connection: Connection) -> None:
    """Refuse to go on, or to acknowledge, where the file of SQLite is not there any more."""
    opened: OpenFile | None = connection.info.get(OPEN_FILE)
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
                with _translated_errors(self._engine.dialect):
                    if self._connection is None:
                        self._connection = _open_dedicated(self._engine)
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
            with suppress(DBAPIError, connection.dialect.loaded_dbapi.Error):
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
    with _translated_errors(engine.dialect):
        connection = engine.connect()
    try:
        with _unit(connection):
            yield connection
    finally:
        with suppress(DBAPIError, engine.dialect.loaded_dbapi.Error):
            connection.close()


@contextmanager
def _unit(connection: Connection) -> Iterator[None]:
    """A transaction on a connection, which is not used again if the database failed in it."""
    try:
        with _translated_errors(connection.dialect):
            with _in_transaction(connection):
                yield
            _require_same(connection)
            _require_replicated(connection)
    except UnavailableError as error:
        if not connection.closed and not connection.invalidated:
            _let_go(connection, error)
        raise


@contextmanager
def _translated_errors(dialect: Dialect) -> Iterator[None]:
    """Say what a driver's failure is for a caller; some statements go to it directly."""
    try:
        yield
    except (PoolTimeoutError, DBAPIError, dialect.loaded_dbapi.Error) as error:
        refusal = _refusal(error, dialect.loaded_dbapi)
        if refusal is None:
            raise
        raise refusal from error


def _refusal(error: Exception, driver: Any) -> UnavailableError | None:
    """What a driver's failure is for a caller; none of a defect of ours."""
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, sqlite3.Error):
        if sqlite_code(original) in SQLITE_BROKEN:
            return DamagedError(DATABASE_DAMAGED)
        lost = isinstance(original, sqlite3.OperationalError)
        return UnavailableError(UNAVAILABLE) if lost else None
    if isinstance(original, driver.Error):
        code = original.sqlstate or ""
        if code.startswith(_BROKEN):
            return DamagedError(DATABASE_DAMAGED)
        if code == _NOT_ALLOWED:
            return UnavailableError(_REFUSED)
        lost = isinstance(original, driver.InterfaceError | driver.OperationalError)
        return UnavailableError(UNAVAILABLE) if lost or code in _ELSEWHERE else None
    return UnavailableError(UNAVAILABLE)  # no connection was free


def _open_dedicated(engine: Engine) -> Connection:
    options: dict[str, Any] = {_DEDICATED: True}
    if engine.dialect.name == "postgresql":
        options["isolation_level"] = "AUTOCOMMIT"  # the driver sends no BEGIN of its own
    return engine.connect().execution_options(**options)


@contextmanager
def _in_transaction(connection: Connection) -> Iterator[None]:
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
        # The second: the server has ended it.
        with suppress(connection.dialect.loaded_dbapi.Error, PendingRollbackError):
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
    opened: OpenFile | None = connection.info.get(OPEN_FILE)
    if opened is None:
        # It may lead to a server that is none any more, or that only copies another.
        connection.invalidate()
    elif isinstance(error, DamagedError):
        opened.file.condemn(error.detail)
    elif sqlite_code(error.__cause__) == sqlite3.SQLITE_FULL:
        make_room(connection)


def upsert(dialect_name: str, table: Table) -> Any:
    """An insert that can say what to do about a row that is there: `on_conflict_do_...`."""
    if dialect_name == "postgresql":
        from sqlalchemy.dialects import postgresql  # its engine has loaded it

        return postgresql.insert(table)
    return sqlite.insert(table)
