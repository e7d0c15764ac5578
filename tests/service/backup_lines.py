"""Backups whose lines were changed."""

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

Change = Callable[[list[bytes]], list[bytes]]


def rewritten(file: Path, change: Change) -> Path:
    """A file with other lines, compressed as before."""
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    other = file.with_suffix(".changed")
    other.write_bytes(gzip.compress(b"".join(change(lines))))
    return other


def forged(file: Path, change: Change) -> Path:
    """A file that was changed by somebody who made its last line fit."""

    def change_all(lines: list[bytes]) -> list[bytes]:
        body = change(lines[:-1])
        rows = json.loads(lines[-1])["rows"]
        for name in rows:
            if (place := _heading(body, name)) is not None:
                rows[name] = _end(body, place) - place - 1
        digest = hashlib.sha256(b"".join(body)).hexdigest()
        return [*body, _line({"rows": rows, "sha256": digest})]

    return rewritten(file, change_all)


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _heading(lines: list[bytes], table: str) -> int | None:
    begin = f'{{"table":"{table}"'.encode()
    return next((at for at, line in enumerate(lines) if line.startswith(begin)), None)


def _end(lines: list[bytes], heading: int) -> int:
    """The line after the last row of a table."""
    rest = range(heading + 1, len(lines))
    return next((at for at in rest if lines[at].startswith(b"{")), len(lines))


def of_header(**given: object) -> Change:
    """Other words in the header."""
    return lambda lines: [_line(json.loads(lines[0]) | given), *lines[1:]]


def of_heading(table: str, value: object) -> Change:
    """Something else before a table's rows."""

    def change(lines: list[bytes]) -> list[bytes]:
        place = _heading(lines, table)
        assert place is not None
        return [*lines[:place], _line(value), *lines[place + 1 :]]

    return change


def of_row(table: str, **given: object) -> Change:
    """Other values in the first row of a table."""

    def change(lines: list[bytes]) -> list[bytes]:
        place = _heading(lines, table)
        assert place is not None
        columns = json.loads(lines[place])["columns"]
        row = dict(zip(columns, json.loads(lines[place + 1]), strict=True)) | given
        return [*lines[: place + 1], _line([*row.values()]), *lines[place + 2 :]]

    return change


def without_rows(table: str) -> Change:
    """A table without its rows."""

    def change(lines: list[bytes]) -> list[bytes]:
        place = _heading(lines, table)
        assert place is not None
        return [*lines[: place + 1], *lines[_end(lines, place) :]]

    return change


def without_table(table: str) -> Change:
    """Nothing of a table."""

    def change(lines: list[bytes]) -> list[bytes]:
        place = _heading(lines, table)
        assert place is not None
        return [*lines[:place], *lines[_end(lines, place) :]]

    return change
