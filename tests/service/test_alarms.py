"""Alarms: once for each threshold, once for an overdraft, and not again after a restart."""

import json
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Engine, text

from service.clock import now
from service.errors import BudgetExhaustedError
from service.ledger.append.append import Append
from service.ledger.append.unit_of_work import THRESHOLDS_OPTION, DatasetCache, UnitOfWork
from service.ledger.datasets import create_dataset
from service.ledger.incidents import Sparing
from service.ledger.runs import create_run
from service.schemas.requests import EventMessage, NewDataset, NewRun
from service.storage.engine import transaction
from tests.service.samples import FULL, dataset, event, run

QUIET = {"kind": "gaussian", "noise_multiplier": 40.0}
# 827 such steps fit, and each is charged alike.
LIMIT = {"epsilon": 3.0, "delta": 1e-5, "filter": "gaussian_dp"}


@pytest.fixture
def ledger(engine: Engine) -> Engine:
    with transaction(engine) as connection:
        create_dataset(connection, NewDataset.model_validate(dataset(budget=LIMIT)), by="tests")
        create_run(connection, NewRun.model_validate(run()))
    return engine


def cache_of(engine: Engine, thresholds: tuple[float, ...]) -> DatasetCache:
    """What a process knows that raises alerts at these shares of a budget."""
    engine.update_execution_options(**{THRESHOLDS_OPTION: thresholds})
    return DatasetCache()


def append(
    engine: Engine, cache: DatasetCache, first: int, steps: int, *, mode: str = "record"
) -> dict[str, Any]:
    message = EventMessage.model_validate(event(first, steps, mechanism=QUIET, sampling=FULL))
    asked = Append(run_name="run", branch_name="main", mode=mode, events=[message])
    moment: datetime = now()
    with transaction(engine) as connection:
        work = cache.open(connection, [asked.place])
        try:
            return asked.apply(work, moment)
        except BudgetExhaustedError as refusal:
            return {"admissible": refusal.extra["admissible_steps"]}
        finally:
            work.write()


def told(engine: Engine) -> list[tuple[str, Any]]:
    with transaction(engine) as connection:
        rows = connection.execute(text("SELECT kind, detail FROM incidents ORDER BY id")).all()
    return [(row.kind, json.loads(row.detail).get("fraction")) for row in rows]


def details(engine: Engine) -> list[dict[str, Any]]:
    with transaction(engine) as connection:
        rows = connection.execute(text("SELECT detail FROM incidents ORDER BY id"))
        return [json.loads(row.detail) for row in rows]


def test_each_threshold_is_told_once_and_the_overdraft_once(ledger: Engine) -> None:
    cache = cache_of(ledger, (0.5, 0.8, 0.95))
    first = 0
    for _ in range(200):
        append(ledger, cache, first, 10)
        first += 10
    assert told(ledger) == [
        ("threshold", 0.5), ("threshold", 0.8), ("threshold", 0.95), ("overdraft", None),
    ]  # fmt: skip


def test_thresholds_passed_at_once_are_told_by_one_incident(ledger: Engine) -> None:
    cache = cache_of(ledger, (0.5, 0.8, 0.95))
    append(ledger, cache, 0, 661)
    assert told(ledger) == [("threshold", 0.5)]  # 661 / 827 is less than 0.8
    append(ledger, cache, 661, 166)
    assert told(ledger)[1:] == [("threshold", 0.95)]
    assert [one["thresholds"] for one in details(ledger)] == [[0.5], [0.8, 0.95]]
    assert [round(one["share"], 3) for one in details(ledger)] == [0.799, 1.0]
    append(ledger, cache, 827, 1)
    assert told(ledger)[2:] == [("overdraft", None)]


def test_the_first_step_passes_no_threshold(ledger: Engine) -> None:
    append(ledger, cache_of(ledger, (0.002, 0.5)), 0, 1)  # its epsilon is 0.1 of 3
    assert told(ledger) == []


def test_a_restart_tells_nothing_again_and_another_process_goes_on(ledger: Engine) -> None:
    append(ledger, cache_of(ledger, (0.5, 0.8)), 0, 420)
    assert told(ledger) == [("threshold", 0.5)]
    append(ledger, cache_of(ledger, (0.5, 0.8)), 420, 1)
    assert told(ledger) == [("threshold", 0.5)]
    for one in range(6):
        append(ledger, cache_of(ledger, (0.5, 0.8)), 421 + 100 * one, 100)
    kinds = told(ledger)
    assert kinds == [("threshold", 0.5), ("threshold", 0.8), ("overdraft", None)]
    append(ledger, cache_of(ledger, (0.5, 0.8)), 1021, 1)
    assert told(ledger) == kinds


def test_refusals_are_told_sparingly_and_change_nothing(
    ledger: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.ledger.incidents.SPARING_SECONDS", 60.0)
    cache = cache_of(ledger, ())
    for _ in range(3):
        assert append(ledger, cache, 0, 10**6, mode="charge")["admissible"] > 0
    assert told(ledger) == [("refusal", None)]
    (detail,) = details(ledger)
    assert (detail["share"], detail["share_reserved"]) == (0, 0)
    assert detail["share_requested"] == pytest.approx(10**6 / 827.3, rel=1e-3)
    assert append(ledger, cache, 0, 1, mode="charge")["sequence"] == 1


def test_a_refusal_that_was_undone_is_told_the_next_time(
    ledger: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.ledger.incidents.SPARING_SECONDS", 60.0)
    write = UnitOfWork.write

    def written_and_undone(work: UnitOfWork) -> list[int]:
        write(work)
        raise ConnectionError

    cache = cache_of(ledger, ())
    with monkeypatch.context() as failing:
        failing.setattr(UnitOfWork, "write", written_and_undone)
        with pytest.raises(ConnectionError):
            append(ledger, cache, 0, 10**6, mode="charge")
    assert told(ledger) == []
    cache.forget()  # as the writer does
    assert append(ledger, cache, 0, 10**6, mode="charge")["admissible"] > 0
    assert told(ledger) == [("refusal", None)]


def test_the_same_thing_may_be_told_again_after_a_while() -> None:
    clock = iter([0.0, 1.0, 60.0, 61.0])
    sparing = Sparing(60.0, clock=lambda: next(clock))
    assert [sparing.lets("a") for _ in range(4)] == [True, False, True, False]
