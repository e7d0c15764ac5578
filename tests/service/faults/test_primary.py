"""Only a primary is written to and read from, and what its standby may lack is not acknowledged."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psycopg
import pytest
from sqlalchemy import Engine

from benchmarks.fault_network import Proxy
from benchmarks.fault_postgres import Postgres
from benchmarks.servers import TEST_DATABASE
from service.errors import UnavailableError
from service.storage.engine import connect, snapshot
from service.storage.postgres import PostgresSession, connect_to_primary
from tests.service.faults.answers import (
    begin,
    record,
    require_exactly,
    require_taken,
    require_unavailable,
)
from tests.service.faults.conftest import serving
from tests.service.sse import until

STEPS = 3
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
STANDBY = "ALTER SYSTEM SET synchronous_standby_names = 'away'"
NO_STANDBY = "ALTER SYSTEM RESET synchronous_standby_names"
RELOAD = "SELECT pg_reload_conf()"
SOON_SECONDS = 60.0


def waiting(postgres: Postgres) -> int:
    """The session whose commit waits for a standby."""
    deadline = time.monotonic() + SOON_SECONDS
    while time.monotonic() < deadline:
        with psycopg.connect(host="127.0.0.1", port=postgres.port, user="postgres") as connection:
            if row := connection.execute(WAITING).fetchone():
                return int(row[0])
        time.sleep(0.01)
    raise AssertionError("No commit waits for a standby.")


def test_a_commit_whose_wait_for_a_standby_was_cancelled_is_not_acknowledged(
    postgres: Postgres,
) -> None:
    with serving(postgres.url) as api, ThreadPoolExecutor() as pool:
        begin(api, STEPS)
        postgres.execute(STANDBY, RELOAD)
        try:
            answer = pool.submit(record, api, STEPS)
            postgres.value(f"SELECT pg_cancel_backend({waiting(postgres)})")
            require_unavailable(answer.result())
            # The step is in the database by now. A duplicate is not acknowledged either: the
            # standby may lack the step, so the commit of its answer waits as well.
            again = pool.submit(record, api, STEPS)
            waiting(postgres)
            assert not again.done()
        finally:
            postgres.execute(NO_STANDBY, RELOAD)
        assert again.result().status_code in (200, 503)
        require_taken(api, STEPS)
        require_exactly(api, STEPS + 1)


def answers(engine: Engine) -> bool:
    """Whether the server is heard; it connects first if there is no connection."""
    with suppress(UnavailableError), snapshot(engine) as connection:
        return bool(connection.exec_driver_sql("SELECT 2").scalar_one() == 2)
    return False


def fall_silent(engine: Engine, proxy: Proxy) -> None:
    with snapshot(engine) as connection:
        connection.exec_driver_sql("SELECT 1")
        proxy.silence()
        connection.exec_driver_sql("SELECT 1")


def test_a_server_that_says_nothing_is_left_for_another_connection(postgres: Postgres) -> None:
    with Proxy(postgres.port) as proxy:
        engine = connect(postgres.url_at(proxy.port), busy_timeout_seconds=0.1, serving=True)
        try:
            until(lambda: answers(engine))  # which is waited for a second alone
            with pytest.raises(UnavailableError) as found:
                fall_silent(engine, proxy)
            assert "said nothing for 5 s" in str(found.value.__cause__)
            proxy.silence(False)
            until(lambda: answers(engine))
        finally:
            engine.dispose()


def test_a_server_that_writes_is_looked_for_behind_one_that_only_says_so(
    postgres: Postgres,
) -> None:
    seen = []

    def begun(session: PostgresSession) -> bool:
        seen.append(session.info.host)
        return session.info.host == "localhost"

    given = {
        "host": "127.0.0.1,127.0.0.2,localhost", "port": postgres.port, "user": "postgres",
        "dbname": TEST_DATABASE, "sslmode": "disable",
    }  # fmt: skip
    with connect_to_primary(given, begun) as session:
        assert session.info.host == "localhost"
    assert seen == ["127.0.0.1", "localhost"]  # nothing listens at the second

    with pytest.raises(psycopg.OperationalError, match="only to be read from"):
        connect_to_primary(given, lambda _: False)


def test_a_server_is_asked_itself_whether_it_writes(postgres: Postgres) -> None:
    # As PgBouncer would: the driver does not look.
    url = postgres.url
    with PostgresSession.connect(f"{url}&options=-cdefault_transaction_read_only%3Don") as session:
        assert not session.begin(limit_seconds=None, lock_ms=1000, idle_ms=60_000)
    with PostgresSession.connect(url) as session:
        assert session.begin(limit_seconds=None, lock_ms=1000, idle_ms=60_000)
    only_read = connect(f"{url}&options=-cdefault_transaction_read_only%3Don")
    with pytest.raises(UnavailableError), snapshot(only_read):
        pass
