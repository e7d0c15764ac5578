"""The schema's revision; only migrations make or change a schema.

Alembic is loaded where a schema is made or changed: it costs 12 MiB. A service that finds its
schema as it must be does without, and one without a schema leaves it to another process.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import DatabaseError

from service.errors import DamagedError, StartupError
from service.storage.engine import snapshot, sqlite_path, transaction
from service.storage.sqlite import find_earlier_ledger, is_blank, require_unused

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).parents[2] / "migrations"
MIGRATING = 0x6470_6C65_6467  # the lock that a migration holds; a number of our own
_VERSION_TABLE = "alembic_version"
_NAMED = 3  # foreign tables that the error names
_REVISION: Final = re.compile(r'^(revision|down_revision) = "(\w+)"$', re.MULTILINE)


def configuration() -> "Config":
    """Alembic's configuration; the connection is handed over by `upgrade`."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def head() -> str:
    """The revision this version of the code needs."""
    (latest,) = _names("revision") - _names("down_revision")
    return latest


def _names(what: str) -> set[str]:
    """The revisions of all migrations, or those that a migration follows."""
    files = (MIGRATIONS / "versions").glob("*.py")
    found = (_REVISION.findall(file.read_text(encoding="utf-8")) for file in files)
    return {name for each in found for kind, name in each if kind == what}


def revision_of(connection: Connection) -> str | None:
    """The revision of an open database; None if no migration was made."""
    if not inspect(connection).has_table(_VERSION_TABLE):
        return None
    found = connection.scalar(text(f"SELECT version_num FROM {_VERSION_TABLE}"))  # noqa: S608
    return None if found is None else str(found)


def current(engine: Engine) -> str | None:
    """The database's revision; None when it is absent or empty.

    Raises:
        StartupError: it is no database, it is damaged, or it belongs to another program.
        UnavailableError: it does not answer.
    """
    path = sqlite_path(engine)
    if path is not None and is_blank(path):
        return None  # to open it would make it, or remove a log that belongs to what was there
    try:
        with snapshot(engine) as connection:
            found = revision_of(connection)
            tables = set() if found else set(inspect(connection).get_table_names())
    except DamagedError as error:
        raise StartupError(_unreadable(_words(error))) from error
    except DatabaseError as error:
        raise StartupError(f"The database cannot be read: {error.orig}") from error
    if others := sorted(tables - {_VERSION_TABLE}):
        raise StartupError(
            f"The database holds tables that are no ledger's ({', '.join(others[:_NAMED])}). "
            "Nothing was changed; name a database that is empty, or the ledger's own."
        )
    return found


def _words(error: DamagedError) -> str:
    cause = error.__cause__
    return " ".join(str(getattr(cause, "orig", cause) or error).split())


def _unreadable(words: str) -> str:
    return (
        f"The database is damaged and cannot be read: {words}. It was left as it is; put it aside "
        "and restore a backup."
    )


def require_sound(engine: Engine) -> None:
    """Refuse a SQLite file whose pages do not hang together; of PostgreSQL its server sees to it.

    Raises:
        StartupError: it is damaged.
        UnavailableError: it does not answer.
    """
    if sqlite_path(engine) is None:
        return
    try:
        with snapshot(engine) as connection:
            (said,) = connection.execute(text("PRAGMA quick_check(1)")).scalars()
    except DamagedError as error:
        raise StartupError(_unreadable(_words(error))) from error
    if said != "ok":
        raise StartupError(_unreadable(" ".join(said.split())))


def require_current(engine: Engine) -> None:
    """Refuse a database that is not at this version, or is damaged.

    Raises:
        StartupError: it is empty, behind, at a revision this version does not know, or damaged.
    """
    found = current(engine)
    _require_known(found)
    if found != head():
        raise StartupError(
            f"The database is at revision {found or 'none'} and this version needs {head()}. Run "
            "`dpledger migrate`."
        )
    require_sound(engine)


def _require_known(found: str | None) -> None:
    if found is not None and found not in _names("revision"):
        raise StartupError(
            f"The database cannot be migrated: it is at revision {found}, which this version does "
            "not know. A newer version wrote it, or one before the first release. Nothing was "
            "changed; use the version that wrote it."
        )


def upgrade(
    engine: Engine, *, new: bool = False, allowed: Callable[[], object] | None = None
) -> bool:
    """Bring the database to this version's revision, in one transaction.

    Args:
        engine: the database.
        new: whether a SQLite ledger may be begun where there was one before.
        allowed: called before a ledger is begun, while nothing of it is there; raises to refuse.

    Returns:
        Whether there was nothing before, and a ledger was begun.

    Raises:
        StartupError: the database is damaged, of another program, at a revision this version does
            not know, or gone while something beside it shows that it was there.
    """
    found = _revision_before(engine, new=new, allowed=allowed)
    if found != head():
        _upgrade(engine)
    return found is None


def upgrade_apart(engine: Engine, *, allowed: Callable[[], object]) -> Callable[[], bool]:
    """Do what `upgrade` does; a new ledger is begun by a process of its own, with Alembic in it.

    An older schema is changed in this process, with which a long change ends. The engine is
    disposed of. This process has no other thread until what is returned was called.

    Returns:
        What waits for the end; it returns and raises as `upgrade`.
    """
    found = _revision_before(engine, new=False, allowed=allowed)
    engine.dispose()  # or both processes had the same connections
    child = os.fork() if found is None else None
    if child == 0:
        status = 1
        try:
            _upgrade(engine)
            status = 0
        finally:
            os._exit(status)

    def finished() -> bool:
        begun = child is not None and os.waitpid(child, 0)[1] == 0
        if not begun and found != head():
            _upgrade(engine)  # what failed in the other process fails here, too, and says why
            engine.dispose()
        return found is None

    return finished


def _upgrade(engine: Engine) -> None:
    with transaction(engine) as connection:
        upgrade_within(connection, "head")


def _revision_before(
    engine: Engine, *, new: bool, allowed: Callable[[], object] | None
) -> str | None:
    """The revision of a database that may be upgraded."""
    path = sqlite_path(engine)
    # Looked at first: another process that begins the ledger now leaves the same behind.
    was_there = path is not None and find_earlier_ledger(path) is not None
    found = current(engine)
    _require_known(found)
    if found is None and path is not None and was_there and not new:
        require_unused(path)
    if found is None and allowed is not None:
        allowed()
    if found is not None and found != head():
        require_sound(engine)  # what is damaged is not made worse
    return found


def upgrade_within(connection: Connection, revision: str) -> None:
    """Bring the database to a revision as a part of the transaction that is open.

    Raises:
        StartupError: this version does not know the revision.
    """
    from alembic.command import upgrade as run

    _within(connection, run, revision)


def remove_within(connection: Connection) -> None:
    """Take the whole schema away as a part of the transaction that is open."""
    from alembic.command import downgrade

    _within(connection, downgrade, "base")


def _within(connection: Connection, action: Callable[["Config", str], None], revision: str) -> None:
    from alembic.util.exc import CommandError

    if connection.dialect.name == "postgresql":  # of processes that start at once, one migrates
        connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATING})"))
    config = configuration()
    config.attributes["connection"] = connection
    try:
        action(config, revision)
    except CommandError as error:
        raise StartupError(f"The database cannot be migrated: {error}") from error
