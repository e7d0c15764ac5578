"""Connections to SQLite, and its file: may it be begun, and is it still the one in use?

A process that has a file open continues to read and write it after it was removed or replaced,
and SQLite does not say so: what it acknowledged then would be gone. So its place is looked at
before each transaction, and once more before what was committed is acknowledged.
"""

import logging
import os
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from service.errors import DamagedError, StartupError, UnavailableError

KEY_SUFFIX: Final = ".signing_key"  # of the file that is made beside a database when it is served
_WAL_SUFFIX: Final = "-wal"
DATABASE_DAMAGED = (
    "The database is damaged: what it says is not answered, and nothing is written to it."
)
SQLITE_BROKEN: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PRIMARY: Final = 0xFF  # of an extended code of an error
OPEN_FILE: Final = "dpledger_file"  # of a connection: the OpenFile that it has
_LOGGER = logging.getLogger("dpledger.database")

Identity = tuple[int, int]  # device and inode


def beside(path: Path, suffix: str) -> Path:
    """The file that is named after another."""
    return path.with_name(path.name + suffix)


def is_blank(path: Path) -> bool:
    """Whether there is no file in a folder that is there, or one without a byte."""
    return path.parent.is_dir() and (not path.exists() or path.stat().st_size == 0)


def find_earlier_ledger(path: Path) -> Path | None:
    """What shows that a ledger was kept at a path before, whatever is there now."""
    key, log = beside(path, KEY_SUFFIX), beside(path, _WAL_SUFFIX)
    if key.exists():
        return key
    # Beside a file with a page in it, the log may be that of a process that begins the ledger now.
    return log if is_blank(path) and log.exists() and log.stat().st_size else None


def require_unused(path: Path) -> None:
    """Refuse to begin a ledger where there was one.

    Raises:
        StartupError: something of it is still there.
    """
    if found := find_earlier_ledger(path):
        raise StartupError(
            f"There was a ledger at {path}, for {found.name} is there, and it is gone or empty. "
            "Bring it back: mount the right folder, or restore a backup. To begin a new ledger in "
            "its place, without what was spent, run `dpledger migrate --new`."
        )


class LedgerFile:
    """The file behind an engine."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        self.path = path
        self.new = new  # whether a ledger may be begun where there was one
        self._lock = threading.Lock()
        self._identity: Identity | None = None
        self._size = 0
        self._damage = ""

    def address(self) -> str:
        """What to open; a file is made only where there never was a ledger.

        Raises:
            DamagedError: the file is no longer to be trusted.
            StartupError: the file is gone.
        """
        self._require_undamaged()
        mode = "rw"
        if self._identity is None and not self.path.exists():
            if not self.new:
                require_unused(self.path)
            mode = "rwc"
        return f"file:{quote(str(self.path))}?mode={mode}"

    def opened(self) -> "OpenFile":
        """Note which file a connection has opened, and which log beside it."""
        log = _identity_of(beside(self.path, _WAL_SUFFIX))
        with self._lock:
            if self._identity is None:
                self._identity = _identity_of(self.path)
        return OpenFile(self, log)

    def condemn(self, reason: str) -> DamagedError:
        """Trust the file no more until the process is started again; to be raised."""
        if not self._damage:
            self._damage = reason
            _LOGGER.critical(reason, extra={"database": str(self.path)})
        return DamagedError(self._damage)

    def require_same(self) -> None:
        """Refuse to go on where another file, or less of it, has taken the place.

        Raises:
            DamagedError: it has.
            UnavailableError: the place cannot be looked at.
        """
        self._require_undamaged()
        with self._lock:
            try:
                found = os.stat(self.path)
            except FileNotFoundError:
                raise self.condemn("The database's file was removed while it was in use.") from None
            except OSError as error:
                raise UnavailableError("The database's file cannot be looked at now.") from error
            if (found.st_dev, found.st_ino) != self._identity:
                raise self.condemn("The database's file was replaced while it was in use.")
            if found.st_size < self._size:  # it never shrinks, unless another program cuts it
                raise self.condemn("The database's file was cut short while it was in use.")
            self._size = found.st_size

    def _require_undamaged(self) -> None:
        if self._damage:
            raise DamagedError(self._damage)


class OpenFile:
    """A connection's view of the file: with the log that SQLite appends to, which stays the same.

    SQLite removes that log only when the last connection of all is closed.
    """

    def __init__(self, file: LedgerFile, log: Identity | None) -> None:
        self.file = file
        self._log_path = beside(file.path, _WAL_SUFFIX)
        self._log = log

    def require_same(self) -> None:
        """Refuse to go on where the database or its log was removed or replaced.

        Raises:
            DamagedError: it was.
        """
        self.file.require_same()
        if self._log is not None and _identity_of(self._log_path) != self._log:
            raise self.file.condemn("The database's -wal file was removed while it was in use.")


def _identity_of(path: Path) -> Identity | None:
    try:
        found: Any = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def sqlite_engine(address: URL, wait: float, *, new: bool, **pool: Any) -> Engine:
    """An engine for a file.

    Args:
        address: where it is.
        wait: seconds that a lock is waited for.
        new: whether a ledger may be begun where there was one before.
        pool: the pool of connections, and what each connection is told.

    Raises:
        StartupError: it is no file.
    """
    if not address.database or address.database == ":memory:":
        raise StartupError("DPLEDGER_DATABASE_URL: SQLite needs a file; memory forgets the ledger.")
    engine = create_engine(
        address.set(drivername="sqlite+pysqlite"),
        **pool,
        connect_args={"timeout": wait, "check_same_thread": False, "uri": True},
    )
    file = LedgerFile(Path(address.database), new=new)

    def place(_dialect: Any, _record: Any, arguments: list[Any], _given: Any) -> None:
        arguments[0] = file.address()

    def opened(connection: Any, record: Any) -> None:
        try:
            _set_up(connection)
        except sqlite3.Error as error:
            if sqlite_code(error) in SQLITE_BROKEN:  # a new connection reads the first page at once
                raise file.condemn(DATABASE_DAMAGED) from error
            raise
        record.info[OPEN_FILE] = file.opened()

    event.listen(engine, "do_connect", place)
    event.listen(engine, "connect", opened)
    return engine


def _set_up(connection: Any) -> None:
    # SQLAlchemy begins transactions itself (`storage.engine`); sqlite3 must not begin its own.
    connection.isolation_level = None
    cursor = connection.cursor()
    # Without the last, INSERT OR REPLACE would delete a fact and no trigger would know.
    for pragma in (
        "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "recursive_triggers=ON",
    ):  # fmt: skip
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def make_room(connection: Connection) -> None:
    """Move SQLite's log into its file, so that the log's room is used again.

    SQLite does so after every thousandth page that is committed, which a full disk may never see.
    """
    driver: Any = connection.connection.driver_connection
    with suppress(sqlite3.Error):  # the disk is full, or another connection reads
        driver.execute("PRAGMA wal_checkpoint(PASSIVE)")


def sqlite_code(error: BaseException | None) -> int:
    """The code of an error of SQLite, without what it adds to it."""
    original = error.orig if isinstance(error, DBAPIError) else error
    return int(getattr(original, "sqlite_errorcode", None) or 0) & _PRIMARY
