"""Many rows in one statement: the writes of a group, on the driver's own cursor.

Building and checking a statement costs more than running it, so each is built once a table and
database. PostgreSQL takes a column of values at a time (`unnest`), SQLite a row at a time.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Connection,
    DateTime,
    Double,
    Integer,
    LargeBinary,
    Table,
)

Rows = Sequence[tuple[Any, ...]]
Columns = tuple[str, ...]
_ARRAYS: Final = (
    (Boolean, "bool"),
    (BigInteger, "bigint"),
    (Integer, "bigint"),
    (Double, "float8"),
    (DateTime, "timestamptz"),
    (LargeBinary, "bytea"),
)


_GATHERED: Final = "dpledger_gathered"  # statements of a connection that go as one
_NEW_ARRAYS: Final = (
    "INSERT INTO distinct_events (dataset_id, steps, passes, content, by_pass) "
    "SELECT %s, 0, 0, * FROM unnest(%s::text[], %s::bool[]) RETURNING content, id"
)
_NEW_JSON: Final = (
    "INSERT INTO distinct_events (dataset_id, steps, passes, content, by_pass) "
    "SELECT ?, 0, 0, value ->> 0, value ->> 1 FROM json_each(?) RETURNING content, id"
)


def stored(connection: Connection, moment: datetime) -> datetime | str:
    """A time as the driver takes it; SQLite has text, as SQLAlchemy writes and reads it."""
    if connection.dialect.name == "postgresql":
        return moment
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")


@contextmanager
def pipelined(connection: Connection) -> Iterator[None]:
    """Statements on tables of their own, sent as one where the database can: one wait for all."""
    if connection.dialect.name != "postgresql":
        yield
        return
    gathered: list[tuple[str, list[Any]]] = []
    connection.info[_GATHERED] = gathered
    try:
        yield
    finally:
        del connection.info[_GATHERED]
    if gathered:
        parts = ", ".join(f"part{n} AS ({text})" for n, (text, _) in enumerate(gathered))
        values = [value for _, given in gathered for value in given]
        connection.connection.cursor().execute(f"WITH {parts} SELECT 1", values)


def insert(connection: Connection, table: Table, columns: Columns, rows: Rows) -> None:
    """Insert rows."""
    _run(connection, _insert(connection.dialect.name, table, columns), rows)


def add(connection: Connection, table: Table, key: str, columns: Columns, rows: Rows) -> None:
    """Add to columns of rows that are there; the key comes last in each row."""
    _run(connection, _update(connection.dialect.name, table, key, columns, True), rows)


def add_or_insert(
    connection: Connection, table: Table, keys: Columns, columns: Columns, rows: Rows
) -> None:
    """Insert rows, or add to the columns of those that are there; keys come first in each row."""
    _run(connection, _add_or_insert(connection.dialect.name, table, keys, columns), rows)


def update(connection: Connection, table: Table, key: str, columns: Columns, rows: Rows) -> None:
    """Set columns of rows; the key comes last in each row."""
    _run(connection, _update(connection.dialect.name, table, key, columns), rows)


def select(
    connection: Connection, table: Table, key: str, columns: Columns, keys: Iterable[Any]
) -> list[Any]:
    """The columns of the rows with these keys, in the order of the keys, locked until the end."""
    cursor = connection.connection.cursor()
    statement = _select(connection.dialect.name, table, key, columns)
    if connection.dialect.name == "postgresql":
        cursor.execute(statement, (list(keys),))
        return list(cursor.fetchall())
    found = [cursor.execute(statement, (value,)).fetchone() for value in sorted(keys)]
    return [row for row in found if row is not None]


def distinct_ids(
    connection: Connection, dataset_id: int, contents: list[str]
) -> list[tuple[str, int]]:
    """(content, id) of the distinct events of a dataset that are there."""
    cursor = connection.connection.cursor()
    if connection.dialect.name == "postgresql":
        cursor.execute(
            "SELECT content, id FROM distinct_events WHERE dataset_id = %s AND content = ANY(%s)",
            (dataset_id, contents),
        )
    else:
        cursor.execute(
            "SELECT content, id FROM distinct_events WHERE dataset_id = ? "
            "AND content IN (SELECT value FROM json_each(?))",
            (dataset_id, json.dumps(contents)),
        )
    return list(cursor.fetchall())


def insert_distinct(
    connection: Connection, dataset_id: int, rows: list[tuple[str, bool]]
) -> list[tuple[str, int]]:
    """Insert distinct events that are not there, with nothing counted; (content, id) of each."""
    cursor = connection.connection.cursor()
    if connection.dialect.name == "postgresql":
        by_pass = [counted for _, counted in rows]
        cursor.execute(_NEW_ARRAYS, (dataset_id, [content for content, _ in rows], by_pass))
    else:
        cursor.execute(_NEW_JSON, (dataset_id, json.dumps(rows)))
    return list(cursor.fetchall())


def _run(connection: Connection, statement: str, rows: Rows) -> None:
    if not rows:
        return
    if connection.dialect.name != "postgresql":
        connection.connection.cursor().executemany(statement, rows)
        return
    columns = [list(values) for values in zip(*rows, strict=True)]
    gathered = connection.info.get(_GATHERED)
    if gathered is None:
        connection.connection.cursor().execute(statement, columns)
    else:
        gathered.append((statement, columns))


def _source(dialect: str, table: Table, columns: Columns) -> str:
    if dialect != "postgresql":
        return f"VALUES ({', '.join('?' * len(columns))})"
    arrays = ", ".join(f"%s::{_array(table, column)}[]" for column in columns)
    return f"SELECT * FROM unnest({arrays})"  # noqa: S608, names of our own tables


def _array(table: Table, column: str) -> str:
    kind = table.c[column].type
    return next((name for known, name in _ARRAYS if isinstance(kind, known)), "text")


@lru_cache
def _insert(dialect: str, table: Table, columns: Columns) -> str:
    names = ", ".join(columns)
    return f"INSERT INTO {table.name} ({names}) {_source(dialect, table, columns)}"


@lru_cache
def _add_or_insert(dialect: str, table: Table, keys: Columns, columns: Columns) -> str:
    every = (*keys, *columns)
    changes = ", ".join(f"{name} = {table.name}.{name} + excluded.{name}" for name in columns)
    return (
        f"INSERT INTO {table.name} ({', '.join(every)}) {_source(dialect, table, every)} "
        f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changes}"
    )


@lru_cache
def _update(dialect: str, table: Table, key: str, columns: Columns, adds: bool = False) -> str:
    new = "?" if dialect != "postgresql" else "found.{0}"
    form = f"{{0}} = {table.name}.{{0}} + {new}" if adds else f"{{0}} = {new}"
    changes = ", ".join(form.format(name) for name in columns)
    if dialect != "postgresql":
        return f"UPDATE {table.name} SET {changes} WHERE {key} = ?"  # noqa: S608
    every = (*columns, key)
    arrays = ", ".join(f"%s::{_array(table, name)}[]" for name in every)
    return (
        f"UPDATE {table.name} SET {changes} "  # noqa: S608
        f"FROM unnest({arrays}) AS found ({', '.join(every)}) "
        f"WHERE {table.name}.{key} = found.{key}"
    )


@lru_cache
def _select(dialect: str, table: Table, key: str, columns: Columns) -> str:
    names = ", ".join(columns)
    if dialect != "postgresql":
        return f"SELECT {names} FROM {table.name} WHERE {key} = ?"  # noqa: S608
    return f"SELECT {names} FROM {table.name} WHERE {key} = ANY(%s) ORDER BY {key} FOR UPDATE"  # noqa: S608
