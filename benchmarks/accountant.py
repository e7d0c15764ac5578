"""How narrow the certified bracket is and how long it takes, beside dp-accounting's PLD accountant.

    OPENBLAS_NUM_THREADS=1 PYTHONPATH=. python benchmarks/accountant.py [--quick]

from the root of the repository, in an environment with the `peers` extra; without it the peer's
columns say so. Both run in this process, in turn, and medians are printed. Cold: nothing is
remembered, a distinct step is met for the first time. Warm: the steps' moments are remembered, the
answer is not. The peer runs at its default interval of 1e-4 and gives an upper bound alone;
`excess` is how far it lies above our lower end. --quick leaves out the ledger of 200 steps and the
calibration, which take the peer minutes.
"""

import argparse
import importlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from accounting import Event, EventCounts, NeighboringRelation, guarantee
from accounting.calibration import Parameter, calibrate
from accounting.events import Full, Gaussian, Poisson
from accounting.pld import certified_composition

RELATION: Final = NeighboringRelation.ADD_OR_REMOVE_ONE
TURNS: Final = 11
PEER_TURNS: Final = 3
SLOW_SECONDS: Final = 5.0  # a peer this slow is asked once
FRESH: Final = 5


@dataclass(frozen=True)
class Segment:
    """Equal steps; a rate of None is a full batch."""

    rate: float | None
    noise: float
    steps: int

    def event(self) -> Event:
        """What they were."""
        sampling = Full() if self.rate is None else Poisson(sampling_probability=self.rate)
        return Event(mechanism=Gaussian(noise_multiplier=self.noise), sampling=sampling)


@dataclass(frozen=True)
class Workload:
    """A ledger and the delta it is read at."""

    name: str
    segments: list[Segment]
    delta: float

    def counts(self) -> EventCounts:
        """As our accountant takes it."""
        return EventCounts(steps={segment.event(): segment.steps for segment in self.segments})


def one(name: str, rate: float | None, noise: float, steps: int, delta: float) -> Workload:
    """A ledger of equal steps."""
    return Workload(name, [Segment(rate, noise, steps)], delta)


RUNS: Final = [
    one("W1 256 of 60,000", 256 / 60_000, 1.1, 14_040, 1e-5),
    one("W2 4096 of 50,000", 4096 / 50_000, 3.0, 2500, 1e-5),
    one("W3 1024 of 1e7", 1024 / 1e7, 0.6, 100_000, 1e-8),
    one("W4 little noise", 1e-3, 0.4, 10_000, 1e-6),
    one("W5 a million steps", 1e-3, 0.8, 1_000_000, 1e-6),
    one("W8 full batch", None, 20.0, 1000, 1e-6),
]
MANY: Final = Workload(
    "W6 200 segments",
    [Segment(0.001 + 0.019 * i / 199, 0.7 + 1.3 * i / 199, 500) for i in range(200)],
    1e-6,
)
FEW: Final = [
    one("1 step", 0.01, 1.0, 1, 1e-5),
    one("1 step, delta 1e-10", 0.01, 1.0, 1, 1e-10),
    one("30 steps", 0.01, 1.0, 30, 1e-5),
    one("100 steps", 1e-3, 0.5, 100, 1e-5),
    one("50 steps, 1e-10", 0.05, 0.8, 50, 1e-10),
    one("rate 1e-4, 1e6 steps", 1e-4, 1.0, 1_000_000, 1e-10),
    one("rate 1e-4, 100 steps", 1e-4, 0.6, 100, 1e-10),
]


def milliseconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e6


def peer() -> Callable[[Workload], float] | None:
    """dp-accounting's epsilon of a workload, or None where it is not installed."""
    try:
        events: Any = importlib.import_module("dp_accounting")
        pld: Any = importlib.import_module("dp_accounting.pld")
    except ImportError:
        return None

    def epsilon(workload: Workload) -> float:
        accountant = pld.PLDAccountant()
        for segment in workload.segments:
            event = events.GaussianDpEvent(segment.noise)
            if segment.rate is not None:
                event = events.PoissonSampledDpEvent(segment.rate, event)
            accountant.compose(event, segment.steps)
        return float(accountant.get_epsilon(workload.delta))

    return epsilon


def print_brackets(title: str, workloads: list[Workload]) -> None:
    """A line for each workload."""
    print(f"\n{title}")
    print(
        f"{'ledger':<22} {'lower':>12} {'upper':>12} {'width':>8} {'cold ms':>8} {'warm ms':>8}"
        f" {'peer ms':>9} {'excess':>8} {'cold':>7} {'warm':>7}"
    )
    for workload in workloads:
        print(line(workload), flush=True)


