"""The states of datasets: locked and read as a transaction starts, written at its end."""

import secrets
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import Connection, bindparam, func, select

from accounting.event_counts import OpenPass
from accounting.events import Event
from service.errors import BudgetExhaustedError, NotFoundError
from service.ledger import incidents
from service.ledger.append.state import UNITS_MAX, Branch, DatasetState, PendingChanges, RunState
from service.ledger.append.state_rows import (
    DATASETS,
    UNITS,
    book_of,
    branch_of,
    run_book_of,
    write_books,
)
from service.ledger.budgets import correction_costs
from service.ledger.budgets.lineage import rows_of
from service.ledger.budgets.steps_and_passes import by_pass
from service.ledger.incidents import Incident, Kind, Sparing
from service.ledger.log.leaves import DatasetLog
from service.ledger.lookups import VERSION_BITS
from service.schemas.event_codec import MAIN, content_of
from service.storage import bulk
from service.storage.tables import (
    branches,
    datasets,
    distinct_events,
    lineage,
    reservations,
    run_balances,
    runs,
)

THRESHOLDS: Final = (0.5, 0.8, 0.95)  # shares of a budget that raise an alert
THRESHOLDS_OPTION: Final = "dpledger_budget_thresholds"  # of an engine that has others
CACHE_BYTES: Final = 192 * 1024**2  # of states that are kept between transactions
CACHED_RUNS_MAX: Final = 65_536  # runs whose dataset is cached
CACHED_EVENTS_MAX: Final = 4096  # of one dataset whose rows are cached
_LOCKED: Final = ("id", "version", "log_size", "log_frontier")
# Statements are built once: building one costs as much as running it.
DATASET_OF_RUNS: Final = select(runs.c.name, runs.c.dataset_id).where(
    runs.c.name.in_(bindparam("names", expanding=True))
)
_ANCESTORS: Final = (
    select(lineage.c.dataset_id, lineage.c.ancestor_id, lineage.c.exactly_one, lineage.c.most_rows)
    .where(lineage.c.dataset_id.in_(bindparam("ids", expanding=True)))
    .order_by(lineage.c.ancestor_id)
)
_RUNS: Final = select(runs).where(runs.c.name.in_(bindparam("names", expanding=True)))
_UNIT_COUNTS: Final = (
    select(run_balances.c.run_id, func.count(), func.sum(run_balances.c.steps))
    .where(run_balances.c.run_id.in_(bindparam("ids", expanding=True)))
    .group_by(run_balances.c.run_id)
)
_BRANCHES: Final = (
    select(branches, distinct_events.c.content)
    .outerjoin(distinct_events, distinct_events.c.id == branches.c.pass_event_id)
    .where(
        branches.c.run_id.in_(bindparam("ids", expanding=True)),
        branches.c.name.in_(bindparam("names", expanding=True)),
    )
)
_RESERVATIONS: Final = (
    select(reservations, distinct_events.c.content)
    .join(distinct_events, distinct_events.c.id == reservations.c.event_id)
    .join(branches, branches.c.id == reservations.c.branch_id)
    .where(
        reservations.c.branch_id.in_(bindparam("ids", expanding=True)),
        reservations.c.first_step + reservations.c.steps > branches.c.next_step,
    )
    .order_by(reservations.c.first_step)
)
BranchPlace = tuple[str, str]  # a run and one of its branches


