"""The commands backup, restore and doctor."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from service.cli.options import (
    DatabaseOption,
    build_failure,
    failed_to_start,
    open_engine,
    present_engine,
    settings_of,
)
from service.errors import LedgerError, StartupError

BY_COMMAND: Final = "command-line"  # who restored, in the log


def backup(
    file: Annotated[Path, typer.Argument(help="file to create; must not exist", metavar="FILE")],
    database: DatabaseOption = None,
) -> None:
    """Write a backup while the service runs; it is read back before it gets its name.

    It holds every row, so it is as confidential as the database. Signing keys and other secret
    files are not in it.
    """
    from service.operations.backup import take_backup
    from service.operations.backup_format import BackupError

    engine = present_engine(database)
    try:
        _show(take_backup(engine, file))
    except BackupError as error:
        raise build_failure(str(error)) from None
    except (StartupError, LedgerError) as error:
        raise failed_to_start(error) from None
    finally:
        engine.dispose()


def restore(
    file: Annotated[Path, typer.Argument(help="file made by `dpledger backup`", metavar="FILE")],
    database: DatabaseOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="only read the whole file; no database is opened")
    ] = False,
) -> None:
    """Restore a backup to an empty database, all of it or nothing, and log it."""
    from service.operations import backup as backup_module
    from service.operations import backup_format

    if check:
        try:
            return _show(backup_format.check(file))
        except backup_format.BackupError as error:
            raise build_failure(str(error)) from None
    engine = open_engine(database, new=True)  # where a ledger was lost, one may come back
    try:
        _show(backup_module.restore(engine, file, by=BY_COMMAND))
    except backup_format.BackupError as error:
        raise build_failure(str(error)) from None
    except (StartupError, LedgerError) as error:
        raise failed_to_start(error) from None
    finally:
        engine.dispose()


def _show(summary: Any) -> None:
    for name, value in summary.header.model_dump().items():
        typer.echo(f"{name} {value}")
    for name, rows in summary.rows.items():
        typer.echo(f"rows.{name} {rows}")
    typer.echo(f"sha256 {summary.sha256}")


def doctor(
    database: DatabaseOption = None,
    backups: Annotated[
        Path | None, typer.Option("--backups", help="folder; check its newest backup")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the findings as JSON")] = False,
) -> None:
    """Check the installation, one line for each check; exit 1 if something must be done."""
    from service.operations.diagnostics.result import Level
    from service.operations.diagnostics.run import examine

    findings = examine(settings_of(database_url=database), backups=backups)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in findings], indent=2))
    else:
        for one in findings:
            remedy = f" -> {one.remedy}" if one.remedy else ""
            typer.echo(f"{one.level:<4} {one.name}: {one.found}{remedy}")
    if any(one.level is Level.FAIL for one in findings):
        raise typer.Exit(1)
