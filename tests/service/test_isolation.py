"""A server whose transactions read the past by default still tells writers what is so now."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest
from sqlalchemy import Connection, Engine, make_url, text, update

from service.ledger.append.write_access import state_of
from service.storage.engine import connect, hold, transaction
from service.storage.tables import installation
from tests.conftest import clear
from tests.service.test_taking import as_the_writer

# As an operator may set it for a database or a role; here it is of the session.
READS_THE_PAST = {"options": "-c default_transaction_isolation=serializable"}
SUSPENDED = update(installation).values(suspended='{"state": "suspended"}')
WAITING = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")


@pytest.fixture
def engine(postgres_url: str, backend_urls: dict[str, str]) -> Iterator[Engine]:
    """PostgreSQL alone: SQLite has one isolation."""
    clear(backend_urls["postgres"])
    url = make_url(postgres_url).update_query_dict(READS_THE_PAST)
    engine = connect(url.render_as_string(hide_password=False))
    yield engine
    engine.dispose()
    clear(backend_urls["postgres"])


@pytest.mark.parametrize("begun", [transaction, as_the_writer])
def test_a_write_that_waited_for_a_suspension_sees_it(
    engine: Engine, begun: Callable[[Engine], AbstractContextManager[Connection]]
) -> None:
    def told() -> str:
        with begun(engine) as connection:
            return state_of(connection)

    with ThreadPoolExecutor(1) as pool:
        with transaction(engine) as alone:
            hold(alone, alone=True)
            writing = pool.submit(told)
            with engine.connect() as watcher:
                while not watcher.scalar(WAITING):
                    watcher.rollback()
            alone.execute(SUSPENDED)
        assert writing.result() == "suspended"
