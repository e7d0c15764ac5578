"""Histories that are asked for again: each look reads only the entries that are new.

What was recorded never changes, and neither does epsilon after so many steps: points stay as they
are, until steps are corrected. A further look adds points at the same spacing, and the latest step.
Where they become more than were asked for, every second one is left out and the spacing doubles.
"""

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam

from accounting.accountants.event_grouping import DISTINCT_MAX, distinct
from accounting.event_counts import EventCounts
from accounting.work_limit import as_many
from service.guarantees.guarantee import Question, resolve_query
from service.guarantees.history import (
    HISTORY_POINTS,
    History,
    HistoryPoint,
    HistoryReading,
    WholeHistory,
    read_whole,
)
from service.guarantees.replay import LATEST, OF_RUN, Fold, correction_count, stream_rows
from service.ledger.budgets.pass_positions import taken_in_run
from service.ledger.lookups import dataset_of, find_run, recorded_steps
from service.schemas.event_codec import Lines
from service.storage.tables import entries
from service.storage.versioned_cache import VersionedCache

_FEW: Final = 4  # a history of fewer points is read anew at each look
HISTORIES_MAX: Final = 200  # cached; some tens of kilobytes each
_NEWER: Final = OF_RUN.where(entries.c.sequence > bindparam("after"))
_Marked = tuple[int, int, EventCounts]  # steps, sequence, counts


class _Known:
    """What is cached of one history."""

    def __init__(self, points: int) -> None:
        self.lock = threading.Lock()
        self.sequence = 0  # of the last entry that was read
        self._most = points
        self._whole: WholeHistory | None = None
        self._last_even = 0  # steps of the last point that the spacing put there

    def points(
        self, connection: Connection, run: Row[Any], dataset: Row[Any], read: HistoryReading
    ) -> list[HistoryPoint]:
        """The history as the snapshot has it."""
        known, self._whole = self._whole, None  # what fails halfway is not gone on with
        serves = known is not None and known.every_point and self._most >= _FEW
        if known is None or not serves or not self._extended(connection, run, read, known):
            known = read_whole(connection, run, dataset, read, self._most)
            last = known.points[-1] if known.points else None
            self.sequence = 0 if last is None else last.sequence
            self._last_even = 0 if last is None else last.steps
        self._whole = known
        return list(known.points)

    def _extended(
        self, connection: Connection, run: Row[Any], read: HistoryReading, known: WholeHistory
    ) -> bool:
        """Whether what is new could be added; if not, all is to be read again."""
        if not known.points:
            return False
        known.fold.lines = Lines(taken_in_run(connection, run.id))
        marked = list(self._marked(connection, run, known))
        steps = marked[-1][0] if marked else known.points[-1].steps
        if steps != recorded_steps(connection, run):  # of another past
            return False
        if not marked:
            return True
        if distinct(marked[-1][2]) > DISTINCT_MAX:
            return False
        found = as_many(HISTORY_POINTS, [partial(read.point, *one) for one in marked])
        if len(found) < len(marked):
            return False
        if known.points[-1].steps != self._last_even:  # the end of an earlier look
            known.points.pop()
        known.points += found
        self._last_even += (steps - self._last_even) // known.spacing * known.spacing
        self.sequence = found[-1].sequence
        while len(known.points) > self._most:
            self._thin(known)
        return True

    def _thin(self, known: WholeHistory) -> None:
        """Leave every second point out, but neither the last even one nor the end."""
        end = known.points[-1:] if known.points[-1].steps != self._last_even else []
        even = known.points[: len(known.points) - len(end)]
        known.points = even[::-1][::2][::-1] + end
        known.spacing *= 2

    def _marked(
        self, connection: Connection, run: Row[Any], known: WholeHistory
    ) -> Iterator[_Marked]:
        """Counts at each multiple of the spacing that is new, and at the end."""
        fold: Fold = known.fold
        done = known.points[-1].steps
        mark = self._last_even + known.spacing
        asked = {"run": run.id, "until": LATEST, "after": self.sequence}
        sequence, told = self.sequence, done
        for row in stream_rows(connection, _NEWER, **asked):
            sequence, left = row.sequence, row.steps
            while left:
                count = min(left, mark - done)
                fold.add_entry(row, count)
                done, left = done + count, left - count
                if done == mark:
                    yield done, sequence, fold.counts()
                    told, mark = done, mark + known.spacing
        if done > told:
            yield done, sequence, fold.counts()


class KnownHistories:
    """The histories that were asked for last, as far as they were read; for any thread."""

    def __init__(self) -> None:
        self._known: VersionedCache[_Known] = VersionedCache(HISTORIES_MAX)

    def history(
        self, connection: Connection, run_name: str, *, delta: float | None, points: int
    ) -> History:
        """Epsilon by step; of a run that was asked for before, only what is new is read.

        Args:
            connection: a snapshot.
            run_name: of the run.
            delta: None for the run's own, else its dataset's.
            points: at most, the latest step included; fewer where each takes long.

        Raises:
            NotFoundError: there is no such run.
            InvalidRequestError: no delta is known.
        """
        run = find_run(connection, run_name)
        dataset = dataset_of(connection, run)
        at = resolve_query(Question(delta=delta), dataset, run).delta or 0.0
        read = HistoryReading.of(run, dataset, delta=at)
        # The time keeps apart the runs of two databases that have the same number.
        key = (run.id, run.created_at, read, points, correction_count(connection, run))
        known = self._known.compute(key, None, lambda: _Known(points))
        with known.lock:
            if known.sequence > dataset.head_sequence:  # of another past, or of a later snapshot
                known = _Known(points)
            found = known.points(connection, run, dataset, read)
        return History(run=run.name, delta=at, points=found)
