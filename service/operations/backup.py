"""Backups of a ledger while it is written to, and their return into an empty database.

One format for both databases, so that a ledger can move from one to the other. A backup is what
one snapshot of the database holds; it is read back before it bears its name.
"""

import os
import tempfile
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, cast

from sqlalchemy import BigInteger, Connection, Engine, MetaData, false, func, inspect, select, text
from sqlalchemy.exc import DataError, IntegrityError, InterfaceError, ProgrammingError

import accounting
from service.clock import now, stamp
from service.errors import StartupError
from service.ledger.log import leaves
from service.ledger.log.leaves import Act
from service.ledger.log.merkle import Frontier
from service.operations.backup_format import (
    BackupError,
    BackupReader,
    Header,
    Summary,
    check,
    open_backup,
    write_backup,
)
from service.storage import migrations
from service.storage.engine import snapshot, transaction
from service.storage.partitions import divide_entries, parts_of_entries
from service.storage.tables import (
    datasets,
    entries,
    installation,
    key_uses,
    metadata,
    sessions,
)

ROWS_AT_ONCE: Final = 2000
_VERSION_TABLE: Final = "alembic_version"
# Rows that a database refuses: too long, there already, or referring to others that are not.
_MISFITS: Final = (DataError, IntegrityError, InterfaceError, ProgrammingError)


def take_backup(engine: Engine, path: Path) -> Summary:
    """Write a backup of what the database holds now; its writers are not held up.

    Raises:
        BackupError: the file is there, cannot be written, or the database is damaged.
        StartupError: the database is not at this version.
        UnavailableError: it does not answer.
    """
    migrations.require_current(engine)
    if path.exists():
        raise BackupError(f"{path} is there; a backup is never written over.")
    try:
        number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 600
    except OSError as error:
        raise BackupError(f"{path}: {error.strerror}") from error
    try:
        with os.fdopen(number, "wb") as file:
            summary = _write(engine, file)
            file.flush()
            os.fsync(file.fileno())
        if check(Path(name)) != summary:
            raise BackupError("The backup reads back differently; look at the disk.")
        Path(name).replace(path)
    except OSError as error:
        raise BackupError(f"{path}: {error.strerror}") from error
    finally:
        with suppress(FileNotFoundError):  # it bears its name by now
            Path(name).unlink()
    _sync_folder(path.parent)
    return summary


def _write(engine: Engine, file: IO[bytes]) -> Summary:
    taken_at = stamp(now())  # all that was committed before is in it
    with snapshot(engine) as connection:
        _require_sound(connection)
        with write_backup(file, _header(connection, taken_at)) as writer:
            for table in metadata.sorted_tables:
                query = select(table).order_by(*table.primary_key)
                if table in (sessions, key_uses):  # a restore ends sessions, and knows no use
                    query = query.where(false())
                rows = connection.execution_options(yield_per=ROWS_AT_ONCE).execute(query)
                writer.table(table.name, list(table.columns), rows)
            return writer.finish()


def _header(connection: Connection, taken_at: str) -> Header:
    return Header(
        format="dpledger-backup/1",
        core_version=accounting.__version__,
        schema_revision=migrations.head(),
        ledger_id=connection.execute(select(installation.c.ledger_id)).scalar_one(),
        database="sqlite" if connection.dialect.name == "sqlite" else "postgresql",
        taken_at=taken_at,
    )


def _require_sound(connection: Connection) -> None:
    """Refuse to back up pages that are damaged, and a ledger with entries missing."""
    if connection.dialect.name == "sqlite":
        said = connection.execute(text("PRAGMA quick_check")).scalars().all()
        if said != ["ok"]:
            raise BackupError(f"The database is damaged: {said[0]}")
    counted = (
        select(entries.c.dataset_id, func.count().label("entries"))
        .group_by(entries.c.dataset_id)
        .subquery()
    )
    found = func.coalesce(counted.c.entries, 0)
    query = (
        select(datasets.c.name, datasets.c.head_sequence, found)
        .outerjoin(counted, counted.c.dataset_id == datasets.c.id)
        .where(found != datasets.c.head_sequence)
    )
    for name, head, there in connection.execute(query):
        raise BackupError(
            f"The dataset {name} has {there} entries and its head says {head}: run `dpledger "
            "verify` and see docs/guide/operate.md before anything else."
        )