class DatasetCache:
    """The states that a process keeps between transactions. One thread at a time uses it."""

    def __init__(self, *, bytes_max: int = CACHE_BYTES, locks: bool = True) -> None:
        """An empty cache; of what it keeps `bytes_max` may be used between transactions.

        Without locks it is for one snapshot, and nothing of it may be changed.
        """
        self._locks = locks
        self.sparing = Sparing()
        self._bytes_max = bytes_max
        self._states: OrderedDict[int, DatasetState] = OrderedDict()  # used longest ago first
        self._made_from: defaultdict[int, set[int]] = defaultdict(set)  # a dataset, by its id
        self._locked: set[int] = set()  # in this transaction
        self._sizes: dict[int, int] = {}  # bytes, of each state
        self._bytes = 0
        self._dataset_ids: OrderedDict[str, int] = OrderedDict()  # of each run; never changes

    def open(self, connection: Connection, places: Iterable[BranchPlace]) -> "UnitOfWork":
        """Lock the datasets of some (run, branch), and everything those were made from.

        Always in the order of their ids, so that two processes never wait for each other.
        """
        wanted = list(dict.fromkeys(places))
        names = {run for run, _ in wanted}
        self._locked.clear()
        work = UnitOfWork(connection, self)
        ids = self._find_dataset_ids(connection, names)
        if not self.lock(connection, ids) or not work.in_same_datasets(names):
            self.forget()  # the database was put back to what it was before
            self.lock(connection, self._find_dataset_ids(connection, names))
        work.fetch([(run, branch) for run, branch in wanted if run in self._dataset_ids])
        return work

    def dataset_ids(self, names: Iterable[str]) -> dict[str, int]:
        """The datasets of the runs that there are."""
        return {name: self._dataset_ids[name] for name in names if name in self._dataset_ids}

    def _find_dataset_ids(self, connection: Connection, names: set[str]) -> set[int]:
        if missing := [name for name in names if name not in self._dataset_ids]:
            for row in connection.execute(DATASET_OF_RUNS, {"names": missing}):
                self._dataset_ids[row.name] = row.dataset_id
        return {self._dataset_ids[name] for name in names if name in self._dataset_ids}

    def lock(self, connection: Connection, ids: set[int]) -> bool:
        """Lock datasets with their ancestors, and read again what has changed.

        Returns:
            Whether all of them are there, and what they were made from is locked.
        """
        unknown = [one for one in ids if one not in self._states]
        above = {a.id for one in ids if one in self._states for a, _ in self._states[one].ancestors}
        if unknown:
            found = connection.execute(_ANCESTORS, {"ids": unknown})
            above |= {row.ancestor_id for row in found}
        locked = bulk.select(connection, datasets, "id", _LOCKED, ids | above, lock=self._locks)
        stale = [one for one, version, *_ in locked if not self._holds(one, version)]
        if stale:
            found = connection.execute(_ANCESTORS, {"ids": stale})
            if not {row.ancestor_id for row in found} <= {one for one, *_ in locked}:
                return False  # what is kept is of an earlier database, whose ids are used again
            self._read(connection, stale)
        for one, _, size, frontier in locked:  # others append to it and change nothing else
            self._states[one].log = DatasetLog(size, frontier)
            self._states.move_to_end(one)
        self._locked.update(one for one, *_ in locked)
        return len(locked) == len(ids | above)

    def _holds(self, dataset_id: int, version: int) -> bool:
        state = self._states.get(dataset_id)
        return state is not None and state.version == version

    def _read(self, connection: Connection, ids: Sequence[int]) -> None:
        # Of the engine, so that whatever raises an alert, the writer or an approval, has them.
        thresholds = connection.get_execution_options().get(THRESHOLDS_OPTION, THRESHOLDS)
        for row in connection.execute(DATASETS, {"ids": ids}).all():
            self._states[row.id] = book_of(connection, row, thresholds)
        # One that was read anew takes the old one's place.
        for one in set(ids).union(*(self._made_from.get(one, ()) for one in ids)):
            if one in self._states:
                self._place(connection, self._states[one])

    def _place(self, connection: Connection, state: DatasetState) -> None:
        found = connection.execute(_ANCESTORS, {"ids": [state.id]})
        state.ancestors = tuple((self._states[r.ancestor_id], rows_of(r)) for r in found)
        state.scopes = None  # they belong to the old ones
        for ancestor, _ in state.ancestors:
            self._made_from[ancestor.id].add(state.id)

    def state(self, dataset_id: int) -> DatasetState:
        """A dataset that `lock` has locked."""
        return self._states[dataset_id]

    def dataset_of_run(self, run_name: str) -> DatasetState:
        """The state of the dataset that a run belongs to.

        Raises:
            NotFoundError: there is no such run.
        """
        if run_name not in self._dataset_ids:
            raise NotFoundError("There is no such run.")
        return self._states[self._dataset_ids[run_name]]

    def written(self) -> list[DatasetState]:
        """The states that a transaction has changed."""
        states = [self._states[one] for one in sorted(self._locked)]
        return [state for state in states if state.notes.touched]

    def settle(self, names: Iterable[str]) -> None:
        """Let go of what was used longest ago; the transaction of some runs is committed."""
        while len(self._dataset_ids) > CACHED_RUNS_MAX:
            self._dataset_ids.popitem(last=False)
        for name, dataset_id in self.dataset_ids(names).items():
            if dataset_id in self._states:
                self._states[dataset_id].weigh(name)
        used = [self._states[one] for one in self._locked & self._states.keys()]
        for state in used:
            while len(state.event_ids) > CACHED_EVENTS_MAX:
                state.event_ids.popitem(last=False)
            self._weigh(state)
        self._shrink(used)

    def _shrink(self, used: Iterable[DatasetState]) -> None:
        """Let go of datasets, and then of runs of those that are in use."""
        while self._bytes > self._bytes_max and (unused := self._longest_unused()) is not None:
            self._drop(unused)
        for state in used:
            while self._bytes > self._bytes_max and len(state.runs) > 1:
                state.drop_oldest_run()
                self._weigh(state)

    def _longest_unused(self) -> int | None:
        """The dataset to let go of next; others are kept that were made from those above them."""
        free = (one for one in self._states if one not in self._locked)
        return next((one for one in free if not self._made_from.get(one)), None)

    def _weigh(self, state: DatasetState) -> None:
        size = state.size
        self._bytes += size - self._sizes.get(state.id, 0)
        self._sizes[state.id] = size

    def _drop(self, dataset_id: int) -> None:
        state = self._states.pop(dataset_id)
        self._bytes -= self._sizes.pop(dataset_id, 0)
        for ancestor, _ in state.ancestors:
            self._made_from[ancestor.id].discard(dataset_id)
        self._made_from.pop(dataset_id, None)

    def forget(self) -> None:
        """Drop everything: the transaction was not committed, or may not have been."""
        for held in (self._states, self._dataset_ids, self._made_from, self._locked, self._sizes):
            held.clear()
        self._bytes = 0
        self.sparing = Sparing()  # a refusal may have been undone, too


