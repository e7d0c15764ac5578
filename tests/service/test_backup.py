"""Backups are taken while the service writes and come back whole, into either database."""

import gzip
import json
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, create_engine, func, inspect, make_url, select, text
from sqlalchemy.exc import DBAPIError
from typer.testing import CliRunner, Result

from service.cli.main import app
from service.identity.keys import Role, create_key
from service.operations.backup import restore, take_backup
from service.operations.backup_format import BackupError, check
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect, snapshot, transaction
from service.storage.tables import INSERT_ONLY, acts, api_keys, entries
from service.transparency.signing import Signer
from tests.conftest import AS_ADMIN, running, without_triggers
from tests.service.backup_lines import Change, forged, of_header, of_row, without_rows
from tests.service.dumps import dump
from tests.service.next_revision import NEXT, with_next_revision
from tests.service.samples import FULL, SAMPLING, WRITER, append, dataset, event, run, setup

BY = "somebody"
Target = Callable[[], str]
# Where it is all one which database the backup was taken of.
FROM_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def filled(api: httpx.Client, engine: Engine) -> Engine:
    """A ledger with a row in nearly every table."""
    # More than half of it is spent: an incident.
    budget = {"epsilon": 30.0, "delta": 1e-5, "orders": [2.0]}
    setup(api, dataset_given={"budget": budget}, delta=1e-5, labels={"cluster": "wért"})
    append(api, event(0, 50), event(50, 5, sampling=FULL))
    branch = {"name": "other", "writer": WRITER, "from_step": 10}
    correction = event(0, 1, sampling=FULL) | {"reason": "the log says so"}
    reservation = {"name": "ahead", "event": event(55, 10), "ttl_seconds": 600}
    for path, body in {
        "branches": branch,
        "corrections": correction,
        "releases": {"step": 3},
        "findings": SAMPLING,
        "reservations": reservation,
    }.items():
        answer = api.post(f"/v1/runs/run/{path}", json=body)
        assert answer.status_code == 201, answer.text
    child = dataset("child", parents=["data"], rows_per_parent_record="at_most_one")
    assert api.post("/v1/datasets", json=child).status_code == 201
    return engine


@pytest.fixture(params=["sqlite", "postgres"])
def target(
    request: pytest.FixtureRequest, postgres_url: str, tmp_path: Path
) -> Iterator[Callable[[], str]]:
    """A database without a table, of each kind; more of them when asked again."""
    made: list[str] = []
    address = make_url(postgres_url).set(drivername="postgresql+psycopg")
    admin = create_engine(address, isolation_level="AUTOCOMMIT")

    def make() -> str:
        name = f"restored_{len(made)}"
        made.append(name)
        if request.param == "sqlite":
            return f"sqlite:///{tmp_path / name}.db"
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        return address.set(drivername="postgresql", database=name).render_as_string(False)

    yield make
    if request.param == "postgres":
        with admin.connect() as connection:
            for name in made:
                connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.backup"


def comparable(rows: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[list[Any]]]:
    """Rows with times as both databases can have them; without what the restoring itself added."""
    return {
        name: [[str(v).removesuffix("+00:00") for v in row] for row in found]
        for name, found in rows.items()
        if name not in ("acts", "installation")
    }


def test_every_row_comes_back_in_either_database(
    filled: Engine, file: Path, target: Target
) -> None:
    taken = take_backup(filled, file)
    before = dump(filled)
    assert {name: len(rows) for name, rows in before.items()} == taken.rows
    engine = connect(target())
    assert restore(engine, file, by=BY) == taken
    after = dump(engine)
    assert comparable(after) == comparable(before)
    assert (
        comparable({"a": after["acts"]})["a"][: len(before["acts"])]
        == (comparable({"a": before["acts"]})["a"])
    )
    again = file.with_suffix(".again")
    assert take_backup(engine, again).rows == taken.rows | {"acts": taken.rows["acts"] + 1}
    engine.dispose()


def test_a_restored_ledger_answers_and_goes_on_as_before(
    filled: Engine, api: httpx.Client, file: Path, target: Target
) -> None:
    asked = ("/v1/datasets/data", "/v1/runs/run", "/v1/runs/run/guarantee", "/v1/runs/run/ledger")
    before = [api.get(path).json() for path in asked]
    taken = take_backup(filled, file)
    url = target()
    engine = connect(url)
    restore(engine, file, by=BY)
    engine.dispose()
    key = file.with_name("key")
    Signer.create(key)
    settings = Settings(database_url=url, signing_key_file=key)
    with running(settings) as address, httpx.Client(base_url=address, headers=AS_ADMIN) as there:
        assert [there.get(path).json() for path in asked] == before
        assert append(there, event(0, 50)).status_code == 200  # recorded before
        for body in (dataset("fresh"), dataset("fresher")):
            assert there.post("/v1/datasets", json=body).status_code == 201
        assert there.post("/v1/runs", json=run("new")).status_code == 201
        answer = append(there, event(55, 3, sampling={"kind": "poisson",
                                                      "sampling_probability": 0.5}))  # fmt: skip
        assert answer.status_code == 201
        assert answer.json()["sequence"] == taken.rows["entries"] + 1


