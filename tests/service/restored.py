"""A database that is put back to what it was: every row of every table, on both databases."""

from typing import Any

from sqlalchemy import Engine, select

from service.storage.engine import snapshot, transaction
from service.storage.tables import metadata
from tests.conftest import without_triggers

State = dict[str, list[dict[str, Any]]]


def taken(engine: Engine) -> State:
    """A backup."""
    with snapshot(engine) as connection:
        return {
            table.name: [dict(row._mapping) for row in connection.execute(select(table))]
            for table in metadata.sorted_tables
        }


def put_back(engine: Engine, state: State) -> None:
    """The database as it was when the backup was taken."""
    with transaction(engine) as connection, without_triggers(connection):
        for table in reversed(metadata.sorted_tables):
            connection.execute(table.delete())
        for table in metadata.sorted_tables:
            if state[table.name]:
                connection.execute(table.insert(), state[table.name])
