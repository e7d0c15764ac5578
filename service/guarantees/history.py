"""How epsilon grew step by step, and what it says at other deltas: histories and curves."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Row

from accounting import privacy_profile
from accounting.accountants import best_bound
from accounting.accountants.event_grouping import DISTINCT_MAX, distinct, replace_events, stronger
from accounting.event_counts import EventCounts
from accounting.events import NeighboringRelation
from accounting.guarantees import Status
from accounting.work_limit import as_many
from service.guarantees.guarantee import READING
from service.guarantees.replay import (
    Fold,
    LaidOver,
    by_branch,
    corrections_of,
    read_entries,
    with_corrections,
)
from service.ledger.budgets.budget import accept_of
from service.ledger.budgets.pass_positions import taken_in_run
from service.schemas.responses import EVERY_STEP, Answer

HISTORY_POINTS: Final = 170_000_000  # the same for a history
GATHERED_POINTS: Final = 80_000_000  # and one of many different events, which has many small parts
READING_POINTS: Final = 60_000_000  # where nothing better is reached,
READING_SHARE: Final = 0.3  # with which the accountant that then answers needs less for a point
BALANCES_MAX: Final = 1_000_000  # numbers in all event counts of a history together
_NOISES: Final = 8  # of one sampling that are left where a history is of many different events


class HistoryPoint(Answer):
    """The run's epsilon after so many steps."""

    steps: int
    sequence: int
    epsilon: float | None  # nats, upper; null when no accepted bound is finite, or within reach
    epsilon_lower: float | None  # nats, lower; null where none is proved


