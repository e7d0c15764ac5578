"""The server dies and the standby that confirmed every commit takes its place."""

import time
from pathlib import Path

import pytest

from benchmarks.fault_network import Proxy
from benchmarks.fault_postgres import Postgres, own_postgres
from tests.service.faults.answers import (
    begin,
    guarantee,
    record,
    require_exactly,
    require_taken,
    require_unavailable,
)
from tests.service.faults.conftest import serving

STEPS = 5
WAIT_SECONDS = 60.0


def follow(server: Postgres, folder: Path) -> Postgres:
    """A standby without which nothing is committed any more."""
    standby = server.copy(folder, "standby")
    standby.start()
    server.execute(
        "ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()"
    )
    query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
    deadline = time.monotonic() + WAIT_SECONDS
    while server.value(query) != "1":
        assert time.monotonic() < deadline, "The standby does not follow."
        time.sleep(0.05)
    return standby


def test_what_was_acknowledged_before_a_failover_is_there_after_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("failover")
    with own_postgres(folder / "pg") as server, Proxy(server.port) as proxy:
        standby = follow(server, folder / "standby")
        try:
            with serving(server.url_at(proxy.port)) as api:
                begin(api, STEPS)
                server.kill()
                proxy.cut()
                require_unavailable(record(api, STEPS))
                # The name leads to the standby before it may write: it is not served from, for
                # what it has may be old.
                proxy.target = standby.port
                require_unavailable(record(api, STEPS))
                require_unavailable(guarantee(api))
                standby.promote()
                require_taken(api, STEPS)
                require_exactly(api, STEPS + 1)
        finally:
            standby.stop("immediate")
