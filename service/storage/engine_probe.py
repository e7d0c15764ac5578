"""What the ledger relies on in a server that speaks PostgreSQL's protocol, tried before it serves.

Several databases speak the protocol and leave a part of its meaning out: a function that locks
nothing, a trigger that never fires. With such a server two writers could admit the same budget
twice, and nothing would fail. So each property is tried on two connections of the service's own
role; nothing is changed.
"""

import secrets
from collections.abc import Callable
from typing import Final

from sqlalchemy import Connection, Engine, delete, false, text, update
from sqlalchemy.exc import DBAPIError

from service.errors import StartupError
from service.storage.engine import snapshot, transaction
from service.storage.tables import entries, installation

POSTGRES_MIN: Final = 140_000
ENCODING: Final = "UTF8"  # other encodings lack letters; SQL_ASCII does not check texts
_KEYS: Final = 2**62  # of advisory locks; a probe locks one at random, which others do not use
_REFUSED: Final = ("P0001", "42501")  # by the trigger, or already for want of a right
_ROW: Final = f"SELECT xmin::text FROM {installation.name}"  # noqa: S608


def require_reliable(engine: Engine) -> None:
    """Refuse a server that lacks what the ledger relies on. SQLite is the library itself.

    Raises:
        StartupError: a property is missing; the text names it.
        UnavailableError: the server does not answer.
    """
    if engine.dialect.name != "postgresql":
        return
    for name, holds in _PROPERTIES:
        try:
            found = holds(engine)
        except DBAPIError as error:
            found = " ".join(str(error.orig).split())
        if found is not None:
            raise StartupError(
                f"The database cannot hold a ledger: {name}: {found}. Nothing was changed; "
                "docs/guide/deploy.md lists the databases that can."
            )


def _version(engine: Engine) -> str | None:
    with snapshot(engine) as connection:
        number = int(connection.execute(text("SHOW server_version_num")).scalar_one())
    return None if number >= POSTGRES_MIN else f"it is {number}, and {POSTGRES_MIN} is the least"


def _encoding(engine: Engine) -> str | None:
    with snapshot(engine) as connection:
        found = str(connection.execute(text("SHOW server_encoding")).scalar_one())
    if found == ENCODING:
        return None
    return f"it is {found}; make the database with ENCODING '{ENCODING}' TEMPLATE template0"


def _advisory_locks(engine: Engine) -> str | None:
    key = {"key": secrets.randbelow(_KEYS)}
    held, shared = "pg_advisory_xact_lock", "pg_advisory_xact_lock_shared"
    with transaction(engine) as one, transaction(engine) as other:
        one.execute(text(f"SELECT {shared}(:key)"), key)
        if not _got(other, "pg_try_advisory_xact_lock_shared", key):
            return "a shared lock excludes another shared one"
        if _got(other, "pg_try_advisory_xact_lock", key):
            return "two connections hold a lock that excludes others"
    with transaction(engine) as one, transaction(engine) as other:
        one.execute(text(f"SELECT {held}(:key)"), key)
        if _got(other, "pg_try_advisory_xact_lock_shared", key):
            return "two connections hold a lock that excludes others"
    with transaction(engine) as one:
        if not _got(one, "pg_try_advisory_xact_lock", key):
            return "a lock stays after its transaction"
    return None


def _got(connection: Connection, function: str, key: dict[str, int]) -> bool:
    return bool(connection.execute(text(f"SELECT {function}(:key)"), key).scalar_one())


def _row_locks(engine: Engine) -> str | None:
    with transaction(engine) as one, transaction(engine) as other:
        one.execute(text(f"{_ROW} FOR UPDATE")).one()
        if other.execute(text(f"{_ROW} FOR UPDATE SKIP LOCKED")).first() is not None:
            return "two connections hold the same row"
    return None


def _triggers(engine: Engine) -> str | None:
    changes = (
        ("UPDATE", update(entries).where(false()).values(sequence=entries.c.sequence)),
        ("DELETE", delete(entries).where(false())),
    )
    for name, change in changes:
        try:
            with transaction(engine) as connection:
                connection.execute(change)
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) not in _REFUSED:
                raise
        else:
            return f"{name} of recorded entries is not refused"
    return None


def _snapshots(engine: Engine) -> str | None:
    """A change is seen from its commit on, and not by a transaction that began to read before."""
    touch = update(installation).values(log_size=installation.c.log_size)
    with snapshot(engine) as reader:
        with transaction(engine) as writer:
            # Under its lock, so that no other process changes the row meanwhile.
            before = str(writer.execute(text(f"{_ROW} FOR UPDATE")).scalar_one())
            if _version_of_row(reader) != before:
                return "another connection does not see what was committed"
            writer.execute(touch)
            if _version_of_row(writer) == before:
                return "a transaction does not see its own change"
            with snapshot(engine) as other:
                if _version_of_row(other) != before:
                    return "another connection sees what is not committed"
        if _version_of_row(reader) != before:
            return "a transaction for reading sees what was committed after it began"
    with snapshot(engine) as later:
        if _version_of_row(later) == before:
            return "another connection does not see what is committed"
    return None


def _version_of_row(connection: Connection) -> str:
    return str(connection.execute(text(_ROW)).scalar_one())


_PROPERTIES: Final[tuple[tuple[str, Callable[[Engine], str | None]], ...]] = (
    ("version", _version),
    ("encoding", _encoding),
    ("advisory locks", _advisory_locks),
    ("row locks", _row_locks),
    ("insert-only triggers", _triggers),
    ("snapshots", _snapshots),
)
