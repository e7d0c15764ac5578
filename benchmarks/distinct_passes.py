"""Appends to a dataset of many distinct events that are counted by pass, by how many there are.

    python benchmarks/distinct_passes.py [--events 16 256 1000 4000] [--falling | --decay]

The writer's own transaction on SQLite, without HTTP: a pass of a noise that was seen before. With
--falling the noise of one pass of each ledger fell from the greatest to the least. With --decay an
append is one step with less noise than any before, so that each pass loses noise at each step.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, which hides the package `service`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sqlalchemy import Engine

from benchmarks.bars import at_most, print_bars
from benchmarks.conditions import conditions
from service.clock import now
from service.ledger.append.append import Append
from service.ledger.append.unit_of_work import DatasetCache
from service.ledger.budgets import cost_cache
from service.ledger.datasets import create_dataset
from service.ledger.runs import create_run
from service.schemas.requests import EventMessage, NewDataset, NewRun
from service.storage import migrations
from service.storage.engine import DedicatedConnection, connect, transaction

REPEATS: Final = 200
TOGETHER: Final = 100  # events of a request, while a ledger is filled
STEPS: Final = 4  # of a pass
BAR_MS: Final = 2.5
RUN: Final = "run"
FALLING: Final = "falling"
DECAY: Final = "decay"


class Ledger:
    """A dataset with one run, and the next step of it."""

    def __init__(self, engine: Engine) -> None:
        self._line, self._cache, self._step = DedicatedConnection(engine), DatasetCache(), 0
        with transaction(engine) as connection:
            create_dataset(
                connection,
                NewDataset.model_validate(
                    {
                        "name": "dataset",
                        "dataset_size": 60_000,
                        "neighboring_relation": "replace_special",
                        "privacy_unit": "example",
                        "budget": {"epsilon": 1e6, "delta": 1e-5, "orders": [8.0]},
                    }
                ),
                by="benchmark",
            )
            new = {
                "name": RUN,
                "writer": "writer-of-the-ledger",
                "dataset": "dataset",
                "delta": 1e-5,
            }
            create_run(connection, NewRun.model_validate(new))

    def append(self, noises: list[float], steps: int = STEPS) -> None:
        """Charge steps of each noise, as the writer does."""
        events = [self._event(index, noise, steps) for index, noise in enumerate(noises)]
        asked = Append(run_name=RUN, branch_name="main", mode="charge", events=events)

        def attempt() -> None:
            with self._line.transaction() as connection:
                work = self._cache.open(connection, [asked.place])
                asked.apply(work, now())
                work.write()

        try:
            cost_cache.retry_with_costs(attempt)
        finally:
            self._cache.settle([RUN])
        self._step += steps * len(noises)

    def _event(self, index: int, noise: float, steps: int) -> EventMessage:
        event: dict[str, Any] = {
            "first_step": self._step + index * steps,
            "steps": steps,
            "mechanism": {"kind": "gaussian", "noise_multiplier": noise},
            "sampling": {
                "kind": "shuffle",
                "batch_size": 15_000,
                "steps_per_pass": STEPS,
                "reshuffle": "each_pass",
            },
        }
        return EventMessage.model_validate(event)


def milliseconds(folder: Path, events: int, case: str | None) -> tuple[float, float]:
    """The medians of wall time and processor time of an append."""
    engine = connect(f"sqlite:///{folder / f'{events}.db'}")
    migrations.upgrade(engine)
    ledger = Ledger(engine)
    noises = [2.0 + index / 1000 for index in range(events)]
    if case == DECAY:
        noises.reverse()
    for begin in range(0, events, TOGETHER):
        ledger.append(noises[begin : begin + TOGETHER], 1 if case == DECAY else STEPS)
    if case == FALLING:
        ledger.append([noises[-1]], 1)
        ledger.append([noises[0]], STEPS - 1)
    wall, processor = [], []
    for index in range(REPEATS):
        before = time.perf_counter(), time.process_time()
        if case == DECAY:
            ledger.append([2.0 - (index + 1) / 1000], 1)
        else:
            ledger.append([noises[617 * index % events]])
        wall.append(time.perf_counter() - before[0])
        processor.append(time.process_time() - before[1])
    engine.dispose()
    return 1000 * statistics.median(wall), 1000 * statistics.median(processor)


def main() -> int:
    """Fill, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, nargs="+", default=[16, 256, 1000, 4000])
    case = parser.add_mutually_exclusive_group()
    for name, text in ((FALLING, "the noise of one pass fell"), (DECAY, "it falls at each step")):
        case.add_argument(f"--{name}", dest="case", action="store_const", const=name, help=text)
    asked = parser.parse_args()
    with conditions(), TemporaryDirectory(prefix="dpledger-passes-") as name:
        print(f"{'events':>8} {'wall ms':>9} {'cpu ms':>9}")
        for events in asked.events:
            wall, processor = milliseconds(Path(name), events, asked.case)
            print(f"{events:>8} {wall:>9.2f} {processor:>9.2f}")
        what = f"an append beside {asked.events[-1]:,} events counted by pass, ms cpu"
        reached = print_bars([at_most(what, processor, BAR_MS)])
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
