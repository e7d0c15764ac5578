"""Many rows in one statement: the writes of a group, on the driver's own cursor.

Building and checking a statement costs more than running it, so each is built once a table and
database. PostgreSQL takes a column of values at a time (`unnest`), or the values of a single row,
which the driver sends and the server plans in a fraction of the time; SQLite takes a row at a time.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
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
_TYPES: Final = (
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


def to_driver_time(connection: Connection, moment: datetime) -> datetime | str:
    """A time as the driver takes it; SQLite has text, as SQLAlchemy writes and reads it."""
    if connection.dialect.name == "postgresql":
        return moment
    return moment.replace(tzinfo=None).isoformat(" ", "microseconds")


@contextmanager
def pipeline(connection: Connection) -> Iterator[None]:
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
    _run(connection, rows, _insert, table, columns)


def add(connection: Connection, table: Table, key: str, columns: Columns, rows: Rows) -> None:
    """Add to columns of rows that are there; the key comes last in each row."""
    _run(connection, rows, _update, table, key, columns, True)


def add_or_insert(
    connection: Connection, table: Table, keys: Columns, columns: Columns, rows: Rows
) -> None:
    """Insert rows, or add to the columns of those that are there; keys come first in each row."""
    _run(connection, rows, _add_or_insert, table, keys, columns)


def update(connection: Connection, table: Table, key: str, columns: Columns, rows: Rows) -> None:
    """Set columns of rows; the key comes last in each row."""
    _run(connection, rows, _update, table, key, columns)


def select(
    connection: Connection,
    table: Table,
    key: str,
    columns: Columns,
    keys: Iterable[Any],
    *,
    lock: bool = True,
) -> list[Any]:
    """The columns of the rows with these keys, in the order of the keys, locked until the end.

    Args:
        connection: in a transaction.
        table: whose rows.
        key: the column that names them.
        columns: the columns to read.
        keys: of the rows.
        lock: whether to lock the rows; a snapshot locks none.
    """
    cursor = connection.connection.cursor()
    statement = _select(connection.dialect.name, table, key, columns, lock)
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


def _run(connection: Connection, rows: Rows, build: Callable[..., str], *given: Any) -> None:
    """Run the statement that is built for these rows."""
    if not rows:
        return
    if connection.dialect.name != "postgresql":
        connection.connection.cursor().executemany(build("?", *given), rows)
        return
    one = len(rows) == 1
    values = list(rows[0]) if one else [_array(column) for column in zip(*rows, strict=True)]
    statement = build("%s" if one else "%s[]", *given)
    gathered = connection.info.get(_GATHERED)
    if gathered is None:
        connection.connection.cursor().execute(statement, values)
    else:
        gathered.append((statement, values))


def _array(values: Sequence[Any]) -> Any:
    """A column as the driver takes it; whole numbers as text, which costs it far less."""
    if type(values[0]) is not int:
        return list(values)
    return f"{{{','.join(['NULL' if one is None else str(one) for one in values])}}}"


def _source(form: str, table: Table, columns: Columns) -> str:
    """The rows of a statement, by the form of a parameter: `?`, `%s`, or `%s[]` for a column."""
    if form == "?":
        return f"VALUES ({', '.join('?' * len(columns))})"
    if form == "%s":
        return f"VALUES ({', '.join(f'%s::{_type(table, column)}' for column in columns)})"
    arrays = ", ".join(f"%s::{_type(table, column)}[]" for column in columns)
    return f"SELECT * FROM unnest({arrays})"  # noqa: S608, names of our own tables


def _type(table: Table, column: str) -> str:
    kind = table.c[column].type
    return next((name for known, name in _TYPES if isinstance(kind, known)), "text")


@lru_cache
def _insert(form: str, table: Table, columns: Columns) -> str:
    names = ", ".join(columns)
    return f"INSERT INTO {table.name} ({names}) {_source(form, table, columns)}"


@lru_cache
def _add_or_insert(form: str, table: Table, keys: Columns, columns: Columns) -> str:
    every = (*keys, *columns)
    changes = ", ".join(f"{name} = {table.name}.{name} + excluded.{name}" for name in columns)
    return (
        f"INSERT INTO {table.name} ({', '.join(every)}) {_source(form, table, every)} "
        f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changes}"
    )


@lru_cache
def _update(form: str, table: Table, key: str, columns: Columns, adds: bool = False) -> str:
    new = "?" if form == "?" else "found.{0}"
    change = f"{{0}} = {table.name}.{{0}} + {new}" if adds else f"{{0}} = {new}"
    changes = ", ".join(change.format(name) for name in columns)
    if form == "?":
        return f"UPDATE {table.name} SET {changes} WHERE {key} = ?"  # noqa: S608
    every = (*columns, key)
    return (
        f"UPDATE {table.name} SET {changes} "  # noqa: S608
        f"FROM ({_source(form, table, every)}) AS found ({', '.join(every)}) "
        f"WHERE {table.name}.{key} = found.{key}"
    )


@lru_cache
def _select(dialect: str, table: Table, key: str, columns: Columns, lock: bool) -> str:
    names = ", ".join(columns)
    if dialect != "postgresql":
        return f"SELECT {names} FROM {table.name} WHERE {key} = ?"  # noqa: S608
    statement = f"SELECT {names} FROM {table.name} WHERE {key} = ANY(%s) ORDER BY {key}"  # noqa: S608
    return f"{statement} FOR UPDATE" if lock else statement
