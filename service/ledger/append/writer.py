"""Group commit: one thread writes for many requests in one transaction.

A commit waits for the disk; requests that arrive meanwhile share the next one. Each is answered
only after the transaction that holds it has committed.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from sqlalchemy import Engine

from service import trace_context
from service.clock import now
from service.errors import LedgerError, NotFoundError, UnavailableError, release
from service.ledger.append.unit_of_work import BranchPlace, DatasetCache, UnitOfWork
from service.ledger.append.write_access import LedgerState, require_writable, state_of
from service.ledger.budgets import cost_cache
from service.storage.engine import DedicatedConnection
from service.storage.single_flight import LATER
from service.telemetry import Measures

GROUP_MAX: Final = 64  # requests in one transaction; more would make the first wait for the last
PATIENCE: Final = 3  # times that a lock is waited for, until a request is told to come again
_PATIENCE_SECONDS: Final = 30.0
_STOPPED: Final = "The thread that appends to the ledger has stopped; restart the service."
_LOGGER = logging.getLogger("dpledger.writer")

_Outcome = dict[str, Any] | Exception
# What the event loop makes of an answer while the disk writes, before it is known to be committed.
Prepare = Callable[[dict[str, Any]], Any]


class Request(Protocol):
    """Something to write; a refusal leaves the states as they were, so that others go on."""

    @property
    def place(self) -> BranchPlace:
        """The run and the branch it is about."""

    @property
    def admits(self) -> bool:
        """Whether it asks for steps to be admitted, which a ledger that is not whole does not."""

    def apply(self, work: UnitOfWork, moment: datetime) -> dict[str, Any]:
        """Do it in the states; the answer."""


@dataclass(slots=True)
class _Waiting:
    request: Request
    prepare: Prepare
    known: dict[cost_cache.Quote, Any]  # prices that were worked out for it
    loop: asyncio.AbstractEventLoop
    answer: "asyncio.Future[Any]"
    traceparent: str | None
    span: Any  # of a request that is traced
    prepared: Any = None  # or why it could not be


def _as_it_is(answer: dict[str, Any]) -> dict[str, Any]:
    return answer


def _unheard(_datasets: Iterable[int]) -> None:
    """Notify no listener."""


class Writer:
    """The one thread of a process that appends to the ledger."""

    def __init__(
        self,
        engine: Engine,
        *,
        moved: Callable[[Iterable[int]], None] = _unheard,
        patience_seconds: float = _PATIENCE_SECONDS,
        measures: Measures | None = None,
        committing: Callable[[Sequence[Any]], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._measures = measures or Measures()
        self._line = DedicatedConnection(engine)
        self._committing = committing
        self._patience_seconds = patience_seconds
        self._ended = False
        self._cache = DatasetCache()
        self._moved = moved  # called with the datasets that a transaction has changed
        self._queue: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="dpledger-writer", daemon=True)

    @property
    def working(self) -> bool:
        """Whether requests are taken."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """How many requests were handed over and not yet taken."""
        return self._queue.qsize()

    def start(self) -> None:
        """Begin to take requests."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what was handed over, then end."""
        self._queue.put(None)
        self._thread.join()

    async def write(self, request: Request, prepare: Prepare = _as_it_is) -> Any:
        """Hand a request over and wait until it is committed.

        Args:
            request: to write.
            prepare: what is to be done with its answer, at once in the event loop; done anew if
                the transaction is tried again.

        Returns:
            What `prepare` returned; its error, too, is raised once the request is committed.

        Raises:
            LedgerError: it was refused, and nothing of it was written.
            UnavailableError: it is not known to be written; sent again, it is counted once.
        """
        known: dict[cost_cache.Quote, Any] = {}
        for _ in range(cost_cache.TRIES):
            try:
                return await self._written(request, prepare, known)
            except cost_cache.UnpricedError as lacking:  # nothing of it was written
                release(lacking)
                known |= await asyncio.to_thread(cost_cache.compute_costs, lacking.wanted)
        raise cost_cache.changing()

    async def _written(
        self, request: Request, prepare: Prepare, known: dict[cost_cache.Quote, Any]
    ) -> Any:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(
            request,
            prepare,
            known,
            loop,
            loop.create_future(),
            trace_context.traceparent.get(),
            trace_context.span.get(),
        )
        # A database that stands still says nothing, not even that it does.
        limit = loop.call_later(self._patience_seconds, _give_up, waiting.answer)
        try:
            self._queue.put(waiting)
            if self._ended:  # checked after the put: later requests get no answer
                raise UnavailableError(_STOPPED)
            return await waiting.answer
        finally:
            limit.cancel()

    def _work(self) -> None:
        try:
            self._take()
        finally:
            self._ended = True
            self._line.close()
            self._turn_away()

    def _turn_away(self) -> None:
        """Refuse the requests left in the queue."""
        left: list[_Waiting] = []
        while not self._queue.empty():
            if (one := self._queue.get()) is not None:
                left.append(one)
        _tell(left, [UnavailableError(_STOPPED)] * len(left))

    def _take(self) -> None:
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
            # Who was told to come again has left; it is not done behind its back.
            self._serve([one for one in group if not one.answer.done()])
            if ending:
                return

    def _serve(self, group: Sequence[_Waiting]) -> None:
        """Answer a group; whatever happens to it, the next one is taken."""
        if not group:
            return
        try:
            self._answer(group)
        except Exception:  # memory ran out while it was answered; what was committed is a duplicate
            _LOGGER.exception("the writer failed")
            _tell(group, [UnavailableError(LATER)] * len(group))

    def _answer(self, group: Sequence[_Waiting]) -> None:
        try:
            self._commit(group)
        except LedgerError as error:  # the database does not answer: nothing was committed
            _tell(group, [error] * len(group))
        except Exception:
            # One of them found a defect, or what is not known when it was late to say so. Nothing
            # was committed: each goes alone, and fails alone.
            for waiting in group:
                self._alone(waiting)

    def _commit(self, group: Sequence[_Waiting]) -> None:
        """Write a group in one transaction, and tell each what became of it.

        Raises:
            Exception: nothing was committed, as far as is known, and no request was told.
        """
        moment, requests = now(), [waiting.request for waiting in group]
        started = time.perf_counter()
        known = {quote: price for waiting in group for quote, price in waiting.known.items()}
        try:
            with (
                self._committing([waiting.span for waiting in group]),
                self._line.transaction() as connection,
                cost_cache.cached_costs_only(known),
            ):
                state = state_of(connection)
                work = self._cache.open(connection, [request.place for request in requests])
                outcomes = [_one(work, waiting, moment, state) for waiting in group]
                changed = work.write()
                self._name_datasets(group)
                _in_loops(_prepare, group, outcomes)
        except BaseException:
            self._cache.forget()  # the states may differ from the database
            raise
        self._measure(outcomes, time.perf_counter() - started)
        _tell(group, outcomes)
        try:  # what no request waits for
            self._cache.settle({request.place[0] for request in requests})
            if changed:
                self._moved(changed)
        except Exception:  # which changes nothing of what was committed and told
            _LOGGER.exception("the writer failed after a commit")
            self._cache.forget()

    def _name_datasets(self, group: Sequence[_Waiting]) -> None:
        """Tell the spans of requests which dataset they were about."""
        for waiting in group:
            if waiting.span is not None:
                with suppress(NotFoundError, KeyError):
                    dataset = self._cache.dataset_of_run(waiting.request.place[0])
                    waiting.span.set_attribute("dpledger.dataset", dataset.name)

    def _measure(self, outcomes: Sequence[_Outcome], seconds: float) -> None:
        # A request that lacks a price comes again with it, and is answered then.
        answered = [one for one in outcomes if not isinstance(one, cost_cache.UnpricedError)]
        if not answered:
            return
        committed = [one for one in answered if not isinstance(one, Exception)]
        refused = len(answered) - len(committed)
        self._measures.wrote(committed=len(committed), refused=refused, seconds=seconds)
        for one in committed:
            if "accepted" in one:  # an append
                self._measures.recorded(accepted=one["accepted"], duplicates=one["duplicates"])

    def _alone(self, waiting: _Waiting) -> None:
        try:
            self._commit([waiting])
        except Exception as error:
            _tell([waiting], [error])


