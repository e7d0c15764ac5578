"""How the spending of a dataset grew, and which runs it is made of.

What was spent at some time is the present total less what was recorded since, as the present filter
counts it: nothing but what is read is taken off, so no time is told less than it was. Corrections
count from the time at which they were recorded; without a limit, all of them from that of the
first. All times are read at the component of the total that binds now, so that shares of capacity
never fall and add up.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, and_, case, func, or_, select

from accounting.event_counts import pass_length
from accounting.events import Event
from accounting.filters import Total
from service.clock import utc
from service.guarantees.attribution import AttributionInputs, names_of
from service.guarantees.event_costs import Units
from service.ledger.append.state_rows import find_visible_corrections
from service.ledger.budgets import correction_costs
from service.ledger.budgets.accumulator import BudgetAccumulator, BudgetDelta, CorrectionSums
from service.ledger.budgets.lineage import ITSELF
from service.ledger.budgets.steps_and_passes import EventCountDelta, StepsAndPasses, by_pass
from service.storage.tables import corrections, datasets, entries
from service.storage.versioned_cache import VersionedCache

_POINTS: Final = 60  # of a picture that is some hundred pixels wide
SPENDING_RUNS_MAX: Final = 7  # told one by one: more colours are not told apart
SPENDING_ENTRIES_MAX: Final = 6_000  # of the latest that are read: some ten milliseconds
SPENDINGS_MAX: Final = 200  # that are kept; some twenty kilobytes each
_DATASETS_MAX: Final = 50  # datasets whose entries are read
_STAGES: Final = 20  # times at which corrections begin to count; of more some count too early


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingPart:
    """Whose spending a layer of the picture is."""

    run: str | None  # none for all other runs together
    dataset: str | None
    runs: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What was spent at a time, and by which part how much of it; parts add up to the whole."""

    at: datetime
    # The share of the budget's capacity, or an epsilon in nats; upper, None if infinite.
    spent: float | None
    parts: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """The spending of a dataset over time, the earliest first."""

    delta: float
    in_shares: bool  # of the budget's capacity; without a budget, an epsilon at delta
    moments: tuple[Moment, ...]
    parts: tuple[SpendingPart, ...]
    earlier: int  # entries before the first that was read: they are told as one rise
    # What expired reservations add at the end, in the same unit as the rest; none: infinite.
    expired: float | None


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Entries that follow one another, counted together."""

    at: datetime  # of the last
    since: datetime  # of the first
    rows: list[Row[Any]]


@dataclass(frozen=True, slots=True)
class _Stage:
    """Corrections that follow one another, counted together from the time of the first."""

    at: datetime
    before: CorrectionSums  # what counted until then


def spending(
    connection: Connection, found: AttributionInputs, *, delta: float, points: int = _POINTS
) -> Spending:
    """How the spending grew.

    Args:
        connection: that the grounds were read from.
        found: the dataset's grounds.
        delta: at which epsilon is told where there is no budget.
        points: about how many moments are told.
    """
    heads = _heads(connection, found)
    after = _first_read(heads)
    limited = found.dataset.budget_epsilon is not None
    stages = _stages(connection, found) if limited else _first_stage(connection, found)
    buckets = _buckets(connection, heads, after, points, cuts=[one.at for one in stages])
    largest = found.largest(SPENDING_RUNS_MAX)
    rewind = _Rewind(found, delta, largest)
    moments = list(_moments(rewind, buckets, stages))
    created = utc(found.dataset.created_at)
    earlier = sum(after.values()) + _unread(heads, after)
    moments.append(rewind.nothing(created) if earlier else rewind.moment(created))
    moments.reverse()
    return Spending(
        delta=delta if found.dataset.budget_delta is None else found.dataset.budget_delta,
        in_shares=found.dataset.budget_epsilon is not None,
        moments=tuple(moments),
        parts=_parts(connection, found, largest),
        earlier=earlier,
        expired=_expired_share(found),
    )


def known_spending(
    known: VersionedCache[Spending],
    connection: Connection,
    found: AttributionInputs,
    *,
    delta: float,
) -> Spending:
    """Return how the spending grew, as it was told last if nothing was written since.

    Args:
        known: what was told of datasets.
        connection: that the grounds were read from.
        found: the dataset's grounds.
        delta: at which epsilon is told where there is no budget.
    """
    row = found.dataset
    # The time keeps apart the datasets of two databases that have the same number.
    key = (row.id, row.created_at, delta)
    told = known.compute(key, row.version, lambda: spending(connection, found, delta=delta))
    return replace(told, expired=_expired_share(found))  # which hangs on the clock


def _moments(
    rewind: "_Rewind", buckets: Sequence[_Bucket], stages: Sequence[_Stage]
) -> Iterator[Moment]:
    """The moments, the last first; entries and corrections are taken back one after another."""
    every: list[_Bucket | _Stage] = [*buckets, *stages]
    every.sort(key=lambda one: (one.at, isinstance(one, _Stage)))
    for one in reversed(every):
        yield rewind.moment(one.at)
        if isinstance(one, _Stage):
            rewind.uncorrect(one.before)
            yield rewind.moment(one.at)
        else:
            rewind.undo(one.rows)
            if one is buckets[0]:
                yield rewind.moment(one.since)


def _first_stage(connection: Connection, found: AttributionInputs) -> list[_Stage]:
    """When the first correction began to count, if there is one."""
    first = select(func.min(corrections.c.recorded_at))
    at = connection.scalar(first.where(corrections.c.dataset_id.in_(list(found.priced))))
    return [] if at is None else [_Stage(utc(at), CorrectionSums())]


def _stages(connection: Connection, found: AttributionInputs) -> list[_Stage]:
    """When corrections of the dataset, and of those that were made from it, began to count."""
    query = (
        select(corrections.c.id, corrections.c.recorded_at)
        .where(corrections.c.dataset_id.in_(list(found.priced)))
        .order_by(corrections.c.id)
    )
    rows = connection.execute(query).all()
    if not rows:
        return []
    below = {one: ITSELF if of.own else of.rows for one, of in found.priced.items()}
    sizes = {one: of.dataset_size for one, of in found.priced.items()}
    accumulator = found.accumulator.copy()
    accumulator.replace_corrections(CorrectionSums())
    told, shifted = find_visible_corrections(connection, accumulator.relation, below, sizes)
    stages, width = [], -(-len(rows) // _STAGES)
    for group in (rows[first : first + width] for first in range(0, len(rows), width)):
        stages.append(_Stage(utc(group[0].recorded_at), accumulator.corrections))
        members = {row.id for row in group}
        part = [one for one in told if one.correction in members]
        correction_costs.add_correction_costs(accumulator, part)
        if len(stages) == 1:  # what any correction has shifted counts from the first on
            accumulator.apply(shifted)
    return stages


def _heads(connection: Connection, found: AttributionInputs) -> dict[int, int]:
    """The datasets whose entries are read, and how many each has; the largest, if they are many."""
    query = (
        select(datasets.c.id, datasets.c.head_sequence)
        .where(datasets.c.id.in_(list(found.priced)))
        .order_by(datasets.c.head_sequence.desc())
    )
    return {row.id: row.head_sequence for row in connection.execute(query)}


def _first_read(heads: Mapping[int, int]) -> dict[int, int]:
    """The entry of each dataset after which all are read: as great a part of each."""
    total = sum(heads.values())
    read = list(heads)[:_DATASETS_MAX]
    left = max(0, total - SPENDING_ENTRIES_MAX)
    return {one: -(-heads[one] * left // total) if total else 0 for one in read if heads[one]}


def _unread(heads: Mapping[int, int], after: Mapping[int, int]) -> int:
    return sum(count for one, count in heads.items() if one not in after)


def _buckets(
    connection: Connection,
    heads: Mapping[int, int],
    after: Mapping[int, int],
    points: int,
    *,
    cuts: Sequence[datetime],
) -> list[_Bucket]:
    """What was recorded, in the order of time; whole entries, of one dataset each.

    None holds entries from before a cut and from after it.
    """
    if not after:
        return []
    count = sum(heads[one] - first for one, first in after.items())
    width = max(1, -(-count // points))
    bucket = entries.c.sequence // width
    for cut in cuts:
        bucket += case((entries.c.recorded_at > cut, 1), else_=0)
    query: Select[Any] = (
        select(
            entries.c.dataset_id,
            bucket.label("bucket"),
            entries.c.run_id,
            entries.c.branch_id,
            entries.c.event_id,
            func.sum(entries.c.steps).label("steps"),
            func.min(entries.c.recorded_at).label("since"),
            func.max(entries.c.recorded_at).label("at"),
        )
        .where(
            or_(
                *(
                    and_(entries.c.dataset_id == one, entries.c.sequence > first)
                    for one, first in after.items()
                )
            )
        )
        .group_by(
            entries.c.dataset_id, bucket, entries.c.run_id, entries.c.branch_id, entries.c.event_id
        )
    )
    grouped: dict[tuple[int, int], list[Row[Any]]] = {}
    for row in connection.execute(query):
        grouped.setdefault((row.dataset_id, row.bucket), []).append(row)
    found = [
        _Bucket(utc(max(row.at for row in rows)), utc(min(row.since for row in rows)), rows)
        for rows in grouped.values()
    ]
    # What one request recorded has one time: then the order of recording tells.
    return sorted(
        found, key=lambda one: (one.at, one.since, one.rows[0].dataset_id, one.rows[0].bucket)
    )


class _Rewind:
    """A dataset's sums, from which entries are taken back one after another."""

    def __init__(self, found: AttributionInputs, delta: float, largest: Sequence[int]) -> None:
        self._prices = prices = found.prices
        self._tally = found.accumulator.copy()
        self._units: Units = prices.everything.copy()
        self._corrected: Units = prices.corrected
        self._delta = delta
        self._in_shares = found.dataset.budget_epsilon is not None
        self._whole = self._tally.sums().spent
        self._place = {run: place for place, run in enumerate(largest)}
        self._losses = {run: part.loss for run, part in found.parts.items()}
        self._lone = _lone(prices.events)
        self._steps: dict[tuple[int, int], int] = {}  # taken back, by branch and event

    def undo(self, rows: Iterable[Row[Any]]) -> None:
        """Take entries back."""
        back: dict[Event, StepsAndPasses] = {}
        for row in rows:
            place = self._prices.place[row.event_id]
            event = self._prices.events[place]
            steps = int(row.steps)  # a sum of whole numbers is a decimal on PostgreSQL
            passes = self._passes(row.branch_id, row.event_id, steps, event)
            units = self._prices.count(place, steps, passes)
            self._units[place] -= units
            self._losses[row.run_id] -= units * self._prices.costs[place][1]
            undone = StepsAndPasses(steps=-steps, passes=-passes, begun=-passes)
            back[event] = back[event] + undone if event in back else undone
        self._tally.apply(BudgetDelta(recorded=_without_nothing(back)))

    def uncorrect(self, before: CorrectionSums) -> None:
        """Take corrections back."""
        self._tally.replace_corrections(before)
        self._corrected = self._corrected * 0  # of epsilons, all of them count from the first on

    def _passes(self, branch_id: int, event_id: int, steps: int, event: Event) -> int:
        """How many passes surely began with the steps that were taken back, and no sooner.

        The pass that was open before them is none of them. Where other noise may have had its place
        in the same pass, no pass is known to be this event's.
        """
        length = pass_length(event)
        if length is None or event not in self._lone:
            return 0
        key = (branch_id, event_id)
        before = self._steps.get(key, 0)
        self._steps[key] = before + steps
        return (before + steps) // length - before // length

    def moment(self, at: datetime) -> Moment:
        """What is left."""
        spent = self._spent()
        return Moment(at=at, spent=spent, parts=self._divided(spent))

    def nothing(self, at: datetime) -> Moment:
        """The beginning."""
        return Moment(at=at, spent=0.0, parts=self._divided(0.0))

    def _spent(self) -> float | None:
        if not self._in_shares:
            return self._prices.epsilon(self._units, self._corrected, self._delta)[0]
        return _share(self._tally, self._tally.sums().spent, self._whole)

    def _divided(self, spent: float | None) -> tuple[float, ...]:
        """What is spent in parts, by what each run adds to the sums; the last is all others'."""
        parts = [0] * (len(self._place) + 1)
        for run, loss in self._losses.items():
            parts[self._place.get(run, -1)] += loss
        whole = sum(parts)
        if not whole or spent is None:
            return (0.0,) * len(parts)
        return tuple(spent * (loss / whole) for loss in parts)


