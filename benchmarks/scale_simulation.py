"""A platform of 1e5 datasets, 1e4 trainers and 1e10 steps a day, simulated with measured costs.

    python benchmarks/scale_simulation.py [--seconds 5] [--plot docs/guide/scale.svg]

First the real service is measured on a real PostgreSQL: what one append takes by itself, what 64
clients of 64 datasets get, and the processor time of an append in the service and in the database.
From these follow the two numbers of the simulation: a transaction takes `group` seconds, and each
append of it `each` seconds more (SQLite's and PostgreSQL's writer alike takes up to 64 appends into
one transaction). Then trainers send their steps with so many seconds between two appends; appends
arrive at random, each process serves those of its share of the datasets, and the least number of
processes is looked for whose 99th percentile is at most 0.1 s. Equal steps of one append are one
row, so bytes and appends do not depend on how many steps an append has.

What it does not simulate: the network, trainers that wait for each other, and a database that runs
out of processors. The column `db cores` says how many the last would need.
"""

import argparse
import math
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, which hides the package `service`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.conditions import conditions
from benchmarks.load import Writer, measure, quantile, trainer
from benchmarks.servers import mark, migrated, new_dataset, new_run, postgres, running, service

TRAINERS: Final = 10_000
STEPS_A_DAY: Final = 1e10
DAY_SECONDS: Final = 86_400
PERIODS: Final = (0.0864, 0.25, 1.0, 10.0, 60.0)  # seconds between two appends of a trainer
GROUP_MAX: Final = 64  # appends of one transaction
P99_SECONDS: Final = 0.1
CLIENTS: Final = 64
ROW_BYTES: Final = 205  # of an entry and its keys in three indexes: docs/guide/scale.md
SIMULATED_APPENDS: Final = 200_000
CORE_HOUR: Final = 0.04  # of money; any currency
GIGABYTE_MONTH: Final = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a transaction takes: `group` seconds, and `each` seconds more for each append of it."""

    group: float
    each: float
    service_cpu: float  # seconds an append
    database_cpu: float

    @property
    def appends_a_second(self) -> float:
        """What one process can serve at most."""
        return GROUP_MAX / (self.group + GROUP_MAX * self.each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the appends of one process waited."""

    p50: float
    p99: float
    share: float  # of the time in which it is busy


def simulate(rate: float, costs: Costs, appends: int, seed: int = 1) -> Served:
    """One process to which appends arrive at random.

    Args:
        rate: appends a second, on average; below what the process can serve.
        costs: of a transaction.
        appends: how many arrive.
        seed: of the arrivals.
    """
    drawn, at, free, busy = random.Random(seed), 0.0, 0.0, 0.0
    arrivals = []
    for _ in range(appends):
        at += drawn.expovariate(rate)
        arrivals.append(at)
    waited: list[float] = []
    place = 0
    while place < appends:
        begins = max(free, arrivals[place])
        end = place
        while end < appends and end - place < GROUP_MAX and arrivals[end] <= begins:
            end += 1
        took = costs.group + (end - place) * costs.each
        free, busy = begins + took, busy + took
        waited.extend(free - arrivals[one] for one in range(place, end))
        place = end
    return Served(p50=_quantile(waited, 0.5), p99=_quantile(waited, 0.99), share=busy / free)


def _quantile(waited: list[float], share: float) -> float:
    """In seconds."""
    return quantile(waited, share) / 1000


def least_processes(rate: float, costs: Costs) -> tuple[int, Served]:
    """The least number of processes whose 99th percentile is low enough, and what they serve."""
    least = max(1, math.ceil(rate / costs.appends_a_second))
    for processes in range(least, 4 * least + 2):
        share = rate / processes
        if share < costs.appends_a_second:
            found = simulate(share, costs, min(SIMULATED_APPENDS, max(2000, int(60 * share))))
            if found.p99 <= P99_SECONDS:
                return processes, found
    raise ValueError(f"No number of processes keeps {P99_SECONDS} s.")


