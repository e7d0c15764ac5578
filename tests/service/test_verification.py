"""`dpledger verify`: what it reads, what it names, and that nothing in a database makes it fail."""

from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Column, Connection, Engine, delete, select, text, update

from benchmarks.rewriting import Log, refit, undone
from service.clock import now
from service.identity.keys import Role, Terms, create_key, revoke_key, rotate_key
from service.storage.engine import snapshot, transaction
from service.storage.tables import acts, datasets, metadata, runs
from service.transparency.verification.ledger import verify
from service.transparency.verification.report import Rank
from service.transparency.verification.saved_heads import Kept, of_checkpoints, of_witness
from tests.service.dumps import dump
from tests.service.keeping import keep
from tests.service.samples import BUDGET, FULL, RANK, Json, append, dataset, event, run, setup

CYCLIC: Json = {"kind": "cyclic", "batch_size": 20000, "steps_per_pass": 3}  # three steps a pass
QUIET: Json = {"kind": "gaussian", "noise_multiplier": 20.0}


@pytest.fixture
def ledger(api: httpx.Client) -> None:
    """A small ledger with a little of everything."""
    setup(api, dataset_given={"budget": BUDGET}, delta=1e-5)
    assert api.post("/v1/datasets", json=dataset("other")).status_code == 201
    assert api.post("/v1/runs", json=run("far", dataset="other")).status_code == 201
    append(api, event(0, 5, sampling=CYCLIC), event(5, 3, sampling=CYCLIC), event(8, 4))
    fork = {"name": "fork", "writer": run()["writer"], "from_step": 6}
    assert api.post("/v1/runs/run/branches", json=fork).status_code == 201
    append(api, event(6, 2, sampling=CYCLIC), branch="fork")
    append(api, event(0, 9), event(9, 1, sampling=FULL), run="far")
    lease = {"name": "lease", "event": event(10, 7), "ttl_seconds": 60}
    assert api.post("/v1/runs/far/reservations", json=lease).status_code == 201
    assert api.post("/v1/runs/far/findings", json=RANK).status_code == 201
    assert api.post("/v1/runs/far:finish", json={"state": "finished"}).status_code == 200


def texts(connection: Connection, kept: Kept | None = None) -> list[str]:
    return [one.text for one in verify(connection, kept).broken]


def test_an_empty_ledger_is_sound(engine: Engine) -> None:
    with snapshot(engine) as connection:
        report = verify(connection)
    assert report.first is None
    assert report.checked["leaves"] == 0


def test_everything_is_counted_and_nothing_is_written(ledger: None, engine: Engine) -> None:
    before = dump(engine)
    with snapshot(engine) as connection:
        report = verify(connection)
    assert report.broken == []
    counted = {name: report.checked[name] for name in ("datasets", "entries", "branches", "rows")}
    assert counted == {"datasets": 2, "entries": 5, "branches": 3, "rows": 18}
    assert report.checked["leaves"] == report.checked["entries"] + report.checked["acts"] == 21
    assert report.checked["sums"] == 2
    assert dump(engine) == before


# ---- nothing in a database makes it fail


