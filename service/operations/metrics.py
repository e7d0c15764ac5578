"""The metrics of a scrape: counters and state of the process, and figures of the ledger.

Figures of the ledger are read at most once per interval, however often they are scraped. Budgets
of a bounded number of datasets are shown.
"""

import math
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from sqlalchemy import Engine, case, func, or_, select

import accounting
from service.clock import now
from service.ledger.incidents import Kind
from service.operations.budgets import BUDGETS_SECONDS, HEADS, Budgets, expired_counts, versions_of
from service.operations.certified_epsilons import CertifiedEpsilon, CertifiedEpsilons
from service.operations.health import OK, RECOVERING_DETAIL, Checks
from service.schemas.responses import BudgetAnswer
from service.schemas.run_states import STATES
from service.storage.engine import snapshot
from service.storage.single_flight import SingleFlight
from service.storage.tables import branches, findings, incidents, reservations, runs

BUDGETS_MAX: Final = 50  # datasets that are told by name, the most spent first
_CERTIFIED_SECONDS: Final = 0.1  # of processor time for certified epsilons that have changed
KEPT_SECONDS: Final = 5.0  # that what the ledger says is told again
_RESERVATION_STATES: Final = ("pending", "forfeited")

_RUNS: Final = select(runs.c.dataset_id, runs.c.state, func.count()).group_by(
    runs.c.dataset_id, runs.c.state
)
_INCIDENTS: Final = select(incidents.c.dataset_id, incidents.c.kind, func.count()).group_by(
    incidents.c.dataset_id, incidents.c.kind
)
_CONTRADICTED: Final = (
    select(runs.c.dataset_id, func.count(findings.c.run_id.distinct()))
    .join(runs, runs.c.id == findings.c.run_id)
    .where(findings.c.kind == "sampling", findings.c.claim == "contradicted")
    .group_by(runs.c.dataset_id)
)