class UnitOfWork:
    """The states that one transaction works on."""

    def __init__(self, connection: Connection, cache: DatasetCache) -> None:
        self.connection = connection
        self.cache = cache
        self.changed: set[int] = set()

    def run(self, name: str) -> tuple[DatasetState, RunState]:
        """A run and its dataset.

        Raises:
            NotFoundError: there is no such run.
        """
        state = self.cache.dataset_of_run(name)
        if name not in state.runs:
            self.fetch([(name, MAIN)])
        return state, state.runs[name]

    def branch(self, run: RunState, name: str) -> Branch:
        """A branch of a run.

        Raises:
            NotFoundError: the run has none of that name.
        """
        if name not in run.branches:
            self._fetch_branches([run], [name])
        if name not in run.branches:
            raise NotFoundError("There is no such branch.")
        return run.branches[name]

    def in_same_datasets(self, names: Iterable[str]) -> bool:
        """Whether the runs that are not known yet are where they were before."""
        ids = self.cache.dataset_ids(names)
        strange = [name for name in ids if name not in self.cache.dataset_of_run(name).runs]
        if not strange:
            return True
        found = self.connection.execute(DATASET_OF_RUNS, {"names": strange})
        return {row.name: row.dataset_id for row in found} == {n: ids[n] for n in strange}

    def fetch(self, places: Sequence[BranchPlace]) -> None:
        """Read the runs and branches that are not known yet, all at once."""
        missing = [run for run, _ in places if run not in self.cache.dataset_of_run(run).runs]
        if missing:
            self._fetch_runs(missing)
        lacking = [
            (self.cache.dataset_of_run(run).runs[run], branch)
            for run, branch in places
            if branch not in self.cache.dataset_of_run(run).runs[run].branches
        ]
        if lacking:
            self._fetch_branches([run for run, _ in lacking], [name for _, name in lacking])

    def _fetch_runs(self, names: Sequence[str]) -> None:
        rows = list(self.connection.execute(_RUNS, {"names": names}))
        ids = [row.id for row in rows]
        sizes = {row[0]: row[1:] for row in self.connection.execute(_UNIT_COUNTS, {"ids": ids})}
        # What a correction adds is not in a run's units, but in the sums of the filters.
        corrected = correction_costs.corrected_runs(self.connection, ids)
        few = [
            one for one in ids if sizes.get(one, (0, 0))[0] <= UNITS_MAX and one not in corrected
        ]
        units = defaultdict(list)
        for unit in self.connection.execute(UNITS, {"ids": few}):
            units[unit.run_id].append(unit)
        for row in rows:
            state = self.cache.dataset_of_run(row.name)
            counted = units[row.id] if row.id in few else None
            steps = int(sizes.get(row.id, (0, 0))[1])
            run = state.runs[row.name] = run_book_of(self.connection, state, row, counted, steps)
            if row.id in corrected:
                run.shifts = correction_costs.shifts_of_run(
                    self.connection, row.id, dataset_id=state.id, dataset_size=state.dataset_size
                )

    def _fetch_branches(self, owners: Sequence[RunState], names: Sequence[str]) -> None:
        owner_of = {run.id: run for run in owners}
        found = {"ids": list(owner_of), "names": list(dict.fromkeys(names))}
        rows = list(self.connection.execute(_BRANCHES, found))
        of_branches = defaultdict(list)
        for one in self.connection.execute(_RESERVATIONS, {"ids": [row.id for row in rows]}):
            of_branches[one.branch_id].append(one)
        for row in rows:
            run = owner_of[row.run_id]
            if row.name not in run.branches:
                size = self.cache.dataset_of_run(run.name).dataset_size
                run.branches[row.name] = branch_of(row, of_branches[row.id], size)

    def refused(self, state: DatasetState, run: RunState, refusal: BudgetExhaustedError) -> None:
        """Record that a limit refused steps: at most once a minute for a run and a limit."""
        (first, *_) = refusal.failing_scopes
        if self.cache.sparing.lets((state.name, run.name, first["scope"], first["limit"])):
            detail: dict[str, Any] = {"dataset": state.name, "run": run.name, **first}
            detail |= refusal.shares
            state.notes.incidents.append(
                Incident(
                    dataset_id=state.id,
                    run_id=run.id,
                    kind=Kind.REFUSAL,
                    sequence=state.head,
                    detail=detail,
                )
            )
            state.notes.touched = True

    def event_ids(self, state: DatasetState, events: Iterable[Event]) -> dict[Event, int]:
        """The rows of events in a dataset, made where there are none."""
        wanted = list(dict.fromkeys(events))
        known = {event: state.event_ids[event] for event in wanted if event in state.event_ids}
        missing = {content_of(event): event for event in wanted if event not in known}
        if missing:
            known |= {missing[text]: one for text, one in self._rows_of(state, missing)}
            state.event_ids |= known
        return known

    def _rows_of(self, state: DatasetState, contents: dict[str, Event]) -> list[tuple[str, int]]:
        found = bulk.distinct_ids(self.connection, state.id, list(contents))
        there = {text for text, _ in found}
        absent = [(text, by_pass(event)) for text, event in contents.items() if text not in there]
        if absent:
            found += bulk.insert_distinct(self.connection, state.id, absent)
        return found

    def write(self) -> list[int]:
        """Write what has changed, after which the states hold what the database does.

        Returns:
            The datasets that changed.
        """
        states = self.cache.written()
        if not states:
            return sorted(self.changed)
        changes = [(state, self._ids_of(state)) for state in states]
        happened = [one for state in states for one in state.notes.incidents]
        for state in states:
            state.version = secrets.randbits(VERSION_BITS)
        with bulk.pipeline(self.connection):
            write_books(self.connection, changes)
        for state in states:
            state.notes = PendingChanges()
        if happened:
            incidents.record_incidents(self.connection, happened)
        self.changed |= {state.id for state in states}
        return sorted(self.changed)

    def _ids_of(self, state: DatasetState) -> dict[Event, int]:
        """The rows of the events that a state's changes name."""
        places = [branch.open_pass for branch in state.notes.branches.values()]
        opened = [place.event for place in places if isinstance(place, OpenPass)]
        return self.event_ids(state, [*state.notes.added, *opened])
