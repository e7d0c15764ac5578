"""A mix of everything that trainers, dashboards and scripts ask of a service, request by request.

What grows without end in a real service grows here in the database alone: the runs, datasets and
different events are as many after a day as after a minute. Questions whose answer takes longer the
longer a run is are asked of runs that have ended.
"""

import asyncio
import json
import re
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from benchmarks.servers import create, mark, new_dataset, new_run

DATASETS: Final = 4
TRAINERS: Final = 24  # each has a run and sends one request at a time
READ_RUNS: Final = 8  # that have ended, of so many entries each
READ_ENTRIES: Final = 100
REGISTERED: Final = 32  # runs that are registered over and over; the first time makes them
READERS: Final = 24  # connections of dashboards and scripts
STREAM_SECONDS: Final = 20.0  # after which a stream is left and opened anew
IDLE_SECONDS: Final = 3.0  # before a connection is opened anew; the service closes it after five
LEASE_STEPS: Final = 10
BATCH: Final = 20
_NOISES: Final = (1.1, 1.3, 1.7, 2.3, 2.9, 3.1, 3.7, 4.1)
_SAMPLING: Final = {"kind": "poisson", "sampling_probability": 0.0042}
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: *(\d+)\r\n")
_KEPT: Final = 5  # answers that were no success, to be shown

# How often each is asked, of a hundred. Whole curves and histories are for people, who are few.
APPENDS: Final[dict[str, float]] = {"append": 60, "batch": 8, "lease": 4}
READS: Final[dict[str, float]] = {
    "guarantee": 12, "dataset": 5, "run": 5, "history": 0.5, "curve": 0.3, "plan": 2,
    "register": 3.2,
}  # fmt: skip


@dataclass(slots=True)
class Answer:
    """One answer, or the lack of one."""

    kind: str
    due: float  # when it was to be asked; what it waits for a free connection counts
    seconds: float


@dataclass(slots=True)
class Tally:
    """What was answered."""

    answers: list[Answer] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    shown: list[str] = field(default_factory=list)
    frames: int = 0

    def fault(self, kind: str, what: str, text: str) -> None:
        """An answer outside 2xx, or none."""
        self.errors[f"{kind}: {what}"] += 1
        if len(self.shown) < _KEPT:
            self.shown.append(f"{kind}: {what}: {text[:300]}")