def _lone(events: Sequence[Event]) -> frozenset[Event]:
    """Events counted by pass whose sampling no other event shares: their passes are all theirs."""
    counted = [event for event in events if by_pass(event)]
    samplings = [event.sampling for event in counted]
    return frozenset(one for one in counted if samplings.count(one.sampling) == 1)


def _without_nothing(change: EventCountDelta) -> EventCountDelta:
    return {event: counts for event, counts in change.items() if counts != StepsAndPasses()}


def _parts(
    connection: Connection, found: AttributionInputs, largest: list[int]
) -> tuple[SpendingPart, ...]:
    names = names_of(connection, largest)
    told = [
        SpendingPart(run=names[run], dataset=found.priced[found.parts[run].dataset_id].name)
        for run in largest
    ]
    return (*told, SpendingPart(run=None, dataset=None, runs=len(found.parts) - len(largest)))


def _expired_share(found: AttributionInputs) -> float | None:
    """The share that expired reservations add to the recorded one. Upper; None if infinite."""
    accumulator = found.accumulator
    before, after = accumulator.sums().spent, accumulator.sums(found.lost).spent
    if before == after:
        return 0.0
    whole, recorded = (_share(accumulator, total, after) for total in (after, before))
    return None if whole is None or recorded is None else whole - recorded


def _share(accumulator: BudgetAccumulator, total: Total, whole: Total) -> float | None:
    """A total's share of capacity, at the component that binds a whole. Upper; None if infinite."""
    (share,) = accumulator.filter.parts([total], whole=whole)
    return share if share < float("inf") else None
