"""How a run's epsilon grew, for repeated looks: each works out only what is new.

What was recorded never changes, and neither does epsilon after so many steps. Steps are marked at
multiples of a stride that doubles with the run, so that marks stay where they are. The curve rises:
the end of each stride is its extreme, and nothing between two marks is above the later one. Where
it rises most is looked at first, so that few marks show where it jumps.
"""

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam

from accounting.event_counts import EventCounts
from service.guarantees.guarantee import Question, resolve_query
from service.guarantees.history import HistoryPoint, HistoryReading, read_whole
from service.guarantees.noise_schedule import Schedule, Spans
from service.guarantees.replay import LATEST, OF_RUN, Fold, correction_count, stream_rows
from service.ledger.budgets.budget import delta_of
from service.ledger.budgets.pass_positions import taken_in_run
from service.ledger.lookups import dataset_of, find_run, recorded_steps
from service.schemas.event_codec import Lines
from service.schemas.responses import Answer
from service.storage.tables import entries
from service.storage.versioned_cache import VersionedCache

PROGRESS_POINTS_MAX: Final = 400
CORRECTED_POINTS_MAX: Final = 60  # of a run with corrections: each look reads all of it anew
_ROWS_MAX: Final = 50_000  # entries that one look reads,
_ROWS: Final = 500  # and after so many it sees how long that took
READ_SECONDS: Final = 0.015  # of processor time, after which a look reads no further entries
PROGRESS_SECONDS: Final = 0.015  # the same for points
RUN_SECONDS: Final = 5.0  # the same for a run; then only the latest step is worked out
_FLAT: Final = 1 / 500  # of the whole: too small to see in the chart
_RUNS_MAX: Final = 100  # cached; some hundred kilobytes each

_NEWER: Final = OF_RUN.where(entries.c.sequence > bindparam("after")).limit(_ROWS_MAX)


class Growth(Answer):
    """Epsilon by step, as far as it is worked out."""

    run: str
    state: str
    delta: float
    steps: int  # read so far
    steps_recorded: int
    sequence: int  # of the last entry that was read
    complete: bool  # whether nothing is left to work out; if not, ask again
    look_seconds: float  # of processor time that this look took
    points: list[HistoryPoint]  # few where each takes long; once all is read, the latest step too


@dataclass(slots=True)
class _Mark:
    """A number of steps at which epsilon is told."""

    steps: int
    sequence: int
    counts: EventCounts | None  # until it is read
    point: HistoryPoint | None = None

    @property
    def epsilon(self) -> float:
        """As far as it is known: upper, infinite where nothing is proved, else zero."""
        if self.point is None:
            return 0.0
        return math.inf if self.point.epsilon is None else self.point.epsilon

    def read(self, reading: HistoryReading) -> None:
        """Work out what was spent by then, unless that is known."""
        if self.counts is not None:  # it is given up for what is read from it
            self.point = reading.point(self.steps, self.sequence, self.counts)
            self.counts = None


