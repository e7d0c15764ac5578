"""The file of a backup: every row of every table, one text for both databases, and its digest.

Lines of JSON, compressed: what was backed up, then each table and its rows, last how many rows
each table has and the SHA-256 of all lines before. A file that was cut or changed is refused.
Values are validated, because a forged file can have a correct digest.
"""

import base64
import gzip
import hashlib
import json
import math
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import PydanticCustomError
from sqlalchemy import Boolean, Column, DateTime, Float, Integer, LargeBinary, String, Table

from service.clock import utc
from service.schemas.field_errors import allowed
from service.schemas.message import Wire
from service.storage import migrations
from service.storage.tables import metadata

_WHOLE: Final = 2**63  # what no whole number of a database reaches
Codec = Callable[[Any], Any]
_FORMAT: Final = "dpledger-backup/1"
SUFFIX: Final = ".backup"  # of a file that is meant to be one, whatever it holds
_BEGINNING: Final = b'{"format":"dpledger-backup/'  # of any version
COMPRESSION: Final = 3  # rows repeat themselves; more takes thrice the time for a tenth less
LINE_MAX: Final = 128 * 2**20  # bytes; the longest rows hold what was certified, and are far less
_ALWAYS: Final = frozenset({"datasets", "runs", "entries"})  # tables of every version
_encode: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_Line = Annotated[str, Field(max_length=100)]
Row = list[Any]
Tables = Mapping[str, Table]
M = TypeVar("M", bound=Wire)


@dataclass(frozen=True, slots=True)
class BackupReading:
    """How the values of a column are read; what belongs not in it raises ValueError."""

    column: str
    read: Codec
    words: str  # what a value must be


def _text_of_time(moment: datetime) -> str:
    return utc(moment).isoformat(timespec="microseconds")


def _text_of_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _time(value: Any) -> datetime:
    return utc(datetime.fromisoformat(_text(value)))


def _bytes(value: Any) -> bytes:
    return base64.b64decode(_text(value), validate=True)


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not -_WHOLE <= value < _WHOLE:
        raise ValueError
    return value


def _number(value: Any) -> float:
    if type(value) is not float or not math.isfinite(value):
        raise ValueError
    return value


def _text(value: Any) -> str:
    if type(value) is not str or "\0" in value:  # for which PostgreSQL has no place
        raise ValueError
    value.encode()  # half a character has no bytes
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict | list):
        raise ValueError
    return value


_WRITTEN: Final = ((DateTime, _text_of_time), (LargeBinary, _text_of_bytes))
_READ: Final[tuple[tuple[type, Codec, str], ...]] = (
    (DateTime, _time, "a time"),
    (LargeBinary, _bytes, "bytes in base64"),
    (Boolean, _truth, "true or false"),
    (Integer, _whole, "a whole number of 64 bits"),
    (Float, _number, "a finite number with a fraction"),
    (String, _text, "text"),
)


def find_codec(column: Column[Any]) -> Codec | None:
    """How a value of a column is brought into JSON; none where it is there as it is."""
    return next((codec for kind, codec in _WRITTEN if isinstance(column.type, kind)), None)


def reading_of(column: Column[Any] | str) -> BackupReading:
    """How a column's values are read; of one that this version does not know its name is given."""
    if isinstance(column, str):
        return BackupReading(column, _plain, "no list and no object")
    for kind, codec, words in _READ:
        if isinstance(column.type, kind):
            if column.nullable:
                return BackupReading(column.name, _nullable(codec), f"{words}, or null")
            return BackupReading(column.name, codec, words)
    raise TypeError(f"{column} is of no kind that backups have.")


def _nullable(codec: Codec) -> Codec:
    return lambda value: None if value is None else codec(value)


class BackupError(Exception):
    """A backup that cannot be made, read or restored; the text says why."""


