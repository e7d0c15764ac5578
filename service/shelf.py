"""The books of a process: locked and read at the start of a transaction, written at its end."""

import json
import secrets
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, func, or_, select

import accounting
from accounting.balances import OpenPass
from accounting.events import Event, NeighboringRelation
from accounting.guarantees import Status
from service import bulk, excess, incidents
from service.books import UNITS_MAX, Book, Branch, Lease, Notes, RunBook
from service.budgets import accept_of, dataset_filter, dataset_scope, run_filter, run_scope
from service.clock import utc
from service.documents import content_of, event_of, plan_of
from service.errors import BudgetExhaustedError, NotFoundError
from service.incidents import Incident, Kind, Sparing
from service.lineage import restated, seen_as
from service.tables import (
    branches,
    datasets,
    distinct_events,
    entries,
    lineage,
    reservations,
    run_balances,
    runs,
)
from service.tallies import Counts, Move, Tally, read

THRESHOLDS: Final = (0.5, 0.8, 0.95)  # shares of a budget of which somebody is told
BOOKS_MAX: Final = 1024  # kept between transactions; a few kilobytes each
RUNS_MAX: Final = 16_384  # of one book; about two kilobytes each
VERSION_BITS: Final = 62  # drawn anew, so that no two states of a dataset share one
EVENTS_MAX: Final = 4096  # of one book whose rows are remembered

_VERSION: Final = accounting.__version__  # whose sums are stored
_KEPT: Final = ("steps", "passes", "starts", "reserved_steps", "reserved_passes")
_ENTRY: Final = (
    "dataset_id", "sequence", "run_id", "branch_id", "first_step", "steps", "event_id", "mode",
    "verdict", "recorded_at",
)  # fmt: skip

# Statements are built once: building one costs as much as running it.
_DATASET_OF_RUNS: Final = select(runs.c.name, runs.c.dataset_id).where(
    runs.c.name.in_(bindparam("names", expanding=True))
)
_DATASETS: Final = select(datasets).where(datasets.c.id.in_(bindparam("ids", expanding=True)))
_ANCESTORS: Final = (
    select(lineage.c.dataset_id, lineage.c.ancestor_id, lineage.c.exactly_one)
    .where(lineage.c.dataset_id.in_(bindparam("ids", expanding=True)))
    .order_by(lineage.c.ancestor_id)
)
_DESCENDANTS: Final = select(lineage.c.dataset_id, lineage.c.exactly_one).where(
    lineage.c.ancestor_id == bindparam("dataset")
)
_COUNTS: Final = select(
    distinct_events.c.dataset_id, distinct_events.c.content, *(distinct_events.c[n] for n in _KEPT)
).where(distinct_events.c.dataset_id.in_(bindparam("ids", expanding=True)))
_COUNTS_BY_PASS: Final = _COUNTS.where(distinct_events.c.by_pass)
_EXPIRY: Final = select(func.min(reservations.c.expires_at)).where(
    reservations.c.dataset_id == bindparam("dataset"), reservations.c.state == "open"
)
_RUNS: Final = select(runs).where(runs.c.name.in_(bindparam("names", expanding=True)))
_UNIT_COUNTS: Final = (
    select(run_balances.c.run_id, func.count(), func.sum(run_balances.c.steps))
    .where(run_balances.c.run_id.in_(bindparam("ids", expanding=True)))
    .group_by(run_balances.c.run_id)
)
_UNITS: Final = (
    select(
        run_balances.c.run_id,
        distinct_events.c.content,
        distinct_events.c.id,
        *(run_balances.c[n] for n in _KEPT),
    )
    .join(distinct_events, distinct_events.c.id == run_balances.c.event_id)
    .where(run_balances.c.run_id.in_(bindparam("ids", expanding=True)))
)
_BRANCHES: Final = (
    select(branches, distinct_events.c.content)
    .outerjoin(distinct_events, distinct_events.c.id == branches.c.pass_event_id)
    .where(
        branches.c.run_id.in_(bindparam("ids", expanding=True)),
        branches.c.name.in_(bindparam("names", expanding=True)),
    )
)
_LEASES: Final = (
    select(reservations, distinct_events.c.content)
    .join(distinct_events, distinct_events.c.id == reservations.c.event_id)
    .join(branches, branches.c.id == reservations.c.branch_id)
    .where(
        reservations.c.branch_id.in_(bindparam("ids", expanding=True)),
        reservations.c.first_step + reservations.c.steps > branches.c.next_step,
    )
    .order_by(reservations.c.first_step)
)
_EVENT_IDS: Final = select(distinct_events.c.id, distinct_events.c.content).where(
    distinct_events.c.dataset_id == bindparam("dataset"),
    distinct_events.c.content.in_(bindparam("contents", expanding=True)),
)