DEEP = "[" * 100_000
GARBAGE = {
    "UPDATE entries SET verdict = 'nonsense' WHERE sequence = 2": "entry 2",
    "UPDATE entries SET run_id = 4711 WHERE sequence = 2": "entry 2 (no run of the dataset",
    "UPDATE entries SET event_id = 4711 WHERE sequence = 2": "entry 2",
    "UPDATE entries SET branch_id = (SELECT max(id) FROM branches) WHERE sequence = 2": "entry 2",
    "UPDATE entries SET leaf = NULL WHERE sequence = 2": "entry 2",
    "UPDATE entries SET sequence = sequence + 1000000000000 WHERE sequence = 2": "is missing",
    "UPDATE entries SET sequence = -1 WHERE sequence = 2": "has no place in the log",
    "UPDATE distinct_events SET content = '{' || content": "entry 1",
    "UPDATE distinct_events SET content = '[]' || id": "entry 1",
    "UPDATE distinct_events SET content = replace(content, 'gaussian', 'wat')": "entry 1",
    "UPDATE acts SET content = '{'": "cannot be read",
    "UPDATE acts SET content = 'DEEP'": "cannot be read",
    "UPDATE acts SET content = '[]'": "cannot be read",
    "UPDATE acts SET position = -position - 1": "is not what was hashed",
    "UPDATE acts SET after_sequence = 1000000000000": "is not what was hashed",
    "UPDATE acts SET dataset_id = dataset_id + 4711": "belong to nothing",
    "UPDATE runs SET request = '{'": "act",
    "UPDATE runs SET labels = 'DEEP'": "act",
    "UPDATE runs SET budget_filter = '{}', budget_epsilon = 1, budget_delta = 0.5": "act",
    "UPDATE runs SET totals = 'x', totals_version = 'y'": "",
    "UPDATE runs SET dataset_id = 4711": "belong to nothing",
    "UPDATE branches SET run_id = 4711 WHERE name = 'fork'": "belong to nothing",
    "UPDATE datasets SET accept = 'x'": "act 1 (settings",
    "UPDATE datasets SET budget_filter = 'x'": "act 1 (settings",
    "UPDATE datasets SET totals = '[]'": "the sums of its budget",
    "UPDATE datasets SET log_frontier = NULL": "the log's size and roots",
    "UPDATE datasets SET log_size = -3": "the log's size and roots",
    "UPDATE datasets SET head_sequence = -1": "the head, -1",
    "UPDATE datasets SET dataset_size = 1": "act 0 (dataset",
    "UPDATE datasets SET neighboring_relation = 'x'": "act 0 (dataset",
    "UPDATE reservations SET event_id = 4711": "act",
    "UPDATE reservations SET end_step = 4711": "act",
    "DELETE FROM installation": "its row",
    "DELETE FROM datasets": "belong to nothing",
    "DELETE FROM run_balances": "the count of",
    "DELETE FROM acts WHERE dataset_id IS NOT NULL": "no act says",
}  # fmt: skip
ONLY_SQLITE = {
    "UPDATE entries SET steps = 'x' WHERE sequence = 2": "entry 2",
    "UPDATE entries SET steps = 2.5 WHERE sequence = 2": "entry 2",
    "UPDATE entries SET first_step = x'00' WHERE sequence = 2": "entry 2",
    "UPDATE entries SET recorded_at = 'never' WHERE sequence = 2": "entry 2",
    "UPDATE entries SET recorded_at = 17 WHERE sequence = 2": "entry 2",
    "UPDATE entries SET sequence = 'x' WHERE sequence = 2": "has no place in the log",
    "UPDATE entries SET leaf = 'x' WHERE sequence = 2": "entry 2",
    "UPDATE runs SET name = cast(x'ff00fe' AS TEXT) WHERE name = 'run'": "",
    "UPDATE runs SET delta = 'x'": "act",
    "UPDATE acts SET position = 'x' WHERE position = 2": "act x",
    "UPDATE acts SET after_sequence = 'x'": "act",
    "UPDATE acts SET content = x'00'": "cannot be read",
    "UPDATE datasets SET log_size = 'x', log_frontier = 'x'": "the log's size and roots",
    "UPDATE datasets SET head_sequence = 'x'": "the head, x",
    "UPDATE datasets SET dataset_size = 'x'": "act 0 (dataset",
    "UPDATE branches SET next_step = 'x', created_at = 'y'": "act",
    "UPDATE branches SET from_step = 'x'": "act",
    "UPDATE reservations SET first_step = 'x', end_step = 'y'": "act",
    "UPDATE run_balances SET steps = 'x'": "the count of",
    "UPDATE log_tiles SET root = 'x'": "",
}  # fmt: skip
ONLY_POSTGRES = {
    "UPDATE entries SET recorded_at = 'infinity' WHERE sequence = 2": "entry 2",
    "UPDATE entries SET recorded_at = '-infinity' WHERE sequence = 2": "entry 2",
    "UPDATE entries SET recorded_at = '12026-01-01' WHERE sequence = 2": "entry 2",
    # The same time of a year before the first: written out without its era, it looks unchanged.
    "UPDATE entries SET recorded_at = (recorded_at::text || ' BC')::timestamptz "
    "WHERE sequence = 2": "entry 2",
    "UPDATE runs SET created_at = '-infinity'": "act",
    "UPDATE reservations SET expires_at = 'infinity'": "act",
    "UPDATE acts SET acted_at = 'infinity'": "act 0",
    "UPDATE runs SET delta = 'NaN'": "act",
}


