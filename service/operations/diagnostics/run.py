"""All that is looked at, in order: what later findings need comes first."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from service.errors import LedgerError, StartupError
from service.operations.diagnostics.backup import newest_backup
from service.operations.diagnostics.database import ledger
from service.operations.diagnostics.host import (
    check_versions,
    dependencies,
    ledger_file,
    mathematics,
    secrets,
)
from service.operations.diagnostics.result import Finding, fail, ok
from service.settings import Settings
from service.storage.engine import connect, sqlite_path

_NOT_NAMED: Final = "not looked at: say --backups FOLDER"
_REMEDY: Final = "start it, or correct DPLEDGER_DATABASE_URL"


def examine(settings: Settings, *, backups: Path | None = None) -> list[Finding]:
    """Look at everything; what cannot be looked at is a finding, too."""
    found = [ok("settings", "readable"), *check_versions(), *dependencies(), mathematics()]
    found += secrets(settings)
    engine = None
    try:
        engine = connect(
            settings.database_address, busy_timeout_seconds=settings.busy_timeout_seconds
        )
        found += _database(engine, settings)
    except (StartupError, OSError) as error:
        found.append(fail("database", str(error), _REMEDY))
    try:
        found.append(
            ok("backups", _NOT_NAMED) if backups is None else newest_backup(backups, engine)
        )
    finally:
        if engine is not None:
            engine.dispose()
    return found


def _database(engine: Engine, settings: Settings) -> Iterator[Finding]:
    try:
        yield from _check_database(engine, settings)
    except (StartupError, LedgerError, SQLAlchemyError) as error:
        words = " ".join(str(getattr(error.__cause__, "orig", error)).split())
        yield fail("database", words, _REMEDY)


def _check_database(engine: Engine, settings: Settings) -> Iterator[Finding]:
    path = sqlite_path(engine)
    if path is not None:
        yield from ledger_file(path)
        if not path.is_file():
            return  # to look further would make it
    yield from ledger(engine, settings)
