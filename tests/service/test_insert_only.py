"""Facts are held insert-only by the databases themselves, whoever writes to them."""

from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, Executable, Table, select, text
from sqlalchemy.exc import DBAPIError

from service.storage.engine import snapshot, transaction, upsert
from service.storage.tables import INSERT_ONLY, entries
from tests.service.correlated import toeplitz
from tests.service.samples import BUDGET, FULL, GAUSSIAN, SAMPLING, append, event, run, setup


@pytest.fixture
def full(api: httpx.Client, engine: Engine) -> Engine:
    """A ledger with a row in every table of facts."""
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 5, sampling=FULL))
    correction = event(0, 1, sampling=FULL) | {"reason": "the log says so"}
    assert api.post("/v1/runs/run/corrections", json=correction).status_code == 201
    assert api.post("/v1/runs/run/releases", json={"step": 3}).status_code == 201
    assert api.post("/v1/runs/run/findings", json=SAMPLING).status_code == 201
    (incident, *_) = api.get("/v1/incidents").json()["incidents"]
    note = {"action": "comment", "text": "seen"}
    assert api.post(f"/v1/incidents/{incident['id']}/notes", json=note).status_code == 201
    toeplitz(api, steps=2)
    api.post("/v1/runs", json=run("other"))
    asked = {"reason": "a larger model", "budget": {"epsilon": 5.0, "delta": 1e-5}}
    answer = api.post("/v1/datasets/data/requests", json=asked)
    assert answer.status_code == 201, answer.text
    withdrawn = api.post(f"/v1/requests/{answer.json()['id']}:withdraw", json={"reason": "no"})
    assert withdrawn.status_code == 200
    events = [
        event(first, 1, mechanism=GAUSSIAN | {"noise_multiplier": 1 + first / 1000})
        for first in range(5, 265)
    ]
    assert api.post("/v1/runs/run/events", json={"events": events}).status_code == 201  # a tile
    return engine


def rows(engine: Engine, table: Table) -> list[Any]:
    with snapshot(engine) as connection:
        return list(connection.execute(select(table)))


def test_each_table_of_facts_is_named() -> None:
    held = {table.name for table in INSERT_ONLY}
    facts = {"entries", "settings_changes", "corrections", "incidents", "releases", "findings"}
    facts |= {"change_requests", "change_decisions"}
    assert held == facts | {"acts", "log_tiles", "incident_notes", "strategies"}


def refused(engine: Engine, statement: Executable) -> bool:
    """Whether a statement fails, and says why."""
    try:
        with transaction(engine) as connection:
            connection.execute(statement)
    except DBAPIError as error:
        return "insert-only" in str(error)
    return False


def facts(engine: Engine) -> dict[str, list[Any]]:
    """The rows of each table of facts; none is empty."""
    found = {table.name: rows(engine, table) for table in INSERT_ONLY}
    assert all(found.values()), [name for name, held in found.items() if not held]
    return found


def test_no_fact_is_ever_deleted(full: Engine) -> None:
    before = facts(full)
    taken = [table.name for table in INSERT_ONLY if not refused(full, table.delete())]
    assert taken == []
    assert facts(full) == before


def test_no_fact_is_ever_changed(full: Engine) -> None:
    before = facts(full)
    taken = [
        f"{table.name}.{column.name}"
        for table in INSERT_ONLY
        for column in table.columns
        if not refused(full, table.update().values({column: column}))
    ]
    assert taken == []
    assert facts(full) == before


def test_no_fact_is_ever_replaced(full: Engine) -> None:
    if full.dialect.name != "sqlite":
        return  # it has no such statement; an update is refused above
    before = facts(full)
    taken = []
    for table in INSERT_ONLY:
        names = ", ".join(column.name for column in table.columns)
        again = f"INSERT OR REPLACE INTO {table.name} ({names}) SELECT {names} FROM {table.name}"  # noqa: S608
        if not refused(full, text(again)):
            taken.append(table.name)
    assert taken == []
    assert facts(full) == before


def test_no_table_of_facts_is_emptied_at_once(full: Engine) -> None:
    if full.dialect.name == "sqlite":
        return  # it has no such statement; a delete is refused above
    before = facts(full)
    emptied = [
        table.name
        for table in INSERT_ONLY
        if not refused(full, text(f"TRUNCATE {table.name} CASCADE"))
    ]
    assert emptied == []
    assert facts(full) == before


def test_a_fact_is_not_written_over(full: Engine) -> None:
    before = facts(full)
    taken = []
    for table in INSERT_ONLY:
        (first, *_) = before[table.name]
        keys = [column.name for column in table.primary_key]
        again = upsert(full.dialect.name, table).values(first._asdict())
        over = again.on_conflict_do_update(index_elements=keys, set_={keys[0]: first[0]})
        if not refused(full, over):
            taken.append(table.name)
    assert taken == []
    assert facts(full) == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": 0}, "ck_entries_steps_positive"),
        ({"steps": -1}, "ck_entries_steps_positive"),
        ({"first_step": 0}, "branch_id"),  # the span of that step is recorded
    ],
)
def test_an_entry_counts_steps_and_no_step_of_a_branch_begins_two(
    full: Engine, change: dict[str, int], said: str
) -> None:
    before = rows(full, entries)
    last = max(before, key=lambda row: row.sequence)._mapping
    added = {**last, "sequence": last["sequence"] + 1, "first_step": 1_000_000, **change}
    with pytest.raises(DBAPIError, match=said), transaction(full) as connection:
        connection.execute(entries.insert().values(added))
    assert rows(full, entries) == before


def test_an_entry_without_a_leaf_is_refused(full: Engine) -> None:
    before = rows(full, entries)
    last = max(before, key=lambda row: row.sequence)._mapping
    added = {**last, "sequence": last["sequence"] + 1, "first_step": 1_000_000, "leaf": None}
    with pytest.raises(DBAPIError, match="entries need a leaf"), transaction(full) as connection:
        connection.execute(entries.insert().values(added))
    assert rows(full, entries) == before
