"""Probes: what an append writes is written where an append writes it, and nothing is changed."""

import secrets
from contextlib import suppress
from typing import Final

from sqlalchemy import Connection, Engine, false, insert, select, update

from service.storage.engine import DedicatedConnection, transaction
from service.storage.tables import (
    acts,
    branches,
    datasets,
    distinct_events,
    entries,
    incidents,
    installation,
    log_tiles,
    reservations,
    run_balances,
    runs,
)

ROOM_BYTES: Final = 2 * 1024 * 1024  # 10,000 entries, as one body may have, take 1.4 MB
_SMALL_CACHE: Final = 16  # pages
_INSERTED: Final = (entries, acts, log_tiles, distinct_events, run_balances, incidents)
_UPDATED: Final = (distinct_events, run_balances, branches, runs, datasets, reservations)


def write(engine: Engine, *, room: bool) -> None:
    """Write what an append writes, to no row of a dataset, and commit.

    Args:
        engine: of the database.
        room: whether as much is written as a large append takes, and undone. A disk may be too full
            for that and have room for less.

    Raises:
        UnavailableError: an append would fail, too.
    """
    if room and engine.dialect.name == "sqlite":
        _fill_sqlite(engine)
    line = DedicatedConnection(engine)  # as appends have one
    try:
        with line.transaction() as connection:
            _touch(connection)
            if room and engine.dialect.name == "postgresql":
                _fill_postgres(connection)
    finally:
        line.close()


def _touch(connection: Connection) -> None:
    """Use every right that an append needs, and change one row into what it is."""
    for table in _INSERTED:
        none = select(table).where(false())
        connection.execute(insert(table).from_select(list(table.c.keys()), none))
    for table in _UPDATED:
        *_, column = table.c
        connection.execute(update(table).where(false()).values({column: column}))
    connection.execute(update(installation).values(log_size=installation.c.log_size))


def _fill_sqlite(engine: Engine) -> None:
    """Write so many bytes where a transaction writes, and undo it.

    What is not committed stays in memory unless there is too much of it, so the cache is made
    small first. The log of SQLite may become so much longer, once: what follows is written there.
    """
    with suppress(_UndoneError), transaction(engine) as connection:
        before = connection.exec_driver_sql("PRAGMA cache_size").scalar_one()
        connection.exec_driver_sql(f"PRAGMA cache_size={_SMALL_CACHE}")
        try:
            connection.exec_driver_sql("CREATE TABLE room (bytes BLOB)")
            connection.exec_driver_sql("INSERT INTO room VALUES (zeroblob(?))", (ROOM_BYTES,))
        finally:
            connection.exec_driver_sql(f"PRAGMA cache_size={before}")
        raise _UndoneError


def _fill_postgres(connection: Connection) -> None:
    """Write so many bytes, which cannot be compressed, to a row of the ledger, and undo it.

    The serving role may make no table. What was undone takes room until PostgreSQL's next vacuum.
    """
    undone = connection.begin_nested()
    connection.execute(update(installation).values(log_frontier=secrets.token_bytes(ROOM_BYTES)))
    undone.rollback()


class _UndoneError(Exception):
    """What was written is undone, as was meant."""
