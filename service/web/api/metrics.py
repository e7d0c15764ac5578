"""Metrics: what Prometheus scrapes."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import datetime
from itertools import chain
from typing import Any, Final

from fastapi import Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric

from service.errors import UnavailableError
from service.identity.authentication import Caller, Viewer
from service.operations.metrics import Ledger, Process, ledger_families, process_families
from service.storage.engine import attempts_of
from service.transparency.witness_follower import Follower
from service.web.routers import api_router

TOLD_SECONDS: Final = 1.0  # that an answer is told again

router = api_router(tag="metrics")


class Exposition(Response):
    """The text format of Prometheus."""

    media_type = CONTENT_TYPE_LATEST


class _Told:
    """Metrics that are known by now, as the library asks for them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class Expositions:
    """What was told last, and is told again for a second to all keys that see the same datasets."""

    def __init__(self) -> None:
        self._told: dict[frozenset[str] | None, tuple[float, asyncio.Task[bytes]]] = {}

    async def text(
        self, limit: frozenset[str] | None, work: Callable[[], Coroutine[Any, Any, bytes]]
    ) -> bytes:
        """What was told within the last second, or is being worked out, else what work finds."""
        present = time.monotonic()
        if limit not in self._told or self._told[limit][0] <= present:
            self._told = {one: told for one, told in self._told.items() if told[0] > present}
            self._told[limit] = (present + TOLD_SECONDS, asyncio.create_task(work()))
        return await asyncio.shield(self._told[limit][1])


@router.get(
    "/metrics", response_class=Exposition, response_description="The text format of Prometheus."
)
async def get_metrics(request: Request, caller: Viewer) -> Exposition:
    """What this process counted, how it stands, and what the ledger says, for Prometheus.

    To a key that is limited to datasets the ledger says what is theirs.
    """
    told: Expositions = request.app.state.expositions
    return Exposition(await told.text(caller.datasets, lambda: _text(request.app.state, caller)))


async def _text(state: Any, caller: Caller) -> bytes:
    families = [process_families(await _process(state)), state.measures.families()]
    ledger: Ledger = state.ledger
    with suppress(UnavailableError):  # then what is known beside it is wanted all the more
        families.append(ledger_families(await ledger.figures(), caller.datasets))
    # Some thousand lines take some milliseconds, in which appends go on.
    return await asyncio.to_thread(lambda: generate_latest(_Told(chain(*families))))


async def _process(state: Any) -> Process:
    witness: Follower | None = state.witness
    signed_at = None if witness is None else witness.signed_at
    attempts = attempts_of(state.engine)
    return Process(
        checks=await state.readiness.checks(),
        draining=state.draining,
        database=state.engine.dialect.name,
        writer_waiting=state.writer.waiting,
        questions_waiting=state.seats.waiting,
        streams_open=state.feed.subscribers,
        delivered=state.dispatcher.delivered,
        failed=state.dispatcher.failed,
        read_failures=attempts.read_failures,
        write_failures=attempts.write_failures,
        witness=witness is not None,
        agreed_at=None if witness is None else witness.agreed_at,
        signed_at=None if signed_at is None else datetime.fromisoformat(signed_at),
    )
