"""What a failure of a database's driver is for a caller."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from service.errors import DamagedError, UnavailableError

UNAVAILABLE = "The database does not answer now; send the same request again."
_REFUSED = "The database does not let the service's role do this; its operator has to see to it."
DATABASE_DAMAGED = (
    "The database is damaged: what it says is not answered, and nothing is written to it."
)
DRIVER_ERRORS: Final = (sqlite3.Error, psycopg.Error)  # where statements went to them directly
# Of PostgreSQL's errors by their codes: not the primary server any more, and a transaction that the
# server ended because it took too long.
_ELSEWHERE: Final = frozenset({"25006", "25P03", "25P04"})
_NOT_ALLOWED: Final = "42501"  # a right that the service's role has not, or no more
_BROKEN: Final = "XX"  # a page or an index that is not what it should be
SQLITE_BROKEN: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_SQLITE_PRIMARY: Final = 0xFF  # of an extended code of an error


@contextmanager
def translated_errors() -> Iterator[None]:
    """Say what a driver's failure is for a caller."""
    try:
        yield
    except (PoolTimeoutError, DBAPIError, *DRIVER_ERRORS) as error:
        refusal = _refusal(error)
        if refusal is None:
            raise
        raise refusal from error


def _refusal(error: Exception) -> UnavailableError | None:
    """What a driver's failure is for a caller; none of a defect of ours."""
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, sqlite3.Error):
        if sqlite_code(original) in SQLITE_BROKEN:
            return DamagedError(DATABASE_DAMAGED)
        return UnavailableError(UNAVAILABLE) if _is_operational(original) else None
    if isinstance(original, psycopg.Error):
        code = original.sqlstate or ""
        if code.startswith(_BROKEN):
            return DamagedError(DATABASE_DAMAGED)
        if code == _NOT_ALLOWED:
            return UnavailableError(_REFUSED)
        lost = isinstance(original, psycopg.InterfaceError) or code in _ELSEWHERE
        return UnavailableError(UNAVAILABLE) if lost or _is_operational(original) else None
    return UnavailableError(UNAVAILABLE)  # no connection was free


def sqlite_code(error: BaseException | None) -> int:
    """The code of an error of SQLite, without what it adds to it."""
    original = error.orig if isinstance(error, DBAPIError) else error
    return int(getattr(original, "sqlite_errorcode", None) or 0) & _SQLITE_PRIMARY


def _is_operational(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError | psycopg.OperationalError)
