"""What following a run costs: the service's processor time with and without subscribers.

    python benchmarks/streams.py [--subscribers 100] [--rate 10] [--seconds 10]

A trainer records so many steps a second, and every subscriber follows the run's stream of events
over a connection of its own. Rounds with and without subscribers take turns; what the subscribers
cost is the difference of the medians, as a share of one core.
"""

import argparse
import asyncio
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, which hides the package `service`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import uvloop

from benchmarks.bars import at_least, at_most, print_bars
from benchmarks.load import LoadError, Writer, trainer
from benchmarks.servers import (
    Server,
    mark,
    migrated,
    new_dataset,
    new_run,
    running,
    service,
)

ROUNDS: Final = 3
SETTLE_SECONDS: Final = 0.5  # after the last update, for the frames on their way
SHARE_MAX: Final = 0.05  # of one core
_GET: Final = (
    "GET /v1/runs/{run}/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    "Accept: text/event-stream\r\nAuthorization: Bearer {key}\r\n\r\n"
)


@dataclass(slots=True)
class Round:
    """What the service took, and what arrived."""

    share: float  # of one core
    updates: int
    frames: list[int] = field(default_factory=list)  # by subscriber


class _Subscriber(asyncio.Protocol):
    """Counts the frames with an id that follow the answer's head."""

    def __init__(self) -> None:
        self.frames = 0
        self._tail = b""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if not self.opened.done():
            if data.startswith(b"HTTP/1.1 200"):
                self.opened.set_result(None)
            else:
                self.opened.set_exception(LoadError(data.decode(errors="replace")))
        text = self._tail + data
        self.frames += text.count(b"\nid:")
        self._tail = text[-3:]  # too short to hold the mark that was counted

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(LoadError("the stream was closed"))


async def _append(port: int, writer: Writer, rate: float, seconds: float) -> int:
    """Record steps at a steady rate; how many."""
    reader, sender = await asyncio.open_connection("127.0.0.1", port)
    loop = asyncio.get_running_loop()
    start, updates = loop.time(), round(rate * seconds)
    for update in range(updates):
        await asyncio.sleep(start + update / rate - loop.time())
        sender.write(writer.next_request())
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
        if head[9:12] != writer.status:
            raise LoadError(body.decode(errors="replace"))
        writer.acknowledged += 1
    await asyncio.sleep(SETTLE_SECONDS)
    sender.close()
    return updates


async def _round(
    server: Server, writer: Writer, key: str, subscribers: int, rate: float, seconds: float
) -> Round:
    loop = asyncio.get_running_loop()
    request = _GET.format(run=writer.run, key=key).encode()
    followers = []
    for _ in range(subscribers):
        transport, follower = await loop.create_connection(_Subscriber, "127.0.0.1", server.port)
        transport.write(request)
        followers.append((transport, follower))
    await asyncio.gather(*(follower.opened for _, follower in followers))
    await asyncio.sleep(SETTLE_SECONDS)  # what was recorded before has been told
    before = [follower.frames for _, follower in followers]
    processor, started = server.processor_seconds(), time.perf_counter()
    updates = await _append(server.port, writer, rate, seconds)
    took = (server.processor_seconds() - processor) / (time.perf_counter() - started)
    frames = [follower.frames - was for (_, follower), was in zip(followers, before, strict=True)]
    for transport, _ in followers:
        transport.close()
    return Round(share=took, updates=updates, frames=frames)


def arguments() -> argparse.Namespace:
    """What the caller asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--subscribers", type=int, default=100)
    parser.add_argument("--rate", type=float, default=10.0, help="updates a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each of the rounds")
    asked = parser.parse_args()
    if not (1 <= asked.subscribers <= 1000 and 0.1 <= asked.rate <= 1000 and asked.seconds >= 1):
        parser.error("--subscribers lies in [1, 1000], --rate in [0.1, 1000], --seconds from 1")
    return asked


def main() -> int:
    """Measure, print the table and the bar."""
    asked = arguments()
    found: dict[int, list[Round]] = {0: [], asked.subscribers: []}
    with TemporaryDirectory(prefix="dpledger-bench-") as name:
        url = f"sqlite:///{Path(name) / 'ledger.db'}"
        key, server, run = migrated(url), service(url, Path(name)), mark("stream")
        # A quarter of the connections may be streams of one key.
        server.settings["DPLEDGER_CONNECTIONS_MAX"] = str(4 * asked.subscribers + 800)
        with running(server), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            new_dataset(server.port, run, key)
            new_run(server.port, run, run, key)
            writer = trainer(run, key=key, noise_multipliers=(1.1, 1.3))
            for _ in range(ROUNDS):
                for count, rounds in found.items():
                    one = _round(server, writer, key, count, asked.rate, asked.seconds)
                    rounds.append(runner.run(one))
    for count, rounds in found.items():
        shares = ", ".join(f"{one.share:.2%}" for one in rounds)
        print(f"{count:>4} subscribers, {rounds[0].updates} updates a round: {shares} of one core")
    alone, followed = (statistics.median(one.share for one in rounds) for rounds in found.values())
    of_each = min(min(one.frames) / one.updates for one in found[asked.subscribers])
    what = f"{asked.subscribers} subscribers at {asked.rate:g} updates/s"
    bars = [
        at_most(f"{what}, of one core", followed - alone, SHARE_MAX, "{:.2%}"),
        at_least("frames for each update, the slowest subscriber", of_each, 1.0),
    ]
    return 0 if print_bars(bars) else 1


if __name__ == "__main__":
    sys.exit(main())
