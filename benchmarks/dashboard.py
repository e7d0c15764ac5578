"""The dashboard on a ledger of some size: how long the server takes for each of its pages.

    python benchmarks/dashboard.py fill --database sqlite:////tmp/big.db
    python benchmarks/dashboard.py pages --database sqlite:////tmp/big.db [--path /planner ...]

The ledger is filled by the service's own write path, as if over some months: 200 datasets of 25
runs, a million entries. Pages are then asked of a real server in open mode, one after another.
"""

import argparse
import http.client
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, which hides the package `service`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sqlalchemy import Engine, func, select

from benchmarks.load import quantile
from benchmarks.servers import running, service
from service import catalog, registration, schema_version, settings_changes
from service.clock import now
from service.database import connect, transaction
from service.ledger import Append
from service.pricing import settled
from service.schemas import DatasetChange, EventMessage, NewDataset, NewRun
from service.shelf import Desk, Shelf
from service.tables import datasets, entries, runs

DATASETS: Final = 200
RUNS: Final = 25  # of each dataset
ENTRIES: Final = 1_000_000
LARGEST: Final = 0.1  # of all entries, in the first dataset
DAYS: Final = 90  # that the ledger's time runs
ACTIVE_DAYS: Final = 10  # of a run
STEPS: Final = 20  # of an entry, on average
LONG_STEPS: Final = 1_000_000  # of the first run
WRITER: Final = "writer-of-the-dashboard"
NOISES: Final = (0.8, 0.9, 1.0, 1.1, 1.3, 1.6)
RATES: Final = (0.0042, 0.0085)
LIMITS: Final = (2.0, 4.0, 8.0, 8.0, 16.0, None)
SUBJECTS: Final = ("letters", "scans", "visits", "clicks", "voices", "claims", "photos", "notes")
PAGES: Final = (
    "/", "/datasets", "/datasets?name=scans", "/datasets/{dataset}", "/datasets/{largest}", "/runs",
    "/runs?dataset={dataset}&state=active", "/runs/{run}", "/runs/{longest}", "/planner",
    "/theorems", "/compare?runs={run},{other},{longest}",
    "/runs/{run}/report", "/datasets/{dataset}/report",
)  # fmt: skip
_CLOCKS: Final = ("registration", "branching", "origins", "book_rows", "incidents", "ledger")
Json = dict[str, Any]


@contextmanager
def at(moment: datetime) -> Iterator[None]:
    """What is written inside is written as if at that time."""
    with ExitStack() as stack:
        for name in _CLOCKS:
            target = f"service.{name}.now"
            stack.enter_context(patch(target, lambda: moment, create=True))
        yield


def event(noise: float, rate: float, first_step: int, steps: int) -> EventMessage:
    """Some steps of DP-SGD."""
    return EventMessage.model_validate(
        {
            "first_step": first_step,
            "steps": steps,
            "mechanism": {"kind": "gaussian", "noise_multiplier": noise},
            "sampling": {"kind": "poisson", "sampling_probability": rate},
        }
    )


@dataclass
class Job:
    """A run while its dataset is filled."""

    name: str
    begins: int  # a day
    kinds: Sequence[tuple[float, float]]  # noise and rate, in turn, so that no entries merge
    next_step: int = 0

    def events(self, count: int, steps: int) -> list[EventMessage]:
        """The next entries."""
        found: list[EventMessage] = []
        for _ in range(count):
            noise, rate = self.kinds[len(found) % len(self.kinds)]
            found.append(event(noise, rate, self.next_step, steps))
            self.next_step += steps
        return found