def database_seconds() -> float:
    """The processor time of all PostgreSQL processes of this machine."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text(encoding="utf-8").rpartition(")")
        except OSError:
            continue  # it has just ended
        if name.endswith("(postgres"):
            fields = rest.split()
            total += int(fields[11]) + int(fields[12])
    return total / 100


def measured_costs(folder: Path, seconds: float) -> Costs:
    """Costs of the real service on a real PostgreSQL."""
    with postgres(folder) as url:
        if url is None:
            raise SystemExit("A PostgreSQL server is needed.")
        key, server = migrated(url), service(url, folder)
        with running(server):
            writers = list(_trainers(server.port, key))
            measure(server.port, writers, seconds)  # what is read once
            alone = [measure(server.port, writers[:1], seconds) for _ in range(3)]
            before, database = server.processor_seconds(), database_seconds()
            many = [measure(server.port, writers, seconds) for _ in range(3)]
            appends = sum(len(one.latencies) for one in many)
            cpu = (server.processor_seconds() - before) / appends
            database = (database_seconds() - database) / appends
    one = statistics.median(_quantile(sample.latencies, 0.5) for sample in alone)
    rate = statistics.median(sample.rate for sample in many)
    # One append takes group + each, and 64 of them group + 64 each.
    each = (GROUP_MAX / rate - one) / (GROUP_MAX - 1)
    each = max(each, 1e-6)
    return Costs(group=one - each, each=each, service_cpu=cpu, database_cpu=database)


def _trainers(port: int, key: str) -> Iterator[Writer]:
    for _ in range(CLIENTS):
        name = mark("scale")
        new_dataset(port, name, key)
        new_run(port, name, name, key)
        yield trainer(name, key=key)


def show(costs: Costs) -> list[tuple[float, int, float]]:
    """Print the table; of each period the processes and their 99th percentile."""
    print(
        f"a transaction {1e3 * costs.group:.2f} ms, each append {1e6 * costs.each:.0f} us more, "
        f"{costs.appends_a_second:.0f} appends/s a process at most; processor time of an append "
        f"{1e6 * costs.service_cpu:.0f} us, in the database {1e6 * costs.database_cpu:.0f} us\n"
    )
    print(
        f"{'seconds between appends':>24}{'steps each':>12}{'appends/s':>11}{'processes':>11}"
        f"{'busy':>7}{'p50 ms':>8}{'p99 ms':>8}{'db cores':>10}{'GB a day':>10}{'a month':>10}"
    )
    found = []
    for period in PERIODS:
        rate = TRAINERS / period
        processes, served = least_processes(rate, costs)
        daily = rate * DAY_SECONDS * ROW_BYTES / 1e9
        cores = rate * (costs.service_cpu + costs.database_cpu)
        money = cores * 730 * CORE_HOUR + 30 * daily * GIGABYTE_MONTH
        steps = STEPS_A_DAY / DAY_SECONDS / rate
        print(
            f"{period:>24g}{steps:>12,.0f}{rate:>11,.0f}{processes:>11}{served.share:>7.0%}"
            f"{1e3 * served.p50:>8.1f}{1e3 * served.p99:>8.1f}"
            f"{rate * costs.database_cpu:>10.1f}{daily:>10.1f}{money:>10,.0f}"
        )
        found.append((period, processes, served.p99))
    print(
        f"\na month: processors at {CORE_HOUR} an hour, and the bytes of 30 days at "
        f"{GIGABYTE_MONTH} a GB"
    )
    return found


def drawing(found: list[tuple[float, int, float]]) -> str:
    """A plot of processes over the seconds between two appends, as SVG; both axes logarithmic."""
    width, height, edge = 640, 320, 72

    def place(period: float, processes: int) -> tuple[float, float]:
        across = math.log(period / PERIODS[0]) / math.log(PERIODS[-1] / PERIODS[0])
        up = math.log(processes) / math.log(max(2, *(one for _, one, _ in found)))
        return edge + across * (width - 2 * edge), height - edge - up * (height - 2 * edge)

    marks = [(place(period, count), period, count, p99) for period, count, p99 in found]
    path = " ".join(f"{x:.1f},{y:.1f}" for (x, y), *_ in marks)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12" role="img">',
        "<title>Processes that 10,000 trainers with 1e10 steps a day need</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<polyline points="{path}" fill="none" stroke="#1a5fa8" stroke-width="2"/>',
    ]
    for (x, y), period, count, p99 in marks:
        noun = "process" if count == 1 else "processes"
        lines += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#1a5fa8"/>',
            # Beside the line, which falls to the right.
            f'<text x="{x + 4:.1f}" y="{y - 22:.1f}">{count} {noun}</text>',
            f'<text x="{x + 10:.1f}" y="{y - 9:.1f}" fill="#555">p99 {1e3 * p99:.0f} ms</text>',
            f'<text x="{x:.1f}" y="{height - 48}" text-anchor="middle">{period:g}</text>',
        ]
    middle = f'x="{width / 2}" y="{height - 24}" text-anchor="middle"'
    lines += [f"<text {middle}>seconds between two appends of a trainer</text>", "</svg>", ""]
    return "\n".join(lines)


def main() -> None:
    """Measure, simulate, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--plot", type=Path, help="an SVG file to draw")
    asked = parser.parse_args()
    with conditions("psycopg", "fastapi"), TemporaryDirectory(prefix="dpledger-bench-") as name:
        found = show(measured_costs(Path(name), asked.seconds))
    if asked.plot is not None:
        asked.plot.write_text(drawing(found), encoding="utf-8")


if __name__ == "__main__":
    main()
