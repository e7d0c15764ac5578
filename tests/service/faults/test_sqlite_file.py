"""Somebody else has the file of SQLite in hand: nothing wrong is answered, nothing is lost."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import select

from service.app import create_app
from service.errors import DamagedError, StartupError
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect, snapshot, transaction
from service.storage.tables import datasets
from tests.service.faults.answers import (
    begin,
    guarantee,
    insisted,
    record,
    require_exactly,
    require_taken,
    require_true_or_unavailable,
    require_unavailable,
)
from tests.service.faults.conftest import serving
from tests.service.samples import run

STEPS = 5
PAGE = 4096
WRITERS = 30
LOCK_SECONDS = 3.0
READERS = 8  # at once, so that connections are opened which have read nothing yet
HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


def settle(file: Path) -> None:
    """Bring everything that is in the log into the file, where it can be damaged."""
    connection = sqlite3.connect(file)
    assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    connection.close()


def test_a_file_locked_for_longer_than_the_wait_is_waited_for_by_the_client(file: Path) -> None:
    with serving(f"sqlite:///{file}", wait_seconds=LOCK_SECONDS) as api:
        begin(api, STEPS)
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with ThreadPoolExecutor(WRITERS) as pool:
                names = [run(f"other-{number}") for number in range(WRITERS)]
                sent = [pool.submit(api.post, "/v1/runs", json=name) for name in names]
                answers = [record(api, STEPS), *(one.result() for one in sent)]
            for answer in answers:
                require_unavailable(answer)
                # None waits for the waits of all the others.
                assert answer.elapsed.total_seconds() < WRITERS * LOCK_SECONDS / 2
            require_exactly(api, STEPS)  # who reads is not kept waiting
            holder.communicate()
        require_taken(api, STEPS)
        require_exactly(api, STEPS + 1)


def cut_short(file: Path) -> None:
    os.truncate(file, PAGE * (file.stat().st_size // PAGE // 2))


def emptied(file: Path) -> None:
    os.truncate(file, 0)


def removed(file: Path) -> None:
    file.unlink()


def log_removed(file: Path) -> None:
    file.with_name(file.name + "-wal").unlink()


def replaced(file: Path) -> None:
    copy = file.with_name("copy.db")
    shutil.copy(file, copy)
    os.replace(copy, file)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut_short, "cut short"),
        (emptied, "cut short"),
        (removed, "removed"),
        (log_removed, "-wal file was removed"),
        (replaced, "replaced"),
    ],
)
def test_a_file_that_is_not_the_one_in_use_any_more_ends_all_answers(
    file: Path, damage: Callable[[Path], None], said: str
) -> None:
    with serving(f"sqlite:///{file}") as api:
        begin(api, STEPS)
        settle(file)
        require_exactly(api, STEPS)
        damage(file)
        # What is written from here on would go to a file that nobody will ever open again.
        assert said in require_unavailable(record(api, STEPS))
        assert said in require_unavailable(guarantee(api))
        assert said in require_unavailable(api.post("/v1/runs", json=run("other")))
        assert api.get("/readyz").json()["checks"]["database"] == "damaged"
        assert api.get("/healthz").status_code == 200
        assert damage is not removed or not file.exists()  # it is not made anew


def test_a_file_that_is_removed_during_a_transaction_is_not_acknowledged(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.ledger.append.unit_of_work import UnitOfWork

    whole = UnitOfWork.write

    def then_gone(work: UnitOfWork) -> list[int]:
        changed = whole(work)
        file.unlink()
        return changed

    with serving(f"sqlite:///{file}") as api:
        begin(api, STEPS)
        monkeypatch.setattr(UnitOfWork, "write", then_gone)
        assert "removed" in require_unavailable(record(api, STEPS))


def overwrite(file: Path, random: Random) -> None:
    """Bytes of nothing in place of every page but the first, as a broken disk would have it."""
    size = file.stat().st_size
    with file.open("r+b") as raw:
        raw.seek(PAGE)
        raw.write(random.randbytes(size - PAGE))


def critical(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged as loudly as can be."""
    return [one.message for one in caplog.records if one.levelname == "CRITICAL"]


def test_pages_overwritten_by_garbage_are_never_taken_for_numbers(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{file}"
    with serving(url) as api:
        begin(api, STEPS)
        settle(file)
        overwrite(file, Random(1))
        acknowledged = STEPS
        with ThreadPoolExecutor(READERS) as pool:
            told = list(
                pool.map(lambda _: require_true_or_unavailable(api, acknowledged), range(64))
            )
        assert not all(told)  # connections that read the file find out
        require_unavailable(record(api, STEPS))  # and from then on nobody trusts it
        require_unavailable(guarantee(api))
        (said,) = critical(caplog)  # once, whoever found it out
        assert "is damaged" in said
    with pytest.raises(StartupError, match=r"damaged.*restore a backup"):
        create_app(Settings(database_url=url))


def test_a_file_whose_first_page_is_garbage_is_no_database_any_more(file: Path) -> None:
    url = f"sqlite:///{file}"
    with serving(url) as api:
        begin(api, STEPS)
    with file.open("r+b") as raw:
        raw.write(Random(1).randbytes(PAGE))
    with pytest.raises(StartupError, match=r"damaged.*not a database"):
        create_app(Settings(database_url=url))


@pytest.mark.parametrize("opened", [False, True])
def test_a_broken_file_is_condemned_by_whoever_reads_it_first(
    file: Path, caplog: pytest.LogCaptureFixture, *, opened: bool
) -> None:
    engine = connect(f"sqlite:///{file}")
    migrations.upgrade(engine)
    engine.dispose()
    settle(file)
    if opened:  # a connection of the pool, which has read no page of a table yet
        with snapshot(engine) as connection:
            connection.execute(select(1))
    whole = file.read_bytes()
    overwrite(file, Random(1))
    try:
        with pytest.raises(DamagedError), snapshot(engine) as connection:  # opening, or a query
            connection.execute(select(datasets)).all()
        (said,) = critical(caplog)
        assert "is damaged" in said
        file.write_bytes(whole)  # as good as new, and yet not trusted before a restart
        with pytest.raises(DamagedError), transaction(engine):
            pass
        assert critical(caplog) == [said]
    finally:
        engine.dispose()


def test_a_file_that_grows_in_use_is_no_other_file(file: Path) -> None:
    with serving(f"sqlite:///{file}") as api:
        begin(api, 0)
        before = file.stat().st_size
        for number in range(40):
            require_taken(api, number)
            body = run(f"r{number}", labels={"text": "x" * 200})
            assert insisted(partial(api.post, "/v1/runs", json=body)).status_code in (200, 201)
            settle(file)
        assert file.stat().st_size > before
        require_exactly(api, 40)
