"""What commands begin with: settings from options, an open database; and how they fail."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from service.errors import LedgerError, StartupError, UnavailableError

DatabaseOption = Annotated[
    str | None,
    typer.Option("--database", help="sqlite:///FILE or postgresql://...; or DPLEDGER_DATABASE_URL"),
]


def build_failure(message: str, code: int = 2) -> typer.Exit:
    """Say what is wrong, on one line; to be raised."""
    typer.echo(message, err=True)
    return typer.Exit(code)


def failed_to_start(error: Exception) -> typer.Exit:
    """A refusal at start-up; for a database that does not answer, with its own words."""
    if isinstance(error, UnavailableError):
        words = " ".join(str(getattr(error.__cause__, "orig", error)).split())
        return build_failure(f"The database cannot be used: {words}")
    return build_failure(str(error))


def settings_of(**given: Any) -> Any:
    """The settings of the environment, with what was given as options."""
    from service.settings import Settings

    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise build_failure(_fault_of(error.errors()[0], Settings.model_fields)) from None


def _fault_of(fault: Any, fields: Mapping[str, Any]) -> str:
    """The variable that is wrong, and what it may be."""
    from service.schemas.field_errors import allowed

    name = str(fault["loc"][0])
    words = allowed(fault)
    limits = fields[name].metadata
    least = next((one.ge for one in limits if hasattr(one, "ge")), None)
    most = next((one.le for one in limits if hasattr(one, "le")), None)
    if least is not None and most is not None:
        words = f"must be a number from {least:,} to {most:,}"
    return f"DPLEDGER_{name.upper()}: {words}."


def open_engine(database: str | None, *, new: bool = False) -> Any:
    """An engine for the database that was named, or that the environment names."""
    from service.storage.engine import connect

    settings = settings_of(database_url=database)
    try:
        return connect(
            settings.database_address, busy_timeout_seconds=settings.busy_timeout_seconds, new=new
        )
    except (StartupError, OSError) as error:
        raise build_failure(str(error)) from None


def present_engine(database: str | None) -> Any:
    """An engine for a database that is there: SQLite would begin one."""
    from service.storage.engine import sqlite_path

    engine = open_engine(database)
    path = sqlite_path(engine)
    if path is not None and not path.is_file():
        raise build_failure(f"{path}: there is no such file.")
    return engine


def ready_engine(database: str | None, *, begin: bool = False) -> Any:
    """An engine for a database at this version.

    Args:
        database: that was named.
        begin: whether one that is absent or empty is set up first.
    """
    from service.storage import migrations

    engine = open_engine(database) if begin else present_engine(database)
    try:
        if begin and migrations.current(engine) is None:
            migrations.upgrade(engine)
        migrations.require_current(engine)
    except (StartupError, LedgerError) as error:
        engine.dispose()
        raise failed_to_start(error) from None
    return engine


@contextmanager
def open_ledger(database: str | None, *, begin: bool = False) -> Iterator[Any]:
    """Yield what `ready_engine` returns, and close its connections at the end."""
    engine = ready_engine(database, begin=begin)
    try:
        yield engine
    finally:
        engine.dispose()
