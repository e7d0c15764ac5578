"""The file of a backup: whatever is not as it was written is refused."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import IO, cast

import pytest
from sqlalchemy import Engine, inspect

from service.errors import StartupError
from service.identity.keys import Role, create_key
from service.operations import backup_format
from service.operations.backup import restore, take_backup
from service.operations.backup_format import BackupError, BackupReader, check
from service.storage import migrations
from service.storage.engine import connect, transaction
from tests.service.backup_lines import (
    Change,
    forged,
    of_header,
    of_heading,
    of_row,
    rewritten,
    without_table,
)

BY = "somebody"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A backup of a ledger with some keys in it."""
    engine = connect(f"sqlite:///{tmp_path / 'ledger.db'}")
    migrations.upgrade(engine)
    with transaction(engine) as connection:
        for number in range(5):
            create_key(connection, name=f"key-{number}", scope=Role.VIEWER)
    path = tmp_path / "ledger.backup"
    take_backup(engine, path)
    engine.dispose()
    return path


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Engine]:
    engine = connect(f"sqlite:///{tmp_path / 'new.db'}")
    yield engine
    engine.dispose()


CHANGES: dict[str, Change] = {
    "nothing left": lambda lines: [],
    "no header": lambda lines: lines[1:],
    "no last line": lambda lines: lines[:-1],
    "a row less": lambda lines: [line for line in lines if b'"key-3"' not in line],
    "a row twice": lambda lines: [*lines[:-2], lines[-2], lines[-2], lines[-1]],
    "a row changed": lambda lines: [line.replace(b"key-3", b"key-8") for line in lines],
    "rows swapped": lambda lines: [*lines[:-3], lines[-2], lines[-3], lines[-1]],
    "cut in a line": lambda lines: [*lines[:-1], lines[-1][:20]],
    "something behind": lambda lines: [*lines, b"{}\n"],
    "another format": lambda lines: [lines[0].replace(b"backup/1", b"backup/2"), *lines[1:]],
    "not JSON": lambda lines: [*lines[:5], b"[1,\n", *lines[6:]],
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_is_not_as_it_was_written_is_refused_and_nothing_is_restored(
    file: Path, empty: Engine, change: str
) -> None:
    other = rewritten(file, CHANGES[change])
    with pytest.raises(BackupError):
        check(other)
    with pytest.raises(BackupError):
        restore(empty, other, by=BY)
    assert inspect(empty).get_table_names() == []


def test_what_is_not_compressed_is_told_in_words(tmp_path: Path) -> None:
    other = tmp_path / "ledger.db"
    other.write_bytes(b"SQLite format 3")
    with pytest.raises(BackupError, match=r": not gzip$"):
        check(other)


def of_key(**given: object) -> Change:
    return of_row("api_keys", **given)


def heading(value: object) -> Change:
    return of_heading("api_keys", value)


def without_revision(lines: list[bytes]) -> list[bytes]:
    return [lines[0].replace(b'"schema_revision":', b'"the_revision":'), *lines[1:]]


MALFORMED: dict[str, tuple[Change, str]] = {
    "no object": (lambda lines: [b"[1]\n", *lines[1:]], "line 1: this is no backup"),
    "no schema": (without_revision, "line 1: schema_revision: must be given"),
    "a word more": (of_header(more=1), "line 1: more: "),
    "a number for a name": (of_header(ledger_id=5), "line 1: ledger_id: "),
    "another database": (of_header(database="mysql"), "line 1: database: "),
    "a revision by a word": (of_header(schema_revision="base"), "line 1: schema_revision: "),
    "no time": (of_header(taken_at="zzz"), "line 1: taken_at: must be a time with its zone"),
    "no zone": (of_header(taken_at="2026-11-22T00:00:00"), "line 1: taken_at: must be a time with"),
    "no table": (lambda lines: lines[:1], "line 2: the table .* is missing"),
    "a table that has no name": (heading({"table": 5, "columns": ["a"]}), "table: "),
    "columns that are a number": (heading({"table": "api_keys", "columns": 5}), "columns: "),
    "no columns": (heading({"table": "api_keys"}), "line 2: columns: must be given"),
    "a column that is a number": (heading({"table": "api_keys", "columns": [1]}), "columns.0: "),
    "a column twice": (heading({"table": "api_keys", "columns": ["id", "id"]}), "must differ"),
    "other columns": (heading({"table": "api_keys", "columns": ["id"]}), "not that of its version"),
    "another table": (heading({"table": "spies", "columns": ["id"]}), "not that of its version"),
    "a table twice": (lambda lines: [*lines, b'{"table":"api_keys","columns":["id"]}\n'],
                      "table: api_keys is there twice"),
    "a table less": (without_table("incidents"),
                     "the table incidents is missing"),
    "a value less": (lambda lines: [*lines[:2], b"[1]\n", *lines[3:]],
                     "line 3: api_keys: a row has another number of columns"),
    "a word for a number": (of_key(id="1"), "line 3: api_keys.id: must be a whole number"),
    "a truth for a number": (of_key(id=True), "line 3: api_keys.id: must be a whole number"),
    "a number of 65 bits": (of_key(id=2**63), "line 3: api_keys.id: must be a whole number"),
    "a number for a word": (of_key(name=5), "line 3: api_keys.name: must be text"),
    "half a character": (of_key(name="\ud800"), "line 3: api_keys.name: must be text"),
    "a zero in a word": (of_key(name="a\0b"), "line 3: api_keys.name: must be text"),
    "nothing": (of_key(name=None), "line 3: api_keys.name: must be text"),
    "a day that is none": (of_key(created_at="2026-99-01"), "api_keys.created_at: must be a time"),
    "before all time": (of_key(created_at="0001-01-01T00:00:00+14:00"), "must be a time"),
    "a list in a row": (of_key(scope=["admin"]), "line 3: api_keys.scope: must be text"),
    "an infinite rate": (lambda lines: [
        line.replace(b"12345.5", b"1e999") for line in of_key(requests_per_second=12345.5)(lines)
    ], "line 3: api_keys.requests_per_second: must be a finite number"),
    "not a number": (of_key(requests_per_second=math.nan), "line 3: not JSON"),
    "no bytes": (of_row("installation", log_frontier="?"), "log_frontier: must be bytes"),
    "nested without end": (lambda lines: [*lines[:2], b"[" * 100_000 + b"\n", *lines[3:]],
                           "line 3: not JSON"),
    "no UTF-8": (lambda lines: [*lines[:2], b'["\xff"]\n', *lines[3:]], "line 3: not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("change", MALFORMED)
def test_a_file_that_was_made_to_look_whole_is_refused_by_line_and_field(
    file: Path, empty: Engine, change: str
) -> None:
    made, said = MALFORMED[change]
    other = forged(file, made)
    with pytest.raises(BackupError, match=said) as refused:
        check(other)
    assert str(other) in str(refused.value)
    with pytest.raises(BackupError, match=said):
        restore(empty, other, by=BY)
    assert inspect(empty).get_table_names() == []


def test_a_line_that_does_not_end_is_not_read_to_its_end(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check(rewritten(file, lambda lines: lines))
    monkeypatch.setattr(backup_format, "LINE_MAX", 1000)
    with pytest.raises(BackupError, match="line 3: longer than any"):
        check(rewritten(file, lambda lines: [*lines[:2], b"[" + b" " * 10_000 + lines[2][1:]]))
    read: list[int] = []

    class Endless:
        def readline(self, size: int) -> bytes:
            read.append(size)
            return b" " * size

    with pytest.raises(BackupError, match="line 1: longer than any"):
        BackupReader(file, cast("IO[bytes]", Endless()))
    assert read == [1001]


def test_a_backup_of_a_version_that_is_not_known_here_has_its_tables_at_least(file: Path) -> None:
    older = of_header(schema_revision="0001")
    assert check(forged(file, older)).header.schema_revision == "0001"
    with pytest.raises(BackupError, match="the table datasets is missing"):
        check(forged(file, lambda lines: older(lines)[:1]))
    with pytest.raises(BackupError, match=r"line 3: api_keys.scope: must be no list"):
        check(forged(file, lambda lines: older(of_key(scope=[])(lines))))


def test_any_bit_that_changes_in_the_file_is_found_or_changes_nothing(file: Path) -> None:
    """A bit that only fills a byte, or points to a like text, leaves what is read as it was."""
    content, found = check(file), 0
    whole, random = file.read_bytes(), Random(1)
    other = file.with_suffix(".flipped")
    for _ in range(60):
        flipped = bytearray(whole)
        flipped[random.randrange(10, len(whole))] ^= 1 << random.randrange(8)  # behind the head
        other.write_bytes(bytes(flipped))
        try:
            assert check(other) == content
        except BackupError:
            found += 1
    assert found > 50
    for length in (0, 5, 30, len(whole) // 2, len(whole) - 1):
        other.write_bytes(whole[:length])
        with pytest.raises(BackupError):
            check(other)
    assert check(file) == content


def test_a_damaged_page_is_not_backed_up(file: Path, tmp_path: Path) -> None:
    path, other = tmp_path / "ledger.db", tmp_path / "other.backup"
    engine = connect(f"sqlite:///{path}")
    with transaction(engine) as connection:
        for number in range(300):
            create_key(connection, name=f"more-{number}", scope=Role.VIEWER)
    engine.dispose()
    whole = bytearray(path.read_bytes())
    size = int.from_bytes(whole[16:18], "big")
    pages = [n for n in range(0, len(whole), size) if b"more-100" in whole[n : n + size]]
    whole[pages[0] + 8 : pages[0] + 60] = b"\xff" * 52
    path.write_bytes(bytes(whole))
    engine = connect(f"sqlite:///{path}")
    with pytest.raises(StartupError, match="damaged"):
        take_backup(engine, other)
    engine.dispose()
    assert not other.exists()
    assert check(file).rows["api_keys"] == 5


def test_a_backup_that_does_not_fit_on_the_disk_leaves_nothing(file: Path, tmp_path: Path) -> None:
    assert file.stat().st_size > 512
    folder = tmp_path / "small"
    folder.mkdir()
    engine = connect(f"sqlite:///{tmp_path / 'ledger.db'}")
    migrations.current(
        engine
    )  # what SQLite keeps beside the database is there before nothing more fits
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -f 1; trap "" XFSZ; exec "$@"', "sh",
         sys.executable, "-m", "service.cli.main", "backup", str(folder / "file")],
        env=os.environ | {"DPLEDGER_DATABASE_URL": f"sqlite:///{tmp_path}/ledger.db"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "file" in done.stderr
    assert list(folder.iterdir()) == []
    engine.dispose()
