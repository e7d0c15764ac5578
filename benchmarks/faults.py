"""A fault campaign: real workers, real trainers, and everything under them broken in turn.

    python benchmarks/faults.py [--minutes 5] [--only NAME] [--seed 1]

Trainers send step after step, and each step again until it is acknowledged; a reader asks for
guarantees all the while. Each fault is caused as often as its share of the time allows. After each,
when all trainers have gone on, the ledger is compared with what they remember: no acknowledged step
may be missing, none may be counted twice, and every guarantee that was answered must be that of the
steps it names, of which none that was acknowledged before may be missing.
"""

import argparse
import statistics
import sys
import time
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, which hides the package `service`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.fault_kinds import FAULTS, POSTGRES, SQLITE, Fault
from benchmarks.fault_sites import Site, postgres_site, sqlite_site
from benchmarks.fault_trainers import WRONG, Reader, Trainer, check, open_dataset
from benchmarks.servers import ServerError, mark

TRAINERS: Final = 4  # of two datasets
WARM_SECONDS: Final = 0.3  # of training before a fault
GO_ON_SECONDS: Final = 90.0  # by which every trainer has gone on
STEP_SECONDS: Final = 0.01  # between two steps of a trainer
SHOWN: Final = 10  # of what was wrong
SAID_MAX: Final = 1000  # characters of a log that ended
STUCK: Final = "did not go on"
SURPRISE: Final = "another answer"


@dataclass(slots=True)
class Row:
    """What one fault came to."""

    fault: Fault
    database: str
    times: int = 0
    acknowledged: int = 0
    refused: int = 0  # attempts that were answered 503 or not at all
    answered: int = 0  # guarantees, while the faults lasted
    wrong: Counter[str] = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def note(self, faults: list[str]) -> None:
        """Count what is wrong by its first words."""
        self.wrong.update(one.partition(":")[0] for one in faults)
        self.said += faults

    def cells(self) -> list[object]:
        """As a line of the table."""
        half = f"{statistics.median(self.recoveries):.2f}" if self.recoveries else "-"
        most = f"{max(self.recoveries):.2f}" if self.recoveries else "-"
        counts = [self.wrong[one] for one in (*WRONG, SURPRISE, STUCK)]
        done = [self.times, self.acknowledged, self.refused, self.answered]
        return [*done, *counts, half, most]


HEAD: Final = (
    "times", "acknowledged", "refused", "answered", "lost", "doubled", "epsilon", "answers",
    "stuck", "median s", "most s",
)  # fmt: skip


def once(site: Site, row: Row) -> None:
    """Cause a fault under training, and compare."""
    site.wait()
    names = [mark("faults") for _ in range(2)]
    for name in names:
        open_dataset(site.ports[0], name)
    # Each tries its own worker first, so that all are in use when the fault comes.
    turns = [site.ports[n % 2 :] + site.ports[: n % 2] for n in range(TRAINERS)]
    trainers = [
        Trainer(ports, names[n // 2], pause_seconds=STEP_SECONDS) for n, ports in enumerate(turns)
    ]
    reader = Reader(trainers[0])
    for one in trainers:
        one.open()
    parts: list[Trainer | Reader] = [*trainers, reader]
    for part in parts:
        part.start()
    try:
        time.sleep(WARM_SECONDS * (1 + site.random.random()))
        with row.fault.cause(site):
            row.times += 1
        over = time.monotonic()
        recovered = [_wait_for(one, over) for one in trainers]
    finally:
        for part in parts:
            part.stop()
    row.recoveries += [max(found) for found in [[r for r in recovered if r is not None]] if found]
    row.note([f"{STUCK}: a trainer" for found in recovered if found is None])
    site.wait()
    row.note(check(site.ports[0], trainers) + reader.faults)
    for one in trainers:
        row.acknowledged += one.acknowledged
        row.refused += one.answers.total() - one.acknowledged
        odd = set(one.answers) - row.fault.answers
        row.note([f"{SURPRISE}: {status}" for status in sorted(odd, key=str)])
    row.answered += reader.answered


def _wait_for(trainer: Trainer, over: float) -> float | None:
    """How long after the fault a trainer's next step was acknowledged."""
    while time.monotonic() < over + GO_ON_SECONDS:
        if (at := trainer.first_after(over)) is not None:
            return at - over
        time.sleep(0.01)
    return None


def campaign(
    name: str, opened: AbstractContextManager[Site], rows: list[Row], seconds: float
) -> None:
    """Cause the faults of one database in turn, again and again until the time is over."""
    with opened as site:
        end = time.monotonic() + seconds
        first = True
        while first or time.monotonic() < end:
            for row in rows:
                if first or time.monotonic() < end:
                    once(site, row)
            first = False
    print(f"{name}: done", flush=True)


def show(rows: list[Row]) -> bool:
    """The table; whether nothing is wrong."""
    print(f"\n{'database':<11} {'fault':<23} " + " ".join(f"{one:>12}" for one in HEAD))
    for row in rows:
        cells = " ".join(f"{cell!s:>12}" for cell in row.cells())
        print(f"{row.database:<11} {row.fault.name:<23} {cells}")
    times, steps = sum(row.times for row in rows), sum(row.acknowledged for row in rows)
    wrong = sum((row.wrong for row in rows), Counter[str]())
    print(f"\n{times} faults, {steps} steps acknowledged, wrong: {dict(wrong) or 'nothing'}")
    for row in rows:
        for one in row.said[:SHOWN]:
            print(f"{row.database} {row.fault.name}: {one}")
    return not wrong


def main() -> int:
    """Run the campaign, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", choices=sorted({one.name for one in FAULTS}))
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if not 0 < asked.minutes <= 24 * 60:
        parser.error("--minutes lies in (0, 1440]")
    rows = [
        Row(fault, database)
        for database in (SQLITE, POSTGRES)
        for fault in FAULTS
        if database in fault.databases and asked.only in (None, fault.name)
    ]
    random = Random(asked.seed)
    sites = {SQLITE: sqlite_site, POSTGRES: postgres_site}
    with TemporaryDirectory(prefix="dpledger-faults-") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL may run as another user
        for database, opened in sites.items():
            mine = [row for row in rows if row.database == database]
            if not mine:
                continue
            place = Path(folder) / database.lower()
            place.mkdir()
            share = 60 * asked.minutes * len(mine) / len(rows)
            try:
                campaign(database, opened(place, random), mine, share)
            except ServerError as error:
                mine[0].note([f"{STUCK}: {str(error)[-SAID_MAX:]}"])
    return 0 if show(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
