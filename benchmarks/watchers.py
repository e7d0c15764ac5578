"""What a trainer waits for its appends while many watch the page of its run, and while none does.

    python benchmarks/watchers.py [--readers 100] [--rate 50] [--seconds 15] [--rounds 4]

The trainer records steps at a steady rate by the client, one request after another. The readers
follow the stream of the run's page over a connection each, as browsers do that are signed in; they
share a process that only counts what arrives. Rounds with and without readers take turns, on SQLite
and on PostgreSQL, and the medians of the rounds' 99th percentiles are compared.
"""

import argparse
import http.client
import selectors
import socket
import statistics
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urlencode

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, which hides the package `service`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from dpledger_client.transport import Transport

from benchmarks.bars import Bar, at_least, at_most, print_bars
from benchmarks.load import quantile
from benchmarks.processes import beside
from benchmarks.servers import (
    Server,
    ServerError,
    databases,
    durability,
    mark,
    migrated,
    new_dataset,
    new_run,
    running,
    service,
)

RATIO_MAX: Final = 1.2  # of the 99th percentiles
SETTLE_SECONDS: Final = 1.0  # after the readers have come, and for the last frames
WARM_SECONDS: Final = 3.0
READ_BYTES: Final = 65536
_GET: Final = "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: {cookie}\r\n\r\n"


@dataclass(slots=True)
class Round:
    """How long appends took, and what the readers were told."""

    latencies: list[float]  # seconds
    processor: float  # share of one core that the service took
    frames: list[int] = field(default_factory=list)  # by reader

    @property
    def p99(self) -> float:
        """In milliseconds."""
        return quantile(self.latencies, 0.99)


