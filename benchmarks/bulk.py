"""Many steps in one request, and many entries before the next: batches, memory, flat latency.

    python benchmarks/bulk.py [--database SQLite] [--parts batches memory entries runs]
        [--entries 1000000] [--runs 10000]

First, on an empty ledger: NDJSON batches of 10,000 equal and of 10,000 different events, and one
event of a million steps. Then 100 runs are filled with as many different events as --entries says,
and the service's memory is read. Then, on services of their own, single appends to a run that
already has 10^2, 10^4, ... entries, and to one of 10, 100, ... runs of a dataset. Each number is
the median over repetitions; entries of neighbouring steps differ, so that none merge.
"""

import argparse
import http.client
import json
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, which hides the package `service`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.bars import Bar, at_least, at_most, print_bars
from benchmarks.load import Writer, measure, quantile, trainer
from benchmarks.servers import (
    Server,
    ServerError,
    ask,
    databases,
    mark,
    migrated,
    new_dataset,
    new_run,
    running,
    service,
)

BATCH: Final = 10_000
BATCHES: Final = 5
MANY_STEPS: Final = 1_000_000
MEMORY_RUNS: Final = 100
NOISES: Final = (1.1, 1.3)  # of neighbouring steps
SINGLE_SECONDS: Final = 3.0  # of single appends at each size
FLAT: Final = 1.2
POISSON: Final = {"kind": "poisson", "sampling_probability": 0.0042}


@dataclass(frozen=True, slots=True)
class Ground:
    """A service, its key, and how many entries and runs it is filled with."""

    server: Server
    key: str
    database: str
    entries: int
    runs: int


def event(first_step: int, noise_multiplier: float, steps: int = 1) -> dict[str, Any]:
    """Equal steps."""
    mechanism = {"kind": "gaussian", "noise_multiplier": noise_multiplier}
    return {"first_step": first_step, "steps": steps, "mechanism": mechanism, "sampling": POISSON}


def lines(first_step: int, noises: Iterable[float]) -> str:
    """One event a line."""
    found = (event(first_step + index, noise) for index, noise in enumerate(noises))
    return "\n".join(json.dumps(one, separators=(",", ":")) for one in found) + "\n"


def different(number: int) -> list[float]:
    """As many noise multipliers as a batch has events, none of them in another batch."""
    return [1 + (number * BATCH + index) * 1e-6 for index in range(BATCH)]


def send(ground: Ground, run: str, body: Any) -> float:
    """The seconds until a batch was stored.

    Raises:
        ServerError: it was refused.
    """
    started = time.perf_counter()
    status, answer = ask(ground.server.port, "POST", f"/v1/runs/{run}/events", body, key=ground.key)
    seconds = time.perf_counter() - started
    if status != http.client.CREATED:
        raise ServerError(f"A batch was answered {status}: {answer}")
    return seconds


def place(ground: Ground, name: str, runs: int = 1) -> list[str]:
    """A dataset with so many runs."""
    found = mark(name)
    new_dataset(ground.server.port, found, ground.key)
    names = [f"{found}-{index}" for index in range(runs)]
    for run in names:
        new_run(ground.server.port, run, found, ground.key)
    return names


def batches(ground: Ground) -> list[Bar]:
    """Steps a second in batches of equal and of different events; one event of many steps."""
    (equal,), (distinct,) = place(ground, "equal"), place(ground, "different")
    (long,) = place(ground, "long")
    rates: dict[str, list[float]] = {"equal": [], "different": []}
    longest = []
    for number in range(BATCHES):
        first = number * BATCH
        body = lines(first, [1.1] * BATCH)
        rates["equal"].append(BATCH / send(ground, equal, body))
        body = lines(first, different(number))
        rates["different"].append(BATCH / send(ground, distinct, body))
        many = {"events": [event(number * MANY_STEPS, 1.1, MANY_STEPS)]}
        longest.append(1000 * send(ground, long, many))
    shown = {kind: ", ".join(f"{rate:,.0f}" for rate in found) for kind, found in rates.items()}
    print(f"{ground.database}: steps/s, equal: {shown['equal']}; different: {shown['different']}")
    name, median = ground.database, statistics.median
    return [
        at_least(f"{name}, {BATCH} equal events, steps/s", median(rates["equal"]), 1e5, "{:,.0f}"),
        at_least(
            f"{name}, {BATCH} different events, steps/s", median(rates["different"]), 6e4, "{:,.0f}"
        ),
        at_most(f"{name}, one event of {MANY_STEPS} steps, ms", median(longest), 10, "{:.1f}"),
    ]


