"""Ledgers as they really come to be: by the service's own write path, with all that may happen.

Processes are shelves of books: as many as are given share the database, in turns.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection, Engine, select

from service.clock import now
from service.errors import LedgerError
from service.ledger import dataset_settings, findings
from service.ledger.append.append import Append
from service.ledger.append.unit_of_work import DatasetCache
from service.ledger.branches import create_branch
from service.ledger.corrections import Correct
from service.ledger.datasets import create_dataset
from service.ledger.fixed_plans import certify_plan
from service.ledger.reservation_ends import GiveBack
from service.ledger.reservations import Reserve, find_reservation
from service.ledger.runs import create_run, finish_run, record_release
from service.schemas.findings import BatchSizesFinding, RankFinding, SamplingFinding
from service.schemas.requests import (
    DatasetChange,
    EventMessage,
    NewBranch,
    NewCorrection,
    NewDataset,
    NewRelease,
    NewReservation,
    NewRun,
)
from service.storage.engine import transaction
from service.storage.tables import branches, datasets, reservations, runs

Json = dict[str, Any]
WRITER: Final = "writer-of-the-campaign"
EVENTS: Final[list[Json]] = [
    {
        "mechanism": {"kind": "gaussian", "noise_multiplier": noise},
        "sampling": sampling,
    }
    for noise in (1.1, 20.0)
    for sampling in (
        {"kind": "full"},
        {"kind": "poisson", "sampling_probability": 0.01},
        {"kind": "cyclic", "batch_size": 20000, "steps_per_pass": 3},  # three steps a pass
    )
]
LIMITS: Final = (None, {"epsilon": 3.0, "delta": 1e-5}, {"epsilon": 40.0, "delta": 1e-6})
DOES_OFTEN: Final = 6  # of ten things that happen, how many are appends


@dataclass
class Maker:
    """One dataset at a time, in a database that is shared by several processes."""

    engine: Engine
    random: random.Random
    shelves: list[DatasetCache] = field(default_factory=lambda: [DatasetCache(), DatasetCache()])
    runs: dict[str, list[str]] = field(default_factory=dict)  # their branches
    leases: list[str] = field(default_factory=list)
    refused: int = 0
    _turn: int = 0
    _named: int = 0
    _rare: int = 0
    _keys: int = 0

    def dataset(self, name: str, happenings: int, *, parent: str | None = None) -> None:
        """A dataset to which as many things happen."""
        body: Json = {
            "name": name,
            "dataset_size": 60000,
            "neighboring_relation": "replace_special",
            "privacy_unit": "example",
        }
        limit = self.random.choice(LIMITS)
        if limit:
            body["budget"] = limit
        if parent:
            body |= {"parents": [parent], "rows_per_parent_record": "exactly_one"}
        if self.random.random() < 0.3:
            body["opening_balance"] = [EVENTS[1] | {"steps": 7}, EVENTS[2] | {"steps": 4}]
        new = NewDataset.model_validate(body)
        self._plainly(lambda found: create_dataset(found, new, by="officer"))
        self.runs, self.leases = {}, []
        for index in range(self.random.randint(2, 3)):
            self._run(name, f"{name}-{'abc'[index]}")
        for _ in range(happenings):
            self._happens(name)

    def _run(self, dataset: str, name: str) -> None:
        body: Json = {"name": name, "writer": WRITER, "dataset": dataset, "delta": 1e-5}
        if self.random.random() < 0.3:
            plan = [EVENTS[4] | {"steps": 9}, EVENTS[5] | {"steps": 6}]
            body |= {"plan": plan, "budget": {"epsilon": 9.0, "delta": 1e-5}}
        elif self.random.random() < 0.3:
            body |= {"budget": LIMITS[1], "labels": {"team": "letters"}}
        new = NewRun.model_validate(body)

        def register(connection: Connection) -> None:
            certificate = certify_plan(connection, new)
            create_run(connection, new, certificate=certificate, by=self._key())

        if self._plainly(register):
            self.runs[name] = ["main"]

    # ---- how it is written

    def _plainly(self, work: Callable[[Connection], object]) -> bool:
        """In a transaction of its own; whether it was not refused."""
        try:
            with transaction(self.engine) as connection:
                work(connection)
        except LedgerError:
            self.refused += 1
            return False
        return True

    def _together(self, requests: Sequence[Any]) -> None:
        """As one group, by the next process."""
        self._turn += 1
        cache = self.shelves[self._turn % len(self.shelves)]
        with transaction(self.engine) as connection:
            work = cache.open(connection, [one.place for one in requests])
            for one in requests:
                past = now() - timedelta(days=self.random.choice((0, 0, 0, 1)))
                try:
                    one.apply(work, past)
                except LedgerError:
                    self.refused += 1
            work.write()
        cache.settle(one.place[0] for one in requests)

    # ---- what happens

    def _happens(self, dataset: str) -> None:
        if not self.runs:
            return
        run = self.random.choice(list(self.runs))
        branch = self.random.choice(self.runs[run])
        if self.random.randrange(10) < DOES_OFTEN:
            group: list[Any] = [self._append(run, branch)]
            if self.random.random() < 0.3:
                other = self.random.choice(list(self.runs))
                group += [self._reserve(run, branch), self._append(other, "main")]
            self._together(group)
            return
        rarer = (
            self._branch, self._correct, self._settings, self._release, self._finding,
            self._lease, self._finish,
        )  # fmt: skip
        self._rare += 1  # in turn, so that a few dozen happenings are of every kind
        rarer[self._rare % len(rarer)](dataset, run, branch)

    def _next(self, run: str, branch: str) -> tuple[int, int]:
        """Where a branch begins, and where it stands."""
        query = (
            select(branches.c.from_step, branches.c.next_step)
            .join(runs, runs.c.id == branches.c.run_id)
            .where(runs.c.name == run, branches.c.name == branch)
        )
        with self.engine.connect() as connection:
            row = connection.execute(query).one()
        return row.from_step, row.next_step

    def _append(self, run: str, branch: str) -> Append:
        begin, first = self._next(run, branch)
        if self.random.random() < 0.1:  # sent again
            first = max(begin, first - 3)
        messages = []
        for _ in range(self.random.randint(1, 4)):
            steps = self.random.randint(1, 9)
            body = {"first_step": first, "steps": steps} | self.random.choice(EVENTS)
            messages.append(EventMessage.model_validate(body))
            first += steps
        mode = self.random.choice(("record", "record", "charge"))
        return Append(run_name=run, branch_name=branch, mode=mode, events=messages, by=self._key())

    def _key(self) -> str:
        """Whose key does something."""
        self._keys += 1
        return ("ann", "ann", "bob")[self._keys % 3]

    def _name(self, kind: str) -> str:
        self._named += 1
        return f"{kind}-{self._named}"

    def _reserve(self, run: str, branch: str) -> Reserve:
        name = self._name(f"lease-{run}")
        self.leases.append(name)
        body = {
            "name": name,
            "branch": branch,
            "event": self.random.choice(EVENTS) | {"steps": self.random.randint(1, 12)},
            "ttl_seconds": self.random.choice((60, 86000)),
        }
        new = NewReservation.model_validate(body)
        return Reserve(run_name=run, new=new, by=self._key())

    def _lease(self, _dataset: str, run: str, branch: str) -> None:
        """Reserve, and mostly give something back."""
        self._together([self._reserve(run, branch)])
        with self.engine.connect() as connection:
            there = select(reservations.c.name).where(reservations.c.name.in_(self.leases))
            name = self.random.choice([*connection.scalars(there.order_by("id")), None])
            if name is None:
                return
            row, *_ = find_reservation(connection, name)
        place, last = (row.run, row.branch), row.first_step + row.steps // 2
        if self.random.random() < 0.5:
            asked = GiveBack(name=name, place=place, reason="lost", by="officer")
        else:
            asked = GiveBack(name=name, place=place, last_step=last, by=self._key())
        self._together([asked])

    def _branch(self, _dataset: str, run: str, branch: str) -> None:
        begin, end = self._next(run, branch)
        name, step = self._name("rewind"), self.random.randint(begin, end)
        # The schema before orders were recorded takes no other: a campaign goes back to it.
        body = {"name": name, "writer": WRITER, "from_step": step, "from_branch": branch,
                "order": "fresh"}  # fmt: skip
        new = NewBranch.model_validate(body)
        if self._plainly(lambda found: create_branch(found, run, new, by=self._key())):
            self.runs[run].append(name)

    def _correct(self, _dataset: str, run: str, branch: str) -> None:
        begin, end = self._next(run, branch)
        if begin == end:
            return
        first = self.random.randrange(begin, end)
        body = {
            "branch": branch,
            "first_step": first,
            "steps": self.random.randint(1, end - first),
            "reason": "mistaken",
        } | self.random.choice(EVENTS)
        new = NewCorrection.model_validate(body)
        self._together([Correct(run_name=run, new=new, by="officer")])

    def _settings(self, dataset: str, _run: str, _branch: str) -> None:
        with self.engine.connect() as connection:
            query = select(datasets).where(datasets.c.name == dataset)
            row = connection.execute(query).one()
        body: Json = {"reason": "more data"}
        if self.random.random() < 0.3:
            body["accept"] = ["published", "derived", "declared", "conditional"]
        else:
            body["budget"] = {
                "epsilon": (row.budget_epsilon or 3.0) + 1.5,
                "delta": row.budget_delta or 1e-5,
            }
        new, match = DatasetChange.model_validate(body), str(row.revision)
        self._plainly(
            lambda found: dataset_settings.change(found, dataset, new, if_match=match, by="officer")
        )

    def _release(self, _dataset: str, run: str, branch: str) -> None:
        begin, end = self._next(run, branch)
        new = NewRelease(branch=branch, step=self.random.randint(begin, max(begin, end - 1)))
        self._plainly(lambda found: record_release(found, run, new, by=self._key()))

    def _finding(self, _dataset: str, run: str, branch: str) -> None:
        number = self.random.randrange(100)
        new: Any = self.random.choice(
            (
                RankFinding(
                    kind="rank", branch=branch, rank=number % 8, world_size=8, fingerprint="a" * 64
                ),
                BatchSizesFinding(kind="batch_sizes", branch=branch, verdict="refuted", level=1e-6),
                SamplingFinding.model_validate(
                    {
                        "kind": "sampling",
                        "branch": branch,
                        "from_step": number,
                        "status": "detected",
                        "recorded": EVENTS[1]["sampling"],
                        "seen": {"loader": "DataLoader", "batch_size": 600},
                        "reason": "",
                    }
                ),
            )
        )
        self._plainly(lambda found: findings.record_finding(found, run, new, by=self._key()))

    def _finish(self, _dataset: str, run: str, _branch: str) -> None:
        state = self.random.choice(("finished", "aborted"))
        self._plainly(lambda found: finish_run(found, run, state, by=self._key()))