def sign_in(port: int, key: str) -> str:
    """The cookie of a session."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "Origin": f"http://127.0.0.1:{port}",
    }
    try:
        connection.request("POST", "/sign-in", urlencode({"key": key}), headers)
        answer = connection.getresponse()
        cookie = answer.headers.get("set-cookie")
    finally:
        connection.close()
    if cookie is None:
        raise ServerError(f"POST /sign-in answered {answer.status} without a cookie.")
    return cookie.partition(";")[0]


def _opened(port: int, request: bytes, count: int) -> list[socket.socket]:
    found = []
    for _ in range(count):
        one = socket.create_connection(("127.0.0.1", port), timeout=60)
        one.sendall(request)
        head = one.recv(READ_BYTES)
        if not head.startswith(b"HTTP/1.1 200"):
            raise ServerError(f"A stream was answered {head[:200]!r}")
        one.setblocking(False)
        found.append(one)
    return found


def _follow(port: int, request: bytes, count: int, told: Connection) -> None:
    """Open streams, say so, and count frames until told to stop; the counts are the answer."""
    frames = [0] * count
    with selectors.DefaultSelector() as selector:
        streams = _opened(port, request, count)
        for number, one in enumerate(streams):
            selector.register(one, selectors.EVENT_READ, number)
        selector.register(told, selectors.EVENT_READ, -1)
        told.send(None)
        while True:
            for key, _ in selector.select():
                if key.data < 0:
                    told.send(frames)
                    return
                received = streams[key.data].recv(READ_BYTES)
                if not received:
                    raise ServerError("A stream has ended.")
                # One write holds whole frames; one that was cut in its mark is counted by the next.
                frames[key.data] += received.count(b"\nevent: entry")


def following(port: int, request: bytes, count: int) -> AbstractContextManager[Connection | None]:
    """So many readers in a process of their own, who are there when the block begins."""
    if not count:
        return nullcontext()
    return beside(_follow, port, request, count, settle_seconds=SETTLE_SECONDS)


@dataclass(slots=True)
class Trainer:
    """Records one step after another."""

    transport: Transport
    run: str
    step: int = 0

    def append(self) -> float:
        """A step; how long it took, in seconds."""
        event = {
            "first_step": self.step,
            "steps": 1,
            # Another noise each time, so that every step is an entry of its own.
            "mechanism": {"kind": "gaussian", "noise_multiplier": (1.1, 1.3)[self.step % 2]},
            "sampling": {"kind": "poisson", "sampling_probability": 0.0042},
        }
        started = time.perf_counter()
        answer = self.transport.post(f"/v1/runs/{self.run}/events", {"events": [event]}, retries=0)
        took = time.perf_counter() - started
        if answer["accepted"] != 1:
            raise ServerError(f"An append was answered {answer}")
        self.step += 1
        return took

    def steadily(self, rate: float, seconds: float) -> list[float]:
        """Appends at a rate; how long each took."""
        started, found = time.perf_counter(), []
        for number in range(round(rate * seconds)):
            time.sleep(max(0.0, started + number / rate - time.perf_counter()))
            found.append(self.append())
        return found


def one_round(
    server: Server, trainer: Trainer, request: bytes, readers: int, asked: argparse.Namespace
) -> Round:
    """Appends beside so many readers."""
    with following(server.port, request, readers) as told:
        processor, started = server.processor_seconds(), time.perf_counter()
        latencies = trainer.steadily(asked.rate, asked.seconds)
        share = (server.processor_seconds() - processor) / (time.perf_counter() - started)
        found = Round(latencies, share)
        if told is not None:
            time.sleep(SETTLE_SECONDS)
            told.send(None)
            found.frames = told.recv()
        return found


def compare(name: str, url: str, folder: Path, asked: argparse.Namespace) -> list[Bar]:
    """Rounds in turn on one database; what is held against bars."""
    key, server, run = migrated(url), service(url, folder), mark("watched")
    # Half of the connections may be streams, and half of those of one key.
    server.settings["DPLEDGER_CONNECTIONS_MAX"] = str(4 * asked.readers + 100)
    found: dict[int, list[Round]] = {0: [], asked.readers: []}
    with running(server):
        new_dataset(server.port, run, key)
        new_run(server.port, run, run, key)
        address = f"http://127.0.0.1:{server.port}"
        trainer = Trainer(Transport(address, key, timeout_seconds=60, retries=0), run)
        path = f"/runs/{run}/stream"
        cookie = sign_in(server.port, key)
        request = _GET.format(path=path, port=server.port, cookie=cookie).encode()
        trainer.steadily(asked.rate, WARM_SECONDS)
        for number in range(2 * asked.rounds):
            readers = (0, asked.readers, asked.readers, 0)[number % 4]
            found[readers].append(one_round(server, trainer, request, readers, asked))
    print(f"\n{name} ({durability(url)}), {asked.rate:g} appends/s, rounds of {asked.seconds:g} s")
    for readers, rounds in found.items():
        _show(readers, rounds)
    alone, watched = (statistics.median(one.p99 for one in each) for each in found.values())
    least = min(min(one.frames) / len(one.latencies) for one in found[asked.readers] if one.frames)
    return [
        at_most(
            f"{name}: p99 with {asked.readers} readers / with none", watched / alone, RATIO_MAX
        ),
        at_least(f"{name}: frames for each append, the slowest reader", least, 1.0),
    ]


def _show(readers: int, rounds: list[Round]) -> None:
    together = [seconds for one in rounds for seconds in one.latencies]
    p99s = " ".join(f"{one.p99:5.1f}" for one in rounds)
    shares = statistics.median(one.processor for one in rounds)
    print(
        f"{readers:>5} readers: {len(together):5} appends  p50 {quantile(together, 0.5):5.2f} ms  "
        f"p99 {quantile(together, 0.99):5.1f} ms  by round {p99s}  service {shares:.0%} of a core",
        flush=True,
    )


def arguments() -> argparse.Namespace:
    """What the caller asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--readers", type=int, default=100)
    parser.add_argument("--rate", type=float, default=50.0, help="appends a second")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=4, help="of each kind")
    parser.add_argument("--only", help="one of the databases: SQLite or PostgreSQL")
    asked = parser.parse_args()
    if not (1 <= asked.readers <= 1000 and 1 <= asked.rate <= 1000 and asked.seconds >= 1):
        parser.error("--readers lies in [1, 1000], --rate in [1, 1000], --seconds from 1")
    if asked.rounds < 1:
        parser.error("--rounds is 1 at least")
    return asked


def main() -> int:
    """Measure on each database, print the tables and the bars."""
    asked = arguments()
    bars = []
    with TemporaryDirectory(prefix="dpledger-bench-") as name:
        folder = Path(name)
        with databases(folder) as found:
            for kind, url in found.items():
                if asked.only in (None, kind):
                    bars += compare(kind, url, folder, asked)
    return 0 if print_bars(bars) else 1


if __name__ == "__main__":
    sys.exit(main())
