"""The overview of the ledger: all budgets, active runs, and incidents.

Budgets are read again only where something has changed: a dataset's version moves with whatever is
written of it or of what was made from it, and nothing else moves but the clock, by which
reservations expire.
"""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Select, bindparam, func, select

from service.clock import now, utc
from service.identity.access import datasets_within, runs_within
from service.ledger.append.state_rows import DATASETS
from service.ledger.incidents import TOLD, IncidentAnswer, Kind, incident_answer
from service.operations.budget_summaries import budgets_of, steps_of
from service.operations.forecast import Outlook, outlook
from service.schemas.responses import BudgetAnswer
from service.storage.tables import (
    branches,
    datasets,
    entries,
    incidents,
    lineage,
    reservations,
    runs,
)

DATASETS_MAX: Final = 20  # that are told one by one; the others are in their list
RUNS_MAX: Final = 8
RECENT_MAX: Final = 200  # active runs, the last registered, whose last entries are looked up
INCIDENTS_MAX: Final = 6
INCIDENT_DAYS: Final = 30.0
AT_ONCE: Final = 200  # datasets that are read together
LOOK_SECONDS: Final = 0.25  # of processor time for what has changed; the rest is for the next look
SEEN_SECONDS: Final = 1.0  # that a board is shown again
OUTLOOK_SECONDS: Final = 60.0  # that one is told again though more was recorded since
AGED_SECONDS: Final = 600.0  # after which it is worked out anew though nothing was
# Of these an operator or an officer would want to know without asking.
SERIOUS: Final = (
    Kind.OVERDRAFT, Kind.REOPENED, Kind.RECORDED_AFTER_RELEASE, Kind.SAMPLING_CONTRADICTED,
    Kind.RANKS_DISAGREE, Kind.BATCH_SIZES_REFUTED, Kind.CERTIFIED_TOO_LOW, Kind.LEDGER_SUSPENDED,
)  # fmt: skip

_HEADS: Final = select(
    datasets.c.id, datasets.c.name, datasets.c.head_sequence, datasets.c.version,
    datasets.c.revision, datasets.c.budget_epsilon, datasets.c.budget_delta, datasets.c.frozen,
)  # fmt: skip
_EXPIRED: Final = (
    select(reservations.c.dataset_id, func.count())
    .join(branches, branches.c.id == reservations.c.branch_id)
    .where(
        reservations.c.state == "open",
        reservations.c.end_step > branches.c.next_step,
        reservations.c.expires_at <= bindparam("moment"),
    )
    .group_by(reservations.c.dataset_id)
)
_LINES: Final = select(lineage.c.dataset_id, lineage.c.ancestor_id).where(
    lineage.c.dataset_id.in_(bindparam("ids", expanding=True))
)
_last = entries.alias()


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSummary:
    """A dataset in a line."""

    name: str
    frozen: bool  # nothing is admitted, as an admin decided
    entries: int
    active_runs: int
    epsilon: float | None  # the limit; none where there is none
    delta: float | None
    budget: BudgetAnswer | None  # none where there is none, or it was not read yet
    outlook: Outlook | None
    forfeited: int  # expired reservations whose steps count as spent

    @property
    def spent_share(self) -> float:
        """Of the limit. Upper; infinite where what is spent is not finite."""
        return self._share(self.budget.spent) if self.budget else 0.0

    @property
    def reserved_share(self) -> float:
        """Of the limit, beside what is spent. Upper."""
        return self._share(self.budget.reserved) if self.budget else 0.0

    @property
    def overdrawn(self) -> bool:
        """Whether recorded facts are beyond the limit."""
        return self.budget is not None and self.budget.overdrawn

    def _share(self, nats: float | None) -> float:
        if nats is None or not self.epsilon:
            return math.inf
        return math.nextafter(nats / self.epsilon, math.inf) if nats else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRun:
    """A run that is not at its end."""

    name: str
    dataset: str
    state: str
    steps: int
    last_at: datetime | None  # of its last entry
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """What is seen."""

    datasets: Sequence[DatasetSummary]  # the most spent first
    dataset_count: int
    unread: int  # budgets that are left for the next look
    overdrawn: int
    runs: Sequence[ActiveRun]  # the last that recorded something
    run_count: int  # active ones
    incidents: Sequence[IncidentAnswer]  # serious ones, the latest first
    incident_counts: Mapping[str, int]  # of the last days, by kind
    forfeited: int


