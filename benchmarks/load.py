"""A load generator that is not the bottleneck: keep-alive connections without an HTTP library."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import uvloop

STALL_SECONDS: Final = 30.0  # without the answers that are due
MAIN: Final = "main"

# One DP-SGD step. The number is padded with spaces, which JSON allows, so that every body of a
# measurement has the same length and a request is one formatting operation.
_STEP: Final = (
    '{"branch":"%s","events":[{"first_step":%%12d,"steps":1,'
    '"mechanism":{"kind":"gaussian","noise_multiplier":%s},'
    '"sampling":{"kind":"poisson","sampling_probability":0.0042}}]}'
)
_LENGTH: Final = b"content-length:"


class LoadError(Exception):
    """The server did not do what was asked of it."""


def post(path: str, body: str, key: str | None = None) -> bytes:
    """A whole request, whose body may have a place for a number of twelve digits."""
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{authorization}"
        f"Content-Type: application/json\r\nContent-Length: {len(body % 0)}\r\n\r\n{body}"
    ).encode()


@dataclass(slots=True)
class Writer:
    """A client that sends one numbered step after another."""

    run: str
    requests: Sequence[bytes]  # taken in turn, each with the number of the step in its place
    branch: str = MAIN
    status: bytes = b"201"  # of every answer
    acknowledged: int = 0  # steps answered so, in this and earlier measurements

    def next_request(self) -> bytes:
        """The step that follows those acknowledged."""
        return self.requests[self.acknowledged % len(self.requests)] % self.acknowledged


def trainer(
    run: str,
    branch: str = MAIN,
    key: str | None = None,
    noise_multipliers: Sequence[float] = (1.1,),
) -> Writer:
    """A writer of steps to a branch; different noise from step to step keeps entries apart."""
    bodies = [_STEP % (branch, noise) for noise in noise_multipliers]
    path = f"/v1/runs/{run}/events"
    return Writer(run=run, branch=branch, requests=[post(path, body, key) for body in bodies])


@dataclass(slots=True)
class Sample:
    """One measurement."""

    seconds: float = 0.0
    generator_seconds: float = 0.0  # of processor time, this process
    latencies: list[float] = field(default_factory=list)  # seconds, one for each answer

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds

    @property
    def generator_share(self) -> float:
        """Of one core, what the load generator itself took."""
        return self.generator_seconds / self.seconds


def quantile(latencies: Sequence[float], share: float) -> float:
    """The latency that so large a share stays below, in milliseconds."""
    ordered = sorted(latencies)
    return 1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)]


class _Connection(asyncio.Protocol):
    """Sends a step, waits for its answer, sends the next, until the deadline."""

    def __init__(self, writer: Writer, latencies: list[float]) -> None:
        self._writer = writer
        self._latencies = latencies
        self._received = bytearray()
        self._sent_at = self._deadline = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def start(self, deadline: float) -> None:
        """Send the first step."""
        self._deadline = deadline
        self._send()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._writer.next_request())

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        place = self._received.lower().find(_LENGTH, 0, end)
        if place < 0:
            self._fail("an answer without Content-Length")
            return
        length = self._received[place + len(_LENGTH) :].partition(b"\r\n")[0]
        if len(self._received) < end + 4 + int(length):
            return
        if self._received[9:12] != self._writer.status:
            self._fail(self._received.decode(errors="replace"))
            return
        self._received.clear()
        now = time.perf_counter()
        self._latencies.append(now - self._sent_at)
        self._writer.acknowledged += 1
        if now < self._deadline:
            self._send()
        elif not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("the connection was closed")

    def _fail(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(LoadError(f"{self._writer.run}: {reason}"))

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


async def _measure(port: int, writers: list[Writer], seconds: float) -> Sample:
    loop = asyncio.get_running_loop()
    sample = Sample()
    connections: list[_Connection] = []
    for writer in writers:
        _, connection = await loop.create_connection(
            lambda writer=writer: _Connection(writer, sample.latencies),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        connections.append(connection)
    processor, started = time.process_time(), time.perf_counter()
    for connection in connections:
        connection.start(started + seconds)
    try:
        # Each connection still waits for its last answer, so nothing is sent and not counted.
        async with asyncio.timeout(seconds + STALL_SECONDS):
            await asyncio.gather(*(connection.done for connection in connections))
    finally:
        sample.seconds = time.perf_counter() - started
        sample.generator_seconds = time.process_time() - processor
        for connection in connections:
            connection.close()
    return sample


def measure(port: int, writers: list[Writer], seconds: float) -> Sample:
    """Each writer sends steps over its own connection, one at a time, for so long.

    Raises:
        LoadError: an answer was another than expected, or a connection was closed.
        TimeoutError: answers stayed away.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(port, writers, seconds))
