"""How long a budget lasts if the next days are like the last: an extrapolation, and no promise.

What was recorded in some days is counted as the budget's filter counts it, and the filter says how
often as much again would be admitted beside what is spent and reserved. Nothing is said of a
dataset that has too little history to go by.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, func, select

from accounting.event_counts import pass_length
from accounting.events import NeighboringRelation
from accounting.filters import COUNT_MAX, Total
from service.clock import now, utc
from service.ledger.append.state_rows import tally_of
from service.ledger.budgets.accumulator import BudgetAccumulator, BudgetDelta
from service.ledger.budgets.budget import EnforcedBudget, dataset_scope
from service.ledger.budgets.lineage import RowsPerParent, as_seen_by_ancestor, rows_of
from service.ledger.budgets.steps_and_passes import StepsAndPasses, merge_changes
from service.ledger.expired_reservations import expired_reservations
from service.schemas.event_codec import event_of
from service.storage.tables import datasets, distinct_events, entries, lineage

WINDOW_DAYS: Final = 7.0  # a week has its working days and its others
HISTORY_DAYS: Final = 2.0  # less is no rate
FORECAST_ENTRIES_MAX: Final = (
    20_000  # of one dataset that are looked at; the window is shorter then
)
_DATASETS_MAX: Final = 50  # datasets that are looked at beside one that they were made from
_SECONDS: Final = 86_400.0
_TICK: Final = 1000  # parts of a second, so that a window's cost divides finely

_RECORDED_AT: Final = select(entries.c.recorded_at).where(
    entries.c.dataset_id == bindparam("dataset"), entries.c.sequence == bindparam("sequence")
)
_SINCE: Final = (
    select(distinct_events.c.content, func.sum(entries.c.steps).label("steps"))
    .join(distinct_events, distinct_events.c.id == entries.c.event_id)
    .where(entries.c.dataset_id == bindparam("dataset"), entries.c.sequence > bindparam("after"))
    .group_by(distinct_events.c.id, distinct_events.c.content)
)
_BELOW: Final = (
    select(
        *(datasets.c.id, datasets.c.head_sequence, datasets.c.dataset_size),
        *(lineage.c.exactly_one, lineage.c.most_rows),
    )
    .join(lineage, lineage.c.dataset_id == datasets.c.id)
    .where(lineage.c.ancestor_id == bindparam("dataset"))
    .order_by(datasets.c.head_sequence.desc())
)


class Verdict(StrEnum):
    """What can be said."""

    LASTS = "lasts"  # so many days
    SPENT = "spent"  # nothing more is admitted now
    IDLE = "idle"  # nothing was recorded lately
    NEW = "new"  # too little history
    NO_LIMIT = "no_limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """How long a budget lasts at the present rate."""

    verdict: Verdict
    days: float | None = None  # where it lasts; lower
    window_days: float | None = None  # over which the rate was seen


@dataclass(frozen=True, slots=True)
class _Member:
    """A dataset whose entries count."""

    id: int
    head: int
    dataset_size: int
    rows: RowsPerParent | None  # none of the dataset itself


def outlook(connection: Connection, dataset: Row[Any], moment: datetime | None = None) -> Outlook:
    """How long a dataset's budget lasts.

    Args:
        connection: to read from.
        dataset: its row.
        moment: the present, if not now.
    """
    moment = moment or now()
    scope = dataset_scope(dataset, tally_of(connection, dataset))
    lost = expired_reservations(connection, dataset, moment)
    return outlook_of(connection, dataset, scope, lost, moment)


def outlook_of(
    connection: Connection,
    dataset: Row[Any],
    scope: EnforcedBudget | None,
    lost: BudgetDelta,
    moment: datetime,
) -> Outlook:
    """The same, where the rest is known.

    Args:
        connection: to read from.
        dataset: its row.
        scope: its budget, if it has one.
        lost: what reservations that expired move in it.
        moment: the present.
    """
    if scope is None:
        return Outlook(verdict=Verdict.NO_LIMIT)
    held = scope.accumulator.sums(lost).held
    if not scope.accumulator.filter.admits(held):
        return Outlook(verdict=Verdict.SPENT)
    family = _family(connection, dataset)
    first = _first(connection, family)
    age = 0.0 if first is None else (moment - first).total_seconds() / _SECONDS
    if age < HISTORY_DAYS:
        return Outlook(verdict=Verdict.NEW)
    since = _since(connection, family, moment - timedelta(days=min(WINDOW_DAYS, age)))
    cost = _cost(connection, scope.accumulator, family, since)
    return _lasting(scope.accumulator, held, cost, (moment - since).total_seconds() / _SECONDS)


def _lasting(accumulator: BudgetAccumulator, held: Total, cost: Total, window: float) -> Outlook:
    if not any(cost):
        return Outlook(verdict=Verdict.IDLE, window_days=window)
    ticks = round(window * _SECONDS * _TICK)
    each = tuple(-(-part // ticks) for part in cost)  # rounded up: it lasts no longer
    fits = accumulator.filter.admissible(held, each)
    days = min(fits, COUNT_MAX) / (_SECONDS * _TICK)
    return Outlook(verdict=Verdict.LASTS, days=days, window_days=window)


def _family(connection: Connection, dataset: Row[Any]) -> list[_Member]:
    below = connection.execute(_BELOW, {"dataset": dataset.id}).all()
    own = _Member(dataset.id, dataset.head_sequence, dataset.dataset_size, None)
    made = (_Member(one.id, one.head_sequence, one.dataset_size, rows_of(one)) for one in below)
    return [own, *made][: _DATASETS_MAX + 1]


def _first(connection: Connection, family: Iterable[_Member]) -> datetime | None:
    """When the first entry of all was recorded."""
    found = [_time(connection, member.id, 1) for member in family if member.head]
    return min(found, default=None)


def _since(connection: Connection, family: Iterable[_Member], since: datetime) -> datetime:
    """From when on entries are counted: later, where there are too many of them."""
    many = [member for member in family if member.head > FORECAST_ENTRIES_MAX]
    return max(
        [since, *(_time(connection, one.id, one.head - FORECAST_ENTRIES_MAX) for one in many)]
    )


def _time(connection: Connection, dataset_id: int, sequence: int) -> datetime:
    asked = {"dataset": dataset_id, "sequence": sequence}
    found: datetime = connection.execute(_RECORDED_AT, asked).scalar_one()
    return utc(found)


def _cost(
    connection: Connection,
    accumulator: BudgetAccumulator,
    family: Iterable[_Member],
    since: datetime,
) -> Total:
    """What was recorded since then adds to the filter's sums. Upper, but for a pass's beginning."""
    changes = [
        _count_recorded(connection, accumulator, member, since) for member in family if member.head
    ]
    recorded = {event: counts for event, counts in merge_changes(changes).items() if counts.steps}
    after, before = accumulator.sums(BudgetDelta(recorded=recorded)).held, accumulator.sums().held
    return tuple(max(0, a - b) for a, b in zip(after, before, strict=True))


def _count_recorded(
    connection: Connection, accumulator: BudgetAccumulator, member: _Member, since: datetime
) -> Mapping[Any, StepsAndPasses]:
    after = _last_before(connection, member, since)
    if after >= member.head:
        return {}
    rows = connection.execute(_SINCE, {"dataset": member.id, "after": after})
    found = {}
    for row in rows:
        event, steps = event_of(row.content, member.dataset_size), int(row.steps)
        length = pass_length(event)
        passes = 0 if length is None else -(-steps // length)
        found[event] = StepsAndPasses(steps=steps, passes=passes, begun=passes)
    if member.rows is None:
        return found
    move = BudgetDelta(recorded=found)
    relation = NeighboringRelation(accumulator.relation)
    return as_seen_by_ancestor(move, relation=relation, rows=member.rows).recorded


def _last_before(connection: Connection, member: _Member, since: datetime) -> int:
    """The last sequence before a time, in a few reads: times follow the sequence."""
    low, high = max(0, member.head - FORECAST_ENTRIES_MAX), member.head + 1
    while high - low > 1:
        middle = (low + high) // 2
        if _time(connection, member.id, middle) < since:
            low = middle
        else:
            high = middle
    return low
