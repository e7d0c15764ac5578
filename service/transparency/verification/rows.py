"""Read what entries of a dataset refer to: its runs, branches and events."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from psycopg import DataError
from psycopg.types.datetime import TimestamptzLoader
from sqlalchemy import Connection, Dialect, Select, bindparam, select

from accounting.event_counts import UNPLACED, Place
from accounting.events import Event
from service.errors import LedgerError
from service.ledger.budgets.pass_positions import opening_place
from service.schemas.event_codec import Line, Lines, Taken, event_of
from service.storage.tables import branches, distinct_events, runs

ROWS: Final = 5000  # at a time
Words = Callable[[bytes], list[str]]
# (sequence, run, branch, first step, steps, event, what Words reads, leaf)
EntryRow = tuple[Any, Any, Any, Any, Any, Any, Any, Any]
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}")
_ENTRIES: Final = (
    "SELECT sequence, run_id, branch_id, first_step, steps, event_id, {said}, leaf "
    "FROM entries WHERE dataset_id = {mark} ORDER BY sequence"
)
_SQLITE_ENTRIES: Final = _ENTRIES.format(
    said="CAST(mode || '|' || verdict || '|' || recorded_at AS BLOB)", mark="?"
)
# The server is slow to write times out, and a batch has few: they come as it stores them, in
# microseconds since 2000.
_POSTGRES_ENTRIES: Final = _ENTRIES.format(
    said="convert_to(mode || '|' || verdict || '|', 'UTF8') || timestamptz_send(recorded_at)",
    mark="%s",
)
_POSTGRES_EPOCH: Final = datetime(2000, 1, 1)  # noqa: DTZ001, what is stored is UTC
_BY_PASS: Final = frozenset(
    {"cyclic", "shuffle", "balls_and_bins", "random_allocation", "min_separation", "cyclic_poisson"}
)
_RUNS: Final = (
    select(runs.c.id, runs.c.name)
    .where(runs.c.dataset_id == bindparam("dataset"))
    .order_by(runs.c.id)
)
_BRANCHES: Final = (
    select(
        branches.c.id,
        branches.c.run_id,
        branches.c.name,
        branches.c.from_branch_id,
        branches.c.from_step,
        branches.c.order,
        branches.c.takes_pass,
        branches.c.noise,
        branches.c.next_step,
        branches.c.pass_event_id,
        branches.c.pass_position,
    )
    .join(runs, runs.c.id == branches.c.run_id)
    .where(runs.c.dataset_id == bindparam("dataset"))
    .order_by(branches.c.id)
)
_EVENTS: Final = select(distinct_events.c.id, distinct_events.c.content).where(
    distinct_events.c.dataset_id == bindparam("dataset")
)
# What reading a stored value may raise, where it is not what it should be.
UNREADABLE: Final = (ValueError, TypeError, KeyError, RecursionError, OverflowError, LedgerError)


def is_time(text: object) -> bool:
    """Whether a stored time is one."""
    return isinstance(text, str) and _TIME.fullmatch(text) is not None


class _Lenient(TimestamptzLoader):
    def load(self, data: Any) -> Any:
        """A time, or its text where Python has none for it, such as infinity."""
        try:
            return super().load(data)
        except DataError:
            return bytes(data).decode()


@contextmanager
def read_any_value(connection: Connection) -> Iterator[None]:
    """Let a driver hand over whatever is stored rather than fail on it."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "postgresql":
        driver.adapters.register_loader("timestamptz", _Lenient)
        yield
        driver.adapters.register_loader("timestamptz", TimestamptzLoader)
    else:
        driver.text_factory = _text
        yield
        driver.text_factory = str


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def every(connection: Connection, query: Select[Any], **values: Any) -> Iterator[dict[str, Any]]:
    """The rows of a query by column, not converted."""
    compiled = _compile_query(query, connection.dialect)
    given = compiled.construct_params(values)
    cursor = connection.connection.cursor()
    try:
        if connection.dialect.name == "postgresql":
            cursor.execute(str(compiled), given)
        else:
            cursor.execute(str(compiled), [given[name] for name in compiled.positiontup or ()])
        names = [column[0] for column in cursor.description or ()]
        while found := cursor.fetchmany(ROWS):
            for row in found:
                yield dict(zip(names, row, strict=True))
    finally:
        cursor.close()


@lru_cache(maxsize=256)
def _compile_query(query: Select[Any], dialect: Dialect) -> Any:
    return query.compile(dialect=dialect)


def entries_of(connection: Connection, dataset_id: int) -> Iterator[Sequence[EntryRow]]:
    """A dataset's entries in the order of their sequence, many at a time."""
    driver: Any = connection.connection
    if connection.dialect.name == "postgresql":
        # The server keeps the rows until they are asked for; numbers and bytes come as they are.
        cursor, query = driver.cursor("entries", binary=True), _POSTGRES_ENTRIES
    else:
        cursor, query = driver.cursor(), _SQLITE_ENTRIES
    try:
        cursor.execute(query, (dataset_id,))
        fetched = _fetch_batches(cursor) if connection.dialect.name == "sqlite" else _ahead(cursor)
        yield from fetched
    finally:
        cursor.close()


def _fetch_batches(cursor: Any) -> Iterator[Sequence[EntryRow]]:
    while found := cursor.fetchmany(ROWS):
        yield found