def statements(engine: Engine) -> dict[str, str]:
    return GARBAGE | (ONLY_SQLITE if engine.dialect.name == "sqlite" else ONLY_POSTGRES)


def test_whatever_is_stored_is_a_named_place_and_never_a_failure(
    ledger: None, engine: Engine, tmp_path: Path
) -> None:
    kept = of_witness(keep(engine, tmp_path).witness, None)
    for statement, expected in statements(engine).items():
        with undone(engine) as connection:
            connection.exec_driver_sql(statement.replace("DEEP", DEEP))
            found = texts(connection, kept)
        if expected:
            assert any(expected in one for one in found), (statement, found)
        assert all(len(one) < 600 and one.isprintable() for one in found)


# ---- what was kept


def test_a_kept_root_names_the_leaves_among_which_something_is_broken(
    ledger: None, engine: Engine, tmp_path: Path
) -> None:
    kept = of_checkpoints(keep(engine, tmp_path).checkpoints, None)
    with undone(engine) as connection:
        log = Log.read(connection, "data")
        log.entries[1]["steps"] += 1
        log.store()
        refit(connection, "data", [])
        assert verify(connection).first is None
        first = verify(connection, kept).first
    assert first is not None
    assert (first.dataset, first.rank, first.position) == ("data", Rank.RANGE, 0)
    assert "everything up to entry 3" in first.text
    assert "differs from the checkpoint of 2" in first.text


@pytest.mark.parametrize("shift", [1, -1])
def test_a_rewritten_log_has_no_gap_and_no_repeat_on_a_branch(
    ledger: None, engine: Engine, shift: int
) -> None:
    with undone(engine) as connection:
        log = Log.read(connection, "data")
        log.entries[2]["first_step"] += shift
        for (_, row), leaf in zip(log.in_order(), log.hashes(), strict=True):
            row["leaf"] = leaf
        log.store()
        found = texts(connection)
    assert not any("is not what was hashed" in one for one in found), found
    assert any("entry 3" in one and "does not follow on its branch" in one for one in found), found


def test_what_came_after_the_checkpoint_is_no_contradiction(
    ledger: None, api: httpx.Client, engine: Engine, tmp_path: Path
) -> None:
    files = keep(engine, tmp_path)
    append(api, event(12, 3))
    with snapshot(engine) as connection:
        for kept in (of_witness(files.witness, None), of_checkpoints(files.checkpoints, None)):
            assert texts(connection, kept) == []


def test_a_dataset_that_is_gone_is_named(ledger: None, engine: Engine, tmp_path: Path) -> None:
    kept = of_witness(keep(engine, tmp_path).witness, None)
    with undone(engine) as connection:
        connection.execute(update(datasets).where(datasets.c.name == "other").values(name="o"))
        found = texts(connection, kept)
    assert "dataset other, the whole dataset: is missing; it had 10 leaves or more" in found


