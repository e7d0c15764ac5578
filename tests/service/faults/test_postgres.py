"""PostgreSQL stops, dies, is only to be read from, or is cut off: each step is counted once."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest

from benchmarks.fault_disk import small_disk
from benchmarks.fault_network import Proxy, Watch, commits, inserts
from benchmarks.fault_postgres import Postgres
from benchmarks.servers import TEST_DATABASE
from service.storage.engine import FAILED, connect, snapshot
from tests.service.faults.answers import (
    begin,
    insisted,
    record,
    require_exactly,
    require_taken,
    require_unavailable,
)
from tests.service.faults.conftest import serving
from tests.service.samples import event

STEPS = 5
MANY = 500
SILENT_SECONDS = 60.0  # by which a request is answered though the database says nothing


def stopped(server: Postgres) -> None:
    server.stop("fast")


def stopped_at_once(server: Postgres) -> None:
    server.stop("immediate")


@pytest.mark.parametrize("fault", [stopped, stopped_at_once, Postgres.kill])
def test_a_server_that_is_down_is_waited_for_by_the_client(
    postgres: Postgres, fault: Callable[[Postgres], None]
) -> None:
    with serving(postgres.url) as api:
        begin(api, STEPS)
        fault(postgres)
        require_unavailable(record(api, STEPS))
        require_unavailable(api.get("/v1/runs"))
        assert api.get("/readyz").json()["checks"]["database"] == "unavailable"
        assert api.get("/healthz").status_code == 200
        postgres.start()
        require_taken(api, STEPS)
        require_exactly(api, STEPS + 1)
        assert insisted(partial(api.get, "/readyz")).status_code == 200


def test_a_server_that_became_a_copy_of_another_is_left_for_the_one_that_writes(
    postgres: Postgres,
) -> None:
    with serving(postgres.url) as api:
        begin(api, STEPS)
        # What a session sees of a primary that was made a standby, or of one behind a moved name.
        postgres.execute(
            "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"
        )
        try:
            wait_until_read_only(postgres)
            acknowledged = STEPS
            while (answer := record(api, acknowledged)).status_code == 201:  # it is read later
                acknowledged += 1
            require_unavailable(answer)
            assert api.get("/readyz").status_code == 503
        finally:
            postgres.execute(
                "SET default_transaction_read_only = off",
                "ALTER SYSTEM RESET default_transaction_read_only",
                "SELECT pg_reload_conf()",
            )
        require_taken(api, acknowledged)
        require_exactly(api, acknowledged + 1)


@pytest.mark.usefixtures("probes")
def test_a_server_whose_disk_is_full_is_not_ready_until_it_has_room(
    postgres: Postgres, request: pytest.FixtureRequest
) -> None:
    # Beside the server's own folder, which its user can reach.
    with small_disk(postgres.folder.parent / "small", mebibytes=48) as disk:
        request.node.user_properties.append(("disk", disk.kind))
        folder = disk.folder / "space"
        folder.mkdir()
        shutil.chown(folder, postgres.package.system_user or os.getuid())
        postgres.execute(
            f"CREATE TABLESPACE small LOCATION '{folder}'",
            f"ALTER DATABASE {TEST_DATABASE} SET TABLESPACE small",
        )
        try:
            with serving(postgres.url) as api:
                begin(api, STEPS)
                disk.fail()
                acknowledged = STEPS
                # There is room left in pages that are there.
                while (answer := record_many(api, acknowledged)).status_code == 201:
                    acknowledged += MANY
                require_unavailable(answer)
                for _ in range(3):  # though a probe of a row would be written
                    assert api.get("/readyz").json()["checks"]["database"] == FAILED
                require_unavailable(record_many(api, acknowledged))
                disk.mend()
                assert insisted(partial(api.get, "/readyz")).status_code == 200
                assert insisted(partial(record_many, api, acknowledged)).status_code == 201
        finally:
            disk.mend()
            postgres.execute(
                f"ALTER DATABASE {TEST_DATABASE} SET TABLESPACE pg_default", "DROP TABLESPACE small"
            )


def record_many(api: httpx.Client, first: int) -> httpx.Response:
    """So many steps at once, each an entry of its own."""
    noises = ({"kind": "gaussian", "noise_multiplier": 1.1 + 0.1 * (at % 2)} for at in range(MANY))
    events = [event(first + at, 1, mechanism=noise) for at, noise in enumerate(noises)]
    return api.post("/v1/runs/run/events", json={"events": events})


def wait_until_read_only(postgres: Postgres) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if postgres.value("SHOW default_transaction_read_only") == "on":
            return
        time.sleep(0.05)
    raise AssertionError("The server did not read its settings.")


@pytest.fixture
def proxy(postgres: Postgres) -> Iterator[Proxy]:
    with Proxy(postgres.port) as found:
        yield found


@pytest.mark.parametrize(
    ("moment", "watch", "recorded"),
    [("before", inserts, False), ("before", commits, False), ("after", commits, True)],
)
def test_a_network_that_is_cut_around_a_commit_doubles_nothing(
    postgres: Postgres, proxy: Proxy, moment: str, watch: Watch, recorded: bool
) -> None:
    with serving(postgres.url_at(proxy.port)) as api:
        begin(api, STEPS)
        proxy.arm(moment, watch)
        require_unavailable(record(api, STEPS))  # for nobody here knows whether it was committed
        assert proxy.caused == 1
        answer = insisted(partial(record, api, STEPS))
        assert answer.status_code == (200 if recorded else 201)
        assert answer.json()["accepted"] == (0 if recorded else 1)
        require_exactly(api, STEPS + 1)


def test_a_network_that_is_away_and_back_is_waited_for(postgres: Postgres, proxy: Proxy) -> None:
    with serving(postgres.url_at(proxy.port)) as api:
        begin(api, STEPS)
        proxy.refuse()
        for _ in range(3):
            require_unavailable(record(api, STEPS))
        proxy.refuse(False)
        require_taken(api, STEPS)
        require_exactly(api, STEPS + 1)


def test_a_database_that_falls_silent_keeps_nobody_waiting_for_ever(
    postgres: Postgres, proxy: Proxy
) -> None:
    with serving(postgres.url_at(proxy.port)) as api:
        begin(api, STEPS)
        proxy.silence()
        started = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            ready = pool.submit(api.get, "/readyz")
            for answer in pool.map(lambda _: record(api, STEPS), range(3)):
                require_unavailable(answer)
            assert ready.result().json()["checks"]["database"] == "unavailable"
        assert time.monotonic() - started < SILENT_SECONDS
        assert api.get("/healthz").status_code == 200
        proxy.silence(False)
        require_taken(api, STEPS)
        require_exactly(api, STEPS + 1)


def test_what_a_crash_may_forget_is_not_acknowledged(postgres: Postgres) -> None:
    query = "SHOW synchronous_commit"
    for chosen, used in (("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")):
        postgres.execute(f"ALTER ROLE postgres SET synchronous_commit = {chosen}")
        try:
            engine = connect(postgres.url)
            with snapshot(engine) as connection:
                assert connection.exec_driver_sql(query).scalar_one() == used
            engine.dispose()
        finally:
            postgres.execute("ALTER ROLE postgres RESET synchronous_commit")
