"""The whole database, to see that nothing in it changed."""

from typing import Any

from sqlalchemy import Engine, select

from service.storage.engine import snapshot
from service.storage.tables import key_uses, metadata


def dump(engine: Engine) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, but for the times at which keys were used."""
    with snapshot(engine) as connection:
        return {
            table.name: [
                tuple(row)
                for row in connection.execute(select(table).order_by(*table.primary_key))
                if table is not key_uses
            ]
            for table in metadata.sorted_tables
        }