def test_a_deleted_act_is_named_and_not_the_one_before_it(
    ledger: None, api: httpx.Client, engine: Engine, tmp_path: Path
) -> None:
    assert api.post("/v1/runs/run:finish", json={"state": "finished"}).status_code == 200
    append(api, event(12, 3))  # after its end: it is open again
    kept = of_witness(keep(engine, tmp_path).witness, None)
    with undone(engine) as connection:
        query = select(acts.c.id, acts.c.position).where(acts.c.kind == "run_state")
        *_, finished, reopened = connection.execute(query.order_by(acts.c.position)).all()
        assert finished.position < reopened.position
        connection.execute(delete(acts).where(acts.c.id == reopened.id))
        first = verify(connection, kept).first
    assert first is not None
    assert (first.rank, first.position) == (Rank.LEAF, reopened.position)


def test_another_ledger_is_not_the_one_that_was_kept(engine: Engine) -> None:
    with snapshot(engine) as connection:
        (found,) = texts(connection, Kept(ledger_id="0" * 32))
    assert "is not the one that was kept" in found


# ---- rows that belong to nothing


def nothing(column: Column[Any]) -> Any:
    """Some value of a column, that refers to nothing."""
    if column.foreign_keys:
        return 4711
    kind = column.type.python_type
    given = {str: "x", bytes: b"x", float: 0.5, bool: False, datetime: now()}
    return given.get(kind, 1)


def test_a_row_that_belongs_to_nothing_is_named_whatever_table_it_is_in(engine: Engine) -> None:
    tables = [table for table in metadata.sorted_tables if table.foreign_keys]
    assert len(tables) >= 14
    for table in tables:
        row = {one.name: nothing(one) for one in table.columns}
        with undone(engine) as connection:
            connection.execute(table.insert().values(row))
            found = texts(connection)
        what = f"installation, 1 {table.name.replace('_', ' ')}: belong to nothing that is there"
        assert what in found


@pytest.mark.parametrize(
    ("table", "column"), [("releases", "branch_id"), ("branches", "from_branch_id")]
)
def test_a_row_whose_branch_is_gone_is_named(
    ledger: None, api: httpx.Client, engine: Engine, table: str, column: str
) -> None:
    if table == "releases":
        api.post("/v1/runs/run/releases", json={"step": 1}).raise_for_status()
    with undone(engine) as connection:
        edit = f"UPDATE {table} SET {column} = 4711 WHERE id = (SELECT max(id) FROM {table})"  # noqa: S608
        connection.execute(text(edit))
        assert any("belong to nothing" in one for one in texts(connection))


# ---- keys


def test_keys_are_what_the_acts_say(engine: Engine) -> None:
    terms = Terms(datasets=frozenset({"b", "a"}), requests_per_second=2.5, body_bytes_max=5000)
    with transaction(engine) as connection:
        create_key(connection, name="officer", scope=Role.ADMIN)
        create_key(connection, name="trainer", scope=Role.TRAINER, terms=terms)
        create_key(connection, name="gone", scope=Role.VIEWER)
        rotate_key(connection, "trainer")
        revoke_key(connection, "gone")
    with snapshot(engine) as connection:
        report = verify(connection)
    assert (report.broken, report.checked["keys"]) == ([], 3)
    edits = {
        "UPDATE api_keys SET scope = 'admin' WHERE name = 'trainer'": 3,
        "UPDATE api_keys SET datasets = NULL WHERE name = 'trainer'": 3,
        "UPDATE api_keys SET previous_until = NULL WHERE name = 'trainer'": 3,
        "UPDATE api_keys SET digest = 'x' WHERE name = 'officer'": 0,
        "UPDATE api_keys SET revoked_at = NULL WHERE name = 'gone'": 4,
        "DELETE FROM api_keys WHERE name = 'gone'": 4,
        "UPDATE api_keys SET name = 'other' WHERE name = 'officer'": 0,
    }
    for statement, position in edits.items():
        with undone(engine) as connection:
            connection.execute(text(statement))
            first = verify(connection).first
        assert first is not None, statement
        assert (first.dataset, first.rank, first.position) == (None, Rank.LEAF, position)