def _sync_folder(folder: Path) -> None:
    """After this the file bears its name even if the machine fails."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def restore(engine: Engine, path: Path, *, by: str) -> Summary:
    """Bring a backup into an empty database, all of it or nothing, and write down that it was.

    Raises:
        BackupError: the file is damaged or another version's, or the database is not empty.
        UnavailableError: it does not answer.
    """
    summary = check(path)  # to its end, before anything is touched
    with transaction(engine) as connection:
        parts = _make_room(connection)
        _upgrade(connection, summary.header.schema_revision)
        if parts:
            divide_entries(connection, parts)
        with open_backup(path) as reader:
            _fill(connection, reader)
            if reader.finish() != summary:
                raise BackupError("The backup changed while it was read.")
        try:
            _go_on(connection, summary)
        except (ValueError, LookupError, *_MISFITS) as error:
            said = " ".join(str(error).split())
            raise BackupError(f"The backup {path} holds no ledger to go on with: {said}") from error
        leaves.append_leaves(connection, None, [Act("restored", _content(summary), by)])
    return summary


def _go_on(connection: Connection, summary: Summary) -> None:
    """Make of the rows what this version writes further rows to."""
    if summary.header.schema_revision != migrations.head():
        _upgrade(connection, "head")
    _set_counters(connection)
    (own,) = connection.execute(select(installation)).all()
    for row in (own, *connection.execute(select(datasets))):
        Frontier.from_bytes(row.log_size, row.log_frontier or b"")


def _make_room(connection: Connection) -> int:
    """Take away a ledger that was begun and never used, as a service begins where it finds none.

    Returns:
        Into how many parts its entries were divided, or 0.
    """
    parts = parts_of_entries(connection)
    tables = set(inspect(connection).get_table_names()) - {_VERSION_TABLE, *parts}
    if not tables:
        return 0
    if tables == set(metadata.tables) and not any(map(partial(_used, connection), metadata.tables)):
        migrations.remove_within(connection)
        return len(parts)
    raise BackupError("The database is not empty; a backup is restored into an empty one.")


def _used(connection: Connection, name: str) -> bool:
    query = select(metadata.tables[name])
    if name == installation.name:  # which has its row from the beginning
        query = query.where(installation.c.log_size > 0)
    return connection.execute(query.limit(1)).first() is not None


def _content(summary: Summary) -> dict[str, Any]:
    header = summary.header
    return {
        "core_version": header.core_version,
        "entries": summary.rows["entries"],
        "schema_revision": header.schema_revision,
        "sha256": summary.sha256,
        "taken_at": header.taken_at,
    }


def _upgrade(connection: Connection, revision: str) -> None:
    try:
        migrations.upgrade_within(connection, revision)
    except StartupError as error:
        raise BackupError(f"The backup is of another version: {error}") from error


def _fill(connection: Connection, reader: BackupReader) -> None:
    there = MetaData()
    there.reflect(connection)  # as they were in the version that made the backup
    others = {_VERSION_TABLE, *parts_of_entries(connection)}
    known = {name: table for name, table in there.tables.items() if name not in others}
    for table in reversed(there.sorted_tables):
        if table.name in known and connection.execute(select(table).limit(1)).first():
            connection.execute(table.delete())  # what a migration put there is in the backup too
    for name, columns, rows in reader.tables(known):
        line = reader.line + 1
        while batch := [dict(zip(columns, row, strict=True)) for row in islice(rows, ROWS_AT_ONCE)]:
            last = line + len(batch) - 1
            try:
                connection.execute(known[name].insert(), batch)
            except _MISFITS as error:
                what = f"the database refuses rows of {name}: {error.orig}"
                raise reader.fault(what, lines=(line, last)) from error
            line = last + 1


def _set_counters(connection: Connection) -> None:
    """Let PostgreSQL number further rows after those that were brought."""
    if connection.dialect.name != "postgresql":
        return
    for table in metadata.sorted_tables:
        column = table.c.get("id")
        if column is None or not isinstance(column.type, BigInteger):
            continue
        counter = func.pg_get_serial_sequence(table.name, "id")
        highest = cast("int | None", connection.scalar(select(func.max(column))))
        if highest and connection.scalar(select(counter)):
            connection.execute(select(func.setval(counter, highest)))