Place = tuple[str, str]  # a run and one of its branches


class Shelf:
    """The books a process keeps between transactions. One thread at a time uses it."""

    def __init__(self, thresholds: tuple[float, ...] = THRESHOLDS) -> None:
        self.thresholds = thresholds
        self.sparing = Sparing()
        self._books: OrderedDict[int, Book] = OrderedDict()
        self._homes: OrderedDict[str, int] = OrderedDict()  # dataset of each run; never changes

    def open(self, connection: Connection, places: Iterable[Place]) -> "Desk":
        """Lock the datasets of some (run, branch), and everything those were made from.

        Always in the order of their ids, so that two processes never wait for each other.
        """
        wanted = list(dict.fromkeys(places))
        names = {run for run, _ in wanted}
        if not self.lock(connection, self._homes_of(connection, names)):
            self.forget()  # the database was put back to what it was before
            self.lock(connection, self._homes_of(connection, names))
        desk = Desk(connection, self)
        desk.fetch([(run, branch) for run, branch in wanted if run in self._homes])
        return desk

    def _homes_of(self, connection: Connection, names: set[str]) -> set[int]:
        if missing := [name for name in names if name not in self._homes]:
            for row in connection.execute(_DATASET_OF_RUNS, {"names": missing}):
                self._homes[row.name] = row.dataset_id
        return {self._homes[name] for name in names if name in self._homes}

    def lock(self, connection: Connection, ids: set[int]) -> bool:
        """Lock datasets with their ancestors, and read again what has changed.

        Returns:
            Whether all of them are there.
        """
        unknown = [one for one in ids if one not in self._books]
        above = {a.id for one in ids if one in self._books for a, _ in self._books[one].ancestors}
        if unknown:
            found = connection.execute(_ANCESTORS, {"ids": unknown})
            above |= {row.ancestor_id for row in found}
        locked = bulk.select(connection, datasets, "id", ("id", "version"), ids | above)
        stale = [one for one, version in locked if not self._holds(one, version)]
        if stale:
            self._read(connection, stale)
        return len(locked) == len(ids | above)

    def _holds(self, dataset_id: int, version: int) -> bool:
        book = self._books.get(dataset_id)
        return book is not None and book.version == version

    def _read(self, connection: Connection, ids: Sequence[int]) -> None:
        for row in connection.execute(_DATASETS, {"ids": ids}).all():
            self._books[row.id] = _book(connection, row, self.thresholds)
        for book in self._books.values():  # a book that was read anew takes its old one's place
            if book.id in ids or any(ancestor.id in ids for ancestor, _ in book.ancestors):
                self._place(connection, book)

    def _place(self, connection: Connection, book: Book) -> None:
        found = connection.execute(_ANCESTORS, {"ids": [book.id]})
        book.ancestors = tuple((self._books[r.ancestor_id], r.exactly_one) for r in found)

    def book(self, dataset_id: int) -> Book:
        """A dataset that `lock` has locked."""
        return self._books[dataset_id]

    def home(self, run_name: str) -> Book:
        """The book that holds a run.

        Raises:
            NotFoundError: there is no such run.
        """
        if run_name not in self._homes:
            raise NotFoundError("There is no such run.")
        return self._books[self._homes[run_name]]

    def written(self) -> list[Book]:
        """The books that a transaction has changed."""
        return [book for book in self._books.values() if book.notes.touched]

    def settle(self) -> None:
        """Let go of what was used least, once the transaction is committed."""
        while len(self._homes) > BOOKS_MAX * 16:
            self._homes.popitem(last=False)
        if len(self._books) > BOOKS_MAX:
            self.forget()
        for book in self._books.values():
            while len(book.runs) > RUNS_MAX:
                book.runs.popitem(last=False)
            while len(book.event_ids) > EVENTS_MAX:
                book.event_ids.popitem(last=False)

    def forget(self) -> None:
        """Drop everything: the transaction was not committed, or may not have been."""
        self._books.clear()
        self._homes.clear()