def test_a_key_that_nobody_created_is_named(engine: Engine) -> None:
    with transaction(engine) as connection:
        create_key(connection, name="officer", scope=Role.ADMIN)
    copied = (
        "INSERT INTO api_keys (name, scope, prefix, digest, created_at) "
        "SELECT 'planted', scope, prefix, 'x', created_at FROM api_keys"
    )
    with undone(engine) as connection:
        connection.execute(text(copied))
        assert texts(connection) == ["installation, key planted: no act says that it was created"]


# ---- plans and passes


def test_a_run_that_left_its_plan_cannot_be_said_to_have_kept_to_it(
    api: httpx.Client, engine: Engine
) -> None:
    plan = [{"steps": 4, "mechanism": QUIET, "sampling": FULL}]
    limit = {"epsilon": 6.0, "delta": 1e-5}
    setup(api, plan=plan, budget=limit)
    append(api, event(0, 2, mechanism=QUIET, sampling=FULL))
    with snapshot(engine) as connection:
        assert texts(connection) == []
    append(api, event(2, 1, mechanism=QUIET))
    with snapshot(engine) as connection:
        assert texts(connection) == []
    with undone(engine) as connection:
        connection.execute(update(runs).values(on_plan=True))
        (found,) = texts(connection)
    assert found == "dataset data, run run: says of its plan what its entries do not"


def test_the_pass_that_is_open_is_refolded(ledger: None, engine: Engine) -> None:
    with undone(engine) as connection:
        moved = "UPDATE branches SET pass_position = pass_position - 1 WHERE name = 'fork'"
        connection.execute(text(moved))
        (found,) = texts(connection)
    assert found.endswith("branch fork: has another pass open than its entries leave")


# ---- columns that an answer rests on


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE distinct_events SET by_pass = NOT by_pass",
        "UPDATE runs SET on_plan = NULL WHERE name = 'planned'",
        "UPDATE runs SET on_plan = FALSE WHERE name = 'planned'",
        "UPDATE corrections SET branch_id = (SELECT id FROM branches WHERE run_id <> "
        "corrections.run_id AND name = 'main' LIMIT 1)",
        "UPDATE reservations SET branch_id = (SELECT id FROM branches WHERE run_id <> "
        "reservations.run_id AND name = 'main' LIMIT 1)",
    ],
)
def test_no_column_that_an_epsilon_rests_on_is_changed_unseen(
    api: httpx.Client, engine: Engine, edit: str
) -> None:
    given = {"budget": {"epsilon": 50.0, "delta": 1e-5}, "neighboring_relation": "replace_special"}
    setup(api, dataset_given=given)
    cyclic = {"kind": "cyclic", "batch_size": 20_000, "steps_per_pass": 3}
    loud = {"kind": "gaussian", "noise_multiplier": 30.0}
    plan = [{"steps": 4, "mechanism": loud, "sampling": FULL}]
    planned = run("planned", plan=plan, budget={"epsilon": 3.0, "delta": 1e-5})
    api.post("/v1/runs", json=planned).raise_for_status()
    append(api, event(0, 30, mechanism=loud, sampling=cyclic), event(30, 5, mechanism=loud))
    corrected = event(31, 2, mechanism=loud, sampling=FULL) | {"reason": "as the log says"}
    api.post("/v1/runs/run/corrections", json=corrected).raise_for_status()
    ahead = {"event": plan[0], "ttl_seconds": 60, "name": "ahead"}
    held = api.post("/v1/runs/run/reservations", json=ahead)
    assert held.status_code == 201, held.text
    with snapshot(engine) as connection:
        assert verify(connection).broken == []
    with undone(engine) as connection:
        assert connection.execute(text(edit)).rowcount
        assert verify(connection).broken