@dataclass
class Filler:
    """Fills one dataset after another."""

    engine: Engine
    random: random.Random
    ends: datetime
    shelf: Shelf

    def moment(self, day: int) -> datetime:
        """Some time of a day."""
        return self.ends - timedelta(days=DAYS - day, minutes=self.random.randrange(60))

    def dataset(self, number: int, *, runs_of_each: int, count: int) -> str:
        """A dataset with its runs and so many entries."""
        name = f"{SUBJECTS[number % len(SUBJECTS)]}-{number:03}"
        limit = LIMITS[number % len(LIMITS)]
        with at(self.moment(0)):
            self._create(name, number, limit)
            jobs = [self._run(name, index) for index in range(runs_of_each)]
        each = max(1, count // (runs_of_each * ACTIVE_DAYS))
        for day in range(1, DAYS):
            active = [job for job in jobs if job.begins <= day < job.begins + ACTIVE_DAYS]
            self._append(active, each, self.moment(day))
            if day == DAYS // 2 and limit is not None:
                with at(self.moment(day)):
                    self._raise(name, limit)
        with transaction(self.engine) as connection:
            for job in jobs[: -runs_of_each // 5 or None]:
                state = "aborted" if self.random.random() < 0.1 else "finished"
                registration.finish_run(connection, job.name, state)
        return name

    def _create(self, name: str, number: int, limit: float | None) -> None:
        body: Json = {
            "name": name,
            "dataset_size": 60_000,
            "neighboring_relation": "add_or_remove_one",
            "privacy_unit": "example",
        }
        if limit is not None:
            body["budget"] = {"epsilon": limit, "delta": 1e-5}
        if number % 10 in (1, 2):  # two children of each tenth
            parent = number - number % 10
            body["parents"] = [f"{SUBJECTS[parent % len(SUBJECTS)]}-{parent:03}"]
            body["rows_per_parent_record"] = "at_most_one"
        new = NewDataset.model_validate(body)
        with transaction(self.engine) as connection:
            registration.create_dataset(connection, new, by="officer")

    def _run(self, dataset: str, index: int) -> Job:
        name = f"{dataset}-run-{index:02}"
        body: Json = {"name": name, "writer": WRITER, "dataset": dataset, "delta": 1e-5}
        new = NewRun.model_validate(body | {"labels": {"team": f"team-{index % 4}"}})
        with transaction(self.engine) as connection:
            registration.create_run(connection, new)
        kinds = [(self.random.choice(NOISES), RATES[0]), (self.random.choice(NOISES), RATES[1])]
        return Job(name, begins=1 + index * (DAYS - ACTIVE_DAYS) // RUNS, kinds=kinds)

    def _append(self, jobs: Sequence[Job], each: int, moment: datetime) -> None:
        asked = []
        for job in jobs:
            steps = self.random.randint(1, 2 * STEPS)
            for begin in range(0, each, 1000):
                events = job.events(min(1000, each - begin), steps)
                asked.append(
                    Append(run_name=job.name, branch_name="main", mode="record", events=events)
                )
        if not asked:
            return

        def work() -> None:
            with transaction(self.engine) as connection:
                desk: Desk = self.shelf.open(connection, [one.place for one in asked])
                for one in asked:
                    one.apply(desk, moment)
                desk.write()

        with at(moment):
            settled(work)
        self.shelf.settle({one.run_name for one in asked})

    def _raise(self, name: str, limit: float) -> None:
        change = DatasetChange.model_validate(
            {"reason": "More was collected.", "budget": {"epsilon": 1.5 * limit, "delta": 1e-5}}
        )
        with transaction(self.engine) as connection:
            settings_changes.change(connection, name, change, if_match='"1"', by="officer")

    def long(self, name: str) -> None:
        """Make a run a million steps long, in one entry."""
        job = Job(name, begins=0, kinds=[(20.0, 0.001)])
        with transaction(self.engine) as connection:
            row = catalog.find_run(connection, name)
            (main,) = catalog.run_answer(connection, row).branches
        job.next_step = main.next_step
        asked = Append(
            run_name=name, branch_name="main", mode="record", events=job.events(1, LONG_STEPS)
        )
        with transaction(self.engine) as connection:
            desk = self.shelf.open(connection, [asked.place])
            asked.apply(desk, self.ends)
            desk.write()


def fill(engine: Engine, *, count: int, runs_of_each: int, total: int) -> None:
    """A ledger of datasets with runs, and about so many entries in all."""
    filler = Filler(engine, random.Random(20), now(), Shelf())
    largest = int(LARGEST * total)
    rest = (total - largest) // max(1, count - 1)
    started = time.perf_counter()
    for number in range(count):
        entries_of = largest if number == 0 else rest
        filler.dataset(number, runs_of_each=runs_of_each, count=entries_of)
        if number % 10 == 0:
            print(f"{number:>5} datasets after {time.perf_counter() - started:.0f} s", flush=True)
    filler.long(f"{SUBJECTS[0]}-000-run-{runs_of_each - 1:02}")


def places(engine: Engine) -> dict[str, str]:
    """What the paths of pages name: something usual, and the largest there is."""
    with engine.connect() as connection:
        heads = select(datasets.c.name).order_by(datasets.c.head_sequence.desc(), datasets.c.id)
        by_size = connection.scalars(heads).all()
        dataset = by_size[len(by_size) // 2]
        own = select(runs.c.name).join(datasets, datasets.c.id == runs.c.dataset_id)
        names = connection.scalars(own.where(datasets.c.name == dataset).order_by(runs.c.id)).all()
        longest = connection.scalar(
            select(runs.c.name)
            .join(entries, entries.c.run_id == runs.c.id)
            .where(entries.c.steps >= LONG_STEPS)
            .limit(1)
        )
    return {
        "dataset": dataset,
        "largest": by_size[0],
        "run": names[-1],
        "other": names[0],
        "longest": longest or names[0],
    }


def sizes(engine: Engine) -> str:
    """What the ledger holds."""
    with engine.connect() as connection:
        found = [
            connection.scalar(select(func.count()).select_from(table))
            for table in (datasets, runs, entries)
        ]
    return "{:,} datasets, {:,} runs, {:,} entries".format(*found)


def timed(port: int, path: str, repeats: int) -> tuple[int, list[float], int]:
    """The status of a page, the seconds of each answer, and its bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    seconds = []
    status = length = 0
    try:
        for _ in range(repeats):
            started = time.perf_counter()
            connection.request("GET", path)
            answer = connection.getresponse()
            length = len(answer.read())
            seconds.append(time.perf_counter() - started)
            status = answer.status
    finally:
        connection.close()
    return status, seconds, length


def measure(url: str, paths: Sequence[str], repeats: int) -> bool:
    """Ask every page and print what it took; whether each was answered and fast enough."""
    engine = connect(url)
    named = places(engine)
    print(sizes(engine))
    engine.dispose()
    print(f"{'page':<56} {'status':>6} {'first':>7} {'median':>7} {'p95':>7} {'cpu':>6} {'kB':>6}")
    well = True
    with TemporaryDirectory(prefix="dpledger-dashboard-") as folder:
        server = service(url, Path(folder))
        with running(server):
            for path in paths:
                asked = path.format(**named)
                _, (first,), _ = timed(server.port, asked, 1)
                began = server.processor_seconds()
                status, later, length = timed(server.port, asked, repeats)
                cpu = (server.processor_seconds() - began) / repeats
                median = 1000 * statistics.median(later)
                well = well and status == http.client.OK and median <= PAGE_MS
                print(
                    f"{asked:<56} {status:>6} {1000 * first:>7.1f} {median:>7.1f}"
                    f" {quantile(later, 0.95):>7.1f} {1000 * cpu:>6.1f} {length / 1000:>6.1f}",
                    flush=True,
                )
    print("In milliseconds; cpu is the server's processor time a page, whatever else runs here.")
    return well


PAGE_MS: Final = 60.0  # the median that a page may take


def arguments() -> argparse.Namespace:
    """What the caller asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("action", choices=("fill", "pages"))
    parser.add_argument("--database", required=True, help="the address of a database without keys")
    parser.add_argument("--datasets", type=int, default=DATASETS)
    parser.add_argument("--runs", type=int, default=RUNS, help="of each dataset")
    parser.add_argument("--entries", type=int, default=ENTRIES, help="in all")
    parser.add_argument("--path", action="append", help="a page; {dataset} and {run} are filled in")
    parser.add_argument("--repeats", type=int, default=30)
    return parser.parse_args()


def main() -> int:
    """Fill a ledger, or ask its pages."""
    asked = arguments()
    if asked.action == "pages":
        return 0 if measure(asked.database, asked.path or PAGES, asked.repeats) else 1
    engine = connect(asked.database)
    schema_version.upgrade(engine)
    fill(engine, count=asked.datasets, runs_of_each=asked.runs, total=asked.entries)
    print(sizes(engine))
    engine.dispose()
    return 0


if __name__ == "__main__":
    sys.exit(main())