class Desk:
    """The books that one transaction works on."""

    def __init__(self, connection: Connection, shelf: Shelf) -> None:
        self.connection = connection
        self.shelf = shelf
        self.changed: set[int] = set()
        self._moment: tuple[datetime, object] | None = None

    def stored(self, moment: datetime) -> object:
        """A time as the database takes it; the same for a whole transaction."""
        if self._moment is None or self._moment[0] != moment:
            self._moment = (moment, bulk.stored(self.connection, moment))
        return self._moment[1]

    def run(self, name: str) -> tuple[Book, RunBook]:
        """A run and its dataset.

        Raises:
            NotFoundError: there is no such run.
        """
        book = self.shelf.home(name)
        if name not in book.runs:
            self.fetch([(name, "main")])
        return book, book.runs[name]

    def branch(self, run: RunBook, name: str) -> Branch:
        """A branch of a run.

        Raises:
            NotFoundError: the run has none of that name.
        """
        if name not in run.branches:
            self._fetch_branches([run], [name])
        if name not in run.branches:
            raise NotFoundError("There is no such branch.")
        return run.branches[name]

    def fetch(self, places: Sequence[Place]) -> None:
        """Read the runs and branches that are not known yet, all at once."""
        missing = [run for run, _ in places if run not in self.shelf.home(run).runs]
        if missing:
            self._fetch_runs(missing)
        lacking = [
            (self.shelf.home(run).runs[run], branch)
            for run, branch in places
            if branch not in self.shelf.home(run).runs[run].branches
        ]
        if lacking:
            self._fetch_branches([run for run, _ in lacking], [name for _, name in lacking])

    def _fetch_runs(self, names: Sequence[str]) -> None:
        rows = list(self.connection.execute(_RUNS, {"names": names}))
        ids = [row.id for row in rows]
        sizes = {row[0]: row[1:] for row in self.connection.execute(_UNIT_COUNTS, {"ids": ids})}
        # What a correction adds is not in a run's units, but in the sums of the filters.
        corrected = excess.corrected_runs(self.connection, ids)
        few = [one for one in ids if sizes.get(one, (0, 0))[0] <= UNITS_MAX and one not in corrected]
        units = defaultdict(list)
        for unit in self.connection.execute(_UNITS, {"ids": few}):
            units[unit.run_id].append(unit)
        for row in rows:
            book = self.shelf.home(row.name)
            counted = units[row.id] if row.id in few else None
            steps = int(sizes.get(row.id, (0, 0))[1])
            book.runs[row.name] = _run_book(self.connection, book, row, counted, steps)

    def _fetch_branches(self, owners: Sequence[RunBook], names: Sequence[str]) -> None:
        owner_of = {run.id: run for run in owners}
        found = {"ids": list(owner_of), "names": list(dict.fromkeys(names))}
        rows = list(self.connection.execute(_BRANCHES, found))
        leases = defaultdict(list)
        for lease in self.connection.execute(_LEASES, {"ids": [row.id for row in rows]}):
            leases[lease.branch_id].append(lease)
        for row in rows:
            run = owner_of[row.run_id]
            if row.name not in run.branches:
                size = self.shelf.home(run.name).dataset_size
                run.branches[row.name] = _branch(row, leases[row.id], size)

    def refused(self, book: Book, run: RunBook, refusal: BudgetExhaustedError) -> None:
        """Note a refusal, where somebody may be told; nothing of what was asked is kept."""
        (first, *_) = refusal.failing_scopes
        if self.shelf.sparing.lets(first["scope"]):
            detail: dict[str, Any] = {"dataset": book.name, "run": run.name, **first}
            book.notes.incidents.append(
                Incident(
                    dataset_id=book.id,
                    run_id=run.id,
                    kind=Kind.REFUSAL,
                    sequence=book.head,
                    detail=detail,
                )
            )
            book.notes.touched = True

    def event_ids(self, book: Book, events: Iterable[Event]) -> dict[Event, int]:
        """The rows of events in a dataset, made where there are none."""
        wanted = list(dict.fromkeys(events))
        known = {event: book.event_ids[event] for event in wanted if event in book.event_ids}
        missing = {content_of(event): event for event in wanted if event not in known}
        if missing:
            known |= {missing[text]: one for text, one in self._rows_of(book, list(missing))}
            book.event_ids |= known
        return known

    def _rows_of(self, book: Book, contents: list[str]) -> list[tuple[str, int]]:
        found = bulk.distinct_ids(self.connection, book.id, contents)
        there = {text for text, _ in found}
        absent = [text for text in contents if text not in there]
        if absent:
            found += bulk.insert_distinct(
                self.connection, book.id, [(text, _by_pass(text)) for text in absent]
            )
        return found

    def write(self) -> list[int]:
        """Write what has changed, after which the books hold what the database does.

        Returns:
            The datasets that changed.
        """
        books = self.shelf.written()
        for book in books:
            _write(self, book)
            book.notes = Notes()
            book.version = secrets.randbits(VERSION_BITS)
        bulk.update(
            self.connection,
            datasets,
            "id",
            ("head_sequence", "version", "totals", "totals_version"),
            [
                (book.head, book.version, book.tally.stored(), _VERSION, book.id)
                for book in books
            ],
        )
        self.changed |= {book.id for book in books}
        return sorted(self.changed)