def _one(work: UnitOfWork, waiting: _Waiting, moment: datetime, state: LedgerState) -> _Outcome:
    """The answer to one request; a refusal comes before anything is changed, so others go on."""
    request = waiting.request
    trace = trace_context.traceparent.set(waiting.traceparent)
    try:
        require_writable(state, admits=request.admits)
        return request.apply(work, moment)
    except (LedgerError, cost_cache.UnpricedBeforeError) as refusal:
        return refusal
    finally:
        trace_context.traceparent.reset(trace)


def _tell(group: Sequence[_Waiting], outcomes: Sequence[_Outcome]) -> None:
    """Answer each request of a group; those that are committed were prepared before."""
    _in_loops(_settle, group, outcomes)


def _in_loops(
    act: Callable[[Sequence[tuple[_Waiting, _Outcome]]], None],
    group: Sequence[_Waiting],
    outcomes: Sequence[_Outcome],
) -> None:
    """Do something in the event loops that wait for a group, in the order of these calls."""
    each: dict[asyncio.AbstractEventLoop, list[tuple[_Waiting, _Outcome]]] = {}
    for waiting, outcome in zip(group, outcomes, strict=True):
        each.setdefault(waiting.loop, []).append((waiting, outcome))
    for loop, pairs in each.items():
        with suppress(RuntimeError):  # the loop was closed: no request waits
            loop.call_soon_threadsafe(act, pairs)


def _give_up(answer: "asyncio.Future[dict[str, Any]]") -> None:
    if not answer.done():
        answer.set_exception(UnavailableError(LATER))


def _prepare(pairs: Sequence[tuple[_Waiting, _Outcome]]) -> None:
    for waiting, outcome in pairs:
        if isinstance(outcome, Exception) or waiting.answer.done():
            continue
        try:
            waiting.prepared = waiting.prepare(outcome)
        except Exception as error:
            waiting.prepared = error


def _settle(pairs: Sequence[tuple[_Waiting, _Outcome]]) -> None:
    for waiting, outcome in pairs:
        if waiting.answer.done():  # the client has gone; what it sent is recorded all the same
            continue
        found = outcome if isinstance(outcome, Exception) else waiting.prepared
        if isinstance(found, Exception):
            waiting.answer.set_exception(found)
        else:
            waiting.answer.set_result(found)
