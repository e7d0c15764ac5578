"""The file of a backup: whatever is not as it was written is refused."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import Engine, inspect

from service import schema_version
from service.api_keys import Scope, create_key
from service.backup_files import BackupError, check
from service.backups import restore, take
from service.database import connect, transaction
from service.errors import StartupError
from tests.service.backup_lines import Change, rewritten

BY = "somebody"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A backup of a ledger with some keys in it."""
    engine = connect(f"sqlite:///{tmp_path / 'ledger.db'}")
    schema_version.upgrade(engine)
    with transaction(engine) as connection:
        for number in range(5):
            create_key(connection, name=f"key-{number}", scope=Scope.VIEWER)
    path = tmp_path / "ledger.backup"
    take(engine, path)
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


def test_any_bit_that_changes_in_the_file_is_found(file: Path) -> None:
    content = check(file)
    whole, random = file.read_bytes(), Random(1)
    other = file.with_suffix(".flipped")
    for _ in range(60):
        place = random.randrange(10, len(whole))  # behind the head of the compressed file
        flipped = bytearray(whole)
        flipped[place] ^= 1 << random.randrange(8)
        other.write_bytes(bytes(flipped))
        with pytest.raises(BackupError):
            check(other)
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
            create_key(connection, name=f"more-{number}", scope=Scope.VIEWER)
    engine.dispose()
    whole = bytearray(path.read_bytes())
    size = int.from_bytes(whole[16:18], "big")
    pages = [n for n in range(0, len(whole), size) if b"more-100" in whole[n : n + size]]
    whole[pages[0] + 8 : pages[0] + 60] = b"\xff" * 52
    path.write_bytes(bytes(whole))
    engine = connect(f"sqlite:///{path}")
    with pytest.raises(StartupError, match="damaged"):
        take(engine, other)
    engine.dispose()
    assert not other.exists()
    assert check(file).rows["api_keys"] == 5


def test_a_backup_that_does_not_fit_on_the_disk_leaves_nothing(file: Path, tmp_path: Path) -> None:
    assert file.stat().st_size > 512
    folder = tmp_path / "small"
    folder.mkdir()
    engine = connect(f"sqlite:///{tmp_path / 'ledger.db'}")
    schema_version.current(
        engine
    )  # what SQLite keeps beside the database is there before nothing more fits
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -f 1; trap "" XFSZ; exec "$@"', "sh",
         sys.executable, "-m", "service.cli", "backup", str(folder / "file")],
        env=os.environ | {"DPLEDGER_DATABASE_URL": f"sqlite:///{tmp_path}/ledger.db"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "file" in done.stderr
    assert list(folder.iterdir()) == []
    engine.dispose()