@FROM_SQLITE
def test_facts_are_held_insert_only_in_what_was_restored(
    filled: Engine, file: Path, target: Target
) -> None:
    take_backup(filled, file)
    engine = connect(target())
    restore(engine, file, by=BY)
    for table in INSERT_ONLY:
        with snapshot(engine) as connection:
            if not connection.execute(select(table).limit(1)).first():
                continue  # SQLite asks its triggers for each row
        with pytest.raises(DBAPIError, match="insert-only"), transaction(engine) as connection:
            connection.execute(table.delete())
    engine.dispose()


@FROM_SQLITE
def test_that_it_was_restored_is_the_last_act_of_the_installations_log(
    filled: Engine, file: Path, target: Target
) -> None:
    taken = take_backup(filled, file)
    engine = connect(target())
    restore(engine, file, by=BY)
    with snapshot(engine) as connection:
        query = select(acts).where(acts.c.dataset_id.is_(None)).order_by(acts.c.position.desc())
        last = connection.execute(query).first()
    engine.dispose()
    assert last is not None
    assert (last.kind, last.by) == ("restored", BY)
    content = json.loads(last.content)
    assert content["sha256"] == taken.sha256
    assert content["entries"] == taken.rows["entries"]


class Trainers:
    """Three runs that record step after step until they are told to stop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.counts = [0] * 3
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._train, args=(n,)) for n in range(3)]

    def __enter__(self) -> "Trainers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _train(self, number: int) -> None:
        with httpx.Client(base_url=self.address, timeout=30, headers=AS_ADMIN) as api:
            while not self._stop.is_set():
                noise = {"kind": "gaussian", "noise_multiplier": 1.0 + self.counts[number] % 7}
                step = event(self.counts[number], 1, mechanism=noise)
                assert append(api, step, run=f"run-{number}").status_code == 201
                self.counts[number] += 1

    def wait(self, steps: int) -> None:
        """Until each has so many more."""
        goal = [count + steps for count in self.counts]
        while any(count < least for count, least in zip(self.counts, goal, strict=True)):
            self._stop.wait(0.01)


def test_a_backup_taken_under_load_holds_a_moment_of_every_run(
    api: httpx.Client, address: str, engine: Engine, file: Path, target: Target
) -> None:
    setup(api)
    for number in range(3):
        assert api.post("/v1/runs", json=run(f"run-{number}")).status_code == 201
    with Trainers(address) as trainers:
        trainers.wait(5)
        least = list(trainers.counts)
        take_backup(engine, file)
        most = [count + 1 for count in trainers.counts]  # one may be recorded, not yet answered
        trainers.wait(1)  # nobody was held up for good
    other = connect(target())
    restore(other, file, by=BY)
    of_run = select(func.sum(entries.c.steps)).group_by(entries.c.run_id)
    with snapshot(other) as connection:
        found = connection.scalars(of_run.order_by(entries.c.run_id)).all()
    other.dispose()
    assert all(low <= steps <= high for low, steps, high in zip(least, found, most, strict=True))


def test_a_database_with_a_table_in_it_is_not_restored_into(
    filled: Engine, file: Path, target: Target
) -> None:
    take_backup(filled, file)
    before = dump(filled)
    with pytest.raises(BackupError, match="not empty"):
        restore(filled, file, by=BY)
    assert dump(filled) == before
    other = connect(target())
    with transaction(other) as connection:
        connection.execute(text("CREATE TABLE something (id INTEGER)"))
    with pytest.raises(BackupError, match="not empty"):
        restore(other, file, by=BY)
    assert inspect(other).get_table_names() == ["something"]
    other.dispose()


@FROM_SQLITE
def test_a_ledger_that_was_begun_and_never_used_makes_room(
    filled: Engine, file: Path, target: Target
) -> None:
    taken = take_backup(filled, file)
    other = connect(target())
    migrations.upgrade(other)
    assert restore(other, file, by=BY) == taken
    migrations.require_current(other)
    other.dispose()
    used = connect(target())
    migrations.upgrade(used)
    with transaction(used) as connection:
        create_key(connection, name="officer", scope=Role.ADMIN)
    before = dump(used)
    with pytest.raises(BackupError, match="not empty"):
        restore(used, file, by=BY)
    assert dump(used) == before
    used.dispose()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [lines[0].replace(b'"00', b'"99'), *lines[1:]], "another version"),
        (lambda lines: [line.replace(b'"recorded_at"', b'"x"') for line in lines], "not that of"),
        (lambda lines: [line.replace(b'"table":"runs"', b'"table":"rans"') for line in lines], "r"),
        (of_row("runs", dataset_id=77), "the database refuses rows of runs: "),
        (of_row("installation", log_size=1, log_frontier=""), "to go on with: The frontier does"),
        (without_rows("installation"), "holds no ledger to go on with: "),
    ],
)
@FROM_SQLITE
def test_what_fails_half_way_leaves_the_database_empty(
    filled: Engine, file: Path, target: Target, change: Change, said: str
) -> None:
    take_backup(filled, file)
    other = connect(target())
    with pytest.raises(BackupError, match=said):
        restore(other, forged(file, change), by=BY)
    assert inspect(other).get_table_names() == []
    restore(other, file, by=BY)  # and takes the right one afterwards
    other.dispose()


def test_a_backup_of_an_older_version_is_restored_and_brought_forward(
    filled: Engine, file: Path, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = migrations.head()
    take_backup(filled, file)
    before = dump(filled)
    monkeypatch.setattr(migrations, "MIGRATIONS", with_next_revision(tmp_path))
    engine = connect(target())
    assert restore(engine, file, by=BY).header.schema_revision == older
    migrations.require_current(engine)
    assert migrations.current(engine) == NEXT
    assert comparable(dump(engine)) == comparable(before)
    with snapshot(engine) as connection:
        assert connection.scalar(text("SELECT count(*) FROM notes")) == len(before["entries"]) > 0
        kinds = connection.scalars(select(acts.c.kind).order_by(acts.c.id)).all()
    assert kinds[-1] == "restored"
    engine.dispose()


def test_a_backup_of_an_unknown_revision_is_refused(
    filled: Engine, file: Path, target: Target
) -> None:
    take_backup(filled, file)
    engine = connect(target())
    with pytest.raises(BackupError, match=r"another version.*'0005'"):
        restore(engine, forged(file, of_header(schema_revision="0005")), by=BY)
    assert inspect(engine).get_table_names() == []
    engine.dispose()


def test_a_ledger_with_an_entry_missing_is_not_backed_up(filled: Engine, file: Path) -> None:
    with transaction(filled) as connection, without_triggers(connection):
        connection.execute(entries.delete().where(entries.c.sequence == 1))
    with pytest.raises(BackupError, match="data has 1 entries and its head says 2"):
        take_backup(filled, file)
    assert list(file.parent.glob("*backup*")) == []


def test_a_backup_is_its_owners_alone_and_never_written_over(filled: Engine, file: Path) -> None:
    take_backup(filled, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in file.parent.iterdir() if "ledger.backup" in one.name] == [file.name]
    before = file.read_bytes()
    with pytest.raises(BackupError, match="never written over"):
        take_backup(filled, file)
    assert file.read_bytes() == before


def command(*words: object) -> Result:
    result: Result = CliRunner().invoke(app, [str(word) for word in words])
    return result


def test_the_commands_say_what_they_did(
    filled: Engine, database_url: str, file: Path, target: Target
) -> None:
    made = command("backup", file, "--database", database_url)
    assert made.exit_code == 0, made.output
    said = dict(line.split(" ", 1) for line in made.stdout.splitlines())
    assert said["sha256"] == check(file).sha256
    assert said["rows.entries"] == "2"
    assert command("restore", file, "--check").stdout == made.stdout
    url = target()
    restored = command("restore", file, "--database", url)
    assert (restored.exit_code, restored.stdout) == (0, made.stdout)
    refused = command("restore", file, "--database", url)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.count("\n") == 1
    for words in (("backup", file, "--database", database_url), ("restore", file.parent / "none")):
        refused = command(*words)
        assert refused.exit_code == 2
        assert refused.stderr.count("\n") == 1


def test_no_key_and_no_signing_key_is_in_a_backup(
    filled: Engine, file: Path, database_url: str
) -> None:
    with transaction(filled) as connection:
        key = create_key(connection, name="officer", scope=Role.ADMIN)
    take_backup(filled, file)
    content = gzip.decompress(file.read_bytes())
    assert b"officer" in content
    assert key.encode() not in content
    with snapshot(filled) as connection:
        assert connection.scalar(select(func.count()).select_from(api_keys)) == 1
