"""Rows as they are stored, on the driver's own cursor: fast, and nothing in them is trusted.

SQLite keeps whatever was put into a column, so a value may be of any type. Times are text, to the
microsecond, as SQLite stores them.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

from psycopg import DataError
from psycopg.types.datetime import TimestamptzLoader
from sqlalchemy import Connection, Dialect, Select

ROWS: Final = 5000  # at a time
# (sequence, run, branch, first step, steps, event, b"mode|verdict|time", leaf)
Entry = tuple[Any, Any, Any, Any, Any, Any, Any, Any]
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}")
_COLUMNS: Final = "sequence, run_id, branch_id, first_step, steps, event_id"
_SQLITE_ENTRIES: Final = (
    f"SELECT {_COLUMNS}, CAST(mode || '|' || verdict || '|' || recorded_at AS BLOB), "  # noqa: S608
    "leaf FROM entries WHERE dataset_id = ? ORDER BY sequence"
)
_POSTGRES_ENTRIES: Final = (
    f"COPY (SELECT {_COLUMNS}, mode || '|' || verdict || '|' || "  # noqa: S608
    "to_char(recorded_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US'), encode(leaf, 'hex') "
    "FROM entries WHERE dataset_id = %s ORDER BY sequence) TO STDOUT"
)
_NONE: Final = rb"\N"  # what COPY says of a column without a value


def is_time(text: object) -> bool:
    """Whether a stored time is one."""
    return isinstance(text, str) and _TIME.fullmatch(text) is not None


class _Lenient(TimestamptzLoader):
    def load(self, data: Any) -> Any:
        """A time, or its text where Python has none for it, such as infinity."""
        try:
            return super().load(data)
        except DataError:
            return bytes(data).decode()


@contextmanager
def distrusted(connection: Connection) -> Iterator[None]:
    """Let a driver hand over whatever is stored rather than fail on it."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "postgresql":
        driver.adapters.register_loader("timestamptz", _Lenient)
        yield
        driver.adapters.register_loader("timestamptz", TimestamptzLoader)
    else:
        driver.text_factory = _text
        yield
        driver.text_factory = str


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def every(connection: Connection, query: Select[Any], **values: Any) -> Iterator[dict[str, Any]]:
    """The rows of a query by column, not converted."""
    compiled = _compiled(query, connection.dialect)
    given = compiled.construct_params(values)
    cursor = connection.connection.cursor()
    try:
        if connection.dialect.name == "postgresql":
            cursor.execute(str(compiled), given)
        else:
            cursor.execute(str(compiled), [given[name] for name in compiled.positiontup or ()])
        names = [column[0] for column in cursor.description or ()]
        while found := cursor.fetchmany(ROWS):
            for row in found:
                yield dict(zip(names, row, strict=True))
    finally:
        cursor.close()


@lru_cache(maxsize=256)
def _compiled(query: Select[Any], dialect: Dialect) -> Any:
    return query.compile(dialect=dialect)


def entries_of(connection: Connection, dataset_id: int) -> Iterator[Sequence[Entry]]:
    """A dataset's entries in the order of their sequence, many at a time."""
    if connection.dialect.name == "postgresql":
        return _copied(connection, dataset_id)
    return _fetched(connection, dataset_id)


def _fetched(connection: Connection, dataset_id: int) -> Iterator[Sequence[Entry]]:
    cursor = connection.connection.cursor()
    cursor.execute(_SQLITE_ENTRIES, (dataset_id,))
    while found := cursor.fetchmany(ROWS):
        yield found


def _copied(connection: Connection, dataset_id: int) -> Iterator[Sequence[Entry]]:
    cursor: Any = connection.connection.cursor()
    kept = b""
    with cursor.copy(_POSTGRES_ENTRIES, (dataset_id,)) as copy:
        for block in copy:
            kept += block
            if len(kept) > ROWS * 150:
                whole, kept = kept.rsplit(b"\n", 1) if b"\n" in kept else (b"", kept)
                yield [_entry(line) for line in whole.split(b"\n")]
    if kept:
        yield [_entry(line) for line in kept.rstrip(b"\n").split(b"\n")]


def _entry(line: bytes) -> Entry:
    sequence, run, branch, first, steps, event, said, leaf = line.split(b"\t")
    return (
        int(sequence), int(run), int(branch), int(first), int(steps), int(event), said,
        None if leaf == _NONE else bytes.fromhex(leaf.decode()),
    )  # fmt: skip
