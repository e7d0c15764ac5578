"""The whole database, to see that nothing in it changed."""

from typing import Any

from sqlalchemy import Engine, select

from service.storage.engine import snapshot
from service.storage.tables import metadata


def dump(engine: Engine) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table."""
    with snapshot(engine) as connection:
        return {
            table.name: [
                tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))
            ]
            for table in metadata.sorted_tables
        }