def _by_pass(content: str) -> bool:
    return "steps_per_pass" in json.loads(content)["sampling"]


def _book(connection: Connection, row: Row[Any], thresholds: tuple[float, ...]) -> Book:
    relation, accept = NeighboringRelation(row.neighboring_relation), accept_of(row)
    tally = tally_of(connection, row)
    return Book(
        id=row.id,
        name=row.name,
        dataset_size=row.dataset_size,
        relation=relation,
        accept=accept,
        head=row.head_sequence,
        version=row.version,
        tally=tally,
        scope=dataset_scope(row, tally),
        delta=row.budget_delta,
        ancestors=(),
        earliest_expiry=utc(connection.scalar(_EXPIRY, {"dataset": row.id})),
        thresholds=thresholds,
    )


def tally_of(connection: Connection, row: Row[Any]) -> Tally:
    """A dataset's sums: as they were stored, or folded anew where another version stored them."""
    relation, accept = NeighboringRelation(row.neighboring_relation), accept_of(row)
    fresh = row.totals is not None and row.totals_version == _VERSION
    tally = read(row.totals if fresh else None, dataset_filter(row), relation, accept)
    below = {row.id: True}
    below |= {r.dataset_id: r.exactly_one for r in connection.execute(_DESCENDANTS, {"dataset": row.id})}
    sizes = {
        r.id: r.dataset_size for r in connection.execute(_DATASETS, {"ids": list(below)})
    }
    query = _COUNTS_BY_PASS if fresh else _COUNTS
    for counts in connection.execute(query, {"ids": list(below)}):
        move = _move(counts, event_of(counts.content, sizes[counts.dataset_id]))
        if counts.dataset_id != row.id:
            move = restated(move, relation=relation, exactly_one=below[counts.dataset_id])
        tally.apply(move)
    _charge_corrections(connection, tally, row, below, sizes, stored=fresh)
    return tally


def _charge_corrections(
    connection: Connection,
    tally: Tally,
    row: Row[Any],
    below: dict[int, bool],
    sizes: dict[int, int],
    *,
    stored: bool,
) -> None:
    """Count what corrections of a dataset, and of those that were made from it, add."""
    for one in excess.of_datasets(connection, sizes):
        exactly_one = one.dataset_id == row.id or below[one.dataset_id]
        view = partial(seen_as, relation=tally.relation, exactly_one=exactly_one)
        excess.charge(tally, [one], view=view, stored=stored)


def _move(row: Row[Any], event: Event) -> Move:
    return Move(
        recorded={event: Counts(steps=row.steps, passes=row.passes)},
        reserved={event: Counts(steps=row.reserved_steps, passes=row.reserved_passes)},
    )


