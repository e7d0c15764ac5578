"""Read the state of a dataset from its rows, and write its rows and log leaves."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, select

import accounting
from accounting.event_counts import OpenPass
from accounting.events import Event, NeighboringRelation
from accounting.guarantees import Status
from service.clock import now, utc
from service.ledger.append.shifted_passes import compute_all_shifts
from service.ledger.append.state import Branch, DatasetState, Reservation, RunState
from service.ledger.budgets import correction_costs, cost_cache
from service.ledger.budgets.accumulator import BudgetAccumulator, BudgetDelta, read_accumulator
from service.ledger.budgets.budget import (
    accept_of,
    dataset_filter,
    dataset_scope,
    run_filter,
    run_scope,
)
from service.ledger.budgets.lineage import (
    ITSELF,
    RowsPerParent,
    as_seen_by_ancestor,
    rows_of,
    view_event,
)
from service.ledger.budgets.pass_positions import place_of_row, position_of
from service.ledger.budgets.steps_and_passes import StepsAndPasses, merge_changes
from service.ledger.log.leaves import ACT, TILE, DatasetLog, act_row, entry_data, exact
from service.ledger.log.merkle import leaf_hash
from service.schemas.event_codec import content_of, event_of, plan_of
from service.storage import bulk
from service.storage.tables import (
    acts,
    branches,
    datasets,
    distinct_events,
    entries,
    lineage,
    log_tiles,
    run_balances,
    runs,
)

LeafRow = tuple[Any, ...]
VERSION: Final = accounting.__version__  # whose sums are stored
_DATASET: Final = (
    "head_sequence", "version", "totals", "totals_version", "log_size", "log_frontier",
)  # fmt: skip
_RUN: Final = ("state", "reopened", "on_plan", "totals", "totals_version")
_BRANCH: Final = ("next_step", "pass_event_id", "pass_position", "appended_by")
_KEPT: Final = (
    "steps", "passes", "begun", "starts", "reserved_steps", "reserved_passes", "reserved_begun",
)  # fmt: skip
_ENTRY: Final = (
    "dataset_id", "sequence", "run_id", "branch_id", "first_step", "steps", "event_id", "mode",
    "verdict", "recorded_at", "traceparent", "leaf",
)  # fmt: skip
# Statements are built once: building one costs as much as running it.
DATASETS: Final = select(datasets).where(datasets.c.id.in_(bindparam("ids", expanding=True)))
_DESCENDANTS: Final = select(
    lineage.c.dataset_id, lineage.c.exactly_one, lineage.c.most_rows
).where(lineage.c.ancestor_id == bindparam("dataset"))
_COUNTS: Final = select(
    distinct_events.c.dataset_id, distinct_events.c.content, *(distinct_events.c[n] for n in _KEPT)
).where(distinct_events.c.dataset_id.in_(bindparam("ids", expanding=True)))
_COUNTS_BY_PASS: Final = _COUNTS.where(distinct_events.c.by_pass)
UNITS: Final = (
    select(
        run_balances.c.run_id,
        distinct_events.c.content,
        distinct_events.c.id,
        *(run_balances.c[n] for n in _KEPT),
    )
    .join(distinct_events, distinct_events.c.id == run_balances.c.event_id)
    .where(run_balances.c.run_id.in_(bindparam("ids", expanding=True)))
)


@dataclass(frozen=True, slots=True)
class Leaves:
    """Rows of entries, acts and log_tiles, and the log that they make."""

    entries: list[LeafRow]
    acts: list[LeafRow]
    tiles: list[LeafRow]
    log: DatasetLog


def build_log_leaves(
    connection: Connection, state: DatasetState, ids: Mapping[Event, int], moment: Any
) -> Leaves:
    """What a state has noted, hashed in order; ids are the rows of its events."""
    entries = [*_entries(connection, state, ids)]
    acts: list[LeafRow] = []
    hashes: list[bytes] = []
    begin, first = 0, entries[0][1] if entries else 0
    for sequence, act in state.notes.acts:
        end = max(begin, sequence - first + 1) if entries else 0
        hashes += [row[-1] for row in entries[begin:end]]
        begin = end
        position = state.log.size + len(hashes)
        acts.append(
            act_row(
                act,
                dataset=(state.id, state.name),
                position=position,
                after_sequence=sequence,
                acted_at=moment,
            )
        )
        hashes.append(acts[-1][-1])
    hashes += [row[-1] for row in entries[begin:]]
    if not hashes:
        return Leaves(entries, acts, [], state.log)
    log, tiles = state.log.extended(hashes)
    return Leaves(entries, acts, [(state.id, *tile) for tile in tiles], log)


def _entries(
    connection: Connection, state: DatasetState, ids: Mapping[Event, int]
) -> Iterator[LeafRow]:
    """The rows of entries, each with its leaf at its end."""
    times: dict[datetime, tuple[Any, str]] = {}  # as the database takes it, and as a leaf has it
    for entry in state.notes.entries:
        row = ids[entry.event]
        if (time := times.get(entry.recorded_at)) is None:
            stored = bulk.to_driver_time(connection, entry.recorded_at)
            time = times[entry.recorded_at] = (stored, exact(stored))
        data = entry_data(
            dataset=state.name,
            run=entry.run.name,
            branch=entry.branch.name,
            sequence=entry.sequence,
            first_step=entry.first_step,
            steps=entry.steps,
            content=content_of(entry.event),
            mode=entry.mode,
            verdict=entry.verdict,
            recorded_at=time[1],
        )
        yield (
            state.id, entry.sequence, entry.run.id, entry.branch.id, entry.first_step, entry.steps,
            row, entry.mode, entry.verdict, time[0], entry.traceparent, leaf_hash(data),
        )  # fmt: skip


def book_of(connection: Connection, row: Row[Any], thresholds: tuple[float, ...]) -> DatasetState:
    """The state of a dataset, from its row; the cache adds its ancestors."""
    relation, accept = NeighboringRelation(row.neighboring_relation), accept_of(row)
    accumulator = tally_of(connection, row)
    return DatasetState(
        id=row.id,
        name=row.name,
        dataset_size=row.dataset_size,
        relation=relation,
        accept=accept,
        head=row.head_sequence,
        version=row.version,
        accumulator=accumulator,
        scope=dataset_scope(row, accumulator),
        delta=row.budget_delta,
        ancestors=(),
        thresholds=thresholds,
        frozen=row.frozen,
    )


def tally_of(connection: Connection, row: Row[Any]) -> BudgetAccumulator:
    """A dataset's sums: as they were stored, or folded anew where another version stored them."""
    relation, accept = NeighboringRelation(row.neighboring_relation), accept_of(row)
    fresh = row.totals is not None and row.totals_version == VERSION
    accumulator = read_accumulator(
        row.totals if fresh else None, dataset_filter(row), relation, accept
    )
    below = {row.id: ITSELF}
    below |= {
        r.dataset_id: rows_of(r) for r in connection.execute(_DESCENDANTS, {"dataset": row.id})
    }
    sizes = {r.id: r.dataset_size for r in connection.execute(DATASETS, {"ids": list(below)})}
    query = _COUNTS_BY_PASS if fresh else _COUNTS
    moves = []
    for counts in connection.execute(query, {"ids": list(below)}):
        move = _move(counts, event_of(counts.content, sizes[counts.dataset_id]))
        move = as_seen_by_ancestor(move, relation=relation, rows=below[counts.dataset_id])
        moves.append(move.by_pass if fresh else move)
    _fold(accumulator, moves)
    _charge_corrections(connection, accumulator, below, sizes)
    return accumulator


