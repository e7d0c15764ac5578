"""The file of a backup: every row of every table, one text for both databases, and its digest.

Lines of JSON, compressed: what was backed up, then each table and its rows, last how many rows
each table has and the SHA-256 of all lines before. A file that was cut or changed is refused.
"""

import base64
import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final

from sqlalchemy import Column, DateTime, LargeBinary

from service.clock import utc

FORMAT: Final = "dpledger-backup/1"
COMPRESSION: Final = 3  # rows repeat themselves; more takes thrice the time for a tenth less
_DAMAGED: Final = "The backup is damaged:"
_encode: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class BackupError(Exception):
    """A backup that cannot be made, read or restored; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What was backed up."""

    format: str
    core_version: str
    schema_revision: str
    ledger_id: str
    database: str
    taken_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a whole backup says of itself."""

    header: Header
    rows: dict[str, int]  # by table
    sha256: str


Row = list[Any]
Codec = Callable[[Any], Any]


def _text_of_time(moment: datetime) -> str:
    return utc(moment).isoformat(timespec="microseconds")


def _text_of_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _bytes_of_text(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _codecs(columns: Iterable[Column[Any]], time: Codec, binary: Codec) -> list[tuple[int, Codec]]:
    """What to do with the values of those columns that JSON has no form for."""
    kinds = ((DateTime, time), (LargeBinary, binary))
    return [
        (place, codec)
        for place, column in enumerate(columns)
        for kind, codec in kinds
        if isinstance(column.type, kind)
    ]


def _convert(codecs: list[tuple[int, Codec]], row: Row) -> Row:
    for place, codec in codecs:
        if row[place] is not None:
            row[place] = codec(row[place])
    return row


class BackupWriter:
    """Writes lines and remembers what `finish` says of them."""

    def __init__(self, stream: gzip.GzipFile, header: Header) -> None:
        self._stream = stream
        self._header = header
        self._hash = hashlib.sha256()
        self._rows: dict[str, int] = {}
        self._line(asdict(header))

    def _line(self, value: object) -> None:
        line = _encode(value).encode() + b"\n"
        self._hash.update(line)
        self._stream.write(line)

    def table(self, name: str, columns: Sequence[Column[Any]], rows: Iterable[Any]) -> None:
        """Write a table."""
        self._line({"table": name, "columns": [column.name for column in columns]})
        codecs, count = _codecs(columns, _text_of_time, _text_of_bytes), 0
        for row in rows:
            self._line(_convert(codecs, list(row)))
            count += 1
        self._rows[name] = count

    def finish(self) -> Summary:
        """Write the last line."""
        digest = self._hash.hexdigest()
        self._line({"rows": self._rows, "sha256": digest})
        return Summary(header=self._header, rows=self._rows, sha256=digest)


@contextmanager
def written(file: IO[bytes], header: Header) -> Iterator[BackupWriter]:
    """A writer to an open file; `finish` it within the block."""
    with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=COMPRESSION) as stream:
        yield BackupWriter(stream, header)


class BackupReader:
    """Reads a backup line by line; what it says is believed only once it was read to its end."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines
        self._hash = hashlib.sha256()
        self._counts: dict[str, int] = {}
        self._next: Any = None
        try:
            self.header = Header(**self._read())
        except TypeError as error:
            raise BackupError("This is no backup of dpledger.") from error
        if self.header.format != FORMAT:
            raise BackupError(f"The backup's format is not {FORMAT}; use the version that made it.")
        self._next = self._read()

    def _read(self) -> Any:
        line = next(self._lines, b"")
        if not line.endswith(b"\n"):
            raise BackupError(f"{_DAMAGED} it ends before its last line.")
        self._before = self._hash.hexdigest()  # of everything before this line
        self._hash.update(line)
        try:
            return json.loads(line)
        except ValueError as error:
            raise BackupError(f"{_DAMAGED} a line is not JSON.") from error

    def tables(self) -> Iterator[tuple[str, list[str], Iterator[Row]]]:
        """Each table: its name, its columns and its rows, which are to be read before the next."""
        while isinstance(self._next, dict) and "table" in self._next:
            name, columns = self._next["table"], self._next["columns"]
            yield name, columns, self._rows(name, len(columns))

    def _rows(self, name: str, width: int) -> Iterator[Row]:
        self._counts[name] = 0
        while isinstance(row := self._read(), list):
            if len(row) != width:
                raise BackupError(f"{_DAMAGED} a row of {name} has another number of columns.")
            self._counts[name] += 1
            yield row
        self._next = row

    def finish(self) -> Summary:
        """Compare what was read with what the last line says.

        Raises:
            BackupError: they differ.
        """
        last = self._next
        if last != {"rows": self._counts, "sha256": self._before}:
            raise BackupError(f"{_DAMAGED} its rows are not those that were backed up.")
        if next(self._lines, b""):
            raise BackupError(f"{_DAMAGED} something follows its last line.")
        return Summary(header=self.header, rows=self._counts, sha256=self._before)


@contextmanager
def opened(path: Path) -> Iterator[BackupReader]:
    """A reader of a file.

    Raises:
        BackupError: it cannot be read.
    """
    try:
        with gzip.open(path, "rb") as stream:
            yield BackupReader(iter(stream))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BackupError(f"{_DAMAGED} {error}") from error
    except OSError as error:
        raise BackupError(f"{path}: {error.strerror or error}") from error


def check(path: Path) -> Summary:
    """Read a whole file.

    Raises:
        BackupError: it is no backup, or not as it was written.
    """
    with opened(path) as reader:
        for _, _, rows in reader.tables():
            for _ in rows:
                pass
        return reader.finish()


def decoded(columns: Sequence[Column[Any]], rows: Iterable[Row]) -> Iterator[Row]:
    """Rows as a database takes them."""
    codecs = _codecs(columns, datetime.fromisoformat, _bytes_of_text)
    return (_convert(codecs, row) for row in rows)
