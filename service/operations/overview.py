"""The overview of the ledger: all budgets, active runs, and incidents."""

import math
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, func, select

from service.clock import now, utc
from service.identity.access import datasets_within, runs_within
from service.ledger.append.state_rows import DATASETS
from service.ledger.incidents import INCIDENT_ROWS, IncidentAnswer, Kind, incident_answer
from service.operations.budget_summaries import steps_of
from service.operations.budgets import BUDGETS_SECONDS, HEADS, Budgets, expired_counts, versions_of
from service.operations.certified_epsilons import CertifiedEpsilon, CertifiedEpsilons
from service.operations.forecast import Outlook, outlook
from service.operations.incident_inbox import IS_OPEN, count_open
from service.schemas.responses import BudgetAnswer
from service.storage.tables import datasets, entries, incidents, runs
from service.storage.versioned_cache import VersionedCache

OVERVIEW_DATASETS_MAX: Final = 20  # that are told one by one; the others are in their list
_RUNS_MAX: Final = 8
RECENT_MAX: Final = 200  # active runs, the last registered, whose last entries are looked up
INCIDENTS_MAX: Final = 6
SEEN_SECONDS: Final = 1.0  # that a board is shown again
BOARDS_MAX: Final = 100  # that are kept; some tens of kilobytes each
OUTLOOK_SECONDS: Final = 60.0  # that one is told again though more was recorded since
AGED_SECONDS: Final = 600.0  # after which it is worked out anew though nothing was
OUTLOOKS_MAX: Final = 10_000  # that are kept; less than a kilobyte each
# Of these an operator or an officer would want to know without asking.
SERIOUS: Final = (
    Kind.OVERDRAFT, Kind.REOPENED, Kind.RECORDED_AFTER_RELEASE, Kind.SAMPLING_CONTRADICTED,
    Kind.RANKS_DISAGREE, Kind.BATCH_SIZES_REFUTED, Kind.AUDIT_CONTRADICTS, Kind.NOISE_REUSED,
    Kind.CERTIFIED_TOO_LOW, Kind.LEDGER_SUSPENDED,
)  # fmt: skip

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
    certified: CertifiedEpsilon | None  # none if there was no time yet
    forfeited: int  # expired reservations whose steps count as spent

    @property
    def spent_share(self) -> float:
        """Of capacity. Upper; infinite where no bound covers a step."""
        return self._share(self.budget.share) if self.budget else 0.0

    @property
    def reserved_share(self) -> float:
        """Of capacity, beside what is charged. Upper."""
        return self._share(self.budget.share_reserved) if self.budget else 0.0

    @property
    def overdrawn(self) -> bool:
        """Whether recorded facts are beyond the limit."""
        return self.budget is not None and self.budget.overdrawn

    @staticmethod
    def _share(known: float | None) -> float:
        return math.inf if known is None else known


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
    incidents: Sequence[IncidentAnswer]  # serious ones that are open, the latest first
    incident_counts: Mapping[str, int]  # open ones, by kind
    open_incidents: int
    forfeited: int


@dataclass(slots=True)
class Boards:
    """Looks at the ledger, and keeps what each look found. From any thread."""

    budgets: Budgets = field(default_factory=Budgets)
    certified: CertifiedEpsilons = field(default_factory=CertifiedEpsilons)
    _outlooks: VersionedCache[Outlook] = field(default_factory=lambda: VersionedCache(OUTLOOKS_MAX))
    _seen: VersionedCache[Board] = field(default_factory=lambda: VersionedCache(BOARDS_MAX))

    def seen(self, connection: Connection, limit: frozenset[str] | None) -> Board:
        """What keys that are limited to the same datasets saw within the last second, or a look."""
        look = object()  # whose version no other look has
        return self._seen.compute(
            limit, look, lambda: self.look(connection, limit), age_max=SEEN_SECONDS
        )

    def look(self, connection: Connection, limit: frozenset[str] | None) -> Board:
        """What a key sees that is limited to some datasets, or to none."""
        moment, deadline = now(), time.thread_time() + BUDGETS_SECONDS
        heads = connection.execute(HEADS.where(datasets_within(limit))).all()
        active = {row.dataset_id: row.number for row in connection.execute(_active(limit))}
        expired = expired_counts(connection, moment)
        versions = versions_of(connection, heads, expired)
        budgets = self.budgets.read(connection, heads, versions, deadline=deadline)
        found = [
            (row, _summary(row, budgets.get(row.id), active.get(row.id, 0), expired.get(row.id, 0)))
            for row in heads
        ]
        found.sort(key=lambda one: _urgency(one[1]))
        first = found[:OVERVIEW_DATASETS_MAX]
        certified = self.certified.of_datasets(
            connection, [row for row, _ in first], seconds=BUDGETS_SECONDS
        )
        shown = [
            replace(
                one,
                outlook=self._outlook(connection, row, versions[row.id], deadline),
                certified=certified.get(one.name),
            )
            for row, one in first
        ]
        open_ones = count_open(connection, limit)
        everyone = [one for _, one in found]
        return Board(
            datasets=shown,
            dataset_count=len(everyone),
            unread=sum(1 for one in everyone if one.epsilon is not None and one.budget is None),
            overdrawn=sum(one.overdrawn for one in everyone),
            runs=_latest_runs(connection, limit),
            run_count=sum(active.values()),
            incidents=_serious(connection, limit),
            incident_counts=open_ones,
            open_incidents=sum(open_ones.values()),
            forfeited=sum(one.forfeited for one in everyone),
        )

    def _outlook(
        self, connection: Connection, row: Row[Any], version: Hashable, deadline: float
    ) -> Outlook | None:
        """How long a budget lasts; none if there is no limit, or no time to find out."""
        if row.budget_epsilon is None:
            return None
        key = (row.id, row.created_at, row.revision)
        dated = (version, time.monotonic() // AGED_SECONDS)
        found = self._outlooks.get(key, dated, age_max=OUTLOOK_SECONDS)
        if found is None and time.thread_time() <= deadline:
            dataset = connection.execute(DATASETS, {"ids": [row.id]}).one()
            found = outlook(connection, dataset)
            self._outlooks.put(key, dated, found)
        return found


def _summary(
    row: Row[Any], budget: BudgetAnswer | None, active: int, forfeited: int
) -> DatasetSummary:
    return DatasetSummary(
        name=row.name,
        frozen=row.frozen,
        entries=row.head_sequence,
        active_runs=active,
        epsilon=row.budget_epsilon,
        delta=row.budget_delta,
        budget=budget,
        outlook=None,
        certified=None,
        forfeited=forfeited,
    )


def _urgency(one: DatasetSummary) -> tuple[Any, ...]:
    share = one.spent_share + one.reserved_share
    return (not one.overdrawn, one.epsilon is None, -share, -one.entries, one.name)


def _active(limit: frozenset[str] | None) -> Select[Any]:
    return (
        select(runs.c.dataset_id, func.count().label("number"))
        .where(runs.c.state == "active", runs_within(limit))
        .group_by(runs.c.dataset_id)
    )


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
        .limit(_RUNS_MAX)
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


def _serious(connection: Connection, limit: frozenset[str] | None) -> list[IncidentAnswer]:
    query = (
        INCIDENT_ROWS.where(
            datasets_within(limit),
            incidents.c.kind.in_([kind.value for kind in SERIOUS]),
            IS_OPEN,
        )
        .order_by(incidents.c.id.desc())
        .limit(INCIDENTS_MAX)
    )
    return [incident_answer(row) for row in connection.execute(query)]
