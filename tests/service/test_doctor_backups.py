"""The doctor takes no file for the latest backup but a whole, new one of this very ledger."""

import gzip
import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine

from service.clock import now, stamp
from service.identity.keys import Role, create_key
from service.operations.backup import restore, take_backup
from service.operations.diagnostics import backup
from service.operations.diagnostics.backup import newest_backup
from service.operations.diagnostics.result import Finding, Level
from service.operations.diagnostics.run import examine
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect, transaction
from tests.service.backup_lines import (
    Change,
    forged,
    of_header,
    of_row,
    without_rows,
    without_table,
)
from tests.service.samples import append, event, run, setup


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "backups"
    made.mkdir()
    return made


@pytest.fixture
def ledger(api: httpx.Client, engine: Engine) -> Engine:
    setup(api)
    append(api, event(0, 3))
    return engine


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Engine]:
    """Another database, of no ledger yet."""
    engine = connect(f"sqlite:///{tmp_path / 'other.db'}")
    yield engine
    engine.dispose()


def found(folder: Path, engine: Engine | None) -> tuple[Level, str]:
    one: Finding = newest_backup(folder, engine)
    return one.level, one.found


def refused(folder: Path, engine: Engine) -> str:
    level, words = found(folder, engine)
    assert level is Level.FAIL, words
    return words


def swapped(folder: Path, change: Change) -> None:
    """The only backup of a folder, forged."""
    (one,) = folder.iterdir()
    forged(one, change).replace(one)


def test_files_beside_the_backups_are_no_backups(ledger: Engine, folder: Path) -> None:
    take_backup(ledger, folder / "whole")
    for name, content in (
        ("dpledger.db", b"SQLite format 3\0"),
        ("dpledger.db-shm", bytes(32768)),
        ("dpledger.db-wal", b""),
        ("statement.html", b"<!doctype html>"),
        ("runs.csv.gz", gzip.compress(b"run,epsilon\n")),
        ("cut.csv.gz", gzip.compress(b"run,epsilon\n")[:12]),
    ):
        (folder / name).write_bytes(content)
    level, words = found(folder, ledger)
    assert level is Level.OK, words
    assert str(folder / "whole") in words


def test_a_folder_without_a_backup_has_none(ledger: Engine, folder: Path) -> None:
    (folder / "dpledger.db").write_bytes(b"SQLite format 3\0")
    assert "none in" in refused(folder, ledger)


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0", b"\x1f\x8b"])
def test_a_damaged_file_with_the_name_of_a_backup_is_no_stranger(
    content: bytes, ledger: Engine, folder: Path
) -> None:
    take_backup(ledger, folder / "before.backup")
    os.utime(folder / "before.backup", (0, 0))
    (folder / "after.backup").write_bytes(content)
    assert "after.backup is damaged" in refused(folder, ledger)


def test_the_newest_backup_must_be_there_and_whole(ledger: Engine, folder: Path) -> None:
    assert "none in" in refused(folder, ledger)
    assert "No such file" in refused(folder / "nowhere", ledger)
    take_backup(ledger, folder / "one")
    assert found(folder, ledger)[0] is Level.OK
    whole = (folder / "one").read_bytes()
    (folder / "one").write_bytes(whole[:-20])
    assert "is damaged" in refused(folder, ledger)


def test_a_ledger_that_went_on_is_still_that_of_its_backup(
    api: httpx.Client, ledger: Engine, folder: Path
) -> None:
    take_backup(ledger, folder / "one")
    append(api, *(event(3 + n, 1) for n in range(300)))  # beyond a tile of its log
    assert api.post("/v1/runs", json=run("later")).status_code == 201
    with transaction(ledger) as connection:
        create_key(connection, name="officer", scope=Role.ADMIN)
    assert found(folder, ledger)[0] is Level.OK


