"""A large ledger, filled as if by months of training: datasets, runs, and entries of every day.

Everything goes through the service's own write path; what a day recorded is written at once.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final
from unittest.mock import patch

from sqlalchemy import Connection, Engine, func, select

from accounting.events import Event
from service.clock import now
from service.ledger import dataset_settings, lookups, views
from service.ledger.append.admission import PositionedSpan
from service.ledger.append.append import Append
from service.ledger.append.unit_of_work import DatasetCache, UnitOfWork
from service.ledger.budgets.cost_cache import (
    Quote,
    UnpricedBeforeError,
    cached_costs_only,
    compute_costs,
)
from service.ledger.datasets import create_dataset
from service.ledger.runs import create_run, finish_run
from service.schemas.event_codec import to_event
from service.schemas.requests import DatasetChange, EventMessage, NewDataset, NewRun
from service.storage.engine import transaction
from service.storage.tables import datasets, entries, runs
from service.web.server import SWEEP_AFTER

DATASETS: Final = 200
RUNS: Final = 25  # of each dataset
ENTRIES: Final = 1_000_000
LARGEST: Final = 0.1  # of all entries, about, in the first dataset
DAYS: Final = 90  # that the ledger's time runs
ACTIVE_DAYS: Final = 10  # of a run
STEPS: Final = 20  # of an entry, on average
LONG_STEPS: Final = 1_000_000  # of the longest run, and entries of the one in pieces
BATCH: Final = 1000  # events of a request
AT_ONCE: Final = 20  # requests of such a batch in one transaction
DATASET_SIZE: Final = 60_000
PIECES: Final = "run-in-pieces"  # ends the name of the run of many entries
WRITER: Final = "writer-of-the-dashboard"
NOISES: Final = (0.8, 0.9, 1.0, 1.1, 1.3, 1.6)
RATES: Final = (0.0042, 0.0085)
LIMITS: Final = (2.0, 4.0, 8.0, 8.0, 16.0, None)
SUBJECTS: Final = ("letters", "scans", "visits", "clicks", "voices", "claims", "photos", "notes")
_CLOCKS: Final = (
    "runs", "branches", "datasets", "incidents", "append.state_rows", "append.append",
)  # fmt: skip
Json = dict[str, Any]


@contextmanager
def at(moment: datetime) -> Iterator[None]:
    """What is written inside is written as if at that time."""
    with ExitStack() as stack:
        for name in _CLOCKS:
            target = f"service.ledger.{name}.now"
            stack.enter_context(patch(target, lambda: moment, create=True))
        yield


def event(noise: float, rate: float) -> EventMessage:
    """A step of DP-SGD."""
    return EventMessage.model_validate(
        {
            "first_step": 0,
            "steps": 1,
            "mechanism": {"kind": "gaussian", "noise_multiplier": noise},
            "sampling": {"kind": "poisson", "sampling_probability": rate},
        }
    )


@dataclass(frozen=True, slots=True)
class Kind:
    """Steps of one kind, as they are sent and as accounting sees them."""

    message: EventMessage
    event: Event

    def at(self, first_step: int, steps: int) -> EventMessage:
        """So many of them at their place; what they are was checked before."""
        return self.message.model_copy(update={"first_step": first_step, "steps": steps})


def kind(noise: float, rate: float) -> Kind:
    """Steps of DP-SGD."""
    message = event(noise, rate)
    return Kind(message, to_event(message, dataset_size=DATASET_SIZE, location="events"))


@dataclass
class Job:
    """A run while its dataset is filled."""

    name: str
    kinds: Sequence[Kind]  # in turn, so that no entries merge
    begins: int = 0  # a day
    entries_a_day: int = 0
    next_step: int = 0

    def requests(self, count: int, steps: int) -> Iterator[Append]:
        """The next entries, of so many steps each."""
        for begin in range(0, count, BATCH):
            yield self._request(min(BATCH, count - begin), steps)

    def _request(self, count: int, steps: int) -> Append:
        events, placed = [], []
        for index in range(count):
            one, first = self.kinds[index % len(self.kinds)], self.next_step
            events.append(one.at(first, steps))
            placed.append(
                PositionedSpan(first_step=first, steps=steps, event=one.event, index=index)
            )
            self.next_step += steps
        return Append(
            run_name=self.name, branch_name="main", mode="record", events=events, placed=placed
        )


@dataclass
class Filler:
    """Fills a ledger, one day after another."""

    engine: Engine
    ends: datetime
    random: Random = field(default_factory=lambda: Random(20))
    cache: DatasetCache = field(default_factory=DatasetCache)
    known: dict[Quote, Any] = field(default_factory=dict)  # prices

    def moment(self, day: int) -> datetime:
        """Some time of a day."""
        return self.ends - timedelta(days=DAYS - day, minutes=self.random.randrange(60))

    def register(self, numbers: Sequence[int], runs_of_each: int) -> dict[int, list[Job]]:
        """Datasets with their runs."""
        found: dict[int, list[Job]] = {}
        with transaction(self.engine) as connection, at(self.moment(0)):
            for number in numbers:
                name = self._create(connection, number)
                found[number] = [
                    self._run(connection, name, index) for index in range(runs_of_each)
                ]
        return found

    def _create(self, connection: Connection, number: int) -> str:
        name, limit = name_of(number), LIMITS[number % len(LIMITS)]
        body: Json = {
            "name": name,
            "dataset_size": DATASET_SIZE,
            "neighboring_relation": "add_or_remove_one",
            "privacy_unit": "example",
        }
        if limit is not None:
            body["budget"] = {"epsilon": limit, "delta": 1e-5}
        if number % 10 in (1, 2):  # two children of each tenth
            body["parents"] = [name_of(number - number % 10)]
            body["rows_per_parent_record"] = "at_most_one"
        create_dataset(connection, NewDataset.model_validate(body), by="officer")
        return name

    def _run(self, connection: Connection, dataset: str, index: int) -> Job:
        name = f"{dataset}-run-{index:02}"
        body: Json = {"name": name, "writer": WRITER, "dataset": dataset, "delta": 1e-5}
        new = NewRun.model_validate(body | {"labels": {"team": f"team-{index % 4}"}})
        create_run(connection, new)
        kinds = [kind(self.random.choice(NOISES), rate) for rate in RATES]
        return Job(name, kinds, begins=1 + index * (DAYS - ACTIVE_DAYS) // RUNS)

    def record(self, day: int, jobs: Sequence[Job]) -> None:
        """What a day's runs record."""
        active = [job for job in jobs if job.begins <= day < job.begins + ACTIVE_DAYS]
        asked = [
            one
            for job in active
            for one in job.requests(job.entries_a_day, self.random.randint(1, 2 * STEPS))
        ]
        self.append(asked, self.moment(day))

    def append(self, asked: Sequence[Append], moment: datetime) -> None:
        """Record requests in one transaction."""
        if not asked:
            return
        with at(moment), transaction(self.engine) as connection:
            work = self.cache.open(connection, [one.place for one in asked])
            for one in asked:
                self._apply(work, one, moment)
            work.write()
        self.cache.settle({one.run_name for one in asked})

    def _apply(self, work: UnitOfWork, asked: Append, moment: datetime) -> None:
        """Record a request; what it costs is worked out in between, for nobody else waits."""
        while True:
            try:
                with cached_costs_only(self.known):
                    asked.apply(work, moment)
                return
            except UnpricedBeforeError as lacking:  # nothing of it was recorded
                self.known |= compute_costs(lacking.wanted)

    def raise_limits(self, day: int, numbers: Sequence[int]) -> None:
        """Raise what limits there are."""
        with transaction(self.engine) as connection, at(self.moment(day)):
            for number in numbers:
                if (limit := LIMITS[number % len(LIMITS)]) is not None:
                    more = {"epsilon": 1.5 * limit, "delta": 1e-5}
                    given = {"reason": "More was collected.", "budget": more}
                    change = DatasetChange.model_validate(given)
                    name = name_of(number)
                    dataset_settings.change(connection, name, change, if_match='"1"', by="officer")

    def finish(self, jobs: Sequence[Job]) -> None:
        """Close runs, some as aborted."""
        with transaction(self.engine) as connection:
            for job in jobs:
                state = "aborted" if self.random.random() < 0.1 else "finished"
                finish_run(connection, job.name, state)

    def long(self, name: str) -> None:
        """Make a run a million steps longer, in one entry."""
        with transaction(self.engine) as connection:
            row = lookups.find_run(connection, name)
            (main,) = views.run_answer(connection, row).branches
        job = Job(name, [kind(20.0, 0.001)], next_step=main.next_step)
        self.append(list(job.requests(1, LONG_STEPS)), self.ends)

    def separate(self, dataset: str, count: int) -> str:
        """A run of so many entries of one step each; its name."""
        name = f"{dataset}-{PIECES}"
        body: Json = {"name": name, "writer": WRITER, "dataset": dataset, "delta": 1e-5}
        with transaction(self.engine) as connection:
            create_run(connection, NewRun.model_validate(body))
        job = Job(name, [kind(noise, 0.001) for noise in (20.0, 24.0)])
        for begin in range(0, count, AT_ONCE * BATCH):
            self.append(list(job.requests(min(AT_ONCE * BATCH, count - begin), 1)), self.ends)
        return name


