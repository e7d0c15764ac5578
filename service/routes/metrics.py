"""Metrics: what Prometheus scrapes."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from itertools import chain
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric

from service.auth import Viewer
from service.database import attempts_of
from service.errors import UnavailableError
from service.metrics import Ledger, Process, ledger_families, process_families
from service.witnessing import Follower

router = APIRouter(tags=["metrics"])


class Exposition(Response):
    """The text format of Prometheus."""

    media_type = CONTENT_TYPE_LATEST


class _Told:
    """Metrics that are known by now, as the library asks for them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


@router.get("/metrics", response_class=Exposition)
async def get_metrics(request: Request, caller: Viewer) -> Exposition:
    """What this process counted, how it stands, and what the ledger says, for Prometheus.

    To a key that is limited to datasets the ledger says what is theirs.
    """
    state = request.app.state
    families = [process_families(await _process(state)), state.measures.families()]
    ledger: Ledger = state.ledger
    with suppress(UnavailableError):  # then what is known beside it is wanted all the more
        families.append(ledger_families(await ledger.figures(), caller.datasets))
    # Some thousand lines take some milliseconds, in which appends go on.
    text = await asyncio.to_thread(lambda: generate_latest(_Told(chain(*families))))
    return Exposition(text)


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
