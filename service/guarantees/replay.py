"""Entries one by one: counted as they were recorded, and with corrections laid over them.

Facts never change: a correction stands beside what it corrects.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, bindparam, func, select

from accounting.event_counts import (
    EventCounts,
    Place,
    advance,
    count_passes_begun,
    pass_length,
    starts_anew,
)
from accounting.events import Event, Span
from service.errors import TooExpensiveError
from service.guarantees.event_counts import RecordedCounts
from service.ledger.budgets.pass_positions import OPENS, beginning
from service.schemas.event_codec import Line, Lines, Taken, event_of, overlay
from service.storage.tables import branches, corrections, distinct_events, entries

FOLD_MAX: Final = 2_000_000  # entries that one question may read: some ten seconds
LATEST: Final = 2**62  # a sequence, and a step, beyond all others
_ROWS: Final = 5000  # fetched at a time

_SELECTED: Final = select(
    entries.c.sequence,
    entries.c.branch_id,
    entries.c.first_step,
    entries.c.steps,
    entries.c.verdict,
    distinct_events.c.content,
    OPENS.label("opens"),
)
_ENTRIES: Final = _SELECTED.join(distinct_events, distinct_events.c.id == entries.c.event_id).join(
    branches, branches.c.id == entries.c.branch_id
)
OF_RUN: Final = _ENTRIES.where(
    entries.c.run_id == bindparam("run"), entries.c.sequence <= bindparam("until")
).order_by(entries.c.sequence)
OF_DATASET: Final = _ENTRIES.where(
    entries.c.dataset_id == bindparam("dataset"), entries.c.sequence <= bindparam("until")
).order_by(entries.c.sequence)
OF_BRANCH: Final = _ENTRIES.where(
    entries.c.branch_id == bindparam("branch"),
    entries.c.first_step < bindparam("end"),
    entries.c.sequence <= bindparam("until"),
).order_by(entries.c.first_step)
_CORRECTIONS: Final = (
    select(
        corrections.c.branch_id,
        corrections.c.first_step,
        corrections.c.steps,
        corrections.c.reason,
        distinct_events.c.content,
    )
    .join(distinct_events, distinct_events.c.id == corrections.c.event_id)
    .where(corrections.c.sequence <= bindparam("known"))
    .order_by(corrections.c.branch_id, corrections.c.first_step)
)
CORRECTIONS_OF_RUN: Final = _CORRECTIONS.where(corrections.c.run_id == bindparam("run"))
_COUNTED: Final = select(func.count(corrections.c.id)).where(
    corrections.c.run_id == bindparam("run")
)
CORRECTIONS_OF_DATASET: Final = _CORRECTIONS.where(corrections.c.dataset_id == bindparam("dataset"))

RecordedPart = tuple[int, int, int, str, int]  # branch, first step, steps, content, opens
Corrections = Mapping[int, Sequence[tuple[int, int, str]]]  # (first step, end, content) by branch


class LaidOver(NamedTuple):
    """Steps of an entry with what they were: as recorded, or as corrected."""

    sequence: int
    branch_id: int
    first_step: int
    steps: int
    content: str
    opens: int


class Fold:
    """Counts entries as they were recorded; passes are followed branch by branch."""

    def __init__(self, dataset_size: int, taken: Iterable[Taken] = ()) -> None:
        """Begin with nothing.

        Args:
            dataset_size: of the dataset.
            taken: by whom open passes were taken, of the branches that are folded.
        """
        self.lines = Lines(taken)  # of branches that begin later, more may be told
        self._size = dataset_size
        self._known: dict[str, tuple[Event, bool]] = {}  # events, and whether passes count
        self._steps: dict[Event, int] = {}  # until the counts were last read
        self._since: Counter[str] = Counter()  # then; by content: events are slow to hash
        self._passes: Counter[Event] = Counter()
        self._begun: Counter[Event] = Counter()
        self._starts: Counter[Event] = Counter()
        self._open: dict[Line, Place] = {}

    def add(self, branch_id: int, content: str, steps: int, *, first_step: int, opens: int) -> None:
        """Count steps that follow on a branch, which opens so (pass_positions.OPENS)."""
        event, by_pass = self._known.get(content) or self._learn(content)
        self._since[content] += steps
        line = self.lines.at(branch_id, first_step)
        before = self._open.get(line, beginning(line, opens=opens))
        if by_pass or before is not None:
            span = Span(event=event, steps=steps)
            self._starts[event] += starts_anew(before, span)
            self._begun[event] += count_passes_begun(before, span)
            more, self._open[line] = advance(before, span)
            self._passes.update(more)

    def add_entry(self, row: Row[Any] | LaidOver, steps: int | None = None) -> None:
        """Count an entry, or so many of its steps after those that were counted."""
        count = row.steps if steps is None else steps
        self.add(row.branch_id, row.content, count, first_step=row.first_step, opens=row.opens)

    def _learn(self, content: str) -> tuple[Event, bool]:
        event = event_of(content, self._size)
        self._known[content] = event, pass_length(event) is not None
        return self._known[content]

    def counts(self) -> EventCounts:
        """What was counted so far."""
        for content, count in self._since.items():
            event, _ = self._known[content]
            self._steps[event] = self._steps.get(event, 0) + count
        self._since.clear()
        return EventCounts(
            steps=dict(self._steps),
            passes=_some(self._passes),
            begun=_some(self._begun),
            starts=_some(self._starts),
        )


def _some(counts: Mapping[Event, int]) -> dict[Event, int]:
    """Counts without those that are zero; hashed again only where there are any."""
    if all(counts.values()):
        return dict(counts)
    return {event: count for event, count in counts.items() if count}


def read_entries(
    connection: Connection, run: Row[Any], *, until: int = LATEST
) -> Iterable[Row[Any]]:
    """A run's entries in the order of recording, with their event and branch."""
    return stream_rows(connection, OF_RUN, run=run.id, until=until)