def name_of(number: int) -> str:
    """The name of a dataset."""
    return f"{SUBJECTS[number % len(SUBJECTS)]}-{number:03}"


@contextmanager
def _rarely_swept() -> Iterator[None]:
    """Memory is swept as seldom as by a service: it holds a million things and no cycles."""
    before = gc.get_threshold()
    gc.set_threshold(*SWEEP_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _quiet(_said: str) -> None:
    """Say nothing."""


def fill(
    engine: Engine,
    *,
    count: int = DATASETS,
    runs_of_each: int = RUNS,
    total: int = ENTRIES,
    separate: int = 0,
    say: Callable[[str], None] = _quiet,
) -> None:
    """A ledger of datasets with runs, and so many entries in all at least.

    Args:
        engine: of a database with the schema and nothing else.
        count: of datasets.
        runs_of_each: of each dataset.
        total: entries.
        separate: entries of one more run, each of one step; none for no such run.
        say: told now and then how far it is.
    """
    with _rarely_swept():
        _fill(engine, count, runs_of_each, total, separate, say)


def _fill(
    engine: Engine,
    count: int,
    runs_of_each: int,
    total: int,
    separate: int,
    say: Callable[[str], None],
) -> None:
    filler = Filler(engine, now())
    started = time.perf_counter()
    jobs = filler.register(range(count), runs_of_each)
    say(f"registered after {time.perf_counter() - started:.0f} s")
    days = runs_of_each * ACTIVE_DAYS  # of all runs of a dataset
    usual = int((1 - LARGEST) * total) // max(1, count - 1) // days
    largest = -(-(total - usual * days * (count - 1)) // days)  # whatever is left
    for number, own in jobs.items():
        for job in own:
            job.entries_a_day = max(1, usual if number else largest)
    for day in range(1, DAYS):
        filler.record(day, [job for own in jobs.values() for job in own])
        if day == DAYS // 2:
            filler.raise_limits(day, range(count))
        if day % 10 == 0:
            say(f"day {day} after {time.perf_counter() - started:.0f} s")
    filler.finish([job for own in jobs.values() for job in own[: -runs_of_each // 5 or None]])
    filler.long(f"{name_of(0)}-run-{runs_of_each - 1:02}")
    if separate:
        filler.separate(name_of(count - 1), separate)
    say(f"{sizes(engine)} after {time.perf_counter() - started:.0f} s")


def sizes(engine: Engine) -> str:
    """What the ledger holds."""
    with engine.connect() as connection:
        found = [
            connection.scalar(select(func.count()).select_from(table))
            for table in (datasets, runs, entries)
        ]
    return "{:,} datasets, {:,} runs, {:,} entries".format(*found)
