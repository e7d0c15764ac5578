"""How often each event counts in a run, or in a dataset, as the database has it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, select

from accounting.event_counts import EventCounts, pass_length, reveal_order
from accounting.events import Event, NeighboringRelation
from service.ledger.budgets.accumulator import BudgetDelta
from service.ledger.budgets.lineage import RowsPerParent, as_seen_by_ancestor, rows_of
from service.ledger.budgets.steps_and_passes import count_events, counts_of
from service.schemas.event_codec import event_of
from service.storage.tables import (
    branches,
    datasets,
    distinct_events,
    lineage,
    reservations,
    run_balances,
)

# Statements are built once: building one costs as much as running it.
_OF_DATASET: Final = select(distinct_events).where(
    distinct_events.c.dataset_id == bindparam("dataset")
)
_OF_RUN: Final = (
    select(distinct_events.c.content, *run_balances.c)
    .join(distinct_events, distinct_events.c.id == run_balances.c.event_id)
    .where(run_balances.c.run_id == bindparam("run"))
)
_OF_RUNS: Final = (
    select(distinct_events.c.content, *run_balances.c)
    .join(distinct_events, distinct_events.c.id == run_balances.c.event_id)
    .where(run_balances.c.run_id.in_(bindparam("runs", expanding=True)))
)
# What each open reservation still holds.
_HELD: Final = (
    select(
        distinct_events.c.content,
        reservations.c.end_step,
        reservations.c.first_step,
        branches.c.next_step,
        branches.c.pass_position,
    )
    .join(distinct_events, distinct_events.c.id == reservations.c.event_id)
    .join(branches, branches.c.id == reservations.c.branch_id)
    .where(
        reservations.c.dataset_id == bindparam("dataset"),
        reservations.c.end_step > branches.c.next_step,
        reservations.c.end_step > reservations.c.first_step,  # else all was given back
    )
    .order_by(reservations.c.id)
)
DESCENDANTS: Final = (
    select(
        *(datasets.c.id, datasets.c.dataset_size, datasets.c.head_sequence),
        *(lineage.c.exactly_one, lineage.c.most_rows),
    )
    .join(lineage, lineage.c.dataset_id == datasets.c.id)
    .where(lineage.c.ancestor_id == bindparam("dataset"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCounts:
    """What was recorded; and the same with corrections laid over it, where there are any."""

    recorded: EventCounts
    corrected: EventCounts | None
    corrections: int  # that bear on these facts
    inherited: bool = False  # some of them are of datasets that were made from this one

    @property
    def accounts(self) -> tuple[EventCounts, ...]:
        """Each account of the facts; a guarantee is to hold for all of them."""
        return (self.recorded,) if self.corrected is None else (self.recorded, self.corrected)


def _counts(rows: Iterable[Any], dataset_size: int, *, reserved: bool = False) -> EventCounts:
    steps, passes, begun, starts = {}, {}, {}, {}
    for row in rows:
        event = event_of(row.content, dataset_size)
        steps[event] = row.steps + (row.reserved_steps if reserved else 0)
        passes[event] = row.passes + (row.reserved_passes if reserved else 0)
        begun[event] = row.begun + (row.reserved_begun if reserved else 0)
        # Where steps may still come, nothing is known of how often loaders begin anew.
        starts[event] = row.starts if not reserved else 0
    return EventCounts(
        steps={event: count for event, count in steps.items() if count},
        passes={event: count for event, count in passes.items() if count},
        begun={event: count for event, count in begun.items() if count},
        starts={event: count for event, count in starts.items() if count},
    )


def dataset_counts(
    connection: Connection, dataset: Row[Any], *, reserved: bool = False
) -> EventCounts:
    """What was recorded, or that with what is reserved, of all runs of a dataset together.

    With those of the datasets that were made from it, as its own records see them.
    """
    rows = connection.execute(_OF_DATASET, {"dataset": dataset.id})
    own = _counts(rows, dataset.dataset_size, reserved=reserved)
    below = connection.execute(DESCENDANTS, {"dataset": dataset.id}).all()
    if not below:
        return own
    relation = NeighboringRelation(dataset.neighboring_relation)
    views = [own]
    for one in below:
        rows = connection.execute(_OF_DATASET, {"dataset": one.id})
        theirs = _counts(rows, one.dataset_size, reserved=reserved)
        views.append(seen_by_ancestor(theirs, relation=relation, rows=rows_of(one)))
    return without_starts(total(views))


def seen_by_ancestor(
    counts: EventCounts, *, relation: NeighboringRelation, rows: RowsPerParent
) -> EventCounts:
    """Return a descendant's counts as the records of its ancestor see it.

    Args:
        counts: what the descendant counts.
        relation: of the ancestor.
        rows: that a record of the ancestor has in the descendant.
    """
    recorded = BudgetDelta(recorded=counts_of(counts))
    view = as_seen_by_ancestor(recorded, relation=relation, rows=rows)
    return count_events(dict(view.recorded))


def total(every_count: Iterable[EventCounts]) -> EventCounts:
    """Return what several counts count together."""
    found = EventCounts()
    for one in every_count:
        found = EventCounts(
            steps=Counter(found.steps) + Counter(one.steps),
            passes=Counter(found.passes) + Counter(one.passes),
            begun=Counter(found.begun) + Counter(one.begun),
            starts=Counter(found.starts) + Counter(one.starts),
        )
    return found


def without_starts(counts: EventCounts) -> EventCounts:
    """Return event counts that do not say how often loaders began anew.

    Those that an ancestor sees do not say it, and a count of some of them would raise lower bounds.
    """
    return replace(counts, starts={})


def count_reserved_anew(connection: Connection, dataset_id: int, dataset_size: int) -> EventCounts:
    """What is reserved of a dataset's own runs, however its passes stand before it. Upper.

    Steps that go on within a pass count only what they change in it, which depends on what that
    pass was; a correction may say that it was another. Here each reservation counts the passes that
    it would begin by itself, and one more: the one it may go on with, at its own noise.
    """
    steps, passes = Counter[Event](), Counter[Event]()
    for row in connection.execute(_HELD, {"dataset": dataset_id}):
        event = event_of(row.content, dataset_size)
        count = row.end_step - max(row.first_step, row.next_step)
        steps[event] += count
        length = pass_length(event)
        if length is not None:
            known = row.pass_position is None or row.pass_position > 0
            passes[event if known else reveal_order(event)] += 1 + -(-count // length)
    return EventCounts(steps=dict(steps), passes=dict(passes))


def run_counts(connection: Connection, run_id: int, dataset_size: int) -> EventCounts:
    """What one run has recorded, over all its branches."""
    return _counts(connection.execute(_OF_RUN, {"run": run_id}), dataset_size)


def counts_of_runs(connection: Connection, sizes: Mapping[int, int]) -> dict[int, EventCounts]:
    """What some runs have recorded, given the sizes of their datasets, by run."""
    counted: dict[int, list[Row[Any]]] = {run_id: [] for run_id in sizes}
    for row in connection.execute(_OF_RUNS, {"runs": list(sizes)}):
        counted[row.run_id].append(row)
    return {run_id: _counts(rows, sizes[run_id]) for run_id, rows in counted.items()}