class Line:
    """A connection that stays open."""

    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._key = key
        self._used_at = 0.0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """The status and the body of an answer."""
        if time.perf_counter() - self._used_at > IDLE_SECONDS:
            self.close()
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(self.request(method, path, body))
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        found = await reader.readexactly(int(length[1]) if length else 0)
        self._used_at = time.perf_counter()
        return int(head[9:12]), found

    def request(self, method: str, path: str, body: Any = None) -> bytes:
        """What is sent."""
        lines = isinstance(body, str)
        text = "" if body is None else body if lines else json.dumps(body)
        kind = "application/x-ndjson" if lines else "application/json"
        return (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._key}\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {len(text.encode())}\r\n\r\n{text}"
        ).encode()

    def close(self) -> None:
        """Close it; the next question opens another."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def _event(step: int, steps: int = 1) -> dict[str, Any]:
    noise = {"kind": "gaussian", "noise_multiplier": _NOISES[step % len(_NOISES)]}
    return {"first_step": step, "steps": steps, "mechanism": noise, "sampling": _SAMPLING}


@dataclass(slots=True)
class Trainer:
    """Sends the steps of one run, in order."""

    line: Line
    run: str
    next_step: int = 0

    async def append(self) -> AsyncIterator[tuple[int, bytes]]:
        """One step."""
        yield await self.line.ask(
            "POST", f"/v1/runs/{self.run}/events", {"events": [_event(self.next_step)]}
        )
        self.next_step += 1

    async def batch(self) -> AsyncIterator[tuple[int, bytes]]:
        """Many steps, as lines."""
        steps = range(self.next_step, self.next_step + BATCH)
        lines = "".join(json.dumps(_event(step)) + "\n" for step in steps)
        yield await self.line.ask("POST", f"/v1/runs/{self.run}/events", lines)
        self.next_step += BATCH

    async def lease(self) -> AsyncIterator[tuple[int, bytes]]:
        """Steps admitted ahead, of which one is taken."""
        name = mark("lease")
        body = {
            "name": name, "event": _event(self.next_step, LEASE_STEPS), "ttl_seconds": 600,
        }  # fmt: skip
        yield await self.line.ask("POST", f"/v1/runs/{self.run}/reservations", body)
        async for answer in self.append():
            yield answer
        last = {"last_step": self.next_step - 1}
        yield await self.line.ask("POST", f"/v1/reservations/{name}:release", last)


class Mix:
    """The load on some processes of one service."""

    def __init__(self, ports: Sequence[int], key: str, *, seed: int = 1) -> None:
        self.tally = Tally()
        self._ports = ports
        self._key = key
        self._random = Random(seed)
        self._datasets = [mark("soak") for _ in range(DATASETS)]
        self._ended = [mark("ended") for _ in range(READ_RUNS)]
        self._registered = [mark("registered") for _ in range(REGISTERED)]
        self._trainers = [
            Trainer(self._line(number), mark("trained")) for number in range(TRAINERS)
        ]
        self._free: dict[bool, deque[Any]] = {}
        self._waiting: dict[bool, deque[asyncio.Future[Any]]] = {True: deque(), False: deque()}

    def _line(self, number: int) -> Line:
        return Line(self._ports[number % len(self._ports)], self._key)

    def prepare(self) -> None:
        """Datasets and runs."""
        port, key = self._ports[0], self._key
        for name in self._datasets:
            new_dataset(port, name, key)
        for number, run in enumerate((*self._ended, *(one.run for one in self._trainers))):
            new_run(port, run, self._datasets[number % DATASETS], key)
        for run in self._ended:
            events = [_event(step) for step in range(READ_ENTRIES)]
            create(port, f"/v1/runs/{run}/events", {"events": events}, key=key)
            create(port, f"/v1/runs/{run}:finish", {"state": "finished"}, key=key)

    @asynccontextmanager
    async def connected(self, streams: int) -> AsyncIterator[None]:
        """Connections for as long as the block, and so many readers of streams."""
        lines = [self._line(number) for number in range(READERS)]
        self._free = {True: deque(self._trainers), False: deque(lines)}
        tasks = [asyncio.create_task(self._follow(number)) for number in range(streams)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for line in (*lines, *(one.line for one in self._trainers)):
                line.close()

    def choice(self) -> str:
        """What is asked next."""
        kinds = APPENDS | READS
        return self._random.choices(list(kinds), list(kinds.values()))[0]

    async def ask(self, kind: str, due: float) -> None:
        """Ask one thing as soon as a connection is free; its seconds count from when it was due."""
        writes = kind in APPENDS
        one = await self._take(writes)
        try:
            await self._asked(kind, one, due)
        except (OSError, asyncio.IncompleteReadError) as error:
            self.tally.fault(kind, "no answer", repr(error))
            (one.line if writes else one).close()
        finally:
            self._give(writes, one)

    async def _take(self, writes: bool) -> Any:
        if self._free[writes]:
            return self._free[writes].popleft()
        freed = asyncio.get_running_loop().create_future()
        self._waiting[writes].append(freed)
        return await freed

    def _give(self, writes: bool, one: Any) -> None:
        while self._waiting[writes]:
            freed = self._waiting[writes].popleft()
            if not freed.done():
                freed.set_result(one)
                return
        self._free[writes].append(one)

    async def _asked(self, kind: str, one: Any, due: float) -> None:
        questions: AsyncIterator[tuple[int, bytes]]
        questions = getattr(one, kind)() if kind in APPENDS else self._read(kind, one)
        async for status, body in questions:
            if not 200 <= status < 300:
                self.tally.fault(kind, str(status), body.decode(errors="replace"))
                return
            present = time.perf_counter()
            self.tally.answers.append(Answer(kind, due, present - due))
            due = present  # of the next question of the same kind

    async def _read(self, kind: str, line: Line) -> AsyncIterator[tuple[int, bytes]]:
        ended = f"/v1/runs/{self._random.choice(self._ended)}"
        run = f"/v1/runs/{self._random.choice(self._trainers).run}"
        dataset = self._random.choice(self._datasets)
        asked: dict[str, Callable[[], Awaitable[tuple[int, bytes]]]] = {
            "guarantee": lambda: line.ask("GET", f"{run}/guarantee?accountant=rdp"),
            "run": lambda: line.ask("GET", run),
            "dataset": lambda: line.ask("GET", f"/v1/datasets/{dataset}"),
            "history": lambda: line.ask("GET", f"{ended}/history?points=10"),
            "curve": lambda: line.ask("GET", f"{ended}/curve?points=20"),
            "plan": lambda: line.ask("POST", "/v1/plan", self._plan()),
            "register": lambda: line.ask("POST", "/v1/runs", self._registration()),
        }
        yield await asked[kind]()

    def _plan(self) -> dict[str, Any]:
        events = [{k: v for k, v in _event(0, 1000).items() if k != "first_step"}]
        relation = "add_or_remove_one"
        return {
            "neighboring_relation": relation, "events": events, "delta": 1e-5, "accountant": "rdp",
        }  # fmt: skip

    def _registration(self) -> dict[str, Any]:
        number = self._random.randrange(REGISTERED)
        name = self._registered[number]
        dataset = self._datasets[number % DATASETS]
        return {"name": name, "writer": f"writer-token-of-{name}", "dataset": dataset}

    async def _follow(self, number: int) -> None:
        """Follow one run after another; a stream that ends by itself is a fault."""
        while True:
            run = self._trainers[number % TRAINERS].run
            line = self._line(number)
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self._ports[number % len(self._ports)]
            )
            writer.write(line.request("GET", f"/v1/runs/{run}/stream"))
            until = time.perf_counter() + STREAM_SECONDS * self._random.uniform(0.5, 1.5)
            try:
                await self._frames(reader, until)
            finally:
                writer.close()

    async def _frames(self, reader: asyncio.StreamReader, until: float) -> None:
        while (left := until - time.perf_counter()) > 0:
            try:
                async with asyncio.timeout(left):
                    data = await reader.read(65536)
            except TimeoutError:
                return
            if not data:
                self.tally.fault("stream", "ended", "")
                return
            self.tally.frames += data.count(b"\nid:")
