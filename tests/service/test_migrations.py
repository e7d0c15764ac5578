"""Migrations are the only way a schema comes to be, forwards and backwards, with data in it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect, text
from sqlalchemy.exc import IntegrityError

from service.app import create_app
from service.errors import StartupError
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect, snapshot, transaction
from service.storage.tables import metadata
from tests.conftest import AS_ADMIN, refuse_other_databases, running
from tests.service.dumps import dump
from tests.service.next_revision import NEXT, downgrade, with_next_revision
from tests.service.samples import SAMPLING, Json, append, event, setup


@pytest.fixture
def rebuilt(engine: Engine) -> Iterator[Engine]:
    """An engine whose schema a test may tear down; it is built again afterwards."""
    yield engine
    with transaction(engine) as connection:
        connection.execute(text("DELETE FROM alembic_version"))
        metadata.drop_all(connection)
    migrations.upgrade(engine, new=True)


def tables_of(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names()) - {"alembic_version"}


def test_the_migrations_build_exactly_the_tables_of_the_code(engine: Engine) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, metadata) == []
    assert tables_of(engine) == set(metadata.tables)


def test_down_and_up_again_with_data_in_the_tables(api: httpx.Client, rebuilt: Engine) -> None:
    setup(api)
    append(api, event(0, 10))
    assert api.post("/v1/runs/run/findings", json=SAMPLING).status_code == 201
    downgrade(rebuilt, "base")
    assert tables_of(rebuilt) == set()
    assert migrations.current(rebuilt) is None
    migrations.upgrade(rebuilt, new=True)
    assert tables_of(rebuilt) == set(metadata.tables)


CYCLIC: Json = {"kind": "cyclic", "batch_size": 600, "steps_per_pass": 100}  # 100 steps a pass


def test_a_next_revision_changes_the_schema_and_no_fact(
    api: httpx.Client, rebuilt: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api, delta=1e-5)
    append(api, event(0, 50), event(50, 7, sampling=CYCLIC))
    before, guarantee = dump(rebuilt), api.get("/v1/runs/run/guarantee").json()
    present = migrations.head()
    with monkeypatch.context() as changed:
        changed.setattr(migrations, "MIGRATIONS", with_next_revision(tmp_path))
        with pytest.raises(StartupError, match=f"at revision {present} and this version needs"):
            migrations.require_current(rebuilt)
        assert migrations.upgrade(rebuilt) is False
        migrations.require_current(rebuilt)
        assert tables_of(rebuilt) == set(metadata.tables) | {"notes"}
        with snapshot(rebuilt) as connection:
            notes = connection.execute(text("SELECT id, first_step FROM notes ORDER BY id")).all()
            same = text("SELECT count(*) FROM run_balances WHERE recorded = steps")
            assert connection.scalar(same) == len(before["run_balances"]) == 2
        assert notes == [(1, 0), (2, 50)]
        assert dump(rebuilt) == before
        downgrade(rebuilt, present)
    assert migrations.current(rebuilt) == present
    assert (dump(rebuilt), api.get("/v1/runs/run/guarantee").json()) == (before, guarantee)


def test_an_older_version_that_still_runs_cannot_record_without_counting_starts(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    append(api, event(0, 10, sampling=CYCLIC))
    (row,) = dump(engine)["run_balances"]
    values = "INSERT INTO run_balances (run_id, event_id, steps, passes) VALUES (:r, :e, 1, 1)"
    added = " ON CONFLICT (run_id, event_id) DO UPDATE SET steps = run_balances.steps + 1"
    with pytest.raises(IntegrityError), transaction(engine) as connection:
        connection.execute(text(values + added), {"r": row[0], "e": row[1]})


def test_migrating_twice_changes_nothing(api: httpx.Client, engine: Engine) -> None:
    setup(api)
    append(api, event(0, 10))
    migrations.upgrade(engine)
    assert api.get("/v1/runs/run").json()["steps"] == 10


@pytest.mark.parametrize("revision", ["0000", "0001", "0011", "from-the-future"])
def test_a_database_at_an_unknown_revision_is_refused(
    rebuilt: Engine, database_url: str, revision: str
) -> None:
    with transaction(rebuilt) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :r"), {"r": revision})
    before = dump(rebuilt)
    with pytest.raises(StartupError, match=revision):
        create_app(Settings(database_url=database_url))
    said = f"it is at revision {revision}, which this version does not know.*Nothing was changed"
    with pytest.raises(StartupError, match=said):
        migrations.upgrade(rebuilt, new=True)
    assert (dump(rebuilt), migrations.current(rebuilt)) == (before, revision)


def test_a_database_without_a_schema_is_refused(rebuilt: Engine, database_url: str) -> None:
    downgrade(rebuilt, "base")
    with pytest.raises(StartupError, match="revision none"):
        create_app(Settings(database_url=database_url))


def test_what_was_recorded_survives_a_restart(database_url: str) -> None:
    for expected in (201, 200):
        with (
            running(Settings(database_url=database_url)) as address,
            httpx.Client(base_url=address, headers=AS_ADMIN) as api,
        ):
            if expected == 201:
                setup(api, delta=1e-5)
            assert append(api, event(0, 10)).status_code == expected


def test_tests_refuse_a_database_that_was_not_made_for_them() -> None:
    with pytest.raises(RuntimeError, match="dpledger_test"):
        refuse_other_databases("postgresql://someone@somewhere/production")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://a@b/c"])
def test_only_a_sqlite_file_or_postgres_is_a_database(url: str) -> None:
    with pytest.raises(StartupError, match="DPLEDGER_DATABASE_URL"):
        connect(url)


def test_the_revisions_are_those_that_alembic_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read() -> tuple[str, set[str]]:
        folder = ScriptDirectory.from_config(migrations.configuration())
        return str(folder.get_current_head()), {one.revision for one in folder.walk_revisions()}

    assert (migrations.head(), migrations._names("revision")) == read()
    monkeypatch.setattr(migrations, "MIGRATIONS", with_next_revision(tmp_path))
    assert (migrations.head(), migrations._names("revision")) == read()
    assert migrations.head() == NEXT


def test_a_service_that_finds_its_schema_loads_no_alembic(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    engine = connect(url)
    migrations.upgrade(engine)
    engine.dispose()
    script = f"""