def _reservations(moment: datetime) -> Any:
    """Reservations that steps may still run in, or that expired, by dataset."""
    waits = or_(reservations.c.expires_at.is_(None), reservations.c.expires_at > moment)
    return (
        select(
            reservations.c.dataset_id,
            func.sum(case((waits, 1), else_=0)).label("pending"),
            func.sum(case((waits, 0), else_=1)).label("forfeited"),
        )
        .join(branches, branches.c.id == reservations.c.branch_id)
        .where(reservations.c.state == "open", reservations.c.end_step > branches.c.next_step)
        .group_by(reservations.c.dataset_id)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Budget:
    """A dataset's budget, as shares of its capacity."""

    dataset: str
    epsilon: float  # nats, the limit
    charged: float  # nats, upper; infinite where it is not finite
    spent: float  # upper; infinite where it is not finite
    reserved: float
    overdrawn: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the ledger said at one moment, by dataset, so that each caller is told of its own."""

    names: Mapping[int, str]
    entries: Mapping[int, int]
    runs: Mapping[tuple[int, str], int]
    incidents: Mapping[tuple[int, str], int]
    reservations_by_state: Mapping[tuple[int, str], int]
    contradicted: Mapping[int, int]
    budgets: Mapping[int, _Budget]
    certified: Mapping[str, CertifiedEpsilon]  # of datasets with a limit, by name
    frozen: frozenset[int]  # datasets that admit nothing
    unread: frozenset[int]  # datasets whose budget could not be read yet
    deliveries: int  # that webhooks have not taken


@dataclass(slots=True)
class Ledger:
    """Looks at the ledger for all who scrape."""

    engine: Engine
    deliveries: Callable[[], int]
    budgets: Budgets = field(default_factory=Budgets)
    certified: CertifiedEpsilons = field(default_factory=CertifiedEpsilons)
    _figures: Figures | None = None
    _read_at: float = -1e9
    _look: SingleFlight[Figures] = field(init=False)

    def __post_init__(self) -> None:
        """Begin without having looked."""
        self._look = SingleFlight(self.engine, self.read)

    async def figures(self) -> Figures:
        """What the ledger says, or said some seconds ago.

        Raises:
            UnavailableError: the database does not answer.
        """
        if self._figures is None or time.monotonic() - self._read_at >= KEPT_SECONDS:
            self._figures = await self._look.take()
            self._read_at = time.monotonic()
        return self._figures

    def read(self) -> Figures:
        """Read it now."""
        with snapshot(self.engine) as connection:
            moment, deadline = now(), time.thread_time() + BUDGETS_SECONDS
            heads = connection.execute(HEADS).all()
            reservations_by_state = connection.execute(_reservations(moment)).all()
            versions = versions_of(connection, heads, expired_counts(connection, moment))
            # What there was no time to read again is told as it was, rather than not at all.
            known = self.budgets.read(
                connection, heads, versions, deadline=deadline, age_max=math.inf
            )
            limited = {row.id: row.name for row in heads if row.budget_epsilon is not None}
            told = {one: _budget(limited[one], budget) for one, budget in known.items()}
            # What there is no time to compute is left out: what it was is less than what it is.
            rows = {row.id: row for row in heads}
            ordered = [rows[one] for one in sorted(told, key=lambda one: _order(told[one]))]
            certified = self.certified.of_datasets(connection, ordered, seconds=_CERTIFIED_SECONDS)
            return Figures(
                names={row.id: row.name for row in heads},
                entries={row.id: row.head_sequence for row in heads},
                runs={
                    (dataset_id, state): count
                    for dataset_id, state, count in connection.execute(_RUNS)
                },
                incidents={
                    (dataset_id, kind): count
                    for dataset_id, kind, count in connection.execute(_INCIDENTS)
                },
                reservations_by_state={
                    (row.dataset_id, state): int(getattr(row, state))
                    for row in reservations_by_state
                    for state in _RESERVATION_STATES
                },
                contradicted={row[0]: row[1] for row in connection.execute(_CONTRADICTED)},
                budgets=told,
                certified=certified,
                frozen=frozenset(row.id for row in heads if row.frozen),
                unread=frozenset(limited.keys() - known.keys()),
                deliveries=self.deliveries(),
            )


def _order(budget: _Budget) -> tuple[bool, float, str]:
    """Overdrawn budgets first, then the most spent."""
    return not budget.overdrawn, -budget.spent, budget.dataset


def _budget(dataset: str, found: BudgetAnswer) -> _Budget:
    return _Budget(
        dataset=dataset,
        epsilon=found.epsilon,
        charged=math.inf if found.spent is None else found.spent,
        spent=math.inf if found.share is None else found.share,
        reserved=math.inf if found.share_reserved is None else found.share_reserved,
        overdrawn=found.overdrawn,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """How a process stands, beside what it counted."""

    checks: Checks
    draining: bool
    database: str
    writer_waiting: int
    questions_waiting: int
    streams_open: int
    delivered: int
    failed: int
    read_failures: int
    write_failures: int
    witness: bool  # whether the settings name one
    agreed_at: float | None  # seconds since the epoch
    signed_at: datetime | None


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, value=value)


def _build_metric(
    family: GaugeMetricFamily | CounterMetricFamily, values: Iterable[tuple[str, float]]
) -> Metric:
    for label, value in values:
        family.add_metric([label], value)
    return family


def process_families(found: Process) -> Iterator[Metric]:
    """How the process stands."""
    build = GaugeMetricFamily(
        "dpledger_build_info", "What runs here; always 1.", labels=("version", "python", "database")
    )
    build.add_metric([accounting.__version__, platform.python_version(), found.database], 1)
    yield build
    well = {OK, RECOVERING_DETAIL}
    ready = not found.draining and all(one in well for one in found.checks.values())
    yield _gauge("dpledger_ready", "Whether requests are answered, as /readyz says.", ready)
    parts = GaugeMetricFamily(
        "dpledger_ready_part", "Whether a part of /readyz is well.", labels=("part",)
    )
    yield _build_metric(parts, ((name, one in well) for name, one in found.checks.items()))
    waiting = found.writer_waiting
    yield _gauge("dpledger_writer_waiting", "Requests that the writer has not taken yet.", waiting)
    questions = found.questions_waiting
    yield _gauge("dpledger_questions_waiting", "Dear questions that wait for a seat.", questions)
    yield _gauge("dpledger_streams_open", "Streams of server-sent events.", found.streams_open)
    attempts = CounterMetricFamily(
        "dpledger_webhook_attempts", "Attempts to tell an incident.", labels=("outcome",)
    )
    yield _build_metric(attempts, (("delivered", found.delivered), ("failed", found.failed)))
    errors = CounterMetricFamily(
        "dpledger_database_errors", "Transactions that the database failed.", labels=("operation",)
    )
    yield _build_metric(errors, (("read", found.read_failures), ("write", found.write_failures)))
    yield from _witness(found)


def _witness(found: Process) -> Iterator[Metric]:
    yield _gauge("dpledger_witness", "Whether the settings name a witness.", found.witness)
    if found.agreed_at is not None:
        about = "Since the witness was last compared with the logs and agreed."
        age = max(0.0, time.time() - found.agreed_at)
        yield _gauge("dpledger_witness_age_seconds", about, age)
    if found.signed_at is not None:
        about = "Since the latest checkpoint was signed that the witness has."
        age = max(0.0, (now() - found.signed_at).total_seconds())
        yield _gauge("dpledger_checkpoint_age_seconds", about, age)


def ledger_families(found: Figures, limit: frozenset[str] | None) -> Iterator[Metric]:
    """What the ledger says to a caller that reaches all datasets, or those of a limit."""
    seen = {
        dataset_id for dataset_id, name in found.names.items() if limit is None or name in limit
    }
    yield _gauge("dpledger_datasets", "Datasets of the ledger.", len(seen))
    about = "Datasets that admit nothing, as an admin decided."
    yield _gauge("dpledger_datasets_frozen", about, len(found.frozen & seen))
    entries = sum(count for dataset_id, count in found.entries.items() if dataset_id in seen)
    yield _gauge("dpledger_entries", "Entries of all datasets.", entries)
    states = _totals(found.runs, seen, STATES)
    yield _build_metric(GaugeMetricFamily("dpledger_runs", "Runs.", labels=("state",)), states)
    contradicted = sum(
        count for dataset_id, count in found.contradicted.items() if dataset_id in seen
    )
    about = "Runs whose code samples in another way than declared."
    yield _gauge("dpledger_runs_contradicted", about, contradicted)
    reservations_by_state = GaugeMetricFamily(
        "dpledger_reservations", "Reservations with steps that have not run.", labels=("state",)
    )
    yield _build_metric(
        reservations_by_state, _totals(found.reservations_by_state, seen, _RESERVATION_STATES)
    )
    happened = CounterMetricFamily(
        "dpledger_incidents", "Incidents that the ledger has recorded.", labels=("kind",)
    )
    yield _build_metric(happened, _totals(found.incidents, seen, Kind))
    if limit is None:
        about = "Incidents that a webhook has not taken yet."
        yield _gauge("dpledger_webhook_waiting", about, found.deliveries)
    yield from _budget_families(found, seen)


def _totals(
    counts: Mapping[tuple[int, str], int], seen: set[int], labels: Iterable[str]
) -> list[tuple[str, float]]:
    total: Counter[str] = Counter()
    for (dataset_id, label), count in counts.items():
        if dataset_id in seen:
            total[label] += count
    return [(str(label), total[label]) for label in labels]


def _budget_families(found: Figures, seen: set[int]) -> Iterator[Metric]:
    mine = [(dataset_id, one) for dataset_id, one in found.budgets.items() if dataset_id in seen]
    mine.sort(key=lambda each: _order(each[1]))
    told = [one for _, one in mine[:BUDGETS_MAX]]
    kinds: tuple[tuple[str, str, Callable[[_Budget], float]], ...] = (
        ("epsilon_nats", "The limit of a dataset's budget.", lambda one: one.epsilon),
        (
            "charged_nats",
            "Epsilon that is charged, forfeited reservations included, at most.",
            lambda one: one.charged,
        ),
        ("spent_ratio", "Share of capacity that is charged, at most.", lambda one: one.spent),
        (
            "reserved_ratio",
            "Share of capacity that is reserved and not run.",
            lambda one: one.reserved,
        ),
        ("overdrawn", "Whether facts are beyond a budget.", lambda one: one.overdrawn),
    )
    for name, about, value in kinds:
        family = GaugeMetricFamily(f"dpledger_budget_{name}", about, labels=("dataset",))
        yield _build_metric(family, ((one.dataset, value(one)) for one in told))
    yield from _dataset_families(found, [dataset_id for dataset_id, _ in mine[:BUDGETS_MAX]])
    about = "Datasets whose budgets are overdrawn, told by name or not."
    yield _gauge("dpledger_budgets_overdrawn", about, sum(one.overdrawn for _, one in mine))
    about = f"Budgets without series of their own: beyond the {BUDGETS_MAX} most spent, or unread."
    left = len(mine) - len(told) + len(found.unread & seen)
    yield _gauge("dpledger_budgets_untold", about, left)


def _dataset_families(found: Figures, told: Iterable[int]) -> Iterator[Metric]:
    """What is told of a dataset beside its budget; only of those whose budgets are told."""
    names = {dataset_id: found.names[dataset_id] for dataset_id in told}
    about = "Certified epsilon of all recorded steps at the delta of the budget, at most."
    certified = GaugeMetricFamily("dpledger_budget_certified_nats", about, labels=("dataset",))
    known = ((name, found.certified.get(name)) for name in names.values())
    # Of a null it is not known whether it is infinite or took too much work.
    finite = ((name, one.epsilon) for name, one in known if one and one.epsilon is not None)
    yield _build_metric(certified, finite)
    about = "Entries that the dataset's ledger has recorded."
    entries = CounterMetricFamily("dpledger_dataset_entries", about, labels=("dataset",))
    yield _build_metric(
        entries, ((name, found.entries[dataset_id]) for dataset_id, name in names.items())
    )
    about = "Incidents that the ledger has recorded of the dataset."
    happened = CounterMetricFamily("dpledger_dataset_incidents", about, labels=("dataset", "kind"))
    for dataset_id, name in names.items():
        for kind in Kind:
            happened.add_metric([name, kind], found.incidents.get((dataset_id, kind), 0))
    yield happened
