"""Absent, empty and untrustworthy are three states, and each is met in its own way."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from benchmarks.fault_postgres import Postgres
from service.app import create_app
from service.cli.main import app
from service.errors import StartupError
from service.operations.diagnostics.result import Level
from service.operations.diagnostics.run import examine
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect, transaction
from service.storage.sqlite import KEY_SUFFIX, beside
from service.transparency.signing import Signer
from tests.service.faults.answers import begin, require_exactly
from tests.service.faults.conftest import serving


def migrate(file: Path, *words: str) -> Result:
    result: Result = CliRunner().invoke(app, ["migrate", "--database", f"sqlite:///{file}", *words])
    return result


def cause(result: Result) -> str:
    """The one line of a refusal, which changes nothing."""
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    return str(result.stderr)


def test_an_absent_file_begins_a_ledger_and_says_so(file: Path) -> None:
    engine = connect(f"sqlite:///{file}")
    assert migrations.current(engine) is None
    assert not file.exists()  # to look does not make it
    assert migrations.upgrade(engine) is True
    assert migrations.upgrade(engine) is False
    engine.dispose()
    create_app(Settings(database_url=f"sqlite:///{file}")).state.engine.dispose()


def key_left(file: Path) -> None:
    Signer.create(beside(file, KEY_SUFFIX))


def log_left(file: Path) -> None:
    beside(file, "-wal").write_bytes(b"frames")


def key_left_and_nothing_else(file: Path) -> None:
    key_left(file)
    file.touch()


@pytest.mark.parametrize("left", [key_left, log_left, key_left_and_nothing_else])
def test_a_ledger_that_was_there_and_is_gone_is_not_begun_anew(
    file: Path, left: Callable[[Path], None]
) -> None:
    left(file)
    size = file.stat().st_size if file.exists() else None
    said = cause(migrate(file))
    assert "There was a ledger at" in said
    assert "restore a backup" in said
    assert "dpledger migrate --new" in said
    assert (file.stat().st_size if file.exists() else None) == size
    serve = ["serve", "--port", "0", "--database", f"sqlite:///{file}"]
    assert "There was a ledger at" in cause(CliRunner().invoke(app, serve))
    with pytest.raises(StartupError):
        create_app(Settings(database_url=f"sqlite:///{file}"))


def test_a_ledger_in_use_gets_no_other_signing_key_by_itself(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, key = f"sqlite:///{file}", beside(file, KEY_SUFFIX)
    assert migrate(file).exit_code == 0
    create_app(Settings(database_url=url)).state.engine.dispose()
    key.unlink()  # of a ledger without a dataset nobody was shown anything
    with serving(url) as api:
        begin(api, 1)
    kept = key.rename(file.with_name("kept"))
    with serving(url) as api:
        require_exactly(api, 1)
        assert api.get("/v1/checkpoint").status_code == 503
    assert f"its signing key {key} is not there" in caplog.text
    assert "DPLEDGER_SIGNING_KEY_FILE" in caplog.text
    assert not key.exists()
    found = {one.name: one for one in examine(Settings(database_url=url))}
    assert found["signing_key"].level is Level.FAIL
    kept.rename(key)
    with serving(url) as api:
        assert api.get("/v1/checkpoint").status_code == 200


@pytest.mark.parametrize("left", [key_left, key_left_and_nothing_else])
def test_an_operator_may_begin_anew_and_says_so(file: Path, left: Callable[[Path], None]) -> None:
    left(file)
    assert migrate(file, "--new").exit_code == 0
    assert migrate(file).exit_code == 0  # from now on it is there
    with serving(f"sqlite:///{file}") as api:
        begin(api, 1)
        require_exactly(api, 1)


def test_an_empty_file_is_set_up(file: Path) -> None:
    file.touch()
    assert migrate(file).exit_code == 0
    with serving(f"sqlite:///{file}") as api:
        begin(api, 1)


def test_tables_of_somebody_else_are_left_alone(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE customers (id INTEGER)")
    connection.commit()
    connection.close()
    said = cause(migrate(file))
    assert "no ledger's (customers)" in said
    connection = sqlite3.connect(file)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("customers",)]
    connection.close()


def test_tables_of_somebody_else_on_a_server_are_left_alone(postgres: Postgres) -> None:
    engine = connect(postgres.url)
    with transaction(engine) as connection:
        connection.execute(text("CREATE TABLE customers (id INTEGER)"))
    with pytest.raises(StartupError, match=r"no ledger's \(customers\)"):
        migrations.upgrade(engine)
    engine.dispose()


def test_a_page_that_no_query_of_the_start_reads_is_found_all_the_same(file: Path) -> None:
    url = f"sqlite:///{file}"
    with serving(url) as api:
        begin(api, 3)
    connection = sqlite3.connect(file)
    (root,) = connection.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = 'entries'"
    ).fetchone()
    connection.close()
    with file.open("r+b") as raw:
        raw.seek((root - 1) * 4096)
        raw.write(b"\xff" * 4096)
    with pytest.raises(StartupError, match="damaged"):
        create_app(Settings(database_url=url))
    serve = ["serve", "--port", "0", "--database", url]
    assert "restore a backup" in cause(CliRunner().invoke(app, serve))


def test_a_revision_of_a_newer_version_names_that_version_as_the_way_out(file: Path) -> None:
    assert migrate(file).exit_code == 0
    engine = connect(f"sqlite:///{file}")
    with transaction(engine) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    for words in (["migrate"], ["serve", "--port", "0"], ["keys", "list"]):
        said = cause(CliRunner().invoke(app, [*words, "--database", f"sqlite:///{file}"]))
        assert "9999" in said
        assert "newer version" in said


def test_a_server_that_is_only_read_from_is_not_served_from(postgres: Postgres) -> None:
    engine = connect(postgres.url)
    migrations.upgrade(engine)
    engine.dispose()
    postgres.execute(
        "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"
    )
    try:
        serve = ["serve", "--port", "0", "--database", postgres.url]
        assert "cannot be used" in cause(CliRunner().invoke(app, serve))
    finally:
        postgres.execute(
            "SET default_transaction_read_only = off",
            "ALTER SYSTEM RESET default_transaction_read_only",
            "SELECT pg_reload_conf()",
        )
