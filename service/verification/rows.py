"""Rows as they are stored, on the driver's own cursor: fast, and nothing in them is trusted.

SQLite keeps whatever was put into a column, so a value may be of any type. Times are text, to the
microsecond, as SQLite stores them.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from psycopg import DataError
from psycopg.types.datetime import TimestamptzLoader
from sqlalchemy import Connection, Dialect, Select

ROWS: Final = 5000  # at a time
Words = Callable[[bytes], list[str]]
# (sequence, run, branch, first step, steps, event, what Words reads, leaf)
Entry = tuple[Any, Any, Any, Any, Any, Any, Any, Any]
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}")
_ENTRIES: Final = (
    "SELECT sequence, run_id, branch_id, first_step, steps, event_id, {said}, leaf "
    "FROM entries WHERE dataset_id = {mark} ORDER BY sequence"
)
_SQLITE_ENTRIES: Final = _ENTRIES.format(
    said="CAST(mode || '|' || verdict || '|' || recorded_at AS BLOB)", mark="?"
)
# The server is slow to write times out, and a batch has few: they come as it stores them, in
# microseconds since 2000.
_POSTGRES_ENTRIES: Final = _ENTRIES.format(
    said="convert_to(mode || '|' || verdict || '|', 'UTF8') || timestamptz_send(recorded_at)",
    mark="%s",
)
_POSTGRES_EPOCH: Final = datetime(2000, 1, 1)  # noqa: DTZ001, what is stored is UTC


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
    driver: Any = connection.connection
    if connection.dialect.name == "postgresql":
        # The server keeps the rows until they are asked for; numbers and bytes come as they are.
        cursor, query = driver.cursor("entries", binary=True), _POSTGRES_ENTRIES
    else:
        cursor, query = driver.cursor(), _SQLITE_ENTRIES
    try:
        cursor.execute(query, (dataset_id,))
        fetched = _fetched(cursor) if connection.dialect.name == "sqlite" else _ahead(cursor)
        yield from fetched
    finally:
        cursor.close()


def _fetched(cursor: Any) -> Iterator[Sequence[Entry]]:
    while found := cursor.fetchmany(ROWS):
        yield found


def _ahead(cursor: Any) -> Iterator[Sequence[Entry]]:
    """The same, while the server is asked for what comes next."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(cursor.fetchmany, ROWS)
        while found := coming.result():
            coming = reader.submit(cursor.fetchmany, ROWS)
            yield found


def words_of(connection: Connection) -> Words:
    """What reads the mode, the verdict and the time out of what an entry says of them.

    It raises ValueError or OverflowError where they cannot be read.
    """
    return _postgres_words if connection.dialect.name == "postgresql" else _sqlite_words


def _sqlite_words(said: bytes) -> list[str]:
    return said.decode().split("|")


def _postgres_words(said: bytes) -> list[str]:
    stored = int.from_bytes(said[-8:], signed=True)  # infinity and years before 1 overflow
    moment = _POSTGRES_EPOCH + timedelta(microseconds=stored)
    return [*said[:-9].decode().split("|"), moment.isoformat(" ", "microseconds")]