def memory(ground: Ground) -> list[Bar]:
    """What the service holds after very many different events in 100 runs."""
    names = place(ground, "memory", MEMORY_RUNS)
    before, started = ground.server.memory_mib(), time.perf_counter()
    for number in range(-(-ground.entries // BATCH)):
        run, first = names[number % MEMORY_RUNS], number // MEMORY_RUNS * BATCH
        send(ground, run, lines(first, different(number)))
    after, seconds = ground.server.memory_mib(), time.perf_counter() - started
    name, most = ground.database, ground.server.memory_mib("VmHWM")
    print(f"{name}: {before:.0f} MiB before {ground.entries} different events ({seconds:.0f} s),")
    print(f"  {after:.0f} MiB after, {most:.0f} MiB at most")
    what = f"{name}, memory after {ground.entries} different events, MiB"
    return [at_most(what, after, 200, "{:.0f}")]


@dataclass(frozen=True, slots=True)
class Latency:
    """Of single appends, in milliseconds."""

    p50: float
    p99: float
    processor: float  # time of the service, which other processes on the machine hardly move


def single(ground: Ground, writer: Writer) -> Latency:
    """How long single appends take."""
    measure(ground.server.port, [writer], 0.3)
    before = ground.server.processor_seconds()
    found = measure(ground.server.port, [writer], SINGLE_SECONDS).latencies
    processor = 1000 * (ground.server.processor_seconds() - before) / len(found)
    return Latency(quantile(found, 0.5), quantile(found, 0.99), processor)


def fill(ground: Ground, writer: Writer, entries: int) -> None:
    """Steps in bulk, until the writer's run has so many entries."""
    while writer.acknowledged < entries:
        first = writer.acknowledged
        count = min(BATCH, entries - first)
        noises = [NOISES[step % len(NOISES)] for step in range(first, first + count)]
        send(ground, writer.run, lines(first, noises))
        writer.acknowledged += count


def flat(name: str, sizes: list[int], found: list[Latency]) -> list[Bar]:
    """How much the median grows from the first size to the slowest later one."""
    for size, one in zip(sizes, found, strict=True):
        print(
            f"{name} {size:>9,}: p50 {one.p50:.2f}, p99 {one.p99:.2f}, cpu {one.processor:.2f} ms"
        )
    growth = max(one.p50 for one in found[1:]) / found[0].p50
    return [at_most(f"{name}, {sizes[0]:,} to {sizes[-1]:,}: median grows", growth, FLAT)]


def by_entries(ground: Ground) -> list[Bar]:
    """Single appends to one run as its entries grow."""
    sizes = [size for size in (100, 10_000, 1_000_000) if size < ground.entries] + [ground.entries]
    (run,) = place(ground, "entries")
    writer = trainer(run, key=ground.key, noise_multipliers=NOISES)
    found = []
    for size in sizes:
        fill(ground, writer, size)
        found.append(single(ground, writer))
    return flat(f"{ground.database}, entries of the run", sizes, found)


def by_runs(ground: Ground) -> list[Bar]:
    """Single appends to one run as its dataset's runs grow, each with some steps of its own."""
    sizes = [size for size in (10, 100, 1000) if size < ground.runs] + [ground.runs]
    (first,) = place(ground, "runs")
    dataset, done = first.removesuffix("-0"), 1
    writer = trainer(first, key=ground.key, noise_multipliers=NOISES)
    found = []
    for size in sizes:
        for index in range(done, size):
            run = f"{dataset}-{index}"
            new_run(ground.server.port, run, dataset, ground.key)
            send(ground, run, {"events": [event(0, NOISES[index % 2])]})
        done = size
        found.append(single(ground, writer))
    return flat(f"{ground.database}, runs of the dataset", sizes, found)


PARTS: Final = {"batches": batches, "memory": memory, "entries": by_entries, "runs": by_runs}


def arguments() -> argparse.Namespace:
    """What the caller asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--database", choices=("SQLite", "PostgreSQL"), help="only this one")
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=10_000)
    asked = parser.parse_args()
    if not (1000 <= asked.entries <= 10**8 and 100 <= asked.runs <= 10**6):
        parser.error("--entries lies in [1000, 1e8], --runs in [100, 1e6]")
    return asked


def main() -> int:
    """Measure, print the bars."""
    asked = arguments()
    bars: list[Bar] = []
    with TemporaryDirectory(prefix="dpledger-bench-") as name, databases(Path(name)) as urls:
        for database, url in urls.items():
            if asked.database not in (None, database):
                continue
            key = migrated(url)
            for part in asked.parts:
                server = service(url, Path(name))
                with running(server):
                    bars += PARTS[part](Ground(server, key, database, asked.entries, asked.runs))
    return 0 if print_bars(bars) else 1


if __name__ == "__main__":
    sys.exit(main())