def _ahead(cursor: Any) -> Iterator[Sequence[EntryRow]]:
    """The same, while the server is asked for what comes next."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(cursor.fetchmany, ROWS)
        while found := coming.result():
            coming = reader.submit(cursor.fetchmany, ROWS)
            yield found


def words_of(connection: Connection) -> Words:
    """What reads the mode, the verdict and the time out of what an entry says of them.

    It raises ValueError or OverflowError where they cannot be read.
    """
    return _postgres_words if connection.dialect.name == "postgresql" else _sqlite_words


def _sqlite_words(said: bytes) -> list[str]:
    return said.decode().split("|")


def _postgres_words(said: bytes) -> list[str]:
    stored = int.from_bytes(said[-8:], signed=True)  # infinity and years before 1 overflow
    moment = _POSTGRES_EPOCH + timedelta(microseconds=stored)
    return [*said[:-9].decode().split("|"), moment.isoformat(" ", "microseconds")]


@dataclass(slots=True)
class BranchState:
    """A branch as its row has it, and as its entries so far make it."""

    row: dict[str, Any]
    next_step: Any  # by the entries
    opens: Place  # where it stands before its first step
    in_passes: bool  # whether passes may be open on it


@dataclass(slots=True)
class Slot:
    """What entries of one run, branch and event share."""

    run_id: int
    event_id: int
    head: str  # of what is hashed, up to the first step
    tail: str  # of the same, from the run to the sequence
    branch: BranchState
    event: Event | None  # where passes are what counts
    steps: int = 0


@dataclass(slots=True)
class Names:
    """The rows by their numbers; events are looked into when an entry names them."""

    dataset: str
    dataset_size: Any
    words: Words  # reads what its entries say
    runs: dict[Any, str]
    branches: dict[Any, BranchState]
    events: dict[Any, str]
    lines: Lines
    open_passes: dict[Line, Place] = field(default_factory=dict)  # by the entries
    slots: dict[tuple[Any, Any, Any], Slot] = field(default_factory=dict)

    @classmethod
    def read(cls, connection: Connection, dataset_row: dict[str, Any]) -> "Names":
        """Those of a dataset's row."""
        asked = {"dataset": dataset_row["id"]}
        found = list(every(connection, _BRANCHES, **asked))
        return cls(
            dataset=dataset_row["name"],
            dataset_size=dataset_row["dataset_size"],
            words=words_of(connection),
            runs={one["id"]: one["name"] for one in every(connection, _RUNS, **asked)},
            branches={
                one["id"]: BranchState(
                    one,
                    one["from_step"],
                    opens=_opening(one),
                    in_passes=_opening(one) is not None or bool(one["takes_pass"]),
                )
                for one in found
            },
            events={one["id"]: one["content"] for one in every(connection, _EVENTS, **asked)},
            lines=Lines(_parse_taken_passes(found)),
        )

    def line(self, state: BranchState) -> tuple[Line, Place]:
        """The line that the next step of a branch is on, and where that stands."""
        step = state.next_step if isinstance(state.next_step, int) else 0
        line = self.lines.at(state.row["id"], step)
        opens = UNPLACED if line[1] else state.opens
        return line, self.open_passes.get(line, opens)

    def slot(self, run_id: Any, branch_id: Any, event_id: Any) -> Slot:
        """What entries of a run, branch and event share.

        Raises:
            KeyError: one of them is not there.
            ValueError: the branch is another run's, or the event is none.
        """
        branch = self.branches[branch_id]
        if branch.row["run_id"] != run_id:
            raise ValueError("The branch is not the run's.")
        run, content = self.runs[run_id], self.events[event_id]
        event = event_of(content, self.dataset_size) if _by_pass(content) else None
        slot = Slot(
            run_id=run_id,
            event_id=event_id,
            head=f'\0{{"branch":"{branch.row["name"]}","dataset":"{self.dataset}","event":{content}'
            ',"first_step":',
            tail=f'+00:00","run":"{run}","sequence":',
            branch=branch,
            event=event,
        )
        self.slots[run_id, branch_id, event_id] = slot
        return slot

    def place(self, run_id: Any, branch_id: Any) -> str:
        """A run and a branch in words, whatever they are."""
        run = self.runs.get(run_id)
        branch = self.branches.get(branch_id)
        said = "no run of the dataset" if run is None else f"run {run}"
        return f"{said}, branch {branch.row['name']}" if branch else f"{said}, no such branch"


def _opening(row: dict[str, Any]) -> Place:
    return None if row["takes_pass"] else opening_place(row["name"], row["order"], row["noise"])


def _parse_taken_passes(rows: list[dict[str, Any]]) -> list[Taken]:
    """By whom open passes were taken; what is no number takes none."""
    numbers = {row["id"] for row in rows}
    return [
        Taken(by=row["id"], of=row["from_branch_id"], step=row["from_step"])
        for row in rows
        if row["takes_pass"]
        and row["from_branch_id"] in numbers
        and row["from_branch_id"] < row["id"]
        and isinstance(row["from_step"], int)
    ]


def _by_pass(content: str) -> bool:
    """Whether passes of a stored event count; it must at least have the form of one.

    Raises:
        ValueError, TypeError, KeyError: it does not.
    """
    said = json.loads(content)
    if not isinstance(said["mechanism"]["kind"], str):
        raise ValueError("An event has a kind of mechanism.")
    return said["sampling"]["kind"] in _BY_PASS