def stream_rows(
    connection: Connection, query: Any, **values: int
) -> Generator[Row[Any], None, None]:
    """Rows of entries, never many of them at once."""
    with connection.execute(query, values, execution_options={"yield_per": _ROWS}) as found:
        yield from found


def by_branch(rows: Iterable[Any]) -> Corrections:
    """Corrections where they lie."""
    found: dict[int, list[tuple[int, int, str]]] = {}
    for row in rows:
        span = (row.first_step, row.first_step + row.steps, row.content)
        found.setdefault(row.branch_id, []).append(span)
    return found


def corrections_of(connection: Connection, run: Row[Any]) -> Iterable[Row[Any]]:
    """A run's corrections, branch by branch, in the order of steps."""
    return connection.execute(CORRECTIONS_OF_RUN, {"run": run.id, "known": LATEST})


def correction_count(connection: Connection, run: Row[Any]) -> int:
    """How many corrections a run has."""
    return connection.scalar(_COUNTED, {"run": run.id}) or 0


def require_few(count: int) -> None:
    """Refuse to read very many entries.

    Raises:
        TooExpensiveError: there are more than one question may read.
    """
    if count > FOLD_MAX:
        raise TooExpensiveError(
            f"The answer would take reading more than {FOLD_MAX} entries one by one."
        )


def parts_of(rows: Iterable[Row[Any]]) -> Iterator[RecordedPart]:
    """Entries as they are folded."""
    for row in rows:
        yield row.branch_id, row.first_step, row.steps, row.content, row.opens


def with_corrections(rows: Iterable[Row[Any]], found: Corrections) -> Iterator[LaidOver]:
    """Entries with corrections laid over them, in the same order."""
    for row in rows:
        whole = (row.first_step, row.steps, row.content)
        for first_step, steps, content in overlay(whole, found.get(row.branch_id, ())):
            yield LaidOver(row.sequence, row.branch_id, first_step, steps, content, row.opens)


def fold_entries(
    parts: Iterable[RecordedPart],
    found: Corrections,
    dataset_size: int,
    taken: Sequence[Taken] = (),
) -> RecordedCounts:
    """Fold entries as they were recorded and, where there are corrections, as corrected."""
    plain, better = Fold(dataset_size, taken), Fold(dataset_size, taken)
    reached: dict[int, int] = {}
    for count, (branch, first_step, steps, content, opens) in enumerate(parts, start=1):
        require_few(count)
        plain.add(branch, content, steps, first_step=first_step, opens=opens)
        if found:
            reached[branch] = first_step + steps
            whole = (first_step, steps, content)
            for here, more, what in overlay(whole, found.get(branch, ())):
                better.add(branch, what, more, first_step=here, opens=opens)
    used = sum(one[0] < reached.get(branch, 0) for branch, over in found.items() for one in over)
    corrected = better.counts() if used else None
    return RecordedCounts(recorded=plain.counts(), corrected=corrected, corrections=used)
