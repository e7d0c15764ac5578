"""Migrations are the only way a schema comes to be, forwards and backwards, with data in it."""

from collections.abc import Iterator

import httpx
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, inspect, select, text
from sqlalchemy.exc import IntegrityError

from service.app import create_app
from service.errors import StartupError
from service.guarantees.event_counts import run_counts
from service.guarantees.guarantee import refold
from service.ledger.lookups import find_run
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect, snapshot, transaction
from service.storage.tables import metadata, run_balances
from service.transparency.verification.ledger import verify
from tests.conftest import AS_ADMIN, refuse_other_databases, running
from tests.service.dumps import dump
from tests.service.samples import (
    BALLS,
    RANDOM,
    SAMPLING,
    WRITER,
    Json,
    append,
    event,
    run,
    setup,
)
from tests.service.test_reservations import reserve


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
    migrations.downgrade(rebuilt, "base")
    assert tables_of(rebuilt) == set()
    assert migrations.current(rebuilt) is None
    migrations.upgrade(rebuilt, new=True)
    assert tables_of(rebuilt) == set(metadata.tables)


CYCLIC: Json = {"kind": "cyclic", "batch_size": 600, "steps_per_pass": 100}  # 100 steps a pass
SHUFFLE: Json = {
    "kind": "shuffle",
    "batch_size": 600,
    "reshuffle": "each_pass",
    "steps_per_pass": 100,
}
ONCE: Json = SHUFFLE | {"reshuffle": "once"}
NO_NOISE: Json = {"kind": "none"}
QUIET: Json = {"kind": "gaussian", "noise_multiplier": 8.0}


def record_starts_of_every_kind(api: httpx.Client) -> None:
    """Two runs with branches, loaders that begin anew and loaders that go on."""
    setup(api, delta=1e-5)
    assert api.post("/v1/runs", json=run("other", delta=1e-5)).status_code == 201
    append(api, event(0, 150, sampling=ONCE), event(150, 50, sampling=ONCE))
    append(api, event(200, 10), event(210, 30, sampling=ONCE), event(240, 10, sampling=CYCLIC))
    append(api, event(250, 20, sampling=CYCLIC, mechanism=QUIET), event(270, 5, sampling=SHUFFLE))
    for sampling, first_step in ((BALLS, 275), (RANDOM, 285), (BALLS, 295)):
        append(api, event(first_step, 10, sampling=sampling, mechanism=NO_NOISE))
    for name, from_step in (("a", 70), ("b", 0)):
        body = {"name": name, "writer": WRITER, "from_step": from_step, "order": "fresh"}
        assert api.post("/v1/runs/run/branches", json=body).status_code == 201
        append(api, event(from_step, 100, sampling=ONCE), branch=name)
    append(api, event(0, 1), event(1, 99, sampling=ONCE), run="other")
    append(api, event(100, 1, sampling=ONCE), event(101, 3, sampling=CYCLIC), run="other")


def test_a_ledger_from_before_starts_were_counted_has_them_counted(
    api: httpx.Client, rebuilt: Engine
) -> None:
    record_starts_of_every_kind(api)
    before = dump(rebuilt)
    starts = [row[4] for row in before["run_balances"]]
    assert (sorted(starts), len(before["entries"])) == ([0, 0, 0, 1, 1, 1, 1, 1, 2, 4], 15)
    guarantee = api.get("/v1/runs/run/guarantee").json()
    migrations.downgrade(rebuilt, "0001")
    assert "starts" not in {one["name"] for one in inspect(rebuilt).get_columns("run_balances")}
    assert "starts" not in {one["name"] for one in inspect(rebuilt).get_columns("distinct_events")}
    migrations.upgrade(rebuilt)
    counted = ("entries", "run_balances", "distinct_events")
    after = dump(rebuilt)
    assert [after[name] for name in counted] == [before[name] for name in counted]
    assert api.get("/v1/runs/run/guarantee").json() == guarantee
    append(api, event(305, 1, sampling=ONCE))
    with snapshot(rebuilt) as connection:
        row = find_run(connection, "run")
        assert run_counts(connection, row.id, 60000) == refold(connection, row, 60000)


def gaussian(noise: float) -> Json:
    return {"kind": "gaussian", "noise_multiplier": noise}


def test_a_ledger_from_before_it_was_kept_where_passes_began_has_it_counted(
    api: httpx.Client, rebuilt: Engine
) -> None:
    setup(api, dataset_given={"neighboring_relation": "replace_special"})
    append(api, event(0, 150, mechanism=gaussian(4.0), sampling=BALLS))
    append(api, event(150, 30, mechanism=gaussian(2.0), sampling=BALLS))
    append(api, event(180, 1))
    append(api, event(181, 40, mechanism=gaussian(3.0), sampling=CYCLIC))
    body = {"name": "b", "writer": WRITER, "from_step": 0, "order": "fresh"}
    assert api.post("/v1/runs/run/branches", json=body).status_code == 201
    append(api, event(0, 250, mechanism=gaussian(2.0), sampling=BALLS), branch="b")
    ahead: Json = {"event": {"mechanism": gaussian(1.0), "sampling": BALLS}, "branch": "b"}
    assert reserve(api, "next", 270, **ahead).status_code == 201
    before = dump(rebuilt)
    with snapshot(rebuilt) as connection:
        begun = sum(connection.execute(select(run_balances.c.begun)).scalars())
        held = sum(connection.execute(select(run_balances.c.reserved_begun)).scalars())
    assert (begun, held) == (6, 3)
    migrations.downgrade(rebuilt, "0008")
    assert "begun" not in {one["name"] for one in inspect(rebuilt).get_columns("run_balances")}
    migrations.upgrade(rebuilt)
    after = dump(rebuilt)
    for name in ("run_balances", "distinct_events"):
        assert after[name] == before[name]
    with snapshot(rebuilt) as connection:
        assert verify(connection).broken == []


def test_an_empty_ledger_from_before_starts_were_counted_is_brought_forward(
    rebuilt: Engine,
) -> None:
    migrations.downgrade(rebuilt, "0001")
    migrations.upgrade(rebuilt)
    assert migrations.current(rebuilt) == migrations.head()


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


@pytest.mark.parametrize("revision", ["0000", "from-the-future"])
def test_a_database_at_an_unknown_revision_is_refused(
    rebuilt: Engine, database_url: str, revision: str
) -> None:
    with transaction(rebuilt) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :r"), {"r": revision})
    with pytest.raises(StartupError, match=revision):
        create_app(Settings(database_url=database_url))
    with pytest.raises(StartupError, match="cannot be migrated"):
        migrations.upgrade(rebuilt, new=True)


def test_a_database_without_a_schema_is_refused(rebuilt: Engine, database_url: str) -> None:
    migrations.downgrade(rebuilt, "base")
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
    with pytest.raises(StartupError, match="database_url"):
        connect(url)