def _run_book(
    connection: Connection,
    book: Book,
    row: Row[Any],
    counted: Sequence[Row[Any]] | None,
    steps: int,
) -> RunBook:
    units = None
    if counted is not None:
        units = {
            event_of(unit.content, book.dataset_size): Counts(steps=unit.steps, passes=unit.passes)
            for unit in counted
            if unit.steps or unit.passes
        }
    return RunBook(
        id=row.id,
        name=row.name,
        delta=row.delta,
        state=row.state,
        reopened=row.reopened,
        scope=run_scope(
            row, _run_tally(connection, row, book.relation, book.accept, book.dataset_size)
        ),
        plan=plan_of(row.plan, book.dataset_size) if row.on_plan else None,
        on_plan=row.on_plan,
        units=units,
        steps=steps,
    )


def run_tally(connection: Connection, dataset: Row[Any], run: Row[Any]) -> Tally | None:
    """The sums of a run's own budget, if it has one."""
    relation = NeighboringRelation(dataset.neighboring_relation)
    return _run_tally(connection, run, relation, accept_of(dataset), dataset.dataset_size)


def _run_tally(
    connection: Connection,
    row: Row[Any],
    relation: NeighboringRelation,
    accept: frozenset[Status],
    dataset_size: int,
) -> Tally | None:
    own = run_filter(row)
    if own is None:
        return None
    fresh = row.totals is not None and row.totals_version == _VERSION
    tally = read(row.totals if fresh else None, own, relation, accept)
    query = _UNITS.where(or_(distinct_events.c.by_pass, not fresh))
    for unit in connection.execute(query, {"ids": [row.id]}):
        tally.apply(_move(unit, event_of(unit.content, dataset_size)))
    excess.charge(tally, excess.of_run(connection, row, dataset_size), stored=fresh)
    return tally


def _branch(row: Row[Any], leases: Sequence[Row[Any]], dataset_size: int) -> Branch:
    open_pass = None
    if row.content is not None:
        event = event_of(row.content, dataset_size)
        open_pass = OpenPass(event=event, position=row.pass_position)
    return Branch(
        id=row.id,
        name=row.name,
        from_step=row.from_step,
        next_step=row.next_step,
        open_pass=open_pass,
        leases=[lease_of(lease, dataset_size) for lease in leases],
    )


def lease_of(row: Row[Any], dataset_size: int) -> Lease:
    """A reservation's row with its event."""
    return Lease(
        id=row.id,
        name=row.name,
        event=event_of(row.content, dataset_size),
        first_step=row.first_step,
        granted_end=row.first_step + row.steps,
        end_step=row.end_step,
        state=row.state,
        expires_at=utc(row.expires_at),
    )


def _write(desk: Desk, book: Book) -> None:
    """Write one book, but for its dataset's own row."""
    notes, connection = book.notes, desk.connection
    opened = [b.open_pass.event for b in notes.branches.values() if b.open_pass]
    ids = desk.event_ids(book, [*notes.added, *opened])
    rows = [(*one[:6], ids[one[6]], *one[7:]) for one in notes.entries]
    bulk.insert(connection, entries, _ENTRY, rows)
    bulk.add(
        connection,
        distinct_events,
        "id",
        _KEPT,
        [(*added.row(), ids[event]) for event, added in notes.added.items()],
    )
    bulk.add_or_insert(
        connection,
        run_balances,
        ("run_id", "event_id"),
        _KEPT,
        [(run, ids[event], *added.row()) for (run, event), added in notes.run_added.items()],
    )
    bulk.update(
        connection,
        branches,
        "id",
        ("next_step", "pass_event_id", "pass_position"),
        [_branch_row(branch, ids) for branch in notes.branches.values()],
    )
    bulk.update(
        connection,
        runs,
        "id",
        ("state", "reopened", "on_plan", "totals", "totals_version"),
        [_run_row(run) for run in notes.runs.values()],
    )
    bulk.update(
        connection,
        reservations,
        "id",
        ("end_step", "state"),
        [(lease.end_step, lease.state, lease.id) for lease in notes.leases.values()],
    )
    incidents.record(connection, notes.incidents)


def _branch_row(branch: Branch, ids: dict[Event, int]) -> tuple[Any, ...]:
    if branch.open_pass is None:
        return branch.next_step, None, None, branch.id
    return branch.next_step, ids[branch.open_pass.event], branch.open_pass.position, branch.id


def _run_row(run: RunBook) -> tuple[Any, ...]:
    totals = run.scope.tally.stored() if run.scope else None
    return run.state, run.reopened, run.on_plan, totals, _VERSION, run.id
