"""Versions side by side: what happens while the schema is brought forward under a service."""

import threading
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from service.app import create_app
from service.errors import StartupError
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect, transaction
from tests.conftest import AS_ADMIN, running
from tests.service.samples import append, event, setup

PROCESSES = 4


@pytest.fixture
def empty_url(postgres_url: str) -> Iterator[str]:
    """A PostgreSQL database without a table."""
    address = make_url(postgres_url).set(drivername="postgresql+psycopg")
    admin = create_engine(address, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text("CREATE DATABASE upgraded"))
        yield address.set(drivername="postgresql", database="upgraded").render_as_string(False)
        connection.execute(text("DROP DATABASE upgraded WITH (FORCE)"))
    admin.dispose()


def test_of_processes_that_start_at_once_one_migrates_and_all_go_on(empty_url: str) -> None:
    begun: list[bool] = []
    together = threading.Barrier(PROCESSES)

    def start() -> None:
        engine = connect(empty_url)
        together.wait()
        begun.append(migrations.upgrade(engine))
        migrations.require_current(engine)
        engine.dispose()

    threads = [threading.Thread(target=start) for _ in range(PROCESSES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(begun) == PROCESSES


def test_a_process_whose_schema_was_brought_forward_is_unready_yet_records_until_it_ends(
    database_url: str, engine: Engine
) -> None:
    settings = Settings(database_url=database_url)
    with running(settings) as address, httpx.Client(base_url=address, headers=AS_ADMIN) as api:
        setup(api)
        with transaction(engine) as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = 'next'"))
        try:
            unready = api.get("/readyz")
            assert unready.status_code == 503
            assert "migrations" in unready.json()["detail"]
            assert api.get("/healthz").status_code == 200
            assert append(api, event(0, 3)).status_code == 201
            with pytest.raises(StartupError, match="next"):
                create_app(settings)
        finally:
            with transaction(engine) as connection:
                head = {"head": migrations.head()}
                connection.execute(text("UPDATE alembic_version SET version_num = :head"), head)
        assert api.get("/readyz").status_code == 200
