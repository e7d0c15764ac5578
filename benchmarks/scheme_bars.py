"""How long an answer about each scheme takes, beside the bar it must keep.

    OPENBLAS_NUM_THREADS=1 PYTHONPATH=. python benchmarks/scheme_bars.py [--runs 3] [--scheme NAME]

from the root of the repository. The run is that of schemes.py, also with shuffled passes that leave
records out, small and large. Each time is the least of some processes, each of one call with
nothing remembered: a guarantee, the noise that keeps epsilon at 3, and 1,000 steps that all differ
in noise. A line that misses its bar says so; nothing else depends on it.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

from accounting import Event, NeighboringRelation, Span, count_events, events, guarantee
from accounting.calibration import Parameter, UnreachableError, calibrate, fill_spans
from accounting.event_counts import EventCounts
from benchmarks.bars import Bar, at_most, print_bars
from benchmarks.schemes import ACCEPT, BATCH, DELTA, NOISE, PASSES, RATE, RECORDS, SCHEMES

ADD: Final = NeighboringRelation.ADD_OR_REMOVE_ONE
ONE: Final = NeighboringRelation.REPLACE_ONE
COLD: Final = {ADD: 0.3, ONE: 1.0, NeighboringRelation.REPLACE_SPECIAL: 1.0}  # seconds
TIMES_ADD: Final = 3.0  # what replace_one may take, over add_or_remove_one
SOLVED: Final = 2.0  # seconds
TARGET: Final = 3.0  # epsilon that the noise is solved for
MANY: Final = 1000
MANY_SECONDS: Final = 1.0
MANY_WIDTH: Final = 1e-4


@dataclass(frozen=True)
class Run:
    """A training that is asked about."""

    sampling: events.Sampling
    steps: int
    noise: float = NOISE
    delta: float = DELTA

    def span(self) -> Span:
        """All its steps."""
        mechanism = events.Gaussian(noise_multiplier=self.noise)
        return Span(event=Event(mechanism=mechanism, sampling=self.sampling), steps=self.steps)


def left_out(records: int, batch: int, noise: float, passes: int, delta: float) -> Run:
    """Shuffled passes that leave the remainder out."""
    length = (records - 1) // batch
    sampling = events.Shuffle(
        batch_size=batch,
        steps_per_pass=length,
        reshuffle=events.Reshuffle.EACH_PASS,
        dataset_size=records,
    )
    return Run(sampling, passes * length, noise, delta)


RUNS: Final = {scheme.name: Run(scheme.sampling, scheme.steps) for scheme in SCHEMES} | {
    "shuffle_left_out": left_out(RECORDS, BATCH, NOISE, PASSES, DELTA),
    "shuffle_left_out_large": left_out(1_281_167, 1024, 1.0, 90, 1e-7),
}
Found = tuple[float, float | None]  # seconds, and the relative width; None where no bound is known


def answered(run: Run, relation: NeighboringRelation) -> Found:
    """A guarantee."""
    counts = count_events([[run.span()]])
    start = time.perf_counter()
    found = guarantee(counts, relation=relation, delta=run.delta, accept=ACCEPT)
    seconds = time.perf_counter() - start
    if found.epsilon is None:
        return seconds, None
    return seconds, 1 - (found.epsilon_lower or 0.0) / found.epsilon


def solved(run: Run, relation: NeighboringRelation) -> Found:
    """The noise that keeps to an epsilon."""
    noise = Parameter.NOISE_MULTIPLIER

    def counts_at(value: float) -> EventCounts:
        return count_events([fill_spans([run.span()], places=[0], parameter=noise, value=value)])

    start = time.perf_counter()
    try:
        calibrate(
            counts_at,
            parameter=noise,
            epsilon=TARGET,
            delta=run.delta,
            relation=relation,
            accept=ACCEPT,
        )
    except UnreachableError:
        return time.perf_counter() - start, None
    return time.perf_counter() - start, 0.0


def many(relation: NeighboringRelation) -> Found:
    """Poisson steps that each have another noise."""
    sampling = events.Poisson(sampling_probability=RATE)
    runs = [Run(sampling, 1, NOISE * (1 + place / MANY)) for place in range(MANY)]
    counts = count_events([[run.span() for run in runs]])
    start = time.perf_counter()
    found = guarantee(counts, relation=relation, delta=DELTA, accept=ACCEPT)
    seconds = time.perf_counter() - start
    return seconds, 1 - (found.epsilon_lower or 0.0) / (found.epsilon or 1.0)


def once(what: str, name: str, relation: str) -> None:
    """What a process that is measured does."""
    of = NeighboringRelation(relation)
    ask = partial(many, of) if what == "many" else partial(KINDS[what], RUNS[name], of)
    print(json.dumps(ask()))


KINDS: Final = {"answered": answered, "solved": solved}


def measured(runs: int, *asked: str) -> Found:
    """The least time of fresh processes."""
    command = [sys.executable, __file__, "--once", *asked]
    found: list[Found] = []
    for _ in range(runs):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds, width = json.loads(done.stdout.splitlines()[-1])
        found.append((seconds, width))
    return min(found, key=lambda one: one[0])


def bars_of(name: str, runs: int) -> list[Bar]:
    """The lines of a scheme: cold answers, how they compare, and the noise that is solved for."""
    bars: list[Bar] = []
    cold: dict[NeighboringRelation, float] = {}
    for relation, most in COLD.items():
        seconds, width = measured(runs, "answered", name, relation.value)
        if width is not None:
            cold[relation] = seconds
            bars.append(at_most(f"{name}, {relation.value}, seconds", seconds, most, "{:.3f}"))
    if {ADD, ONE} <= cold.keys():
        ratio = cold[ONE] / cold[ADD]
        bars.append(at_most(f"{name}, replace_one over add_or_remove_one", ratio, TIMES_ADD))
    for relation in cold:
        seconds, _ = measured(runs, "solved", name, relation.value)
        what = f"{name}, {relation.value}, solved for noise, seconds"
        bars.append(at_most(what, seconds, SOLVED, "{:.3f}"))
    return bars


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="how long an answer about each scheme takes")
    parser.add_argument("--runs", type=int, default=3, help="processes for a line")
    parser.add_argument("--scheme", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--once", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.once:
        return once(*asked.once)
    bars = [bar for name in asked.scheme for bar in bars_of(name, asked.runs)]
    for relation in (ADD, ONE):
        seconds, width = measured(asked.runs, "many", "poisson", relation.value)
        what = f"{MANY} noises, {relation.value}"
        bars.append(at_most(f"{what}, seconds", seconds, MANY_SECONDS, "{:.3f}"))
        bars.append(at_most(f"{what}, width", width, MANY_WIDTH, "{:.1e}"))
    print_bars(bars)
    return None


if __name__ == "__main__":
    main()