def _fold(accumulator: BudgetAccumulator, moves: Sequence[BudgetDelta]) -> None:
    """Add moves to an accumulator, once all their prices are known."""
    cost_cache.require(accumulator.missing({event for move in moves for event in move.events}))
    accumulator.apply(  # at once: passes are looked at as a whole each time
        BudgetDelta(
            recorded=merge_changes(move.recorded for move in moves),
            reserved=merge_changes(move.reserved for move in moves),
        )
    )


def _charge_corrections(
    connection: Connection,
    accumulator: BudgetAccumulator,
    below: dict[int, RowsPerParent],
    sizes: dict[int, int],
) -> None:
    """Count what corrections of a dataset, and of those that were made from it, change."""
    told, shifted = find_visible_corrections(connection, accumulator.relation, below, sizes)
    if told:
        correction_costs.add_correction_costs(accumulator, told)  # at once: their order counts
        accumulator.apply(shifted)


def find_visible_corrections(
    connection: Connection,
    relation: NeighboringRelation,
    below: Mapping[int, RowsPerParent],
    sizes: Mapping[int, int],
) -> tuple[list[correction_costs.Corrected], BudgetDelta]:
    """Return what a dataset's records see of corrections, and the passes that those shift.

    Args:
        connection: for reading.
        relation: of the dataset.
        below: the dataset and those that were made from it, with the rows of one of its records.
        sizes: of these datasets.
    """
    found = correction_costs.of_datasets(connection, sizes)
    if not found:
        return [], BudgetDelta()
    told, moves = [], []
    for rows in sorted(set(below.values())):
        part = [one for one in found if below[one.dataset_id] == rows]
        view = partial(view_event, relation=relation, rows=rows)
        told += correction_costs.view_corrections(part, view)
        added = compute_all_shifts(connection, part, sizes)
        moves.append(as_seen_by_ancestor(added, relation=relation, rows=rows))
    return told, BudgetDelta(
        shifted=merge_changes(move.shifted for move in moves),
        shifted_ahead=merge_changes(move.shifted_ahead for move in moves),
    )


