"""Many rows in one statement, on both databases."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy import select as choose

from service.clock import now, utc
from service.ledger.append.state_rows import VERSION
from service.ledger.datasets import create_dataset
from service.ledger.runs import create_run
from service.schemas.requests import NewDataset, NewRun
from service.storage import bulk
from service.storage.engine import transaction
from service.storage.tables import (
    branches,
    datasets,
    distinct_events,
    reservations,
    run_balances,
    runs,
)
from tests.service.samples import dataset, run

BIG = 2**62 + 1  # no double holds it
KEPT = (
    "steps", "passes", "begun", "starts", "reserved_steps", "reserved_passes", "reserved_begun",
)  # fmt: skip


@pytest.fixture
def ids(engine: Engine) -> dict[str, int]:
    """A dataset with two runs and three events."""
    with transaction(engine) as connection:
        create_dataset(connection, NewDataset.model_validate(dataset()), by="tests")
        for name in ("one", "two"):
            create_run(connection, NewRun.model_validate(run(name)))
        home = connection.execute(choose(datasets.c.id)).scalar_one()
        found = dict(connection.execute(choose(runs.c.name, runs.c.id)).all())
        made = bulk.insert_distinct(connection, home, [("a", False), ("b", True), ("c", False)])
        return {"home": home} | dict(made) | {name: int(one) for name, one in found.items()}


def counts(connection: Connection) -> dict[str, tuple[int, ...]]:
    columns = [distinct_events.c[name] for name in KEPT]
    rows = connection.execute(choose(distinct_events.c.content, *columns)).all()
    return {row[0]: tuple(row[1:]) for row in rows}


def test_nothing_is_sent_for_no_rows(engine: Engine, ids: dict[str, int]) -> None:
    with transaction(engine) as connection:
        before = counts(connection)
        bulk.insert(connection, reservations, ("name",), [])
        bulk.add(connection, distinct_events, "id", KEPT, [])
        bulk.update(connection, distinct_events, "id", KEPT, [])
        bulk.add_or_insert(connection, run_balances, ("run_id", "event_id"), KEPT, [])
        assert bulk.select(connection, datasets, "id", ("id",), []) == []
        assert bulk.distinct_ids(connection, ids["home"], []) == []
        assert counts(connection) == before


def test_counts_are_added_to_exactly(engine: Engine, ids: dict[str, int]) -> None:
    with transaction(engine) as connection:
        rows = [(BIG, 2, 3, 4, 5, 6, 7, ids["a"]), (1, 0, 0, 0, -7, 0, 0, ids["b"])]
        bulk.add(connection, distinct_events, "id", KEPT, rows)
        bulk.add(connection, distinct_events, "id", KEPT, [(1, -2, 0, 0, 0, 0, 1, ids["a"])])
        found = counts(connection)
    assert found == {
        "a": (BIG + 1, 0, 3, 4, 5, 6, 8),
        "b": (1, 0, 0, 0, -7, 0, 0),
        "c": (0, 0, 0, 0, 0, 0, 0),
    }


def test_rows_that_are_there_are_added_to_and_others_made(
    engine: Engine, ids: dict[str, int]
) -> None:
    keys = ("run_id", "event_id")
    with transaction(engine) as connection:
        first = [(ids["one"], ids["a"], 1, 2, 3, 4, 5, 6, 7)]
        bulk.add_or_insert(connection, run_balances, keys, KEPT, first)
        both = [
            (ids["one"], ids["a"], BIG, 0, 0, 0, -5, 0, 0),
            (ids["two"], ids["b"], 9, 8, 7, 6, 5, 4, 3),
        ]
        bulk.add_or_insert(connection, run_balances, keys, KEPT, both)
        columns = [run_balances.c[name] for name in (*keys, *KEPT)]
        found = {tuple(row) for row in connection.execute(choose(*columns))}
    assert found == {(ids["one"], ids["a"], BIG + 1, 2, 3, 4, 0, 6, 7), both[1]}


def test_columns_are_set_row_by_row_and_may_be_emptied(engine: Engine, ids: dict[str, int]) -> None:
    columns = ("state", "reopened", "on_plan", "totals", "totals_version")
    with transaction(engine) as connection:
        rows = [
            ("finished", True, False, "[]", VERSION, ids["one"]),
            ("active", False, None, None, VERSION, ids["two"]),
        ]
        bulk.update(connection, runs, "id", columns, rows)
        kept = [runs.c[name] for name in columns]
        found = {row.name: tuple(row)[1:] for row in connection.execute(choose(runs.c.name, *kept))}
    assert found == {"one": rows[0][:-1], "two": rows[1][:-1]}


def test_a_place_may_be_emptied_in_one_row_or_beside_others(
    engine: Engine, ids: dict[str, int]
) -> None:
    columns = ("next_step", "pass_event_id")

    def places(connection: Connection) -> dict[int, tuple[int, int | None]]:
        kept = (branches.c.id, *(branches.c[name] for name in columns))
        return {row.id: tuple(row)[1:] for row in connection.execute(choose(*kept))}

    with transaction(engine) as connection:
        one, two = sorted(places(connection))
        rows = [(BIG, ids["a"], one), (0, None, two)]
        bulk.update(connection, branches, "id", columns, rows)
        assert places(connection) == {one: (BIG, ids["a"]), two: (0, None)}
        bulk.update(connection, branches, "id", columns, [(7, None, one)])
        assert places(connection) == {one: (7, None), two: (0, None)}
        bulk.update(connection, branches, "id", columns, [(BIG, ids["b"], two)])
        assert places(connection) == {one: (7, None), two: (BIG, ids["b"])}


def test_rows_are_locked_and_answered_in_the_order_of_their_keys(
    engine: Engine, ids: dict[str, int]
) -> None:
    with transaction(engine) as connection:
        wanted = {ids["c"], ids["a"], ids["b"], 10**15}
        found = bulk.select(connection, distinct_events, "id", ("id", "content"), wanted)
        assert [tuple(row) for row in found] == sorted((ids[name], name) for name in "abc")


def test_events_are_made_once_with_nothing_counted(engine: Engine, ids: dict[str, int]) -> None:
    with transaction(engine) as connection:
        odd = '{"quoted": "\\" \'; --", "letter": "é"}'
        made = dict(bulk.insert_distinct(connection, ids["home"], [(odd, True)]))
        found = dict(bulk.distinct_ids(connection, ids["home"], [odd, "b", "no such"]))
        assert found == {odd: made[odd], "b": ids["b"]}
        assert counts(connection)[odd] == (0, 0, 0, 0, 0, 0, 0)
        by_pass = connection.execute(
            choose(distinct_events.c.content).where(distinct_events.c.by_pass)
        )
        assert set(by_pass.scalars()) == {odd, "b"}


def test_times_are_stored_as_they_are_read(engine: Engine, ids: dict[str, int]) -> None:
    columns = ("dataset_id", "run_id", "branch_id", "event_id", "first_step", "steps", "end_step",
               "state", "request", "created_at")  # fmt: skip
    moments = [now(), datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC)]
    with transaction(engine) as connection:
        branch = connection.execute(choose(branches.c.id)).scalars().first()
        home = (ids["home"], ids["one"], branch, ids["a"])
        rows = [
            (*home, 0, 1, BIG, "open", "{}", bulk.to_driver_time(connection, moment))
            for moment in moments
        ]
        bulk.insert(connection, reservations, columns, rows)
        found = connection.execute(choose(reservations.c.created_at, reservations.c.end_step))
        assert {(utc(row.created_at), row.end_step) for row in found} == {
            (moment, BIG) for moment in moments
        }
