"""The schema's version: migrations are the only way a schema comes to be."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Engine
from sqlalchemy.exc import DatabaseError

from service.database import snapshot, transaction
from service.errors import StartupError

MIGRATIONS = Path(__file__).parent.parent / "migrations"


def configuration() -> Config:
    """Alembic's configuration; the connection is handed over by `upgrade`."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def head() -> str:
    """The revision this version of the code needs."""
    return str(ScriptDirectory.from_config(configuration()).get_current_head())


def current(engine: Engine) -> str | None:
    """The database's revision; None when it is empty.

    Raises:
        StartupError: it is no database.
        UnavailableError: it does not answer.
    """
    try:
        with snapshot(engine) as connection:
            return MigrationContext.configure(connection).get_current_revision()
    except DatabaseError as error:
        raise StartupError(f"The database cannot be read: {error.orig}") from error


def require_current(engine: Engine) -> None:
    """Refuse a database that is not at this version.

    Raises:
        StartupError: it is empty, behind, or at a revision this version does not know.
    """
    found = current(engine)
    if found != head():
        raise StartupError(
            f"The database is at revision {found or 'none'} and this version needs {head()}. Run "
            "`dpledger migrate`, or use the version that wrote it."
        )


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Bring the database to a revision, in one transaction.

    Raises:
        StartupError: the database is at a revision this version does not know.
    """
    _run(engine, command.upgrade, revision)


def downgrade(engine: Engine, revision: str) -> None:
    """Bring the database back to an earlier revision, in one transaction.

    Raises:
        StartupError: the database is at a revision this version does not know.
    """
    _run(engine, command.downgrade, revision)


def _run(engine: Engine, action: object, revision: str) -> None:
    current(engine)  # what is no database is refused before anything is tried on it
    config = configuration()
    try:
        with transaction(engine) as connection:
            config.attributes["connection"] = connection
            action(config, revision)  # type: ignore[operator]
    except CommandError as error:
        raise StartupError(f"The database cannot be migrated: {error}") from error
