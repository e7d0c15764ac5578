"""What was refused is freed at once: no body outlives its answer, whoever sends it how often."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from benchmarks import refused
from benchmarks.servers import migrated, running, service
from service.errors import ConflictError, MalformedBodyError, release
from service.ledger.append.unit_of_work import UnitOfWork
from service.ledger.append.writer import Writer
from service.ledger.budgets import cost_cache
from service.web.problems import problem_answer

COUNT = 300
BYTES = 256 * 1024  # so 300 that are kept are 75 MiB at least


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_memory_stays_where_it_was_on_every_route_that_takes_a_body(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    key, server = migrated(url), service(url, tmp_path)
    routes = refused.routes_with_bodies()
    assert len(routes) >= 20
    assert {refused.APPENDS, "POST /v1/plan", "POST /sign-in"} <= set(routes)
    grown = {}
    with running(server):
        refused.prepared(server.port, key)
        with refused.sending(server.port, key) as sender:
            for route in routes:
                sent = refused.bodies(route, BYTES)
                for body in islice(cycle(sent), 4 * len(sent)):  # caches find their size
                    sender.send(route, body)
                before = server.memory_mib()
                statuses = {sender.send(route, body) for body in islice(cycle(sent), COUNT)}
                assert statuses <= {400, 401, 403, 409, 422}, (route, statuses)
                assert route == "POST /sign-in" or 401 not in statuses
                grown[route] = server.memory_mib() - before
    assert max(grown.values()) < refused.GROWTH_MAX, grown


class Held:
    """Something that is held, as a body is."""


def refusal_that_holds(held: Held) -> Any:
    """An error as a thread hands it over: of another error, in a future that its frame keeps."""
    refusal: Any = None
    try:
        try:
            holder = held  # in a frame of the first error
            raise ValueError(holder)
        except ValueError as error:
            raise MalformedBodyError("body: not JSON") from error
    except MalformedBodyError as error:
        refusal = error  # which holds the traceback, which holds this frame, which holds it
    return refusal


@pytest.mark.parametrize("done", [problem_answer, release])
def test_a_refusal_that_was_answered_holds_nothing(done: Any) -> None:
    with without_collector():
        held = Held()
        left = weakref.ref(held)
        done(refusal_that_holds(held))
        del held
        assert left() is None


def test_a_chain_of_errors_that_leads_back_to_itself_is_let_go_of() -> None:
    first, second = ValueError(), ValueError()
    first.__context__, second.__cause__ = second, first
    release(first)
    assert first.__context__ is second.__cause__ is None


class Refused:
    """A request of the writer that is refused, with what it carries."""

    place = ("run", "main")
    admits = False

    def __init__(self, refusals: list[Exception]) -> None:
        self.refusals = refusals

    def apply(self, _desk: UnitOfWork, _moment: datetime) -> dict[str, Any]:
        if self.refusals:
            raise self.refusals.pop()
        return {}


@pytest.mark.parametrize(
    "refusals",
    [
        lambda: [ConflictError("no")],
        lambda: [cost_cache.UnpricedBeforeError([])],
        lambda: [cost_cache.UnpricedError([]), cost_cache.UnpricedError([])],
    ],
)
def test_the_writer_keeps_nothing_of_what_it_refused(engine: Engine, refusals: Any) -> None:
    async def write() -> weakref.ref[Refused]:
        request = Refused(refusals())
        left = weakref.ref(request)
        try:
            await writer.write(request)
        except ConflictError as error:
            release(error)
        return left

    writer = Writer(engine)
    writer.start()
    with without_collector():
        try:
            left = asyncio.run(write())
        finally:
            writer.stop()  # its thread holds the last group
        assert left() is None
