"""What is not well is named: the database, the migrations, the log, or the writer."""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import psycopg
from sqlalchemy import make_url, text

from service.storage.engine import FAILED, WAITING, connect, transaction
from tests.service.faults.answers import (
    begin,
    insisted,
    record,
    require_taken,
    require_unavailable,
)
from tests.service.faults.conftest import serving

READY_SECONDS = 60.0
WELL = {"database": "ok", "migrations": "ok", "log": "ok", "writer": "ok"}


def execute(file: Path, statement: str, **given: object) -> None:
    engine = connect(f"sqlite:///{file}")
    with transaction(engine) as connection:
        connection.execute(text(statement), given)
    engine.dispose()


def checks(api: httpx.Client) -> dict[str, str]:
    """What is not as it should be; the answer is 503 then."""
    answer = api.get("/readyz")
    said = require_unavailable(answer)
    found: dict[str, str] = answer.json()["checks"]
    wrong = {part: state for part, state in found.items() if WELL[part] != state}
    assert all(f"{part}: {state}" in said for part, state in wrong.items())
    return wrong


def test_all_is_well(file: Path) -> None:
    with serving(f"sqlite:///{file}") as api:
        deadline = time.monotonic() + READY_SECONDS
        while (answer := api.get("/readyz")).status_code != 200 and time.monotonic() < deadline:
            time.sleep(0.05)  # on a busy machine a part may not have been looked at yet
        assert answer.status_code == 200, answer.text
        assert answer.json() == {"status": "ready", "checks": WELL}
        assert api.get("/healthz").json() == {"status": "alive"}


def test_a_schema_of_another_version_is_not_served(file: Path) -> None:
    with serving(f"sqlite:///{file}") as api:
        execute(file, "UPDATE alembic_version SET version_num = '9999'")
        assert checks(api) == {"migrations": "another revision", "log": "unknown"}
        assert api.get("/healthz").status_code == 200


def test_a_log_that_is_suspended_is_not_well_and_one_that_recovers_is(file: Path) -> None:
    statement = "UPDATE installation SET suspended = :told, suspended_at = '2026-01-01 00:00:00.0'"
    with serving(f"sqlite:///{file}") as api:
        told = {"state": "suspended", "reason": "an older database", "lost": []}
        execute(file, statement, told=json.dumps(told))
        assert checks(api) == {"log": "suspended"}
        execute(file, statement, told=json.dumps(told | {"state": "recovering"}))
        answer = api.get("/readyz")
        assert answer.status_code == 200
        assert answer.json()["checks"]["log"] == "recovering"


def test_a_database_that_is_gone_is_told_from_one_that_does_not_answer(file: Path) -> None:
    with serving(f"sqlite:///{file}") as api:
        file.unlink()
        assert checks(api) == {"database": "damaged", "migrations": "unknown", "log": "unknown"}


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Somebody else's lock, under which everything is read and nothing is written."""
    address = make_url(url)
    if address.get_backend_name() == "sqlite":
        with closing(sqlite3.connect(address.database or "", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
        return
    plain = address.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain) as connection:
        connection.execute("LOCK TABLE datasets IN EXCLUSIVE MODE")
        yield
        connection.rollback()


def require_told(api: httpx.Client) -> None:
    """See that it is said that nothing is written, once the database was looked at in time."""
    for _ in range(600):
        found = api.get("/readyz").json()
        assert found["checks"]["database"] != "ok", found
        if found["checks"]["database"] in (FAILED, WAITING):
            assert found["status"] == 503
            return
        time.sleep(0.1)
    raise AssertionError(found)


def test_a_lock_that_lets_nobody_write_is_not_well_until_it_is_gone(database_url: str) -> None:
    with serving(database_url) as api:
        begin(api, 1)
        with locked(database_url):
            require_unavailable(record(api, 1))
            for _ in range(3):  # nobody forgets it without having written
                require_told(api)
        # A balancer sends nothing to who is not ready: no append has to be the first to find out.
        assert insisted(lambda: api.get("/readyz")).json()["checks"] == WELL
        require_taken(api, 1)