import sys
from service.app import create_app
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect
engine = connect({url!r})
assert migrations.upgrade(engine) is False
migrations.require_current(engine)
create_app(Settings(database_url={url!r}))
assert "sqlalchemy" in sys.modules
sys.exit("alembic" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


APART = """
import os, sys
from service.errors import StartupError
from service.storage import migrations
from service.storage.engine import connect, transaction
engine, upgrade, here = connect(sys.argv[1]), migrations._upgrade, os.getpid()
"""
DONE = """
assert migrations.upgrade_apart(engine, allowed=lambda: None)() is True
migrations.require_current(engine)
assert migrations.upgrade_apart(engine, allowed=lambda: None)() is False
assert "alembic" not in sys.modules
"""
KILLED = """
migrations._upgrade = lambda engine: upgrade(engine) if os.getpid() == here else os.abort()
assert migrations.upgrade_apart(engine, allowed=lambda: None)() is True
migrations.require_current(engine)
"""
REFUSED = """
def refuse(engine):
    raise StartupError("why")
migrations._upgrade = refuse
try:
    migrations.upgrade_apart(engine, allowed=lambda: None)()
except StartupError as error:
    sys.exit(str(error) != "why")
sys.exit(2)
"""
OLDER = """
with transaction(engine) as connection:
    migrations.upgrade_within(connection, "0013")
os.fork = None  # a process of its own would go on after this one was ended
assert migrations.upgrade_apart(engine, allowed=lambda: None)() is False
migrations.require_current(engine)
"""
NOT_ALLOWED = """
def refuse():
    raise StartupError("no")
try:
    migrations.upgrade_apart(engine, allowed=refuse)
except StartupError:
    sys.exit(migrations.current(engine) is not None)
sys.exit(2)
"""


@pytest.mark.parametrize("script", [DONE, KILLED, REFUSED, OLDER, NOT_ALLOWED])
def test_another_process_may_make_the_schema(script: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", APART + script, f"sqlite:///{tmp_path / 'ledger.db'}"]
    subprocess.run(command, check=True, timeout=120)
