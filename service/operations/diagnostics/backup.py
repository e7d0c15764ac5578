"""The newest backup: whether it is whole, new, and of this ledger."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import SQLAlchemyError

from service.clock import now, stamp, utc
from service.errors import LedgerError, StartupError
from service.ledger.log.merkle import Frontier
from service.operations.backup_format import (
    BackupError,
    BackupReader,
    Header,
    is_meant_as_backup,
    open_backup,
    tables_of,
)
from service.operations.diagnostics.result import Finding, fail, ok, warn
from service.storage import migrations
from service.storage.engine import snapshot
from service.storage.tables import acts, datasets, entries, installation
from service.transparency.checkpoints import LogHeads
from service.transparency.stored_tree import Tree

BACKUP_AGE_MAX: Final = timedelta(hours=26)  # a daily one may take its time
COMMIT_MAX: Final = timedelta(minutes=10)  # far longer than a row waits to be committed
_NAME: Final = "backups"
_DAILY: Final = "run `dpledger backup` every day"
_ABOVE: Final = "see what is said of the database above"
_NOT_COMPARED: Final = "not compared with the ledger"
_OWN: Final = "back up the database that is in use, into a folder of its own"


@dataclass(frozen=True, slots=True)
class _Log:
    """A log as a backup has it."""

    dataset: str | None  # none: the installation's
    size: int
    root: str
    sequence: int  # of its latest entry


@dataclass(frozen=True, slots=True)
class _Held:
    """What a whole backup holds."""

    header: Header
    logs: tuple[_Log, ...] | None  # none of a version that this one does not know


def newest_backup(folder: Path, engine: Engine | None) -> Finding:
    """Look at the newest backup of a folder.

    Args:
        folder: of the backups.
        engine: of the ledger that it must be of; none where there is no database to ask.
    """
    try:
        files = [one for one in folder.iterdir() if _is_backup(one)]
    except OSError as error:
        return fail(_NAME, f"{folder}: {error.strerror}", "name the folder of the backups")
    if not files:
        return fail(_NAME, f"none in {folder}", _DAILY)
    newest = max(files, key=lambda one: one.stat().st_mtime)
    try:
        with open_backup(newest) as reader:
            held = _read(reader)
    except BackupError as error:
        return fail(_NAME, str(error), "take another now, and look at the disk")
    said = f"{newest}, of {held.header.taken_at}"
    if engine is None:
        return warn(_NAME, f"{said}: {_NOT_COMPARED}", _ABOVE)
    try:
        reason = _unfit(engine, held)
    except (StartupError, LedgerError, SQLAlchemyError):
        return warn(_NAME, f"{said}: {_NOT_COMPARED}", _ABOVE)
    return _aged(held, said) if reason is None else fail(_NAME, f"{said}: {reason}", _OWN)


def _is_backup(path: Path) -> bool:
    return path.is_file() and path.name[0] != "." and is_meant_as_backup(path)


def _aged(held: _Held, said: str) -> Finding:
    """What there is to say of a backup of this ledger."""
    if held.logs is None:
        said = f"{said}: of schema revision {held.header.schema_revision}, {_NOT_COMPARED}"
        return warn(_NAME, said, "take one with this version")
    if now() - _time_taken(held) > BACKUP_AGE_MAX:
        return warn(_NAME, said, _DAILY)
    return ok(_NAME, said)


def _time_taken(held: _Held) -> datetime:
    return datetime.fromisoformat(held.header.taken_at)


def _read(reader: BackupReader) -> _Held:
    known = tables_of(reader.header)
    logs: list[_Log] = []
    for name, columns, rows in reader.tables(known):
        wanted = known is not None and name in (installation.name, datasets.name)
        named = (dict(zip(columns, row, strict=True)) for row in rows)
        logs += [_log(reader, name, row) for row in named if wanted]
    reader.finish()
    return _Held(reader.header, None if known is None else tuple(logs))


def _log(reader: BackupReader, table: str, row: dict[str, Any]) -> _Log:
    if row.get("ledger_id", reader.header.ledger_id) != reader.header.ledger_id:
        raise reader.fault(f"{table}.ledger_id: its header names another ledger")
    try:
        frontier = Frontier.from_bytes(row["log_size"], row["log_frontier"] or b"")
    except ValueError:
        raise reader.fault(f"{table}.log_frontier: does not fit log_size") from None
    root = frontier.root().hex()
    return _Log(row.get("name"), frontier.size, root, row.get("head_sequence", 0))


def _unfit(engine: Engine, held: _Held) -> str | None:
    """Why a backup is none of this ledger as it went on from there, or None."""
    migrations.require_current(engine)
    with snapshot(engine) as connection:
        present = LogHeads.of(connection)
        if held.header.ledger_id != present.ledger_id:
            return "it is of another ledger"
        logs = {log.dataset: log for log in held.logs or ()}
        for log in logs.values():
            if log.dataset not in present.logs:
                return f"it has {_words(log)}, which the ledger has not"
            row, here = present.logs[log.dataset]
            if log.size > here.size:
                return f"it has {log.size} leaves of {_words(log)}, and the ledger {here.size}"
            if Tree(connection, row, here.size).subtree(0, log.size).hex() != log.root:
                return f"{_words(log)} is another in it than in the ledger"
        return None if held.logs is None else _lacking(connection, present, logs, _time_taken(held))


def _lacking(
    connection: Connection, present: LogHeads, logs: dict[str | None, _Log], taken: datetime
) -> str | None:
    """What was recorded before a backup was taken and is not in it: of an old copy, say."""
    for name, (row, here) in present.logs.items():
        log = logs.get(name, _Log(name, 0, "", 0))
        if log.size == here.size:
            continue
        first = _first_behind(connection, row, log)
        if first is not None and first < taken - COMMIT_MAX:
            return f"it lacks what was recorded at {stamp(first)} in {_words(log)}"
    return None


def _first_behind(connection: Connection, row: int | None, log: _Log) -> datetime | None:
    """When the first leaf was written that stands behind those of a backup."""
    owner = acts.c.dataset_id.is_(None) if row is None else acts.c.dataset_id == row
    later = select(acts.c.acted_at).where(owner, acts.c.position >= log.size)
    next_entry = select(entries.c.recorded_at).where(
        entries.c.dataset_id == row, entries.c.sequence == log.sequence + 1
    )
    queries = (later.order_by(acts.c.position).limit(1), next_entry)
    return min((utc(at) for at in map(connection.scalar, queries) if at is not None), default=None)


def _words(log: _Log) -> str:
    return "the installation's log" if log.dataset is None else f"dataset {log.dataset}"
