"""Migrations are the only way a schema comes to be, forwards and backwards, with data in it."""

from collections.abc import Iterator

import httpx
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, inspect, text

from service import schema_version
from service.app import create_app
from service.database import connect, transaction
from service.errors import StartupError
from service.settings import Settings
from service.tables import metadata
from tests.conftest import refuse_other_databases, running
from tests.service.samples import append, event, setup


@pytest.fixture
def rebuilt(engine: Engine) -> Iterator[Engine]:
    """An engine whose schema a test may tear down; it is built again afterwards."""
    yield engine
    with transaction(engine) as connection:
        connection.execute(text("DELETE FROM alembic_version"))
        metadata.drop_all(connection)
    schema_version.upgrade(engine)


def tables_of(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names()) - {"alembic_version"}


def test_the_migrations_build_exactly_the_tables_of_the_code(engine: Engine) -> None:
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    assert tables_of(engine) == set(metadata.tables)


def test_down_and_up_again_with_data_in_the_tables(api: httpx.Client, rebuilt: Engine) -> None:
    setup(api)
    append(api, event(0, 10))
    schema_version.downgrade(rebuilt, "base")
    assert tables_of(rebuilt) == set()
    assert schema_version.current(rebuilt) is None
    schema_version.upgrade(rebuilt)
    assert tables_of(rebuilt) == set(metadata.tables)


def test_migrating_twice_changes_nothing(api: httpx.Client, engine: Engine) -> None:
    setup(api)
    append(api, event(0, 10))
    schema_version.upgrade(engine)
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
        schema_version.upgrade(rebuilt)


def test_a_database_without_a_schema_is_refused(rebuilt: Engine, database_url: str) -> None:
    schema_version.downgrade(rebuilt, "base")
    with pytest.raises(StartupError, match="revision none"):
        create_app(Settings(database_url=database_url))


def test_what_was_recorded_survives_a_restart(database_url: str) -> None:
    for expected in (201, 200):
        with (
            running(Settings(database_url=database_url)) as address,
            httpx.Client(base_url=address) as api,
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