def _move(row: Row[Any], event: Event) -> BudgetDelta:
    return BudgetDelta(
        recorded={event: StepsAndPasses(steps=row.steps, passes=row.passes, begun=row.begun)},
        reserved={
            event: StepsAndPasses(
                steps=row.reserved_steps, passes=row.reserved_passes, begun=row.reserved_begun
            )
        },
    )


def run_book_of(
    connection: Connection,
    state: DatasetState,
    row: Row[Any],
    counted: Sequence[Row[Any]] | None,
    steps: int,
) -> RunState:
    """The run of a row, with what it has counted; none where its events are too many."""
    units = None
    if counted is not None:
        units = {
            event_of(unit.content, state.dataset_size): StepsAndPasses(
                steps=unit.steps, passes=unit.passes, begun=unit.begun
            )
            for unit in counted
            if unit.steps or unit.passes
        }
    return RunState(
        id=row.id,
        name=row.name,
        delta=row.delta,
        state=row.state,
        reopened=row.reopened,
        scope=run_scope(
            row, _run_tally(connection, row, state.relation, state.accept, state.dataset_size)
        ),
        plan=plan_of(row.plan, state.dataset_size) if row.on_plan else None,
        on_plan=row.on_plan,
        units=units,
        steps=steps,
    )


def run_tally(connection: Connection, dataset: Row[Any], run: Row[Any]) -> BudgetAccumulator | None:
    """The sums of a run's own budget, if it has one."""
    relation = NeighboringRelation(dataset.neighboring_relation)
    return _run_tally(connection, run, relation, accept_of(dataset), dataset.dataset_size)


