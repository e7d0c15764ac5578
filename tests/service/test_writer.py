"""Group commit: answered after the commit, and no request fails its neighbours."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import Connection, Engine

from service.errors import LedgerError, NotFoundError, OutOfSequenceError, UnavailableError
from service.ledger.append.append import Append
from service.ledger.append.unit_of_work import DatasetCache, UnitOfWork
from service.ledger.append.writer import Writer
from service.schemas.requests import EventMessage
from service.storage import engine as storage_engine
from tests.service.samples import GAUSSIAN, append, event, run, setup


def asked(first_step: int, *, name: str = "run", steps: int = 1) -> Append:
    message = EventMessage.model_validate(event(first_step, steps, mechanism=GAUSSIAN))
    return Append(run_name=name, branch_name="main", mode="record", events=[message])


def begin(api: httpx.Client) -> None:
    """A run, in a dataset where what a step costs is known: steps are then taken as they come."""
    setup(api)
    api.post("/v1/runs", json=run("before"))
    assert append(api, event(0, 1), run="before").status_code == 201


def accepted(answer: Any) -> int | None:
    return answer["accepted"] if isinstance(answer, dict) else None


def together(
    engine: Engine, appends: Sequence[Append], prepare: Callable[[Any], Any] = dict
) -> list[Any]:
    """Hand appends over before the thread begins, so that they share one transaction."""

    async def hand_over() -> list[Any]:
        writer = Writer(engine)
        tasks = [asyncio.ensure_future(writer.write(append, prepare)) for append in appends]
        await asyncio.sleep(0)
        writer.start()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(writer.stop)
        assert not writer.working
        return answers

    return asyncio.run(hand_over())


def test_a_refused_append_does_not_fail_its_neighbours(api: httpx.Client, engine: Engine) -> None:
    begin(api)
    answers = together(
        engine, [asked(0), asked(7), asked(0, name="nobody"), asked(1), asked(0, steps=2)]
    )
    assert [accepted(answer) for answer in answers] == [1, None, None, 1, 0]
    assert isinstance(answers[1], OutOfSequenceError)
    assert isinstance(answers[2], NotFoundError)
    assert api.get("/v1/runs/run").json()["steps"] == 2


def test_a_defect_in_one_append_fails_that_one_alone(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(api)
    api.post("/v1/runs", json=run("other"))
    whole = Append.apply

    def broken(append: Append, work: UnitOfWork, moment: datetime) -> dict[str, Any]:
        answer = whole(append, work, moment)
        if append.run_name == "other":  # after it has counted, and written
            work.write()
            raise ZeroDivisionError
        return answer

    monkeypatch.setattr(Append, "apply", broken)
    answers = together(engine, [asked(0), asked(0, name="other"), asked(1)])
    assert [accepted(answer) for answer in answers] == [1, None, 1]
    assert isinstance(answers[1], ZeroDivisionError)
    assert api.get("/v1/runs/run").json()["steps"] == 2
    assert api.get("/v1/runs/other").json()["steps"] == 0


def test_when_the_commit_fails_nobody_is_told_that_it_worked(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(api)

    def cut_off(connection: Connection) -> None:
        raise UnavailableError("cut off")

    monkeypatch.setattr("service.storage.engine._commit", cut_off)
    answers = together(engine, [asked(0), asked(1)])
    monkeypatch.undo()
    assert all(isinstance(answer, LedgerError) for answer in answers)
    assert api.get("/v1/runs/run").json()["steps"] == 0


def test_what_was_handed_over_is_finished_before_the_thread_ends(
    api: httpx.Client, engine: Engine
) -> None:
    begin(api)

    async def stop_at_once() -> int:
        writer = Writer(engine)
        tasks = [asyncio.ensure_future(writer.write(asked(step))) for step in range(200)]
        await asyncio.sleep(0)
        writer.start()
        await asyncio.to_thread(writer.stop)
        return sum(answer["accepted"] for answer in await asyncio.gather(*tasks))

    assert asyncio.run(stop_at_once()) == 200
    assert api.get("/v1/runs/run").json()["steps"] == 200


def test_a_transaction_that_the_database_undid_is_not_acknowledged(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL takes the COMMIT of a transaction in which a statement failed, and undoes it.

    To SQLite the statement is none that fails.
    """
    begin(api)
    whole = UnitOfWork.write

    def failing(work: UnitOfWork) -> list[int]:
        changed = whole(work)
        with suppress(psycopg.Error):
            work.connection.connection.cursor().execute("SELECT 1 / 0")
        return changed

    monkeypatch.setattr(UnitOfWork, "write", failing)
    (answer,) = together(engine, [asked(0)])
    monkeypatch.undo()
    undone = engine.dialect.name == "postgresql"
    assert isinstance(answer, UnavailableError) == undone
    assert api.get("/v1/runs/run").json()["steps"] == (0 if undone else 1)


def test_a_reply_is_prepared_while_the_disk_writes_and_told_after_it(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(api)
    whole, written = storage_engine._commit, threading.Event()

    def slow(connection: Connection) -> None:
        assert written.wait(60)
        whole(connection)

    monkeypatch.setattr(storage_engine, "_commit", slow)

    async def hand_over() -> Any:
        prepared = asyncio.Event()

        def prepare(answer: dict[str, Any]) -> int:
            prepared.set()
            return 41 + int(answer["accepted"])

        writer = Writer(engine)
        writer.start()
        task = asyncio.ensure_future(writer.write(asked(0), prepare))
        async with asyncio.timeout(60):
            await prepared.wait()
        assert not task.done()  # nothing is committed yet
        written.set()
        answer = await task
        await asyncio.to_thread(writer.stop)
        return answer

    assert asyncio.run(hand_over()) == 42
    assert api.get("/v1/runs/run").json()["steps"] == 1


def test_what_was_prepared_for_a_commit_that_failed_is_told_to_no_request(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(api)
    whole, tries = storage_engine._commit, [0]

    def failing_once(connection: Connection) -> None:
        tries[0] += 1
        if tries[0] == 1:
            raise ZeroDivisionError
        whole(connection)

    monkeypatch.setattr(storage_engine, "_commit", failing_once)
    prepared: list[int] = []

    def prepare(answer: dict[str, Any]) -> tuple[int, int]:
        prepared.append(answer["sequence"])
        return answer["sequence"], len(prepared)

    first = together(engine, [asked(0), asked(1)], prepare)
    assert tries[0] == 3  # together, then each alone
    assert [sequence for sequence, _ in first] == prepared[2:]
    assert [told for _, told in first] == [3, 4]
    assert api.get("/v1/runs/run").json()["steps"] == 2


def test_a_reply_that_cannot_be_prepared_fails_its_request_alone(
    api: httpx.Client, engine: Engine
) -> None:
    begin(api)

    def prepare(answer: dict[str, Any]) -> dict[str, Any]:
        if answer["next_step"] == 1:
            raise ValueError("not finite")
        return answer

    first, second = together(engine, [asked(0), asked(1)], prepare)
    assert isinstance(first, ValueError)
    assert second["accepted"] == 1
    assert api.get("/v1/runs/run").json()["steps"] == 2  # the first one's was committed, too


def test_what_fails_after_a_commit_fails_no_request(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(api)

    def broken(*_given: object) -> None:
        raise MemoryError

    monkeypatch.setattr(DatasetCache, "settle", broken)
    assert [accepted(answer) for answer in together(engine, [asked(0), asked(1)])] == [1, 1]
    assert [accepted(answer) for answer in together(engine, [asked(1), asked(2)])] == [0, 1]
    assert api.get("/v1/runs/run").json()["steps"] == 3