def _moment(text: str) -> str:
    try:
        zoned = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        zoned = False
    if not zoned:
        raise PydanticCustomError("moment", "must be a time with its zone")
    return text


def _distinct(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise PydanticCustomError("distinct", "must differ from one another")
    return names


class Header(Wire):
    """What was backed up."""

    format: Literal["dpledger-backup/1"]
    core_version: _Line
    schema_revision: Annotated[str, Field(pattern=r"^[0-9]{4}$")]
    ledger_id: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")]  # before logs there was none
    database: Literal["sqlite", "postgresql"]
    taken_at: Annotated[_Line, AfterValidator(_moment)]


class _Heading(Wire):
    """The line before a table's rows."""

    table: _Line
    columns: Annotated[list[_Line], Field(min_length=1), AfterValidator(_distinct)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a whole backup says of itself."""

    header: Header
    rows: dict[str, int]  # by table
    sha256: str


class BackupWriter:
    """Writes lines and keeps what `finish` says of them."""

    def __init__(self, stream: gzip.GzipFile, header: Header) -> None:
        self._stream = stream
        self._header = header
        self._hash = hashlib.sha256()
        self._rows: dict[str, int] = {}
        self._line(header.model_dump())

    def _line(self, value: object) -> None:
        line = _encode(value).encode() + b"\n"
        self._hash.update(line)
        self._stream.write(line)

    def table(self, name: str, columns: Sequence[Column[Any]], rows: Iterable[Any]) -> None:
        """Write a table."""
        self._line({"table": name, "columns": [column.name for column in columns]})
        codecs = [(at, codec) for at, one in enumerate(columns) if (codec := find_codec(one))]
        count = 0
        for found in rows:
            row = list(found)
            for place, codec in codecs:
                if row[place] is not None:
                    row[place] = codec(row[place])
            self._line(row)
            count += 1
        self._rows[name] = count

    def finish(self) -> Summary:
        """Write the last line."""
        digest = self._hash.hexdigest()
        self._line({"rows": self._rows, "sha256": digest})
        return Summary(header=self._header, rows=self._rows, sha256=digest)


def is_meant_as_backup(path: Path) -> bool:
    """Return whether a file begins as a backup does, or has the name of one.

    Other files may lie beside backups: a database, a report, a certificate.

    Raises:
        OSError: it cannot be read.
    """
    if path.suffix == SUFFIX:
        return True
    try:
        with gzip.open(path) as stream:
            return stream.read(len(_BEGINNING)) == _BEGINNING
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return False


@contextmanager
def write_backup(file: IO[bytes], header: Header) -> Iterator[BackupWriter]:
    """A writer to an open file; `finish` it within the block."""
    with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=COMPRESSION) as stream:
        yield BackupWriter(stream, header)


def _no_constant(name: str) -> Any:
    raise ValueError(name)


class BackupReader:
    """Reads a backup line by line; what it says is believed only once it was read to its end."""

    def __init__(self, path: Path, stream: IO[bytes] | gzip.GzipFile) -> None:
        self.line = 0  # that was read last
        self._path = path
        self._stream = stream
        self._hash = hashlib.sha256()
        self._counts: dict[str, int] = {}
        first = self._read()
        if not isinstance(first, dict) or "format" not in first:
            raise self.fault("this is no backup of dpledger")
        if first["format"] != _FORMAT:
            raise self.fault(f"its format is not {_FORMAT}; use the version that made it")
        self.header = self._validated(Header, first)
        self._next = self._read()

    def fault(self, what: str, *, lines: tuple[int, int] | None = None) -> BackupError:
        """What is wrong with the line that was read last, or with some before it."""
        where = f"lines {lines[0]} to {lines[1]}" if lines else f"line {self.line}"
        said = " ".join(what.split())
        return BackupError(f"The backup {self._path} is damaged, {where}: {said}")

    def _read(self) -> Any:
        line = self._stream.readline(LINE_MAX + 1)
        self.line += 1
        if len(line) > LINE_MAX:
            raise self.fault("longer than any line of a backup")
        if not line.endswith(b"\n"):
            raise self.fault("the file ends before its last line")
        self._before = self._hash.hexdigest()  # of everything before this line
        self._hash.update(line)
        try:
            return _decode(line.decode())
        except (ValueError, RecursionError):
            raise self.fault("not JSON as backups are written") from None

    def _validated(self, model: type[M], value: Any) -> M:
        try:
            return model.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))[:100]
            raise self.fault(f"{place}: {allowed(first)}") from None

    def tables(self, known: Tables | None) -> Iterator[tuple[str, list[str], Iterator[Row]]]:
        """Each table: its name, its columns and its rows, which are to be read before the next.

        Args:
            known: the tables of the version that made the backup, which its rows must fit and
                which must all be there; none if this version does not know them.

        Raises:
            BackupError: something is not as it was written.
        """
        while isinstance(self._next, dict) and "table" in self._next:
            heading = self._validated(_Heading, self._next)
            name, columns = heading.table, heading.columns
            if name in self._counts:
                raise self.fault(f"table: {name} is there twice")
            yield name, columns, self._rows(name, self._readings(known, name, columns))
        needed = _ALWAYS if known is None else known.keys()
        if missing := needed - self._counts.keys():
            raise self.fault(f"the table {min(missing)} is missing before it")

    def _readings(self, known: Tables | None, name: str, columns: list[str]) -> list[BackupReading]:
        if known is None:
            return [reading_of(column) for column in columns]
        if name not in known or set(columns) != set(known[name].columns.keys()):
            raise self.fault(f"the table {name} is not that of its version")
        return [reading_of(known[name].columns[column]) for column in columns]

    def _rows(self, name: str, readings: list[BackupReading]) -> Iterator[Row]:
        self._counts[name] = 0
        while isinstance(row := self._read(), list):
            if len(row) != len(readings):
                raise self.fault(f"{name}: a row has another number of columns")
            for place, one in enumerate(readings):
                try:
                    row[place] = one.read(row[place])
                except (ValueError, OverflowError):
                    raise self.fault(f"{name}.{one.column}: must be {one.words}") from None
            self._counts[name] += 1
            yield row
        self._next = row

    def finish(self) -> Summary:
        """Compare what was read with what the last line says.

        Raises:
            BackupError: they differ.
        """
        if self._next != {"rows": self._counts, "sha256": self._before}:
            raise self.fault("the rows before it are not those that were backed up")
        if self._stream.read(1):
            raise self.fault("something follows, and it should be the last")
        return Summary(header=self.header, rows=self._counts, sha256=self._before)


@contextmanager
def open_backup(path: Path) -> Iterator[BackupReader]:
    """A reader of a file.

    Raises:
        BackupError: it cannot be read.
    """
    try:
        with gzip.open(path, "rb") as stream:
            yield BackupReader(path, stream)
    except gzip.BadGzipFile as error:  # its words show bytes as Python writes them
        raise BackupError(f"The backup {path} is damaged, or is none: not gzip") from error
    except (EOFError, zlib.error) as error:
        raise BackupError(f"The backup {path} is damaged: {error}") from error
    except OSError as error:
        raise BackupError(f"{path}: {error.strerror or error}") from error


def tables_of(header: Header) -> Tables | None:
    """The tables of the version that made a backup, as far as this version knows them."""
    return metadata.tables if header.schema_revision == migrations.head() else None


def check(path: Path) -> Summary:
    """Read a whole file.

    Raises:
        BackupError: it is no backup, or not as it was written.
    """
    with open_backup(path) as reader:
        for _, _, rows in reader.tables(tables_of(reader.header)):
            deque(rows, maxlen=0)
        return reader.finish()


_decode: Final = json.JSONDecoder(parse_constant=_no_constant).decode  # neither NaN nor Infinity
