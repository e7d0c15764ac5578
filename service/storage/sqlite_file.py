"""The file of a SQLite ledger: whether it may be begun, and whether it is still the one in use.

A process that has a file open continues to read and write it after it was removed or replaced
it, and SQLite does not say so: what it acknowledged then would be gone. So its place is looked at
before each transaction, and once more before what was committed is acknowledged.
"""

import logging
import os
import threading
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from service.errors import DamagedError, StartupError, UnavailableError

KEY_SUFFIX: Final = ".signing_key"  # of the file that is made beside a database when it is served
_WAL_SUFFIX: Final = "-wal"
_LOGGER = logging.getLogger("dpledger.database")

Identity = tuple[int, int]  # device and inode


def beside(path: Path, suffix: str) -> Path:
    """The file that is named after another."""
    return path.with_name(path.name + suffix)


def is_blank(path: Path) -> bool:
    """Whether there is no file in a folder that is there, or one without a byte."""
    return path.parent.is_dir() and (not path.exists() or path.stat().st_size == 0)


def left_behind(path: Path) -> Path | None:
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
    if found := left_behind(path):
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
