"""Group commit: one thread records the appends of many requests in one transaction.

A commit waits for the disk; requests that arrive meanwhile share the next one. Each is answered
only after the transaction that holds it has committed.
"""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final

from sqlalchemy import Connection, Engine

from service import ledger
from service.answers import AppendAnswer
from service.catalog import lock_datasets_of
from service.database import transaction
from service.errors import LedgerError
from service.schemas import EventMessage

GROUP_MAX: Final = 64  # appends in one transaction; more would make the first wait for the last

Outcome = AppendAnswer | Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """What one request asks to be recorded or charged."""

    run_name: str
    branch_name: str
    mode: str
    events: Sequence[EventMessage]


@dataclass(frozen=True, slots=True)
class _Waiting:
    append: Append
    loop: asyncio.AbstractEventLoop
    answer: "asyncio.Future[AppendAnswer]"


class Writer:
    """The one thread of a process that appends to the ledger."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queue: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="dpledger-writer", daemon=True)

    @property
    def working(self) -> bool:
        """Whether appends are taken."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to take appends."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what was handed over, then end."""
        self._queue.put(None)
        self._thread.join()

    async def append(self, append: Append) -> AppendAnswer:
        """Hand an append over and wait until it is committed.

        Raises:
            LedgerError: it was refused, and nothing of it was written.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(append, loop, loop.create_future())
        self._queue.put(waiting)
        return await waiting.answer

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            group, ending = [first], False
            while len(group) < GROUP_MAX and not ending:
                try:
                    more = self._queue.get_nowait()
                except Empty:
                    break
                if more is None:
                    ending = True
                else:
                    group.append(more)
            self._answer(group)
            if ending:
                return

    def _answer(self, group: Sequence[_Waiting]) -> None:
        try:
            outcomes = self._record([waiting.append for waiting in group])
        except LedgerError as error:  # the database does not answer: nothing was committed
            outcomes = [error] * len(group)
        except Exception:
            # One of them found a defect. Nothing was committed: each goes alone, and fails alone.
            outcomes = [self._alone(waiting.append) for waiting in group]
        for waiting, outcome in zip(group, outcomes, strict=True):
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                waiting.loop.call_soon_threadsafe(_settle, waiting.answer, outcome)

    def _record(self, appends: Sequence[Append]) -> list[Outcome]:
        with transaction(self._engine) as connection:
            if len(appends) > 1:
                # Always in the same order, so that two processes never wait for each other.
                lock_datasets_of(connection, [append.run_name for append in appends])
            return [_one(connection, append) for append in appends]

    def _alone(self, append: Append) -> Outcome:
        try:
            return self._record([append])[0]
        except Exception as error:
            return error


def _one(connection: Connection, append: Append) -> Outcome:
    """The answer to one append; a refusal comes before its first write, so others go on."""
    try:
        return ledger.append(
            connection,
            run_name=append.run_name,
            branch_name=append.branch_name,
            mode=append.mode,
            events=append.events,
        )
    except LedgerError as refusal:
        return refusal


def _settle(answer: "asyncio.Future[AppendAnswer]", outcome: Outcome) -> None:
    if answer.done():  # the client has gone; what it sent is recorded all the same
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
