"""The doctor sees what is wrong, says what to do, and finds nothing where nothing is."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text, update
from typer.testing import CliRunner, Result

from benchmarks.servers import free_port
from service.cli.main import app
from service.clock import now
from service.identity.keys import Role, create_key
from service.operations.diagnostics import host
from service.operations.diagnostics.database import triggers
from service.operations.diagnostics.result import Finding, Level
from service.operations.diagnostics.run import examine
from service.operations.diagnostics.trust import trust
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect, transaction
from service.storage.tables import INSERT_ONLY, api_keys, datasets, entries, installation
from service.transparency.signing import Signer
from tests.conftest import running, without_triggers
from tests.service.samples import append, event, setup
from tests.service.schema_changes import after_changes

OTHERS = "0.0.0.0"  # noqa: S104 (an address that others reach)
Looked = dict[str, Finding]


def look(url: str, **given: Any) -> Looked:
    backups = given.pop("backups", None)
    settings = Settings(database_url=url, **given)
    found = examine(settings, backups=backups)
    assert len({one.name for one in found}) == len(found)
    return {one.name: one for one in found}


def levels(found: Looked) -> dict[str, Level]:
    return {name: one.level for name, one in found.items()}


def new_key(engine: Engine, name: str = "officer", scope: Role = Role.ADMIN) -> None:
    with transaction(engine) as connection:
        create_key(connection, name=name, scope=scope)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A ledger in a file of its own, as it should be."""
    path = tmp_path / "ledger.db"
    engine = connect(f"sqlite:///{path}")
    migrations.upgrade(engine)
    new_key(engine)
    engine.dispose()
    path.chmod(0o600)
    return path


def test_where_nothing_is_wrong_nothing_is_found(file: Path) -> None:
    found = look(f"sqlite:///{file}", host=OTHERS)
    assert set(levels(found).values()) == {Level.OK}, found
    assert {"settings", "python", "sqlite", "psycopg", "dependencies", "mathematics",
            "database_file", "disk",
            "durability", "schema", "triggers", "unique_keys",
            "clock", "log", "keys"} <= set(found)  # fmt: skip


def test_a_ledger_in_use_is_well(api: httpx.Client, database_url: str) -> None:
    setup(api)
    append(api, event(0, 3))
    found = look(database_url)
    assert not [one for one in found.values() if one.level is Level.FAIL]
    assert found["keys"].level is Level.WARN
    assert "start token" in found["keys"].found


Change = Callable[..., Finding]


@pytest.fixture
def changed(engine: Engine) -> Change:
    """What is found of the triggers after changes of the schema, which are rolled back."""
    return partial(after_changes, engine, triggers)


GONE = {
    "sqlite": ["DROP TRIGGER {0}_no_delete", "DROP TRIGGER {0}_no_update"],
    "postgresql": ["DROP TRIGGER {0}_insert_only ON {0}"],
}


@pytest.mark.parametrize("table", INSERT_ONLY, ids=lambda table: table.name)
def test_a_trigger_that_is_gone_is_named(engine: Engine, table: Any, changed: Change) -> None:
    for statement in GONE[engine.dialect.name]:
        found = changed(statement.format(table.name))
        assert found.level is Level.FAIL
        assert f"{table.name}_" in found.found
        assert "dpledger verify" in found.remedy
    assert changed().level is Level.OK


_AGAIN = "CREATE TRIGGER entries_insert_only BEFORE {} EXECUTE FUNCTION refuse_change()"
WEAKENED: dict[str, list[tuple[str, ...]]] = {
    "sqlite": [
        (
            "DROP TRIGGER entries_no_update",
            "CREATE TRIGGER entries_no_update BEFORE UPDATE ON entries WHEN 0 "
            "BEGIN SELECT RAISE(ABORT, 'entries is insert-only'); END",
        ),
    ],
    "postgresql": [
        ("ALTER TABLE entries DISABLE TRIGGER entries_insert_only",),
        ("ALTER TABLE entries ENABLE REPLICA TRIGGER entries_insert_only",),
        (
            "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RETURN NULL; END $$",
        ),
        *(
            ("DROP TRIGGER entries_insert_only ON entries", _AGAIN.format(when))
            for when in (
                "UPDATE ON entries FOR EACH STATEMENT",
                "UPDATE OF steps OR DELETE OR TRUNCATE ON entries FOR EACH STATEMENT",
                "UPDATE OR DELETE OR TRUNCATE ON entries FOR EACH STATEMENT WHEN (false)",
                "UPDATE OR DELETE OR TRUNCATE ON findings FOR EACH STATEMENT",
            )
        ),
    ],
}


def test_a_trigger_that_is_there_and_does_nothing_is_named(engine: Engine, changed: Change) -> None:
    for statements in WEAKENED[engine.dialect.name]:
        found = changed(*statements)
        assert found.level is Level.FAIL, statements
        assert "entries_" in found.found


