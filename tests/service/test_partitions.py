"""Entries in several tables of PostgreSQL: the same facts, held as they were in one."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest
from sqlalchemy import Connection, Engine, make_url, text
from sqlalchemy.exc import DBAPIError
from typer.testing import CliRunner

from service.cli.main import app
from service.errors import StartupError
from service.operations import backup
from service.operations.diagnostics.database import triggers
from service.operations.diagnostics.result import Finding, Level
from service.operations.diagnostics.unique_keys import unique_keys
from service.settings import Settings
from service.storage import bulk, migrations
from service.storage.engine import connect, snapshot, transaction
from service.storage.partitions import partition_entries, parts_of_entries
from service.storage.tables import entries
from service.transparency.verification.ledger import verify
from tests.conftest import AS_ADMIN, running
from tests.service.dumps import dump
from tests.service.samples import BUDGET, append, dataset, event, run
from tests.service.schema_changes import after_changes

PARTS = 4
NUMBERS = range(8)
HOLDERS = "SELECT tableoid::regclass::text FROM entries GROUP BY 1 ORDER BY 1"


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    """An empty ledger in a database of its own, to which nothing else is connected."""
    name = f"{make_url(postgres_url).database}_divided"
    drop = f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode()
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute(drop)
        server.execute(f"CREATE DATABASE {name}".encode())
    url = make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    engine = connect(url)
    migrations.upgrade(engine)
    engine.dispose()
    yield url
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute(drop)


@pytest.fixture
def ledger(url: str) -> Iterator[Engine]:
    engine = connect(url)
    yield engine
    engine.dispose()


@contextmanager
def served(url: str) -> Iterator[httpx.Client]:
    with (
        running(Settings(database_url=url)) as address,
        httpx.Client(base_url=address, headers=AS_ADMIN) as client,
    ):
        yield client


def fill(api: httpx.Client) -> None:
    """Record steps of a run of each of several datasets."""
    for number in NUMBERS:
        made = api.post("/v1/datasets", json=dataset(f"data-{number}", budget=BUDGET))
        assert made.status_code == 201, made.text
        given = run(f"run-{number}", dataset=f"data-{number}")
        assert api.post("/v1/runs", json=given).status_code == 201
        recorded = append(api, event(0, 3), event(3, 2), run=f"run-{number}")
        assert recorded.status_code == 201, recorded.text


@pytest.fixture
def divided(url: str, ledger: Engine) -> Engine:
    """A divided ledger with entries."""
    assert partition_entries(ledger, PARTS) is True
    with served(url) as api:
        fill(api)
    return ledger


def answers(api: httpx.Client) -> list[object]:
    return [api.get(f"/v1/runs/run-{number}/guarantee").json() for number in NUMBERS]


def refused(engine: Engine, statement: str) -> str:
    with pytest.raises(DBAPIError) as error, transaction(engine) as connection:
        connection.execute(text(statement))
    return str(error.value.orig)


def test_a_divided_ledger_counts_each_step_once(url: str, divided: Engine) -> None:
    with served(url) as api:
        for number in NUMBERS:
            name = f"run-{number}"
            again = append(api, event(0, 3), event(5, 4), run=name)  # the first is recorded already
            assert again.status_code == 201, again.text
            assert api.get(f"/v1/runs/{name}").json()["steps"] == 9
            loud = {"kind": "gaussian", "noise_multiplier": 5.0}
            assert append(api, event(0, 3, mechanism=loud), run=name).status_code == 409
    with snapshot(divided) as connection:
        assert len(connection.execute(text(HOLDERS)).all()) > 1  # of eight datasets
        report = verify(connection)
    assert (report.broken, report.checked["entries"]) == ([], 2 * len(NUMBERS))


def test_a_ledger_with_entries_is_not_divided(url: str, ledger: Engine) -> None:
    with served(url) as api:
        fill(api)
    before = dump(ledger)
    with pytest.raises(StartupError, match="the ledger has entries"):
        partition_entries(ledger, PARTS)
    with snapshot(ledger) as connection:
        assert parts_of_entries(connection) == []
    assert dump(ledger) == before


def test_an_entry_that_is_committed_meanwhile_is_not_lost(url: str, ledger: Engine) -> None:
    with served(url) as api:
        assert api.post("/v1/datasets", json=dataset("data-0")).status_code == 201
        assert api.post("/v1/runs", json=run("run-0", dataset="data-0")).status_code == 201
    with transaction(ledger) as connection:
        (dataset_id,) = connection.execute(text("SELECT id FROM datasets")).one()
        ((_, event_id),) = bulk.insert_distinct(connection, dataset_id, [("{}", False)])
    with psycopg.connect(url) as writer, ThreadPoolExecutor() as threads:
        writer.execute(
            "INSERT INTO entries (dataset_id, sequence, run_id, branch_id, event_id, first_step, "
            "steps, mode, verdict, recorded_at, leaf) "
            "SELECT %s, 1, run_id, id, %s, 0, 1, 'record', 'within', now(), '\\x00' FROM branches",
            (dataset_id, event_id),
        )
        dividing = threads.submit(partition_entries, ledger, PARTS)
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'entries'::regclass"
        with psycopg.connect(url, autocommit=True) as watcher:
            while watcher.execute(waiting).fetchone() is None and not dividing.done():
                time.sleep(0.01)
        writer.commit()
        with pytest.raises(StartupError, match="the ledger has entries"):
            dividing.result()
    assert len(dump(ledger)["entries"]) == 1


def test_a_backup_is_restored_into_a_divided_ledger(
    url: str, ledger: Engine, engine: Engine, api: httpx.Client, tmp_path: Path
) -> None:
    fill(api)
    said, facts = answers(api), dump(engine)
    backup.take_backup(engine, tmp_path / "ledger.backup")
    partition_entries(ledger, PARTS)
    backup.restore(ledger, tmp_path / "ledger.backup", by="tests")
    found = dump(ledger)
    assert found["run_balances"] == facts["run_balances"]
    assert [row[-1] for row in found["entries"]] == [row[-1] for row in facts["entries"]]  # leaves
    with served(url) as other:
        assert answers(other) == said
    with snapshot(ledger) as connection:
        assert len(parts_of_entries(connection)) == PARTS
        assert verify(connection).broken == []
        assert triggers(connection).level is Level.OK


def test_each_part_refuses_what_the_table_did(divided: Engine) -> None:
    with snapshot(divided) as connection:
        parts = parts_of_entries(connection)
        held = connection.execute(text(HOLDERS)).scalars().all()
        assert triggers(connection).level is Level.OK
    assert parts == [f"entries_0{number}" for number in range(PARTS)]
    for table in ("entries", *parts):
        for change in ("UPDATE {} SET steps = steps + 1", "DELETE FROM {}", "TRUNCATE {}"):
            assert "is insert-only" in refused(divided, change.format(table))
    columns = ", ".join(column.name for column in entries.c if column.name != "leaf")
    twice = columns.replace("sequence,", "sequence + 1000,")
    for table in ("entries", held[0]):
        same = f"INSERT INTO {table} ({columns}, leaf) SELECT {{}}, {{}} FROM {held[0]} LIMIT 1"  # noqa: S608
        assert "entries need a leaf" in refused(divided, same.format(twice, "NULL"))
        assert "pk" in refused(divided, same.format(columns, "leaf"))  # the same sequence
        assert "first_step" in refused(divided, same.format(twice, "leaf"))  # the same step
        nowhere = twice.replace("run_id", "run_id + 1000").replace("first_step", "first_step + 99")
        assert "fk_entries_run_id" in refused(divided, same.format(nowhere, "leaf"))


@pytest.mark.parametrize(
    ("look", "statement", "missing"),
    [
        (
            triggers,
            "DROP TRIGGER entries_02_insert_only ON entries_02",
            "missing or changed: entries_02_insert_only",
        ),
        (
            unique_keys,
            "DROP INDEX entries_02_branch_id_first_step_idx",
            "missing: entries_02 (branch_id, first_step)",
        ),
    ],
)
def test_a_part_that_lost_what_protects_it_is_found(
    divided: Engine, look: Callable[[Connection], Finding], statement: str, missing: str
) -> None:
    assert after_changes(divided, look).level is Level.OK
    found = after_changes(divided, look, statement)
    assert (found.level, found.found) == (Level.FAIL, missing)


@pytest.fixture
def role(url: str, ledger: Engine) -> Iterator[str]:
    """Another role, which may do anything with a new table by default."""
    name = f"{make_url(url).database}_role"
    with transaction(ledger) as connection:
        connection.execute(text(f"CREATE ROLE {name}"))
        connection.execute(text(f"ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {name}"))
    yield name
    with transaction(ledger) as connection:
        connection.execute(text(f"DROP OWNED BY {name}"))
        connection.execute(text(f"DROP ROLE {name}"))


def rights_of(connection: Connection, role: str, table: str) -> list[str]:
    granted = text("SELECT has_table_privilege(:role, :table, :right)")
    return [
        right
        for right in ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")
        if connection.scalar(granted, {"role": role, "table": table, "right": right})
    ]


def test_roles_may_do_what_they_might_and_no_more(ledger: Engine, role: str) -> None:
    with transaction(ledger) as connection:
        connection.execute(text(f"GRANT SELECT, INSERT ON entries TO {role}"))
    partition_entries(ledger, PARTS)
    with snapshot(ledger) as connection:
        assert rights_of(connection, role, "entries") == ["SELECT", "INSERT"]
        for part in parts_of_entries(connection):
            assert rights_of(connection, role, part) == []


def test_a_role_that_does_not_own_the_table_divides_nothing(ledger: Engine, role: str) -> None:
    with transaction(ledger) as connection:
        connection.execute(text(f"ALTER TABLE entries OWNER TO {role}"))
    with pytest.raises(StartupError, match="the role does not own the table entries"):
        partition_entries(ledger, PARTS)
    with transaction(ledger) as connection:
        assert parts_of_entries(connection) == []
        connection.execute(text("ALTER TABLE entries OWNER TO current_user"))


def test_the_number_of_parts_stays(url: str, ledger: Engine) -> None:
    command = ["migrate", "--database", url, "--partitions"]
    first = CliRunner().invoke(app, [*command, str(PARTS)])
    assert (first.exit_code, first.stdout) == (0, "The entries are in 4 parts.\n")
    again = CliRunner().invoke(app, [*command, str(PARTS)])
    assert (again.exit_code, again.stdout) == (0, "The entries are in 4 parts already.\n")
    other = CliRunner().invoke(app, [*command, "8"])
    assert other.exit_code == 2
    assert "the entries are in 4 parts already; that cannot be changed" in other.stderr
    migrations.require_current(ledger)


@pytest.mark.parametrize("parts", [-1, 0, 1, 65])
def test_a_number_out_of_range_is_refused(url: str, ledger: Engine, parts: int) -> None:
    with pytest.raises(StartupError, match=rf"--partitions: {parts} is not in \[2, 64\]"):
        partition_entries(ledger, parts)
    with snapshot(ledger) as connection:
        assert parts_of_entries(connection) == []


def test_sqlite_is_not_divided(backend_urls: dict[str, str]) -> None:
    command = ["migrate", "--database", backend_urls["sqlite"], "--partitions", "4"]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 2
    assert found.stderr == "--partitions: only a ledger on PostgreSQL can be divided.\n"
