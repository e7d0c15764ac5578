"""What trainers wait for their appends while one viewer's key reads as much as it can, by route.

    python benchmarks/readers.py [--datasets 10000] [--connections 40] [--seconds 1.5] [--rounds 3]
                                 [--database SQLite] [--route checkpoint]
                                 [--apart]

Trainers append steps at a steady rate. A process of its own asks one route over so many connections
of one viewer's key, each again as soon as it is answered, whatever the answer says; other rows have
a key that is not in force, or none. Rounds with and without readers take turns, and each round with
them is held against the two without beside it. Printed are medians over the rounds of the ratios of
the 99th percentile and of the median, the appends that are left, what the readers were answered a
second, and the shares of a core that the service and the readers took. Ends with 1 if a 99th
percentile more than doubles. With --apart a process that only reads answers the readers, beside one
that only writes, on the same database; then a 99th percentile may rise by 30 %.

The readers' process is nice: what it takes of a processor is not taken from the service.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, which hides the package `service`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import uvloop

from benchmarks.askers import Asked, ask_on, ask_once
from benchmarks.bars import Bar, at_most, print_bars
from benchmarks.load import quantile, trainer
from benchmarks.processes import beside
from benchmarks.servers import (
    Server,
    databases,
    durability,
    mark,
    migrated,
    new_dataset,
    new_run,
    running,
    service,
)
from service.clock import now
from service.identity.keys import Role, create_key
from service.storage.engine import connect, transaction
from service.storage.tables import datasets
from service.transparency.signing import Signer

RATIO_MAX: Final = 2.0  # of the 99th percentiles
APART_RATIO_MAX: Final = 1.3
TRAINERS: Final = 5
PERIOD_SECONDS: Final = 0.02  # between two steps of a trainer
WARM_SECONDS: Final = 2.0
SETTLE_SECONDS: Final = 0.3  # after readers have come or gone
NICENESS: Final = 10  # of the readers' process
STALL_SECONDS: Final = 30.0
AT_ONCE: Final = 1000  # datasets of one transaction
DATASET: Final = "watched"
RUN: Final = "watched-0"
_PLAN: Final = (
    '{"neighboring_relation":"add_or_remove_one","delta":1e-5,"events":['
    + ",".join(
        f'{{"first_step":{step},"steps":1,"mechanism":{{"kind":"gaussian","noise_multiplier":1.{step:03}}},'
        '"sampling":{"kind":"poisson","sampling_probability":0.0042}}'
        for step in range(200)
    )
    + "]}"
)
ROUTES: Final = {
    "checkpoint of a dataset": f"/v1/datasets/{DATASET}/checkpoint",
    "checkpoint": "/v1/checkpoint",
    "metrics": "/metrics",
    "datasets, 1000 a page": "/v1/datasets?page_size=1000",
    "dataset": f"/v1/datasets/{DATASET}",
    "runs": "/v1/runs?page_size=1000",
    "run": f"/v1/runs/{RUN}",
    "guarantee of a dataset": f"/v1/datasets/{DATASET}/guarantee",
    "guarantee of a run": f"/v1/runs/{RUN}/guarantee",
    "explanation": f"/v1/datasets/{DATASET}/explain",
    "history": f"/v1/runs/{RUN}/history",
    "curve": f"/v1/runs/{RUN}/curve",
    "ledger document": f"/v1/runs/{RUN}/ledger",
    "certificate": f"/v1/runs/{RUN}/certificate",
    "inclusion": f"/v1/datasets/{DATASET}/log/inclusion?sequence=1",
    "acts of a dataset": f"/v1/datasets/{DATASET}/acts",
    "bounds": "/v1/bounds",
    "plan": "/v1/plan",
    "overview page": "/",
    "page of datasets": "/datasets",
    "page of runs": "/runs",
    "page of a dataset": f"/datasets/{DATASET}",
    "page of a run": f"/runs/{RUN}",
    "OpenAPI document": "/v1/openapi.json",
    "no such run": "/v1/runs/none",
}


KEYLESS: Final = {
    "wrong key: dataset": f"/v1/datasets/{DATASET}",
    "wrong key: append": f"/v1/runs/{RUN}/events",
    "wrong key: overview page": "/",
    "no key: OpenAPI document": "/v1/openapi.json",
    "no key: API browser": "/docs",
    "no key: page of a problem": "/problems/not-found",
    "no key: signing in": "/sign-in",
    "no key: readiness": "/readyz",
    "no key: no such path": "/v1/none",
}


def request_of(path: str, key: str | None) -> bytes:
    """A whole request."""
    body = _PLAN.encode() if path == "/v1/plan" else b"{}" if path.endswith("/events") else b""
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    head = (
        f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"{authorization}Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _status(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    await reader.readexactly(int(length))
    return int(head[9:12])


@dataclass(slots=True)
class Trainers:
    """Trainers that append at a steady rate; a step that is late is sent as soon as it can be."""

    port: int
    key: str
    steps: list[int] = field(default_factory=lambda: [0] * TRAINERS)

    def append(self, seconds: float) -> list[float]:
        """How long each append took, of so many seconds."""
        return uvloop.run(self._append(seconds))

    async def _append(self, seconds: float) -> list[float]:
        found = await asyncio.gather(*(self._one(one, seconds) for one in range(TRAINERS)))
        return [took for each in found for took in each]

    async def _one(self, number: int, seconds: float) -> list[float]:
        writer_of = trainer(f"{DATASET}-{number}", key=self.key, noise_multipliers=(1.1, 1.3))
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        started, found = time.perf_counter(), []
        due = started
        while due < started + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            writer_of.acknowledged = self.steps[number]
            sent = time.perf_counter()
            writer.write(writer_of.next_request())
            async with asyncio.timeout(STALL_SECONDS):
                status = await _status(reader)
            if status in (200, 201):
                self.steps[number] += 1
                found.append(time.perf_counter() - sent)
            due = max(due + PERIOD_SECONDS, time.perf_counter())
        writer.close()
        return found


@dataclass(slots=True)
class Measured:
    """What appends took beside the readers of a route, over what they took without."""

    p99: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    left: list[float] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)  # the 99th percentile itself
    alone: list[float] = field(default_factory=list)
    service: list[float] = field(default_factory=list)  # of a core, beside the readers
    asked: Asked = field(default_factory=Asked)

    def add(self, before: Sequence[float], beside: Sequence[float], after: Sequence[float]) -> None:
        """One round, between two without readers."""
        alone = [*before, *after]
        self.p99.append(quantile(beside, 0.99) / quantile(alone, 0.99))
        self.p50.append(quantile(beside, 0.5) / quantile(alone, 0.5))
        self.left.append(len(beside) / len(alone))
        self.milliseconds.append(quantile(beside, 0.99))
        self.alone.append(quantile(alone, 0.99))


def filled(url: str, count: int, port: int, key: str) -> None:
    """The dataset that is appended to, and so many others without a run."""
    new_dataset(port, DATASET, key)
    for number in range(TRAINERS):
        new_run(port, f"{DATASET}-{number}", DATASET, key)
    engine = connect(url)
    with transaction(engine) as connection:
        row = connection.execute(datasets.select().where(datasets.c.name == DATASET)).one()
    same = {name: value for name, value in row._mapping.items() if name != "id"}
    for first in range(0, count, AT_ONCE):
        names = [f"other-{number:06}" for number in range(first, min(first + AT_ONCE, count))]
        with transaction(engine) as connection:
            rows = [same | {"name": name, "created_at": now()} for name in names]
            connection.execute(datasets.insert(), rows)
    engine.dispose()


def measure(
    server: Server,
    port: int,
    trainers: Trainers,
    path: str,
    key: str | None,
    asked: argparse.Namespace,
) -> Measured:
    """Rounds with the readers of a route at a port, each between two without."""
    found, request = Measured(), request_of(path, key)
    ask_once(port, request)  # what is made at first and then kept
    before = trainers.append(asked.seconds / 2)
    for _ in range(asked.rounds):
        with reading(port, request, asked.connections) as told:
            taken, started = server.processor_seconds(), time.perf_counter()
            with_readers = trainers.append(asked.seconds)
            taken = server.processor_seconds() - taken
            found.service.append(taken / (time.perf_counter() - started))
            told.send(None)
            found.asked.add(told.recv())
        time.sleep(SETTLE_SECONDS)
        after = trainers.append(asked.seconds / 2)
        found.add(before, with_readers, after)
        before = after
    return found


def reading(port: int, request: bytes, connections: int) -> AbstractContextManager[Connection]:
    """Readers, who ask while the block runs."""
    return beside(
        ask_on, port, request, connections, settle_seconds=SETTLE_SECONDS, niceness=NICENESS
    )


def show(route: str, found: Measured) -> None:
    """A line of the table."""
    asked = found.asked
    print(
        f"{route:<26} {statistics.median(found.milliseconds):>7.1f}"
        f" {statistics.median(found.alone):>7.1f} {statistics.median(found.p99):>6.2f}"
        f" {statistics.median(found.p50):>6.2f} {statistics.median(found.left):>6.2f}"
        f" {statistics.median(found.service):>7.0%}"
        f" {asked.processor_seconds / asked.seconds:>7.0%}  "
        + " ".join(
            f"{count / asked.seconds:.0f}x{status}"
            for status, count in sorted(asked.statuses.items())
        ),
        flush=True,
    )


def compare(name: str, url: str, folder: Path, asked: argparse.Namespace) -> list[Bar]:
    """Each route on one database; what is held against bars."""
    key, server, reader = migrated(url), service(url, folder), service(url, folder)
    if asked.apart:
        server.settings["DPLEDGER_ROLE"], reader.settings["DPLEDGER_ROLE"] = "writer", "reader"
    signing_key = folder / f"{name}.signing_key"
    Signer.load_or_create(signing_key)
    for one in (server, reader):
        one.settings["DPLEDGER_SIGNING_KEY_FILE"] = str(signing_key)
    engine = connect(url)
    with transaction(engine) as connection:
        viewer = create_key(connection, name=mark("viewer"), scope=Role.VIEWER)
    engine.dispose()
    rows: list[tuple[str, str, str | None]] = [(one, ROUTES[one], viewer) for one in ROUTES]
    rows += [
        (route, path, f"dpl_{mark('wrong')}" if route.startswith("wrong") else None)
        for route, path in KEYLESS.items()
    ]
    bars, ratio_max = [], APART_RATIO_MAX if asked.apart else RATIO_MAX
    with running(server, *([reader] if asked.apart else [])):
        filled(url, asked.datasets, server.port, key)
        trainers = Trainers(server.port, key)
        trainers.append(WARM_SECONDS)
        print(
            f"\n{name} ({durability(url)}), {asked.datasets} datasets,"
            f" {asked.connections} connections, {TRAINERS / PERIOD_SECONDS:.0f} appends/s"
        )
        print(
            f"{'readers of':<26} {'p99 ms':>7} {'alone':>7} {'ratio':>6} {'p50':>6} {'left':>6}"
            f" {'service':>7} {'readers':>7}  answers a second"
        )
        port = reader.port if asked.apart else server.port
        for route, path, reader_key in rows:
            if asked.route not in route:
                continue
            found = measure(server, port, trainers, path, reader_key, asked)
            show(route, found)
            ratio = statistics.median(found.p99)
            bars.append(at_most(f"{name}: p99 beside readers of {route}", ratio, ratio_max))
    return bars


def arguments() -> argparse.Namespace:
    """What the caller asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--datasets", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each round")
    parser.add_argument("--rounds", type=int, default=3, help="with readers, for each route")
    parser.add_argument("--database", help="one of the databases: SQLite or PostgreSQL")
    parser.add_argument("--route", default="", help="only routes with this in their name")
    parser.add_argument("--apart", action="store_true", help="reads by a process of their own")
    asked = parser.parse_args()
    if not (0 <= asked.datasets <= 1_000_000 and 1 <= asked.connections <= 400):
        parser.error("--datasets lies in [0, 1000000], --connections in [1, 400]")
    if not (0.5 <= asked.seconds <= 600 and 1 <= asked.rounds <= 100):
        parser.error("--seconds lies in [0.5, 600], --rounds in [1, 100]")
    return asked


def main() -> int:
    """Measure on each database, print the tables and the bars."""
    asked = arguments()
    bars = []
    with TemporaryDirectory(prefix="dpledger-bench-") as name:
        folder = Path(name)
        with databases(folder) as found:
            for kind, url in found.items():
                if asked.database in (None, kind):
                    bars += compare(kind, url, folder, asked)
    return 0 if print_bars(bars) else 1


if __name__ == "__main__":
    sys.exit(main())