def test_a_backup_that_is_old_is_seen(
    ledger: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_backup(ledger, folder / "one")
    monkeypatch.setattr(backup, "now", lambda: now() + timedelta(hours=27))
    assert found(folder, ledger)[0] is Level.WARN


@pytest.mark.parametrize("filled", [True, False])
def test_the_backup_of_another_ledger_is_none_of_this_one(
    ledger: Engine, other: Engine, folder: Path, *, filled: bool
) -> None:
    migrations.upgrade(other)
    if filled:
        with transaction(other) as connection:
            create_key(connection, name="officer", scope=Role.ADMIN)
    take_backup(other, folder / "one")
    assert "of another ledger" in refused(folder, ledger)


def test_the_backup_of_a_drill_that_was_written_to_is_none_of_the_ledger(
    ledger: Engine, other: Engine, folder: Path, tmp_path: Path
) -> None:
    take_backup(ledger, tmp_path / "true.backup")
    restore(other, tmp_path / "true.backup", by="drill")
    take_backup(other, folder / "one")
    assert "leaves of the installation's log" in refused(folder, ledger)


FORGED: dict[str, tuple[Change, str]] = {
    "another log": (of_row("datasets", log_size=1, log_frontier="A" * 43 + "="), "is another in"),
    "a longer log": (of_row("datasets", log_size=1024, log_frontier="A" * 43 + "="), "1024 leaves"),
    "another dataset": (of_row("datasets", name="else"), "dataset else, which the ledger has not"),
    "a frontier that does not fit": (of_row("datasets", log_size=7), "does not fit log_size"),
    "another ledger's rows": (of_row("installation", ledger_id="f" * 32), "names another ledger"),
    "no table": (without_table("datasets"), "the table datasets is missing"),
    "another identity": (of_header(ledger_id="f" * 32), "its header names another ledger"),
    "nothing in it, of the next day": (
        lambda lines: of_header(taken_at=stamp(now() + timedelta(days=1)))(
            without_rows("datasets")(lines)
        ),
        "it lacks what was recorded at .* in dataset data",
    ),
    "less than there was by then": (
        lambda lines: of_header(taken_at=stamp(now() + timedelta(days=1)))(
            of_row("datasets", log_size=0, log_frontier=None, head_sequence=0)(lines)
        ),
        "it lacks what was recorded at .* in dataset data",
    ),
}


@pytest.mark.parametrize("change", FORGED)
def test_a_backup_whose_logs_are_not_the_beginning_of_this_ledger_s_is_refused(
    ledger: Engine, folder: Path, change: str
) -> None:
    take_backup(ledger, folder / "one")
    made, said = FORGED[change]
    swapped(folder, made)
    assert re.search(said, refused(folder, ledger))


def test_a_copy_that_fell_behind_is_found_by_the_entry_it_lacks(
    api: httpx.Client, ledger: Engine, folder: Path
) -> None:
    take_backup(ledger, folder / "one")
    append(api, event(3, 1))
    swapped(folder, of_header(taken_at=stamp(now() + timedelta(days=1))))
    assert "it lacks what was recorded at" in refused(folder, ledger)


def test_a_backup_that_cannot_be_compared_is_no_finding_to_rely_on(
    ledger: Engine, other: Engine, folder: Path
) -> None:
    take_backup(ledger, folder / "one")
    for engine in (None, other):  # no database, and one without a schema
        level, words = found(folder, engine)
        assert (level, "not compared" in words) == (Level.WARN, True)
    swapped(folder, of_header(schema_revision="0001"))
    level, words = found(folder, ledger)
    assert (level, "of schema revision 0001" in words) == (Level.WARN, True)


def test_the_doctor_compares_with_the_ledger_of_its_settings(
    ledger: Engine, database_url: str, folder: Path
) -> None:
    take_backup(ledger, folder / "one")

    def looked(url: str) -> Level:
        last = examine(Settings(database_url=url), backups=folder)[-1]
        assert last.name == "backups"
        return last.level

    assert looked(database_url) is Level.OK
    assert looked("mysql://nowhere") is Level.WARN
