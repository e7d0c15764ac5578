"""Datasets as the writer knows them: read once, changed in memory, written once a transaction.

A state holds what admitting steps needs of one dataset: its sums, the runs and branches in use. It
is true while the dataset's row is locked and its version is the one the state was read at, so a
process that shares the database with others reads again only what others have changed.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from accounting.event_counts import OpenPass, Place
from accounting.events import Event, NeighboringRelation, Span
from accounting.guarantees import Status
from service.ledger.budgets import cost_cache
from service.ledger.budgets.accumulator import BudgetAccumulator, BudgetDelta
from service.ledger.budgets.budget import EnforcedBudget
from service.ledger.budgets.correction_costs import Shifts
from service.ledger.budgets.lineage import RowsPerParent, as_seen_by_ancestor
from service.ledger.budgets.steps_and_passes import NONE, StepsAndPasses, by_pass
from service.ledger.incidents import Incident, Kind
from service.ledger.log.leaves import NO_LOG, Act, DatasetLog
from service.ledger.log.row_records import overdraft_act

PART_MARK: Final = "/"  # between the name of a reservation and the number of one of its events
# Bytes that a state takes, as tracemalloc saw them, rounded up.
DATASET_BYTES: Final = 7000
EVENT_BYTES: Final = 2000  # of a dataset
RUN_BYTES: Final = 6000
UNIT_BYTES: Final = 4500  # an event of a run, with its Renyi curve
BRANCH_BYTES: Final = 1000
UNITS_MAX: Final = 256  # different events whose Renyi curves an append still adds up


@dataclass(slots=True, kw_only=True)
class Reservation:
    """A reservation, or an event of one: steps of a branch that were admitted ahead."""

    id: int
    name: str | None  # of its row; a plan that reserves itself has none
    event: Event
    first_step: int
    granted_end: int
    end_step: int  # lower than granted once released or voided
    state: str
    expires_at: datetime | None

    @property
    def whole_name(self) -> str | None:
        """The name of the reservation that it belongs to."""
        return None if self.name is None else self.name.partition(PART_MARK)[0]


@dataclass(slots=True, kw_only=True)
class Branch:
    """A branch of a run, and what it holds in reserve."""

    id: int
    name: str
    from_step: int
    next_step: int
    open_pass: Place
    reservations: list[Reservation]  # that reach beyond next_step, in the order of their steps
    tail: tuple[int, int, Event] | None = None  # (first step, end, event) recorded last
    appended_by: str | None = None  # the key that appended last
    writer: str | None = None  # the process that opened it

    def spans_from(self, step: int, *, named: bool = False, until: int | None = None) -> list[Span]:
        """What is reserved from a step on, in order.

        Args:
            step: the first.
            named: whether to leave out what a plan reserves.
            until: leave out what counts the same whatever happens before this step.
        """
        spans = []
        for reservation in self.reservations:
            if named and reservation.name is None:
                continue
            steps = reservation.end_step - max(reservation.first_step, step)
            if steps > 0:
                over = until is not None and reservation.first_step >= until
                if over and not by_pass(reservation.event) and not self._correlates:
                    break  # no pass goes on across it
                spans.append(Span(event=reservation.event, steps=steps))
        return spans

    def move_to(self, step: int, open_pass: Place) -> None:
        """Record up to a step; what is behind it is no longer reserved."""
        self.next_step, self.open_pass = step, open_pass
        if self.reservations:
            self.reservations = [
                reservation for reservation in self.reservations if reservation.granted_end > step
            ]

    @property
    def _correlates(self) -> bool:
        """Whether a pass of correlated noise may go on across steps of other kinds."""
        open_event = self.open_pass.event if isinstance(self.open_pass, OpenPass) else None
        events = [
            *(reservation.event for reservation in self.reservations),
            *filter(None, [open_event]),
        ]
        return any(event.is_correlated for event in events)

    @property
    def reserved_to(self) -> int:
        """The step after the last that is recorded or reserved."""
        held = (one.end_step for one in self.reservations if one.end_step > one.first_step)
        return max([self.next_step, *held])


@dataclass(slots=True, kw_only=True)
class RunState:
    """A run: its state, its own budget, and how often each event counts in it."""

    id: int
    name: str
    delta: float | None
    state: str
    reopened: bool
    scope: EnforcedBudget | None  # its own budget
    plan: tuple[Span, ...] | None  # that holds its own budget while it is kept to
    on_plan: bool | None  # none of a run whose own budget no plan ever held
    # None where there are more than UNITS_MAX. An event stays, also when nothing of it counts any
    # more, as what `retold` counts after a fall of the noise: the reading knows it.
    units: dict[Event, StepsAndPasses] | None
    steps: int
    shifts: Shifts = field(default_factory=dict)  # empty if no correction changed a sampling
    branches: dict[str, Branch] = field(default_factory=dict)
    reading: Any = None  # what the last append answered from
    weighed: int = 0  # bytes, at the last look

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        units = 0 if self.units is None else len(self.units)
        return RUN_BYTES + UNIT_BYTES * units + BRANCH_BYTES * len(self.branches)

    def leave_plan(self) -> None:
        """Hold the run's own budget by its filter from here on."""
        self.on_plan = False
        if self.scope is not None:
            self.scope.leave_plan()

    def take(self, move: BudgetDelta) -> None:
        """Count what was recorded; its own budget counts by itself."""
        for counts in move.recorded.values():
            self.steps += counts.steps
        if self.units is None:
            return
        for event, counts in move.recorded.items():
            self.units[event] = self.units.get(event, NONE) + counts
        if len(self.units) > UNITS_MAX:
            self.units = None
            self.reading = None  # of curves that are no longer added up