def _run_tally(
    connection: Connection,
    row: Row[Any],
    relation: NeighboringRelation,
    accept: frozenset[Status],
    dataset_size: int,
) -> BudgetAccumulator | None:
    own = run_filter(row, dataset_size)
    if own is None:
        return None
    fresh = row.totals is not None and row.totals_version == VERSION
    accumulator = read_accumulator(row.totals if fresh else None, own, relation, accept)
    query = UNITS.where(distinct_events.c.by_pass) if fresh else UNITS
    counted = connection.execute(query, {"ids": [row.id]})
    _fold(accumulator, [_move(unit, event_of(unit.content, dataset_size)) for unit in counted])
    corrected = correction_costs.of_run(
        connection, row.id, dataset_id=row.dataset_id, dataset_size=dataset_size
    )
    if corrected:
        correction_costs.add_correction_costs(accumulator, corrected)
        shifted = compute_all_shifts(connection, corrected, {row.dataset_id: dataset_size})
        accumulator.apply(shifted.of_run)
    return accumulator


def branch_of(row: Row[Any], reservations: Sequence[Row[Any]], dataset_size: int) -> Branch:
    """The branch of a row, with its reservations."""
    return Branch(
        id=row.id,
        name=row.name,
        from_step=row.from_step,
        next_step=row.next_step,
        open_pass=place_of_row(row, dataset_size),
        reservations=[reservation_of(reservation, dataset_size) for reservation in reservations],
        appended_by=row.appended_by,
        writer=row.writer,
    )


def reservation_of(row: Row[Any], dataset_size: int) -> Reservation:
    """A reservation's row with its event."""
    return Reservation(
        id=row.id,
        name=row.name,
        event=event_of(row.content, dataset_size),
        first_step=row.first_step,
        granted_end=row.first_step + row.steps,
        end_step=row.end_step,
        state=row.state,
        expires_at=utc(row.expires_at),
    )


def write_books(
    connection: Connection, states: Sequence[tuple[DatasetState, Mapping[Event, int]]]
) -> None:
    """Write what has changed in states, with the rows of their events: a statement a table."""
    noted = [(state.notes, ids) for state, ids in states]
    moment = bulk.to_driver_time(connection, now())
    hashed = [build_log_leaves(connection, state, ids, moment) for state, ids in states]
    bulk.insert(connection, entries, _ENTRY, [row for one in hashed for row in one.entries])
    bulk.insert(connection, acts, ACT, [row for one in hashed for row in one.acts])
    bulk.insert(connection, log_tiles, TILE, [row for one in hashed for row in one.tiles])
    rows = [
        (*added.row(), ids[event]) for notes, ids in noted for event, added in notes.added.items()
    ]
    bulk.add(connection, distinct_events, "id", _KEPT, rows)
    of_runs = [
        (run, ids[event], *added.row())
        for notes, ids in noted
        for (run, event), added in notes.run_added.items()
    ]
    bulk.add_or_insert(connection, run_balances, ("run_id", "event_id"), _KEPT, of_runs)
    rows = [_branch_row(branch, ids) for notes, ids in noted for branch in notes.branches.values()]
    bulk.update(connection, branches, "id", _BRANCH, rows)
    rows = [_run_row(run) for notes, _ in noted for run in notes.runs.values()]
    bulk.update(connection, runs, "id", _RUN, rows)
    for (state, _), one in zip(states, hashed, strict=True):
        state.log = one.log
    bulk.update(connection, datasets, "id", _DATASET, [_dataset_row(state) for state, _ in states])


def _dataset_row(state: DatasetState) -> tuple[Any, ...]:
    totals, log = state.accumulator.stored(), state.log
    return state.head, state.version, totals, VERSION, log.size, log.frontier, state.id


def _branch_row(branch: Branch, ids: Mapping[Event, int]) -> tuple[Any, ...]:
    place, event, position = branch.open_pass, None, None
    if place is not None:
        event = ids[place.event] if isinstance(place, OpenPass) else None
        position = position_of(place)
    return branch.next_step, event, position, branch.appended_by, branch.id


def _run_row(run: RunState) -> tuple[Any, ...]:
    totals = run.scope.accumulator.stored() if run.scope else None
    return run.state, run.reopened, run.on_plan, totals, VERSION, run.id
