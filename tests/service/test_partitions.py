"""Entries in several tables of PostgreSQL: the same facts, held as they were in one."""

from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.exc import DBAPIError
from typer.testing import CliRunner

from service.cli.main import app
from service.errors import StartupError
from service.operations.diagnostics.database import triggers
from service.operations.diagnostics.result import Level
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect, snapshot, transaction
from service.storage.partitions import partition_entries, parts_of_entries
from service.storage.tables import entries, metadata
from service.transparency.verification.ledger import verify
from tests.conftest import AS_ADMIN, clear, running
from tests.service.dumps import dump
from tests.service.samples import BUDGET, append, dataset, event, run

PARTS = 4
NUMBERS = range(8)
HOLDERS = "SELECT tableoid::regclass::text FROM entries GROUP BY 1 ORDER BY 1"
ROLE = "reads_entries"


@pytest.fixture
def url(backend_urls: dict[str, str]) -> Iterator[str]:
    """An empty ledger on PostgreSQL, which is built anew afterwards."""
    url = backend_urls["postgres"]
    clear(url)
    yield url
    engine = connect(url)
    with transaction(engine) as connection:
        connection.execute(text("DELETE FROM alembic_version"))
        metadata.drop_all(connection)
    migrations.upgrade(engine)
    engine.dispose()


@pytest.fixture
def ledger(url: str) -> Iterator[Engine]:
    engine = connect(url)
    yield engine
    engine.dispose()


@pytest.fixture
def api(url: str) -> Iterator[httpx.Client]:
    """A service on it, with a run of each of several datasets."""
    with (
        running(Settings(database_url=url)) as address,
        httpx.Client(base_url=address, headers=AS_ADMIN) as client,
    ):
        for number in NUMBERS:
            made = client.post("/v1/datasets", json=dataset(f"data-{number}", budget=BUDGET))
            assert made.status_code == 201, made.text
            given = run(f"run-{number}", dataset=f"data-{number}")
            assert client.post("/v1/runs", json=given).status_code == 201
            assert append(client, event(0, 3), event(3, 2), run=f"run-{number}").status_code == 201
        yield client


def answers(api: httpx.Client) -> list[object]:
    return [api.get(f"/v1/runs/run-{number}/guarantee").json() for number in NUMBERS]


def refused(engine: Engine, statement: str) -> str:
    with pytest.raises(DBAPIError) as error, transaction(engine) as connection:
        connection.execute(text(statement))
    return str(error.value.orig)


def test_a_divided_ledger_holds_the_same_facts_and_goes_on(
    api: httpx.Client, ledger: Engine
) -> None:
    before, said = dump(ledger), answers(api)
    assert partition_entries(ledger, PARTS) is True
    assert (dump(ledger), answers(api)) == (before, said)
    for number in NUMBERS:
        name = f"run-{number}"
        again = append(api, event(0, 3), event(5, 4), run=name)  # the first is recorded already
        assert again.status_code == 201, again.text
        assert api.get(f"/v1/runs/{name}").json()["steps"] == 9
        other = append(
            api, event(0, 3, mechanism={"kind": "gaussian", "noise_multiplier": 5.0}), run=name
        )
        assert other.status_code == 409
    with snapshot(ledger) as connection:
        assert len(connection.execute(text(HOLDERS)).all()) > 1  # of eight datasets
        assert len(connection.execute(select(entries)).all()) == 2 * len(NUMBERS)
    with snapshot(ledger) as connection:
        report = verify(connection)
    assert (report.broken, report.checked["entries"]) == ([], 2 * len(NUMBERS))


def test_each_part_refuses_what_the_table_did(api: httpx.Client, ledger: Engine) -> None:
    partition_entries(ledger, PARTS)
    with snapshot(ledger) as connection:
        parts = parts_of_entries(connection)
        held = connection.execute(text(HOLDERS)).scalars().all()
        assert triggers(connection).level is Level.OK
    assert parts == [f"entries_000{number}" for number in range(PARTS)]
    for table in ("entries", *parts):
        for change in ("UPDATE {} SET steps = steps + 1", "DELETE FROM {}", "TRUNCATE {}"):
            assert "is insert-only" in refused(ledger, change.format(table))
    columns = ", ".join(column.name for column in entries.c if column.name != "leaf")
    twice = columns.replace("sequence,", "sequence + 1000,")
    for table in ("entries", held[0]):
        same = f"INSERT INTO {table} ({columns}, leaf) SELECT {{}}, {{}} FROM {held[0]} LIMIT 1"  # noqa: S608
        assert "entries need a leaf" in refused(ledger, same.format(twice, "NULL"))
        assert "pk" in refused(ledger, same.format(columns, "leaf"))  # the same sequence
        assert "first_step" in refused(ledger, same.format(twice, "leaf"))  # the same step
        nowhere = twice.replace("run_id", "run_id + 1000").replace("first_step", "first_step + 99")
        assert "fk_entries_run_id" in refused(ledger, same.format(nowhere, "leaf"))


def test_a_part_without_its_trigger_is_found(api: httpx.Client, ledger: Engine) -> None:
    partition_entries(ledger, PARTS)
    with transaction(ledger) as connection:
        connection.execute(text("DROP TRIGGER entries_0002_insert_only ON entries_0002"))
    with snapshot(ledger) as connection:
        found = triggers(connection)
    assert (found.level, found.found) == (
        Level.FAIL,
        "missing or changed: entries_0002_insert_only",
    )


def test_roles_may_do_what_they_might(url: str, ledger: Engine) -> None:
    may = text(
        f"SELECT has_table_privilege('{ROLE}', 'entries', 'SELECT'), "
        f"has_table_privilege('{ROLE}', 'entries', 'INSERT'), "
        f"has_table_privilege('{ROLE}', 'entries', 'DELETE')"
    )
    with transaction(ledger) as connection:
        connection.execute(text(f"CREATE ROLE {ROLE}"))
        connection.execute(text(f"GRANT SELECT, INSERT ON entries TO {ROLE}"))
    try:
        partition_entries(ledger, PARTS)
        with snapshot(ledger) as connection:
            assert tuple(connection.execute(may).one()) == (True, True, False)
    finally:
        with transaction(ledger) as connection:
            connection.execute(text(f"DROP OWNED BY {ROLE}"))
            connection.execute(text(f"DROP ROLE {ROLE}"))


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


@pytest.mark.parametrize("parts", [-1, 0, 1, 1025])
def test_a_number_out_of_range_is_refused(url: str, ledger: Engine, parts: int) -> None:
    with pytest.raises(StartupError, match=rf"--partitions: {parts} is not in \[2, 1024\]"):
        partition_entries(ledger, parts)
    with snapshot(ledger) as connection:
        assert parts_of_entries(connection) == []


def test_sqlite_is_not_divided(backend_urls: dict[str, str]) -> None:
    command = ["migrate", "--database", backend_urls["sqlite"], "--partitions", "4"]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 2
    assert found.stderr == "--partitions: only a ledger on PostgreSQL can be divided.\n"