class _Run:
    """What is cached of one run."""

    def __init__(self, dataset_size: int) -> None:
        self.lock = threading.Lock()
        self.spans = Spans(dataset_size)
        self.steps = 0
        self.sequence = 0
        self._fold = Fold(dataset_size)
        self._stride = 1
        self._marks: dict[int, _Mark] = {}
        self._end: _Mark | None = None
        self._worked = 0.0  # seconds of processor time

    def read(self, connection: Connection, run_id: int, total: int) -> None:
        """Read entries that are new; total: steps that are recorded."""
        while -(-total // self._stride) > PROGRESS_POINTS_MAX:
            self._stride *= 2
        self._marks = {n: mark for n, mark in self._marks.items() if n % self._stride == 0}
        self._fold.lines = Lines(taken_in_run(connection, run_id))
        asked = {"run": run_id, "until": LATEST, "after": self.sequence}
        ends = time.thread_time() + READ_SECONDS
        with closing(stream_rows(connection, _NEWER, **asked)) as rows:
            for place, row in enumerate(rows, start=1):
                self._count(row)
                if not place % _ROWS and time.thread_time() > ends:
                    break
        if self.steps < total:  # further looks read on: what is worked out now is to stay
            self._end = None
        elif self._end is None or self._end.steps != self.steps:
            known = self._marks.get(self.steps)
            self._end = known or _Mark(self.steps, self.sequence, self._fold.counts())

    def _count(self, row: Row[Any]) -> None:
        self.spans.add(row.content, row.steps)
        self.sequence, left = row.sequence, row.steps
        while left:
            count = min(left, self._stride - self.steps % self._stride)
            self._fold.add_entry(row, count)
            self.steps, left = self.steps + count, left - count
            if self.steps % self._stride == 0:
                mark = _Mark(self.steps, self.sequence, self._fold.counts())
                self._marks[self.steps] = mark

    def points(self, reading: HistoryReading) -> tuple[list[HistoryPoint], bool, float]:
        """What is worked out, the last mark at least; whether that is enough; what it took."""
        marks = list(self._marks.values())
        if self._end is not None and self._end.steps and self._end.steps not in self._marks:
            marks.append(self._end)
        start = time.thread_time()
        took = 0.0
        done = True
        for mark in _by_need(marks):
            spent = self._worked + took > RUN_SECONDS
            if mark is not marks[-1] and (spent or took > PROGRESS_SECONDS):
                done = spent
                break
            mark.read(reading)
            took = time.thread_time() - start
        self._worked += took
        return [mark.point for mark in marks if mark.point is not None], done, took


def _by_need(marks: Sequence[_Mark]) -> Iterator[_Mark]:
    """Marks that are not read: the ends, then the middle of where epsilon rises most, and so on.

    Each is read before the next is asked for. Where it hardly rises, nothing is left to see.
    """
    if marks:
        yield from (mark for mark in (marks[-1], marks[0]) if mark.point is None)
    known = [i for i, mark in enumerate(marks) if mark.point is not None]
    gaps = [(-_rise(marks[i], marks[j]), i, j) for i, j in pairwise(known) if j > i + 1]
    heapify(gaps)
    flat = _FLAT * max((mark.epsilon for mark in marks if mark.epsilon < math.inf), default=0.0)
    while gaps and -gaps[0][0] > flat:
        _, low, high = heappop(gaps)
        middle = (low + high) // 2
        yield marks[middle]
        for i, j in ((low, middle), (middle, high)):
            if j > i + 1:
                heappush(gaps, (-_rise(marks[i], marks[j]), i, j))


def _rise(low: _Mark, high: _Mark) -> float:
    """By how much epsilon rises; from infinity by nothing."""
    return 0.0 if low.epsilon == math.inf else high.epsilon - low.epsilon


def _corrected_growth(
    connection: Connection, run: Row[Any], dataset: Row[Any], reading: HistoryReading
) -> Growth:
    """The growth of a run with corrections, read anew: a correction changes what was before it."""
    start = time.thread_time()
    points = read_whole(connection, run, dataset, reading, CORRECTED_POINTS_MAX).points
    total = recorded_steps(connection, run)
    return Growth(
        run=run.name,
        state=run.state,
        delta=reading.delta,
        steps=total,
        steps_recorded=total,
        sequence=points[-1].sequence if points else 0,
        complete=True,
        look_seconds=time.thread_time() - start,
        points=points,
    )


class Growths:
    """The runs that were looked at last, as far as they were read; for any thread."""

    def __init__(self) -> None:
        self._runs: VersionedCache[_Run] = VersionedCache(_RUNS_MAX)

    def growth(self, connection: Connection, run_name: str) -> Growth:
        """A run's epsilon by step, at its own delta or its dataset's.

        Raises:
            NotFoundError: there is no such run.
            InvalidRequestError: no delta is known.
        """
        run = find_run(connection, run_name)
        dataset = dataset_of(connection, run)
        reading = HistoryReading.of(
            run, dataset, delta=resolve_query(Question(), dataset, run).delta or 0.0
        )
        if correction_count(connection, run):
            return _corrected_growth(connection, run, dataset, reading)
        total, known = self._known(connection, run, dataset, reading)
        with known.lock:
            known.read(connection, run.id, total)
            points, done, took = known.points(reading)
            return Growth(
                run=run.name,
                state=run.state,
                delta=reading.delta,
                steps=known.steps,
                steps_recorded=total,
                sequence=known.sequence,
                complete=done and known.steps >= total,
                look_seconds=took,
                points=points,
            )

    def schedule(self, connection: Connection, run_name: str) -> Schedule:
        """A run's noise and rate by step.

        Raises:
            NotFoundError: there is no such run.
        """
        run = find_run(connection, run_name)
        dataset = dataset_of(connection, run)
        at = delta_of(dataset, run)
        reading = None if at is None else HistoryReading.of(run, dataset, delta=at)
        total, known = self._known(connection, run, dataset, reading)
        with known.lock:
            known.read(connection, run.id, total)
            return Schedule(
                run=run.name,
                steps=known.steps,
                steps_recorded=total,
                sequence=known.sequence,
                complete=known.steps >= total,
                spans=known.spans.spans(),
            )

    def _known(
        self,
        connection: Connection,
        run: Row[Any],
        dataset: Row[Any],
        reading: HistoryReading | None,
    ) -> tuple[int, _Run]:
        """How many steps a run has recorded, and what is cached of it."""
        total = recorded_steps(connection, run)
        # The time keeps apart the runs of two databases that have the same number.
        key = (run.id, run.created_at, reading)
        known = self._runs.compute(key, None, lambda: _Run(dataset.dataset_size))
        if known.sequence > dataset.head_sequence:  # of another past
            known = _Run(dataset.dataset_size)
            self._runs.put(key, None, known)
        return total, known
