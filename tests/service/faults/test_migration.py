"""A migration that is killed half-way has either happened or not; two at once are one."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, event, inspect, text

from benchmarks.fault_postgres import Postgres
from service.errors import StartupError
from service.storage import migrations
from service.storage.engine import connect, transaction
from service.storage.tables import metadata
from tests.service.dumps import dump
from tests.service.faults.answers import begin, require_exactly
from tests.service.faults.conftest import serving
from tests.service.next_revision import NEXT, downgrade, with_next_revision

STEPS = 2
KILLS = 2  # spread over the statements of a migration
OLD = migrations.head()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, file: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{file}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.url


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    found = connect(url)
    yield found
    found.dispose()


def tables_of(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names()) - {"alembic_version"}


def count_statements(engine: Engine) -> int:
    """How many statements a migration sends; it is done afterwards."""
    sent: list[str] = []

    def note(_c: object, _u: object, statement: str, *_given: object) -> None:
        sent.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    migrations.upgrade(engine)
    event.remove(engine, "before_cursor_execute", note)
    return len(sent)


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The migrations of a newer version, which has one more."""
    return with_next_revision(tmp_path_factory.mktemp("newer"))


# Of a newer version: `dpledger` as the lines of its input say.
WORKER = """
import sys
from pathlib import Path
from service.storage import migrations
migrations.MIGRATIONS = Path(sys.argv.pop())
from benchmarks.fault_worker import main
main()
"""


@pytest.fixture(scope="module")
def migrator(newer: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that forks another for each `dpledger migrate`."""
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(newer)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def migrate_and_die(migrator: subprocess.Popen[str], url: str, number: int, trap: Path) -> int:
    """`dpledger migrate`, killed as it is about to send a statement; what became of it."""
    assert migrator.stdin is not None
    assert migrator.stdout is not None
    trap.touch()
    migrator.stdin.write(f"statement {number} SIGKILL {trap} migrate --database {url}\n")
    migrator.stdin.flush()
    status = int(migrator.stdout.readline())
    trap.unlink(missing_ok=True)
    return status


@pytest.mark.parametrize(
    ("url", "before"),
    [("sqlite", "base"), ("sqlite", OLD), ("postgres", OLD)],
    indirect=["url"],
)
def test_a_migration_killed_anywhere_is_done_or_undone_and_done_by_the_next(
    url: str,
    engine: Engine,
    migrator: subprocess.Popen[str],
    newer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: str,
) -> None:
    migrations.upgrade(engine)
    if before == OLD:
        with serving(url) as api:
            begin(api, STEPS)
    facts = dump(engine)
    monkeypatch.setattr(migrations, "MIGRATIONS", newer)
    downgrade(engine, before)
    old, statements = tables_of(engine), count_statements(engine)
    assert statements > 2 * KILLS
    downgrade(engine, before)
    for number in range(KILLS):
        at = 1 + (number + 1) * (statements - 1) // KILLS
        assert migrate_and_die(migrator, url, at, tmp_path / "trap") == -signal.SIGKILL
        assert tables_of(engine) == old
        assert migrations.current(engine) == (None if before == "base" else before)
    assert migrations.upgrade(engine) is (before == "base")
    assert migrations.current(engine) == NEXT
    assert tables_of(engine) == set(metadata.tables) | {"notes"}
    if before == OLD:
        assert dump(engine) == facts
        with serving(url) as api:
            require_exactly(api, STEPS)


def test_two_migrations_at_once_are_one(url: str, engine: Engine) -> None:
    words = [sys.executable, "-m", "service.cli.main", "migrate", "--database", url]
    both = [subprocess.Popen(words, stderr=subprocess.PIPE) for _ in range(2)]
    said = [one.communicate()[1] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert tables_of(engine) == set(metadata.tables)
    with serving(url) as api:
        begin(api, STEPS)
        require_exactly(api, STEPS)


def test_an_older_version_refuses_a_newer_schema(url: str, engine: Engine) -> None:
    migrations.upgrade(engine)
    with transaction(engine) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        connection.execute(text("CREATE TABLE of_the_future (id INTEGER)"))
    for act in (migrations.upgrade, migrations.require_current):
        with pytest.raises(StartupError, match=r"9999.*newer version"):
            act(engine)
    assert tables_of(engine) == set(metadata.tables) | {"of_the_future"}