@dataclass(slots=True, kw_only=True)
class DatasetState:
    """A dataset under its lock."""

    id: int
    name: str
    dataset_size: int
    relation: NeighboringRelation
    accept: frozenset[Status]
    head: int
    version: int
    accumulator: BudgetAccumulator
    scope: EnforcedBudget | None  # its budget, held against these sums
    delta: float | None  # of its budget
    # With the rows that each of their records has here.
    ancestors: tuple[tuple["DatasetState", RowsPerParent], ...]
    thresholds: tuple[float, ...]  # shares of a budget that raise an alert
    frozen: bool = False  # nothing is admitted, here and in all that was made from it
    # The budgets that every run of it is held against, once they are needed.
    scopes: "tuple[Any, ...] | None" = None
    runs: "OrderedDict[str, RunState]" = field(default_factory=OrderedDict)
    event_ids: "OrderedDict[Event, int]" = field(default_factory=OrderedDict)
    notes: "PendingChanges" = field(default_factory=lambda: PendingChanges())
    log: DatasetLog = NO_LOG  # as it was when the dataset was locked last
    runs_bytes: int = 0  # at the last look at each

    @property
    def size(self) -> int:
        """About how many bytes it takes, with its runs."""
        return DATASET_BYTES + EVENT_BYTES * len(self.event_ids) + self.runs_bytes

    def weigh(self, name: str) -> None:
        """Look how much a run takes that is the last to be used."""
        run = self.runs.get(name)
        if run is not None:
            self.runs.move_to_end(name)
            self.runs_bytes += run.size - run.weighed
            run.weighed = run.size

    def drop_oldest_run(self) -> None:
        """Let go of the run that was used longest ago."""
        _, run = self.runs.popitem(last=False)
        self.runs_bytes -= run.weighed

    def note(self, acts: Iterable[Act]) -> None:
        """Append acts to the log, behind the latest entry."""
        self.notes.acts += [(self.head, act) for act in acts]
        self.notes.touched = True

    def take(self, run: RunState, move: BudgetDelta, starts: Mapping[Event, int]) -> None:
        """Count a move in the dataset, in the run and in everything the dataset was made from."""
        for accumulator, part in self._counts(run, move):
            accumulator.apply(part)
        run.take(move)
        self.notes.add(run.id, move, starts)
        self.notes.touched = True
        for ancestor, _ in self.ancestors:
            ancestor.notes.touched = True

    def require_prices(self, run: RunState, move: BudgetDelta) -> None:
        """See that what a move costs is known wherever it counts, before anything is changed.

        Raises:
            UnpricedBeforeError: some of it must be worked out first, and a lock is held.
        """
        wanted = [
            quote
            for accumulator, part in self._counts(run, move)
            for quote in accumulator.missing(part.events)
        ]
        cost_cache.require(wanted, unchanged=True)

    def _counts(
        self, run: RunState, move: BudgetDelta
    ) -> Iterator[tuple[BudgetAccumulator, BudgetDelta]]:
        """Where a move counts, and as what."""
        yield self.accumulator, move
        if run.scope is not None:
            yield run.scope.accumulator, move.of_run
        for ancestor, rows in self.ancestors:
            yield (
                ancestor.accumulator,
                as_seen_by_ancestor(move, relation=self.relation, rows=rows),
            )


