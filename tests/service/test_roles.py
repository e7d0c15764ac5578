"""The two roles of the guide: one owns the schema, the other serves and cannot change it."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from service.errors import UnavailableError
from service.operations.diagnostics.database import ledger
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import FAILED, connect, transaction
from service.storage.tables import INSERT_ONLY
from tests.conftest import AS_ADMIN, running
from tests.service.faults.answers import insisted
from tests.service.samples import append, event, setup
from tests.service.sse import until

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "operate.md"
COMPOSE = Path(__file__).parents[2] / "deploy" / "compose" / "roles.sql"
OWNER, SERVICE = "dpledger_owner", "dpledger"


def statements() -> list[list[str]]:
    """The statements of each block of SQL in the guide."""
    blocks = re.findall(r"```sql\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return [[one.strip() for one in block.split(";") if one.strip()] for block in blocks]


def run(url: Any, block: list[str]) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in block:
            connection.execute(text(statement))
    engine.dispose()


def compose_statements() -> list[str]:
    """The statements of the file that Compose gives a new database, with a password put in."""
    text = re.sub(r"(?m)^(--|\\).*\n", "", COMPOSE.read_text(encoding="utf-8"))
    return [
        one.strip() for one in text.replace(":'password'", "'secret'").split(";") if one.strip()
    ]


def test_the_password_is_read_from_its_secret_and_never_on_a_command_line() -> None:
    text = COMPOSE.read_text(encoding="utf-8")
    assert r"\set password `cat /run/secrets/database_password`" in text
    assert text.count("password'") == 1


@pytest.fixture(params=["guide", "compose"])
def urls(postgres_url: str, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """A database as the guide makes it, and as Compose does, for each role."""
    address = make_url(postgres_url).set(drivername="postgresql+psycopg")
    inside = address.set(database=SERVICE)
    as_administrator, as_owner = statements()
    if request.param == "compose":  # the image makes the owner, a superuser, and the database
        as_administrator = [one for one in as_administrator if f"ROLE {SERVICE} " not in one]
        as_administrator[0] += " SUPERUSER"
        as_owner = compose_statements()
    run(address, as_administrator)
    try:
        run(inside.set(username=OWNER), as_owner)
        yield {
            name: inside.set(username=name, drivername="postgresql").render_as_string(False)
            for name in (OWNER, SERVICE)
        }
    finally:
        drop = [f"DROP DATABASE {SERVICE} WITH (FORCE)"]
        run(address, [*drop, f"DROP ROLE {SERVICE}", f"DROP ROLE {OWNER}"])


@pytest.fixture
def engine(urls: dict[str, str]) -> Iterator[Engine]:
    """The database, migrated by its owner, as the service sees it."""
    owner = connect(urls[OWNER])
    migrations.upgrade(owner)
    owner.dispose()
    found = connect(urls[SERVICE])
    yield found
    found.dispose()


def test_the_services_role_serves_and_finds_the_schema_as_it_should_be(
    engine: Engine, urls: dict[str, str]
) -> None:
    migrations.upgrade(engine)  # as `dpledger serve` does; there is nothing to do
    with (
        running(Settings(database_url=urls[SERVICE])) as address,
        httpx.Client(base_url=address, headers=AS_ADMIN) as api,
    ):
        setup(api)
        assert append(api, event(0, 3)).status_code == 201
        assert api.get("/v1/runs/run/guarantee", params={"delta": 1e-5}).status_code == 200


CHANGES = [
    *(
        form.format(table.name)
        for table in INSERT_ONLY
        for form in (
            "DROP TRIGGER {0}_insert_only ON {0}",
            "ALTER TABLE {0} DISABLE TRIGGER USER",
            "TRUNCATE {0}",
            "DROP TABLE {0} CASCADE",
        )
    ),
    "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RETURN NULL; END $$",
    "SET session_replication_role = replica",
]


def test_the_services_role_cannot_take_away_what_holds_the_facts(engine: Engine) -> None:
    for statement in CHANGES:
        with pytest.raises(UnavailableError) as refused, transaction(engine) as connection:
            connection.execute(text(statement))
        said = str(refused.value.__cause__)
        assert "permission denied" in said or "must be owner" in said


@pytest.mark.parametrize(
    ("right", "table"),
    [
        ("INSERT", "entries"),
        ("INSERT", "run_balances"),
        ("UPDATE", "branches"),
        ("UPDATE", "datasets"),
    ],
)
def test_a_right_that_appends_need_and_the_role_lost_is_told_by_readyz(
    engine: Engine, urls: dict[str, str], right: str, table: str
) -> None:
    settings = Settings(database_url=urls[SERVICE])
    with running(settings) as address, httpx.Client(base_url=address, headers=AS_ADMIN) as api:
        setup(api)
        assert api.get("/readyz").status_code == 200
        run(
            urls[OWNER].replace("postgresql:", "postgresql+psycopg:"),
            [f"REVOKE {right} ON {table} FROM {SERVICE}"],
        )
        refused = append(api, event(0, 3))
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/unavailable")
        assert "role" in refused.json()["detail"]
        assert api.get("/readyz").json()["checks"]["database"] == FAILED
    with running(settings) as address, httpx.Client(base_url=address, headers=AS_ADMIN) as api:
        # No append is needed before it is known.
        until(lambda: api.get("/readyz").json()["checks"]["database"] == FAILED)
        run(
            urls[OWNER].replace("postgresql:", "postgresql+psycopg:"),
            [f"GRANT {right} ON {table} TO {SERVICE}"],
        )
        assert insisted(partial(api.get, "/readyz")).status_code == 200
        assert append(api, event(0, 3)).status_code == 201


def test_doctor_tells_the_roles_apart(engine: Engine, urls: dict[str, str]) -> None:
    found = {one.name: one.level for one in ledger(engine, Settings())}
    assert found["role"] == "ok"
    owner = connect(urls[OWNER])
    found = {one.name: one.level for one in ledger(owner, Settings())}
    owner.dispose()
    assert found["role"] == "warn"