class History(Answer):
    """Epsilon by step, over all branches in the order of recording."""

    run: str
    delta: float
    points: list[HistoryPoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryReading:
    """How the points of a run's history are read."""

    relation: NeighboringRelation
    accept: frozenset[Status]
    delta: float
    with_lower: bool  # whether a lower end is told
    accountant: str = best_bound.BEST
    share: float = 1.0  # of the work that the accountant may take

    @classmethod
    def of(cls, run: Row[Any], dataset: Row[Any], *, delta: float) -> "HistoryReading":
        """As a run's guarantee is read, had it stopped there."""
        return cls(
            relation=NeighboringRelation(dataset.neighboring_relation),
            accept=accept_of(dataset),
            delta=delta,
            with_lower=run.release == EVERY_STEP,  # what all iterates attain, those shown need not
        )

    def point(self, steps: int, sequence: int, counts: EventCounts) -> HistoryPoint:
        """Return what event counts have spent."""
        bound = best_bound.best_bound(
            counts,
            relation=self.relation,
            delta=self.delta,
            accept=self.accept,
            accountant=self.accountant,
            with_lower=self.with_lower,
            share=self.share,
        )
        if bound is not None and self.with_lower:
            bound = best_bound.with_lower_bound(bound, counts, relation=self.relation)
        return HistoryPoint(
            steps=steps,
            sequence=sequence,
            epsilon=bound.epsilon if bound else None,
            epsilon_lower=bound.epsilon_lower if bound and self.with_lower else None,
        )


@dataclass(slots=True, kw_only=True)
class WholeHistory:
    """A history and what it was read from."""

    points: list[HistoryPoint]  # in the order of steps
    fold: Fold  # of every entry
    spacing: int  # steps between two points, about
    every_point: bool  # whether each number of steps that was looked for has its own sharp point


def read_whole(
    connection: Connection, run: Row[Any], dataset: Row[Any], read: HistoryReading, points: int
) -> WholeHistory:
    """Read a history from the first entry on; time and memory rise with the entries.

    Where steps were corrected, each point holds for the recorded and for the corrected steps.

    Args:
        connection: a snapshot.
        run: the run's row.
        dataset: its dataset's row.
        read: how points are read.
        points: of the history, at most.
    """
    rows = list(read_entries(connection, run))
    corrections = by_branch(corrections_of(connection, run))
    total = sum(row.steps for row in rows)
    accounts = 2 if corrections else 1
    kinds = accounts * (1 + len({row.content for row in rows}))
    points = min(points, BALANCES_MAX // kinds + 1)
    marks = sorted({-(-total * i // points) for i in range(1, points + 1)} - {0})
    taken = taken_in_run(connection, run.id)
    fold = Fold(dataset.dataset_size, taken)
    every_count = list(_counts_at(rows, marks, fold))
    found = _points_of(read, every_count, accounts)
    sharp = len(found) == len(every_count) and not _is_gathered(every_count)
    if corrections:
        really = with_corrections(rows, corrections)
        counts = list(_counts_at(really, marks, Fold(dataset.dataset_size, taken)))
        found, sharp = _covering(found, _points_of(read, counts, accounts)), False
    found.sort(key=lambda point: point.steps)
    spacing = -(-total // points)
    return WholeHistory(points=found, fold=fold, spacing=spacing, every_point=sharp)


def _points_of(
    read: HistoryReading, every_count: Sequence[tuple[int, int, EventCounts]], accounts: int
) -> list[HistoryPoint]:
    """The points of one account of a run; the last step is always among them."""
    found = _build_points(
        read, every_count, _NOISES, HISTORY_POINTS // accounts, GATHERED_POINTS // accounts
    )
    for accountant in (best_bound.BEST, READING):
        if not found:  # the last step alone takes more
            quick = replace(read, accountant=accountant, share=READING_SHARE / accounts)
            points = READING_POINTS // accounts
            found = _build_points(quick, every_count, 1, points, points)
    if every_count and not found:  # so many events that none can even be gathered
        steps, sequence, _ = every_count[-1]
        found = [HistoryPoint(steps=steps, sequence=sequence, epsilon=None, epsilon_lower=None)]
    return found


def _covering(first: list[HistoryPoint], second: list[HistoryPoint]) -> list[HistoryPoint]:
    """The points that both accounts have; each holds whichever of the two is right."""
    others = {point.steps: point for point in second}
    return [_either(one, others[one.steps]) for one in first if one.steps in others]


def _either(one: HistoryPoint, other: HistoryPoint) -> HistoryPoint:
    if one.epsilon is None or other.epsilon is None:
        return one.model_copy(update={"epsilon": None, "epsilon_lower": None})
    lowers = one.epsilon_lower, other.epsilon_lower
    least = None if lowers[0] is None or lowers[1] is None else min(lowers[0], lowers[1])
    most = max(one.epsilon, other.epsilon)
    return one.model_copy(update={"epsilon": most, "epsilon_lower": least})


def _is_gathered(every_count: Sequence[tuple[int, int, EventCounts]]) -> bool:
    """Whether events are so many that they are gathered: the last counts are the whole."""
    return bool(every_count) and distinct(every_count[-1][2]) > DISTINCT_MAX


def _build_points(
    read: HistoryReading,
    every_count: Sequence[tuple[int, int, EventCounts]],
    noises: int,
    points: int,
    gathered: int,
) -> list[HistoryPoint]:
    """As many points as so much work allows; that of many different events, gathered for all."""
    each = [every_count[place] for place in privacy_profile.spread(len(every_count))]
    if not each or distinct(each[0][2]) <= DISTINCT_MAX:  # the first of them is the whole
        return as_many(points, [partial(read.point, *one) for one in each])
    instead = stronger(each[0][2], noises)
    upper = replace(read, with_lower=False)  # of what is gathered no lower end is known

    def told(steps: int, sequence: int, counts: EventCounts) -> HistoryPoint:
        return upper.point(steps, sequence, replace_events(counts, instead))

    return as_many(gathered, [partial(told, *one) for one in each])


def _counts_at(
    rows: Iterable[Row[Any] | LaidOver], marks: list[int], fold: Fold
) -> Iterable[tuple[int, int, EventCounts]]:
    """(steps, sequence, counts) each time the steps recorded so far reach a mark."""
    done, waiting = 0, iter(marks)
    mark = next(waiting, None)
    for row in rows:
        left = row.steps
        while left and mark is not None:  # the last mark is the last step
            count = min(left, mark - done)
            fold.add_entry(row, count)
            done, left = done + count, left - count
            if done == mark:
                yield done, row.sequence, fold.counts()
                mark = next(waiting, None)