@dataclass(frozen=True, slots=True)
class _Budget:
    """A budget, as it stands until the key is another."""

    key: tuple[int, ...]
    answer: BudgetAnswer | None


@dataclass(frozen=True, slots=True)
class _Outlook:
    """An outlook, and what it was worked out from."""

    key: tuple[int, ...]
    revision: int
    found: Outlook
    looked_at: float

    def serves(self, key: tuple[int, ...], revision: int) -> bool:
        """Whether it may still be told."""
        age = time.monotonic() - self.looked_at
        kept_for = AGED_SECONDS if self.key == key else OUTLOOK_SECONDS
        return self.revision == revision and age <= kept_for


@dataclass(slots=True)
class Boards:
    """Looks at the ledger, and remembers what it has read of budgets. From any thread."""

    _budgets: dict[int, _Budget] = field(default_factory=dict)
    _outlooks: dict[int, _Outlook] = field(default_factory=dict)
    _seen: dict[frozenset[str] | None, tuple[float, Board]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def seen(self, connection: Connection, limit: frozenset[str] | None) -> Board:
        """What keys that are limited to the same datasets saw within the last second, or a look."""
        with self._lock:
            present = time.monotonic()
            self._seen = {one: kept for one, kept in self._seen.items() if kept[0] > present}
            if limit not in self._seen:
                board = self.look(connection, limit)
                self._seen[limit] = (time.monotonic() + SEEN_SECONDS, board)
            return self._seen[limit][1]

    def look(self, connection: Connection, limit: frozenset[str] | None) -> Board:
        """What a key sees that is limited to some datasets, or to none."""
        moment, started = now(), time.thread_time()
        heads = connection.execute(_HEADS.where(datasets_within(limit))).all()
        active = {row.dataset_id: row.number for row in connection.execute(_active(limit))}
        counted, own = _expired(connection, moment)
        keys = {row.id: (row.version, row.revision, counted.get(row.id, 0)) for row in heads}
        self._read_budgets(connection, keys, started)
        found = [
            (row, self._standing(row, active.get(row.id, 0), own.get(row.id, 0))) for row in heads
        ]
        found.sort(key=lambda one: _urgency(one[1]))
        shown = [
            replace(one, outlook=self._outlook(connection, row, keys[row.id], started))
            for row, one in found[:DATASETS_MAX]
        ]
        everyone = [one for _, one in found]
        return Board(
            datasets=shown,
            dataset_count=len(everyone),
            unread=sum(1 for one in everyone if one.epsilon is not None and one.budget is None),
            overdrawn=sum(one.overdrawn for one in everyone),
            runs=_latest_runs(connection, limit),
            run_count=sum(active.values()),
            incidents=_serious(connection, limit, moment),
            incident_counts=_counted(connection, limit, moment),
            forfeited=sum(one.forfeited for one in everyone),
        )

    def _standing(self, row: Any, active: int, lost: int) -> DatasetSummary:
        kept = self._budgets.get(row.id)
        return DatasetSummary(
            name=row.name,
            frozen=row.frozen,
            entries=row.head_sequence,
            active_runs=active,
            epsilon=row.budget_epsilon,
            delta=row.budget_delta,
            budget=kept.answer if kept else None,
            outlook=None,
            forfeited=lost,
        )

    def _read_budgets(
        self, connection: Connection, keys: Mapping[int, tuple[int, ...]], started: float
    ) -> None:
        """Read those that may have changed, in bounded time; what is out of date is not told."""
        changed = []
        for home, key in keys.items():
            kept = self._budgets.get(home)
            if kept is None or kept.key != key:
                self._budgets.pop(home, None)
                changed.append(home)
        for first in range(0, len(changed), AT_ONCE):
            if first and time.thread_time() - started > LOOK_SECONDS:
                break
            rows = connection.execute(DATASETS, {"ids": changed[first : first + AT_ONCE]}).all()
            for home, answer in budgets_of(connection, rows).items():
                self._budgets[home] = _Budget(keys[home], answer)

    def _outlook(
        self, connection: Connection, row: Any, key: tuple[int, ...], started: float
    ) -> Outlook | None:
        """How long a budget lasts; what was said before where there is no time to look again."""
        if row.budget_epsilon is None:
            return None
        kept = self._outlooks.get(row.id)
        if kept is not None and kept.serves(key, row.revision):
            return kept.found
        if time.thread_time() - started > LOOK_SECONDS:
            return None
        dataset = connection.execute(DATASETS, {"ids": [row.id]}).one()
        found = outlook(connection, dataset)
        self._outlooks[row.id] = _Outlook(key, row.revision, found, time.monotonic())
        return found


def _urgency(one: DatasetSummary) -> tuple[Any, ...]:
    share = one.spent_share + one.reserved_share
    return (not one.overdrawn, one.epsilon is None, -share, -one.entries, one.name)


def _active(limit: frozenset[str] | None) -> Select[Any]:
    return (
        select(runs.c.dataset_id, func.count().label("number"))
        .where(runs.c.state == "active", runs_within(limit))
        .group_by(runs.c.dataset_id)
    )


def _expired(connection: Connection, moment: datetime) -> tuple[dict[int, int], dict[int, int]]:
    """How many leases have expired: what counts in each dataset, and what is its own."""
    own: dict[int, int] = dict(map(tuple, connection.execute(_EXPIRED, {"moment": moment})))
    counted = dict(own)
    if own:
        for line in connection.execute(_LINES, {"ids": list(own)}):
            above, count = line.ancestor_id, own[line.dataset_id]
            counted[above] = counted.get(above, 0) + count
    return counted, own


def _latest_runs(connection: Connection, limit: frozenset[str] | None) -> list[ActiveRun]:
    """Active runs, the last that recorded something first."""
    recent = (
        select(runs.c.id, runs.c.name, runs.c.state, runs.c.dataset_id, runs.c.created_at)
        .where(runs.c.state == "active", runs_within(limit))
        .order_by(runs.c.id.desc())
        .limit(RECENT_MAX)
        .subquery()
    )
    last_at = (
        select(_last.c.recorded_at)
        .where(_last.c.run_id == recent.c.id)
        .order_by(_last.c.sequence.desc())
        .limit(1)
        .scalar_subquery()
    )
    seen = select(recent, last_at.label("last_at")).subquery()
    query = (
        select(seen, datasets.c.name.label("dataset"))
        .join(datasets, datasets.c.id == seen.c.dataset_id)
        .order_by(func.coalesce(seen.c.last_at, seen.c.created_at).desc(), seen.c.id.desc())
        .limit(RUNS_MAX)
    )
    rows = connection.execute(query).all()
    steps = steps_of(connection, [row.id for row in rows])
    return [
        ActiveRun(
            name=row.name,
            dataset=row.dataset,
            state=row.state,
            steps=steps.get(row.id, (0, 0))[0],
            last_at=utc(row.last_at),
            created_at=utc(row.created_at),
        )
        for row in rows
    ]


def _serious(
    connection: Connection, limit: frozenset[str] | None, moment: datetime
) -> list[IncidentAnswer]:
    query = (
        TOLD.where(
            datasets_within(limit),
            incidents.c.kind.in_([kind.value for kind in SERIOUS]),
            incidents.c.occurred_at >= moment - timedelta(days=INCIDENT_DAYS),
        )
        .order_by(incidents.c.id.desc())
        .limit(INCIDENTS_MAX)
    )
    return [incident_answer(row) for row in connection.execute(query)]


def _counted(
    connection: Connection, limit: frozenset[str] | None, moment: datetime
) -> dict[str, int]:
    query = (
        select(incidents.c.kind, func.count().label("number"))
        .join(datasets, datasets.c.id == incidents.c.dataset_id)
        .where(
            datasets_within(limit),
            incidents.c.occurred_at >= moment - timedelta(days=INCIDENT_DAYS),
        )
        .group_by(incidents.c.kind)
    )
    return {row.kind: row.number for row in connection.execute(query)}
