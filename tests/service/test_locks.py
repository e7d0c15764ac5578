"""Each lock for which writers wait, alone: it is held before anything is read under it."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from service.identity.keys import Role, create_key, rotate_key
from service.ledger.branches import create_branch
from service.ledger.datasets import create_dataset
from service.ledger.log.leaves import Act, append_leaves
from service.ledger.lookups import lock_dataset, lock_run
from service.ledger.runs import create_run
from service.schemas.requests import NewBranch, NewDataset, NewRun
from service.storage import bulk
from service.storage.engine import snapshot, transaction
from service.storage.tables import datasets
from service.transparency import ledger_identity, recovery
from tests.service.samples import WRITER, dataset, run
from tests.service.worlds import create

ACT = Act("settings", {"reason": "a test"})
WAIT = text("SET LOCAL lock_timeout = '50ms'")
ON = {
    name: pytest.mark.parametrize("database_url", [name], indirect=True)
    for name in ("sqlite", "postgres")
}


def id_of(connection: Connection) -> int:
    (found,) = connection.scalars(text("SELECT id FROM datasets"))
    return int(found)


class Lock(NamedTuple):
    """A lock of a row."""

    table: str  # whose rows another transaction holds
    work: Callable[[Connection], Any]  # which must wait for them
    reads: str  # how the statement begins that must wait; it is not sent by SQLAlchemy if empty


LOCKS = {
    "a dataset by its name": Lock("datasets", lambda c: lock_dataset(c, "data"), "datasets.id"),
    "a dataset by its run": Lock("datasets", lambda c: lock_run(c, "run"), "datasets.id"),
    "datasets by their ids": Lock(
        "datasets", lambda c: bulk.select(c, datasets, "id", ("id",), [id_of(c)]), ""
    ),
    "a dataset's log": Lock(
        "datasets", lambda c: append_leaves(c, id_of(c), [ACT]), "datasets.name"
    ),
    "the installation's log": Lock(
        "installation", lambda c: append_leaves(c, None, [ACT]), "installation.log_size"
    ),
    "the identity": Lock(
        "installation", lambda c: ledger_identity.rename(c, reason="x"), "installation.ledger_id"
    ),
    "the recovery": Lock(
        "installation", lambda c: recovery.recover(c, reason="x", by=None), "installation.id"
    ),
    "datasets to suspend": Lock("datasets", lambda c: recovery._lock(c, {"data"}), "datasets.id"),
    "a key": Lock("api_keys", lambda c: rotate_key(c, "key"), "api_keys.id"),
}


@pytest.fixture
def filled(engine: Engine) -> Engine:
    """A ledger with a row in each table that is locked."""
    with transaction(engine) as connection:
        create_key(connection, name="key", scope=Role.VIEWER)
        create_dataset(connection, NewDataset.model_validate(dataset()), by="tests")
        create_run(connection, NewRun.model_validate(run()))
    return engine


@ON["postgres"]
@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_a_row_is_read_only_when_it_is_locked(filled: Engine, lock: Lock) -> None:
    with filled.connect() as first, first.begin():
        held = first.execute(text(f"SELECT 1 FROM {lock.table} FOR UPDATE")).all()  # noqa: S608
        assert len(held) == 1
        with filled.connect() as second, second.begin() as begun:
            second.execute(WAIT)
            with pytest.raises((DBAPIError, psycopg.Error), match="lock timeout") as waited:
                lock.work(second)
            begun.rollback()
    if lock.reads:
        assert isinstance(waited.value, DBAPIError)
        assert (waited.value.statement or "").startswith(f"SELECT {lock.reads}")
    with filled.connect() as third, third.begin():  # nothing holds it now
        third.execute(WAIT)
        assert third.execute(text(f"SELECT 1 FROM {lock.table} FOR UPDATE")).all() == held  # noqa: S608


@ON["sqlite"]
def test_a_transaction_that_may_write_has_the_file_before_it_reads(filled: Engine) -> None:
    file = filled.url.database or ""
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as other:
        with snapshot(filled) as reading:
            assert id_of(reading)
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        with transaction(filled) as writing:
            assert id_of(writing)
            with pytest.raises(sqlite3.OperationalError, match="database is locked"):
                other.execute("BEGIN IMMEDIATE")
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")


@ON["postgres"]
def test_a_branch_that_may_take_a_pass_waits_first_for_what_its_dataset_was_made_from(
    engine: Engine,
) -> None:
    """As every writer does, so that two never wait for each other."""
    create(engine)
    asked = {"name": "next", "writer": WRITER, "from_step": 0, "order": "continued"}
    new = NewBranch.model_validate(asked)
    with transaction(engine) as other, engine.connect() as connection:
        lock_dataset(other, "data")
        connection.execute(WAIT)
        with pytest.raises(psycopg.errors.LockNotAvailable):  # sent by the driver: by their ids
            create_branch(connection, "low", new)