def test_a_missing_trigger_fails_the_whole_examination(file: Path) -> None:
    engine = connect(f"sqlite:///{file}")
    with transaction(engine) as connection:
        connection.execute(text("DROP TRIGGER acts_no_update"))
    engine.dispose()
    assert look(f"sqlite:///{file}")["triggers"].level is Level.FAIL


def test_a_clock_behind_the_newest_entry_is_seen(
    api: httpx.Client, engine: Engine, database_url: str
) -> None:
    setup(api)
    append(api, event(0, 3))
    ahead = now() + timedelta(minutes=1)
    with transaction(engine) as connection, without_triggers(connection):
        connection.execute(update(entries).values(recorded_at=ahead))
    found = look(database_url)["clock"]
    assert found.level is Level.FAIL
    assert "before the newest row" in found.found
    with transaction(engine) as connection, without_triggers(connection):
        connection.execute(entries.delete())
        connection.execute(update(datasets).values(head_sequence=0))
        connection.execute(text("UPDATE acts SET acted_at = :moment"), {"moment": str(ahead)[:26]})
    assert look(database_url)["clock"].level is Level.FAIL


def test_a_log_that_is_suspended_is_seen(engine: Engine, database_url: str) -> None:
    with transaction(engine) as connection:
        connection.execute(update(installation).values(suspended='{"reason":"older"}'))
    found = look(database_url)["log"]
    assert found.level is Level.FAIL
    assert "older" in found.found


def test_keys_are_looked_at(engine: Engine, database_url: str, tmp_path: Path) -> None:
    assert look(database_url, host=OTHERS)["keys"].level is Level.FAIL
    first = tmp_path / "first"
    first.write_text("k" * 32, encoding="utf-8")
    first.chmod(0o600)
    assert look(database_url, host=OTHERS, admin_key_file=first)["keys"].level is Level.OK
    new_key(engine, "cluster", Role.TRAINER)
    assert "no valid admin key" in look(database_url)["keys"].found
    new_key(engine)
    assert levels(look(database_url))["keys"] is Level.OK
    with transaction(engine) as connection:
        connection.execute(update(api_keys).values(expires_at=now() + timedelta(days=13)))
    soon = look(database_url)["keys_expiring"]
    assert (soon.level, "cluster, officer" in soon.found) == (Level.WARN, True)
    with transaction(engine) as connection:
        connection.execute(update(api_keys).values(expires_at=now() - timedelta(days=1)))
    assert look(database_url)["keys"].level is Level.FAIL
    with transaction(engine) as connection:
        connection.execute(update(api_keys).values(expires_at=None, revoked_at=now()))
    assert look(database_url)["keys"].level is Level.FAIL


def test_a_schema_of_another_version_is_seen_and_nothing_behind_it_is_asked(
    engine: Engine, database_url: str
) -> None:
    with transaction(engine) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    try:
        found = look(database_url)
    finally:
        with transaction(engine) as connection:
            head = {"head": migrations.head()}
            connection.execute(text("UPDATE alembic_version SET version_num = :head"), head)
    assert found["schema"].level is Level.FAIL
    assert "triggers" not in found


def test_a_database_that_is_not_there_is_seen_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    found = look(f"sqlite:///{path}")
    assert found["database_file"].level is Level.FAIL
    assert "makes a new one" in found["database_file"].remedy
    assert list(tmp_path.iterdir()) == []
    left = path.with_name("none.db.signing_key")
    Signer.create(left)
    found = look(f"sqlite:///{path}")
    assert found["database_file"].level is Level.FAIL
    assert "makes a new one" not in found["database_file"].remedy
    left.unlink()
    for url in ("nonsense", f"postgresql://nobody@127.0.0.1:{free_port()}/none"):
        assert look(url)["database"].level is Level.FAIL
    path.write_text("not a database " * 100, encoding="utf-8")
    path.chmod(0o600)
    assert look(f"sqlite:///{path}")["database"].level is Level.FAIL


@pytest.mark.parametrize(
    ("mode", "level"),
    [(0o600, Level.OK), (0o640, Level.WARN), (0o604, Level.WARN), (0o620, Level.FAIL)],
)
def test_who_may_read_and_write_the_ledgers_file(file: Path, mode: int, level: Level) -> None:
    file.chmod(mode)
    assert look(f"sqlite:///{file}")["database_file"].level is level