@dataclass(slots=True)
class CountDelta:
    """What a transaction adds to one event's counts."""

    steps: int = 0
    passes: int = 0
    begun: int = 0
    starts: int = 0
    reserved_steps: int = 0
    reserved_passes: int = 0
    reserved_begun: int = 0

    def reserve(self, counts: StepsAndPasses) -> None:
        """Add what is held ahead."""
        self.reserved_steps += counts.steps
        self.reserved_passes += counts.passes
        self.reserved_begun += counts.begun

    def row(self) -> tuple[int, int, int, int, int, int, int]:
        """As a row."""
        return (
            self.steps,
            self.passes,
            self.begun,
            self.starts,
            self.reserved_steps,
            self.reserved_passes,
            self.reserved_begun,
        )


class PendingEntry(NamedTuple):
    """Equal steps that were recorded and are not written yet."""

    sequence: int
    run: RunState
    branch: Branch
    first_step: int
    steps: int
    event: Event
    mode: str
    verdict: str
    recorded_at: datetime
    traceparent: str | None


@dataclass(slots=True)
class PendingChanges:
    """What has changed since the state was last written."""

    touched: bool = False
    entries: list[PendingEntry] = field(default_factory=list)
    added: dict[Event, CountDelta] = field(default_factory=dict)
    run_added: dict[tuple[int, Event], CountDelta] = field(default_factory=dict)
    runs: dict[int, RunState] = field(default_factory=dict)
    branches: dict[int, Branch] = field(default_factory=dict)
    incidents: list[Incident] = field(default_factory=list)
    acts: list[tuple[int, Act]] = field(default_factory=list)  # each behind an entry

    def add(self, run_id: int, move: BudgetDelta, starts: Mapping[Event, int]) -> None:
        """Note a move."""
        for event, counts in move.recorded.items():
            for added in self._both(run_id, event):
                added.steps += counts.steps
                added.passes += counts.passes
                added.begun += counts.begun
        for event, counts in move.reserved.items():
            self._both(run_id, event)[0].reserve(counts)
        for event, counts in move.of_run.reserved.items():
            self._both(run_id, event)[1].reserve(counts)
        for event, count in starts.items():
            for added in self._both(run_id, event):
                added.starts += count

    def _both(self, run_id: int, event: Event) -> tuple[CountDelta, CountDelta]:
        """What is added to an event in the dataset, and in a run."""
        in_dataset, in_run = self.added.get(event), self.run_added.get((run_id, event))
        if in_dataset is None:
            in_dataset = self.added[event] = CountDelta()
        if in_run is None:
            in_run = self.run_added[run_id, event] = CountDelta()
        return in_dataset, in_run


def enforced_budgets(
    state: DatasetState, run: RunState
) -> list[tuple[DatasetState, EnforcedBudget]]:
    """List the budgets that a run's steps count in, each with the dataset that tells of it."""
    scopes = [(state, state.scope), (state, run.scope)]
    scopes += [(ancestor, ancestor.scope) for ancestor, _ in state.ancestors]
    return [(dataset, scope) for dataset, scope in scopes if scope is not None]


def raise_budget_alerts(state: DatasetState, run: RunState) -> None:
    """Note each budget whose share of capacity passed a threshold, or 1, since the last look."""
    for dataset, scope in enforced_budgets(state, run):
        _compare(dataset, run, scope)


def _compare(dataset: DatasetState, run: RunState, scope: EnforcedBudget) -> None:
    share = scope.share
    before, scope.alerted_share = scope.alerted_share, share
    passed = [mark for mark in dataset.thresholds if before < mark <= share]
    if share > 1 >= before:
        _note(dataset, run, scope, Kind.OVERDRAFT)
    elif passed:
        _note(dataset, run, scope, Kind.THRESHOLD, passed)


def _note(
    dataset: DatasetState,
    run: RunState,
    scope: EnforcedBudget,
    kind: Kind,
    passed: Sequence[float] = (),
) -> None:
    answer = scope.answer()
    told = ("spent", "reserved", "remaining", "share", "share_reserved")
    detail = {name: answer[name] for name in told}
    if passed:  # by the same steps; the highest one, and all
        detail |= {"fraction": passed[-1], "thresholds": list(passed)}
    detail |= {
        "dataset": dataset.name,
        "run": run.name,
        "scope": scope.name,
        "limit": scope.epsilon,
    }
    happened = Incident(
        dataset_id=dataset.id, run_id=run.id, kind=kind, sequence=dataset.head, detail=detail
    )
    dataset.notes.incidents.append(happened)
    dataset.notes.touched = True
    if kind is Kind.OVERDRAFT:
        dataset.note([overdraft_act(happened, run=run.name)])
