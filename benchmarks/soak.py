"""Twenty minutes of mixed load at a share of the most that the service takes: what stays flat.

    python benchmarks/soak.py [--minutes 20] [--share 0.8] [--postgres]

First the most answers a second are measured, with more and more questions at a time, for as long as
it takes that a good second does not pass for the most. Then the same mix is asked at a share of
that rate, each question at its own time whether or not earlier ones were answered; what a question
waits counts. Memory is read every second. Ends with 1 if memory grows by a MiB a minute or more
after the warm-up, an answer was no success, or the slowest answers became twice as slow.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, which hides the package `service`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import uvloop

from benchmarks.bars import at_most, print_bars
from benchmarks.load import quantile
from benchmarks.mix import APPENDS, READS, Answer, Mix
from benchmarks.servers import Server, ServerError, migrated, postgres, running, service

AT_A_TIME: Final = (8, 16, 32)  # questions, while the most is looked for
PROBE_SECONDS: Final = 30.0
STREAMS: Final = 8
WARM_UP: Final = 0.25  # of the whole; caches fill, and the parts of memory find their size
SLOPE_MAX: Final = 1.0  # MiB a minute
SPREAD_MAX: Final = 2.0  # of the p99 of the last quarter over that of the first
QUARTERS: Final = 4
BEHIND_MAX: Final = 5000  # questions asked and not answered; beyond, the rate is too high


@dataclass(slots=True)
class Soak:
    """What was seen while the load was on."""

    started: float
    seconds: float
    memory: list[tuple[float, float]] = field(default_factory=list)  # (seconds, MiB)
    answers: list[Answer] = field(default_factory=list)

    def steady(self) -> list[tuple[float, float]]:
        """The memory after the warm-up."""
        return [one for one in self.memory if one[0] >= WARM_UP * self.seconds]

    def quarter(self, number: int, kinds: Sequence[str]) -> list[float]:
        """The seconds that answers of a quarter took."""
        begin = self.started + number * self.seconds / QUARTERS
        end = begin + self.seconds / QUARTERS
        return [one.seconds for one in self.answers if begin <= one.due < end and one.kind in kinds]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """MiB a minute, by least squares."""
    minutes = [seconds / 60 for seconds, _ in points]
    return statistics.linear_regression(minutes, [mib for _, mib in points]).slope


def rise(points: Sequence[tuple[float, float]]) -> float:
    """The median of the last quarter of the samples less that of the first."""
    part = max(1, len(points) // QUARTERS)
    first, last = points[:part], points[-part:]
    return statistics.median(mib for _, mib in last) - statistics.median(mib for _, mib in first)


async def most(mix: Mix) -> float:
    """The most answers a second; each of so many askers waits for its answer."""
    best = 0.0
    async with mix.connected(STREAMS):
        await _ask_until(mix, time.perf_counter() + PROBE_SECONDS)
        for count in AT_A_TIME:
            before, started = len(mix.tally.answers), time.perf_counter()
            until = started + PROBE_SECONDS
            await asyncio.gather(*(_ask_until(mix, until) for _ in range(count)))
            seconds = time.perf_counter() - started
            rate = (len(mix.tally.answers) - before) / seconds
            print(f"{count:>4} at a time: {rate:>8.0f} answers/s", flush=True)
            best = max(best, rate)
    return best


async def _ask_until(mix: Mix, until: float) -> None:
    while (present := time.perf_counter()) < until:
        await mix.ask(mix.choice(), present)


async def soak(mix: Mix, servers: Sequence[Server], rate: float, seconds: float) -> Soak:
    """Ask at a steady rate."""
    async with mix.connected(STREAMS):
        mix.tally.answers.clear()
        found = Soak(time.perf_counter(), seconds)
        watching = asyncio.create_task(_watch(found, servers))
        # A question of several parts (a lease) has several answers.
        questions = sum((APPENDS | READS).values())
        gap = (questions + 2 * APPENDS["lease"]) / (questions * rate)
        await _ask_steadily(mix, found, gap)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    found.answers = mix.tally.answers
    return found


async def _ask_steadily(mix: Mix, found: Soak, gap: float) -> None:
    open_questions: set[asyncio.Task[None]] = set()
    due, end = found.started, found.started + found.seconds
    while due < end:
        wait = due - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(mix.ask(mix.choice(), due))
        open_questions.add(task)
        task.add_done_callback(open_questions.discard)
        if len(open_questions) > BEHIND_MAX:
            raise ServerError(f"More than {BEHIND_MAX} questions wait for their answers.")
        due += gap
    await asyncio.gather(*open_questions)


async def _watch(found: Soak, servers: Sequence[Server]) -> None:
    while True:
        mib = sum(server.memory_mib() for server in servers)
        found.memory.append((time.perf_counter() - found.started, mib))
        await asyncio.sleep(1)


def show(found: Soak, mix: Mix, rate: float) -> bool:
    """The table and the bars; whether they hold."""
    print(f"\n{len(found.answers)} answers in {found.seconds / 60:.1f} minutes, "
          f"{len(found.answers) / found.seconds:.0f}/s (asked for: {rate:.0f}/s), "
          f"{mix.tally.frames} frames of streams")  # fmt: skip
    print(
        f"{'milliseconds':<12}" + "".join(f"   quarter {n + 1}: p50 / p99" for n in range(QUARTERS))
    )
    spread = 0.0
    for name, kinds in {"appends": list(APPENDS), "reads": list(READS)}.items():
        quarters = [found.quarter(number, kinds) or [0.0] for number in range(QUARTERS)]
        cells = [f"{quantile(q, 0.5):>11.1f} / {quantile(q, 0.99):>9.1f}" for q in quarters]
        print(f"{name:<12}" + "".join(cells))
        spread = max(spread, quantile(quarters[-1], 0.99) / max(quantile(quarters[0], 0.99), 1e-3))
    steady = found.steady()
    for kind in (*APPENDS, *READS):
        took = [one.seconds for one in found.answers if one.kind == kind] or [0.0]
        p50, p99 = quantile(took, 0.5), quantile(took, 0.99)
        print(f"  {kind:<10} {len(took):>8} {p50:>9.1f} / {p99:>9.1f}")
    print(f"memory: {found.memory[0][1]:.0f} MiB at first, {steady[0][1]:.0f} after the warm-up,")
    print(f"  {steady[-1][1]:.0f} in the end; last quarter less first {rise(steady):+.1f} MiB")
    for what, count in mix.tally.errors.most_common():
        print(f"error {what}: {count}")
    for text in mix.tally.shown:
        print(f"  {text}")
    bars = [
        at_most("memory, MiB a minute", slope(steady), SLOPE_MAX),
        at_most("answers that were no success", float(mix.tally.errors.total()), 0.0, "{:.0f}"),
        at_most("p99 of the last quarter over that of the first", spread, SPREAD_MAX),
    ]
    return print_bars(bars)


def arguments() -> argparse.Namespace:
    """What the caller asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--share", type=float, default=0.8, help="of the most")
    parser.add_argument("--postgres", action="store_true", help="two processes on PostgreSQL")
    asked = parser.parse_args()
    if not (0.5 <= asked.minutes <= 1440 and 0.05 <= asked.share <= 1):
        parser.error("--minutes lies in [0.5, 1440], --share in [0.05, 1]")
    return asked


def main() -> int:
    """Measure, print the table and the bars."""
    asked = arguments()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="dpledger-soak-")))
        url = f"sqlite:///{folder / 'ledger.db'}"
        if asked.postgres and not (url := stack.enter_context(postgres(folder / "pg")) or ""):
            print("There is no PostgreSQL.")
            return 1
        key = migrated(url)
        servers = [service(url, folder) for _ in range(2 if asked.postgres else 1)]
        stack.enter_context(running(*servers))
        mix = Mix([server.port for server in servers], key)
        mix.prepare()
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        rate = asked.share * runner.run(most(mix))
        found = runner.run(soak(mix, servers, rate, 60 * asked.minutes))
        return 0 if show(found, mix, rate) else 1


if __name__ == "__main__":
    sys.exit(main())