def line(workload: Workload) -> str:
    """Our bracket and times, and the peer's beside them."""
    counts = workload.counts()
    cold: list[float] = []
    warm: list[float] = []
    theirs: list[float] = []
    value = float("nan")

    def ours() -> object:
        return guarantee(counts, relation=RELATION, delta=workload.delta, accountant="pld")

    ours()
    for turn in range(TURNS):
        certified_composition.forget()
        cold.append(milliseconds(ours))
        certified_composition.forget_answers()
        warm.append(milliseconds(ours))
        if PEER is not None and turn < PEER_TURNS and max(theirs, default=0) < 1e3 * SLOW_SECONDS:
            start = time.perf_counter_ns()
            value = PEER(workload)
            theirs.append((time.perf_counter_ns() - start) / 1e6)
    found = guarantee(counts, relation=RELATION, delta=workload.delta, accountant="pld")
    upper, lower = found.epsilon or 0.0, found.epsilon_lower or 0.0
    mine, again = statistics.median(cold), statistics.median(warm)
    text = f"{workload.name:<22} {lower:>12.7f} {upper:>12.7f} {1 - lower / upper:>8.1e}"
    text += f" {mine:>8.2f} {again:>8.2f}"
    if not theirs:
        return text + "   not installed"
    slow = statistics.median(theirs)
    text += f" {slow:>9.0f} {value / lower - 1:>8.0e}"
    return f"{text} {slow / mine:>6.0f}x {slow / again:>6.0f}x"


def print_calibration() -> None:
    """The noise multiplier for a target."""
    target, delta, rate, steps = 3.0, 1e-5, 0.01, 5000
    print("\nW9: the noise multiplier for epsilon 3 at delta 1e-5, rate 0.01, 5000 steps")

    def ours() -> float:
        found = calibrate(
            lambda noise: EventCounts(steps={Segment(rate, noise, steps).event(): steps}),
            parameter=Parameter.NOISE_MULTIPLIER,
            relation=RELATION,
            epsilon=target,
            delta=delta,
        )
        return float(found.value)

    times = []
    for _ in range(TURNS):
        certified_composition.forget()
        times.append(milliseconds(ours))
    mine = statistics.median(times)
    print(f"{'dpledger':<15} {ours():>12.7f} {mine:>9.1f} ms")
    if PEER is None:
        print("dp-accounting   not installed")
        return
    events: Any = importlib.import_module("dp_accounting")
    pld: Any = importlib.import_module("dp_accounting.pld")

    def event_of(noise: float) -> Any:
        sampled = events.PoissonSampledDpEvent(rate, events.GaussianDpEvent(noise))
        return events.SelfComposedDpEvent(sampled, steps)

    start = time.perf_counter_ns()
    value = events.calibrate_dp_mechanism(pld.PLDAccountant, event_of, target, delta)
    slow = (time.perf_counter_ns() - start) / 1e6
    print(f"{'dp-accounting':<15} {value:>12.7f} {slow:>9.1f} ms  {slow / mine:.0f}x")


FRESH_PROGRAM: Final = """
import time; start = time.perf_counter()
from accounting import *
from accounting.events import Gaussian, Poisson
sampling = Poisson(sampling_probability=256/60000)
event = Event(mechanism=Gaussian(noise_multiplier=1.1), sampling=sampling)
imported = time.perf_counter()
relation = NeighboringRelation.ADD_OR_REMOVE_ONE
guarantee(EventCounts(steps={event: 14040}), relation=relation, delta=1e-5)
done = time.perf_counter()
import resource
print(imported - start, done - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def print_fresh() -> None:
    """What a fresh process pays."""
    runs = []
    for _ in range(FRESH):
        out = subprocess.check_output([sys.executable, "-c", FRESH_PROGRAM], text=True)
        runs.append([float(word) for word in out.split()])
    imported, done, memory = (statistics.median(column) for column in zip(*runs, strict=True))
    print(
        f"\nA fresh process: import {imported:.2f} s, epsilon of W1 {done:.2f} s, {memory:.0f} MB"
    )


def decaying(distinct: int) -> EventCounts:
    """Noise that decays at every step."""
    segments = [Segment(1e-3, 2.0 - 1.2 * i / distinct, 1) for i in range(distinct)]
    return EventCounts(steps={segment.event(): 1 for segment in segments})


def print_many() -> None:
    """Ledgers in which every step is different."""
    print("\nNoise that decays at every step, delta 1e-6, rounded outward")
    for distinct in (1000, 10_000, 100_000):
        counts = decaying(distinct)
        times = []
        for _ in range(3):
            certified_composition.forget()
            times.append(
                milliseconds(lambda: guarantee(counts, relation=RELATION, delta=1e-6))  # noqa: B023
            )
        found = guarantee(counts, relation=RELATION, delta=1e-6)
        upper, lower = found.epsilon or 0.0, found.epsilon_lower or 0.0
        print(
            f"{distinct:>8} distinct steps: [{lower:.5f}, {upper:.5f}], width"
            f" {1 - lower / upper:.1e}, {statistics.median(times) / 1e3:.2f} s"
        )


PEER: Final = peer()


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description="certified brackets beside a peer")
    parser.add_argument(
        "--quick", action="store_true", help="leave out what takes the peer minutes"
    )
    quick = parser.parse_args().quick
    print_fresh()
    print_brackets("Training runs", RUNS if quick else [*RUNS, MANY])
    print_brackets("Few steps and tiny rates", FEW)
    print_many()
    if not quick:
        print_calibration()


if __name__ == "__main__":
    main()
