"""What an append costs whose noise was never seen, beside the same noise again: milliseconds.

    .venv/bin/python benchmarks/new_noises.py [--noises 240] [--rounds 5]

The service is `dpledger serve`, a process of its own: once on SQLite, and once on PostgreSQL where
there is a server. One client appends one step at a time, over one connection. In each round a run
on a dataset of its own records so many noises that the service never saw, then the same noises
again, then as many steps of one noise. The ratio is that of the medians of a round; the median
round is held against the bar.
"""

import argparse
import http.client
import random
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.bars import Bar, at_most, print_bars
from benchmarks.conditions import conditions
from benchmarks.servers import (
    ServerError,
    databases,
    mark,
    migrated,
    new_dataset,
    new_run,
    running,
    service,
)

TIMES_OF_KNOWN: Final = 2.0
WARM: Final = 50  # steps before each round is measured
BODY: Final = (
    '{"events":[{"first_step":%d,"steps":1,'
    '"mechanism":{"kind":"gaussian","noise_multiplier":%r},'
    '"sampling":{"kind":"poisson","sampling_probability":0.01}}]}'
)
ROW: Final = "{:<12} {:>6} {:>9} {:>9} {:>9} {:>9}"


class Trainer:
    """Appends one step after another to a run of its own."""

    def __init__(self, port: int, key: str) -> None:
        dataset, run = mark("dataset"), mark("run")
        new_dataset(port, dataset, key)
        new_run(port, run, dataset, key)
        self._path = f"/v1/runs/{run}/events"
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._steps = 0

    def median_of(self, noises: list[float]) -> float:
        """The milliseconds of an append, the median of one step of each noise.

        Raises:
            ServerError: one was refused.
        """
        taken = []
        for noise in noises:
            body = BODY % (self._steps, noise)
            before = time.perf_counter()
            self._connection.request("POST", self._path, body, self._headers)
            answer = self._connection.getresponse()
            text = answer.read()
            taken.append(1e3 * (time.perf_counter() - before))
            if answer.status != http.client.CREATED:
                raise ServerError(f"An append answered {answer.status}: {text!r}")
            self._steps += 1
        return median(taken)


def rounds_of(port: int, key: str, name: str, noises: int, rounds: int) -> float:
    """Print the milliseconds of each round; the median of what a new noise costs over a known."""
    ratios = []
    for number in range(rounds):
        trainer = Trainer(port, key)
        trainer.median_of([1.5] * WARM)
        least = random.uniform(1, 3)
        drawn = [least + at / 1e3 for at in range(noises)]
        new, again, one = (trainer.median_of(some) for some in (drawn, drawn, [1.5] * noises))
        ratios.append(new / again)
        print(ROW.format(name, number, *(f"{cost:.2f}" for cost in (new, again, one, ratios[-1]))))
    return median(ratios)


def main() -> int:
    """Print the table, and whether the bar holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--noises", type=int, default=240)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    bars: list[Bar] = []
    with TemporaryDirectory() as name, conditions(), databases(folder := Path(name)) as urls:
        print(ROW.format("database", "round", "new", "again", "one", "ratio"))
        for database, url in urls.items():
            key, server = migrated(url), service(url, folder)
            with running(server):
                ratio = rounds_of(server.port, key, database, given.noises, given.rounds)
            what = f"{database}: a noise never seen beside a known one, times"
            bars.append(at_most(what, ratio, TIMES_OF_KNOWN))
    return 0 if print_bars(bars) else 1


if __name__ == "__main__":
    sys.exit(main())