def test_what_the_command_line_makes_is_its_owners_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    words = [sys.executable, "-m", "service.cli.main", "migrate", "--database", url]
    subprocess.run(words, check=True)
    assert stat.S_IMODE((tmp_path / "ledger.db").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", host.SECRETS)
def test_who_may_read_a_secret(file: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "secret"
    assert look(f"sqlite:///{file}", **{name: path})[name].level is Level.FAIL
    path.write_text("s" * 43, encoding="utf-8")
    for mode, level in {0o600: Level.OK, 0o640: Level.FAIL, 0o644: Level.FAIL}.items():
        path.chmod(mode)
        assert look(f"sqlite:///{file}", **{name: path})[name].level is level


def test_the_signing_key_is_looked_at(
    file: Path, tmp_path: Path, engine: Engine, database_url: str
) -> None:
    url, beside = f"sqlite:///{file}", file.with_name(f"{file.name}.signing_key")
    assert look(url)["signing_key"].level is Level.OK  # it is made when the service starts
    Signer.create(beside)
    assert look(url)["signing_key"].level is Level.OK
    beside.chmod(0o640)
    assert look(url)["signing_key"].level is Level.FAIL
    beside.chmod(0o600)
    beside.write_text("no key", encoding="utf-8")
    assert look(url)["signing_key_content"].level is Level.FAIL
    missing = look(url, signing_key_file=tmp_path / "missing")
    assert missing["signing_key"].level is Level.FAIL
    if engine.dialect.name == "postgresql":
        assert look(database_url)["signing_key"].level is Level.WARN


def test_the_witness_is_looked_at(file: Path, tmp_path: Path) -> None:
    url, path = f"sqlite:///{file}", tmp_path / "witness"
    assert look(url)["witness"].level is Level.OK
    assert "DPLEDGER_WITNESS_FILE" in look(url)["witness"].found
    assert look(url, witness_file=path)["witness"].level is Level.FAIL
    path.write_bytes(b"")
    assert look(url, witness_file=path)["witness"].level is Level.FAIL
    path.unlink()
    settings = Settings(database_url=url, witness_file=path)
    with running(settings):
        pass
    assert look(url, witness_file=path)["witness"].level is Level.OK
    for seconds, level in {86_400.0: Level.OK, 0.1: Level.FAIL}.items():
        late = Settings(database_url=url, witness_file=path, witness_seconds=seconds)
        found = {one.name: one for one in trust(late, now() + timedelta(minutes=1), used=True)}
        assert found["witness"].level is level
    path.write_bytes(path.read_bytes().replace(b"steps", b"stops"))
    assert look(url, witness_file=path)["witness"].level is Level.FAIL


def test_of_another_users_secret_the_group_may_read(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("s" * 43, encoding="utf-8")
    path.chmod(0o440)
    if os.geteuid() == 0:
        os.chown(path, 12345, os.getegid())
        assert host.secret("one", path).level is Level.OK
    path.chmod(0o444)
    assert host.secret("one", path).level is Level.FAIL


def test_a_secret_that_a_container_mounts_is_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    path.write_text("s" * 43, encoding="utf-8")
    path.chmod(0o444)
    monkeypatch.setattr(host, "MOUNTED_SECRETS", tmp_path)
    assert host.secret("one", path).level is Level.OK


@dataclass
class Usage:
    free: int


def test_room_on_the_disk_is_looked_at(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, level in {2**20: Level.FAIL, 2**28: Level.WARN, 2**33: Level.OK}.items():
        monkeypatch.setattr(shutil, "disk_usage", lambda _, f=free: Usage(f))
        assert look(f"sqlite:///{file}")["disk"].level is level


def test_versions_that_were_not_tested_together_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one.level for one in host.dependencies()] == [Level.OK]
    tested = host.versions_tested() | {"numpy": "0.1"}
    monkeypatch.setattr(host, "versions_tested", lambda: tested)
    (found,) = host.dependencies()
    assert (found.level, "tested: 0.1" in found.found) == (Level.WARN, True)
    assert found.remedy == "pip install numpy==0.1"
    monkeypatch.setattr(host, "requires", lambda _: ["no-such-package>=1", "x ; extra == 'd'"])
    (found,) = host.dependencies()
    assert (found.level, found.found) == (Level.FAIL, "missing: no-such-package")


def command(*words: str) -> Result:
    result: Result = CliRunner().invoke(app, ["doctor", *words])
    return result


def test_the_command_prints_a_line_each_and_fails_where_something_must_be_done(
    file: Path,
) -> None:
    words = ("--database", f"sqlite:///{file}")
    good = command(*words)
    assert good.exit_code == 0, good.output
    listed = json.loads(command(*words, "--json").stdout)
    assert [line.split()[:2] for line in good.stdout.splitlines()] == [
        [one["level"], f"{one['name']}:"] for one in listed
    ]
    file.chmod(0o666)
    bad = command(*words)
    assert bad.exit_code == 1
    (line,) = [line for line in bad.stdout.splitlines() if line.startswith("fail")]
    assert f"-> chmod 600 {file}" in line
