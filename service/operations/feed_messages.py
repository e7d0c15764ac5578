"""Frames: entries and incidents as server-sent events, encoded once for all who watch."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, func, select

from service.clock import stamp
from service.ledger import views
from service.ledger.incidents import AFTER, incident_answer
from service.storage.tables import (
    acts,
    branches,
    datasets,
    distinct_events,
    entries,
    incidents,
    runs,
)

FEED_PAGE_SIZE: Final = 200  # entries in one write: about 70 kilobytes
RETRY: Final = b"retry: 2000\n\n"  # milliseconds, of a browser whose stream ended
HEARTBEAT: Final = b":\n\n"
_Frame = tuple[int | None, bytes]  # the run it is about

# Statements are built once: building one costs as much as running it.
_ENTRIES: Final = (
    select(
        entries,
        datasets.c.name.label("dataset"),
        runs.c.name.label("run"),
        branches.c.name.label("branch"),
        distinct_events.c.content,
    )
    .join(datasets, datasets.c.id == entries.c.dataset_id)
    .join(runs, runs.c.id == entries.c.run_id)
    .join(branches, branches.c.id == entries.c.branch_id)
    .join(distinct_events, distinct_events.c.id == entries.c.event_id)
    .where(entries.c.sequence > bindparam("after"), entries.c.sequence <= bindparam("until"))
    .order_by(entries.c.sequence)
    .limit(FEED_PAGE_SIZE)
)
_OF_DATASET: Final = _ENTRIES.where(entries.c.dataset_id == bindparam("dataset"))
_OF_RUN: Final = _ENTRIES.where(entries.c.run_id == bindparam("run"))
_HEADS: Final = select(
    datasets.c.id,
    datasets.c.head_sequence,
    datasets.c.log_size,
    select(func.coalesce(func.max(incidents.c.id), 0))
    .where(incidents.c.dataset_id == datasets.c.id)
    .scalar_subquery()
    .label("incident"),
).where(datasets.c.id.in_(bindparam("ids", expanding=True)))


_STATES: Final = (
    select(acts.c.kind, acts.c.content)
    .where(
        acts.c.dataset_id == bindparam("dataset"),
        acts.c.position >= bindparam("since"),
        acts.c.kind.in_(("run_state", "settings")),
    )
    .order_by(acts.c.position)
)
_RUN_NAME: Final = select(runs.c.name).where(runs.c.id == bindparam("run"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """What one watches: a dataset, or one of its runs."""

    dataset_id: int
    run_id: int | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """How far a dataset was told: the last entry, the last incident, and the size of its log."""

    sequence: int
    incident: int
    log_size: int


@dataclass(frozen=True, slots=True)
class Told:
    """What a dataset has to tell beyond a position, for each run that is watched and for None."""

    position: Position
    writes: Mapping[int | None, bytes]


def heads(connection: Connection, ids: Iterable[int]) -> dict[int, Position]:
    """How far datasets are."""
    rows = connection.execute(_HEADS, {"ids": list(ids)})
    return {row.id: Position(row.head_sequence, row.incident, row.log_size) for row in rows}


def tell(
    connection: Connection,
    dataset_id: int,
    *,
    since: Position,
    until: Position,
    watched: Iterable[int | None],
) -> Told:
    """A page of what a dataset has to tell between positions, to who watches it or its runs."""
    new: list[_Frame] = []
    alarms: list[_Frame] = []
    sequence, incident = since.sequence, since.incident
    if until.sequence > sequence:
        asked = {"dataset": dataset_id, "after": sequence, "until": until.sequence}
        rows = connection.execute(_OF_DATASET, asked).all()
        new = [(row.run_id, entry_frame(row)) for row in rows]
        sequence = rows[-1].sequence if len(rows) == FEED_PAGE_SIZE else until.sequence
    if until.incident > incident:
        asked = {"dataset": dataset_id, "after": incident, "size": FEED_PAGE_SIZE}
        found = connection.execute(AFTER, asked).all()
        alarms = [(row.run_id, incident_frame(row)) for row in found]
        incident = found[-1].id
    states: list[_Frame] = []
    if sequence == until.sequence:  # a state is told once all entries before it were
        states = _changed_states(connection, dataset_id, since.log_size, watched)
    log_size = until.log_size if sequence == until.sequence else since.log_size
    writes = {run: _write(run, new, alarms) + _states(run, states) for run in watched}
    return Told(Position(sequence, incident, log_size), writes)


def _changed_states(
    connection: Connection, dataset_id: int, since: int, watched: Iterable[int | None]
) -> list[_Frame]:
    """How runs stand that were ended or opened again, and the dataset if its settings changed."""
    asked = {"dataset": dataset_id, "since": since}
    happened = connection.execute(_STATES, asked).all()
    ended = {json.loads(row.content)["run"] for row in happened if row.kind == "run_state"}
    found: list[_Frame] = []
    for run_id in watched:
        topic = Topic(dataset_id=dataset_id, run_id=run_id)
        if run_id is None:
            changed = bool(happened)
        else:
            changed = connection.scalar(_RUN_NAME, {"run": run_id}) in ended
        if changed:
            found.append((run_id, _state_frame(connection, topic)[0]))
    return found


def _states(run_id: int | None, states: Sequence[_Frame]) -> bytes:
    return b"".join(frame for run, frame in states if run == run_id)


def _write(run_id: int | None, new: Sequence[_Frame], alarms: Sequence[_Frame]) -> bytes:
    """What one topic is sent; an incident of no run concerns every run."""
    mine = [frame for run, frame in new if run_id in (None, run)]
    mine += [frame for run, frame in alarms if run_id in (None, run) or run is None]
    return b"".join(mine)


def read_missed_page(
    connection: Connection, topic: Topic, after: int, until: int
) -> tuple[bytes, int, bool]:
    """A page of the entries between two sequences, the last one read, and if there may be more."""
    asked: dict[str, int] = {"after": after, "until": until}
    if topic.run_id is None:
        rows = connection.execute(_OF_DATASET, asked | {"dataset": topic.dataset_id}).all()
    else:
        rows = connection.execute(_OF_RUN, asked | {"run": topic.run_id}).all()
    last = rows[-1].sequence if rows else after
    return b"".join(entry_frame(row) for row in rows), last, len(rows) == FEED_PAGE_SIZE


def state_frame(connection: Connection, topic: Topic) -> tuple[bytes, int]:
    """How a dataset or a run stands, and the sequence after which entries follow."""
    frame, head = _state_frame(connection, topic)
    return f"id: {head}\n".encode() + frame, head


def _state_frame(connection: Connection, topic: Topic) -> tuple[bytes, int]:
    """The same without an id: where a stream resumes is not moved by it."""
    dataset = connection.execute(select(datasets).where(datasets.c.id == topic.dataset_id)).one()
    state: Any
    if topic.run_id is None:
        state = views.dataset_answer(connection, dataset)
    else:
        run = connection.execute(select(runs).where(runs.c.id == topic.run_id)).one()
        state = views.run_answer(connection, run)
    head: int = dataset.head_sequence
    data = f'{{"sequence":{head},"state":{state.model_dump_json()}}}'
    return f"event: state\ndata: {data}\n\n".encode(), head


def entry_frame(row: Row[Any]) -> bytes:
    """An entry; its sequence is where a reader that lost its stream resumes."""
    fields = {
        "sequence": row.sequence,
        "dataset": row.dataset,
        "run": row.run,
        "branch": row.branch,
        "first_step": row.first_step,
        "steps": row.steps,
        "next_step": row.first_step + row.steps,
        "mode": row.mode,
        "verdict": row.verdict,
        "recorded_at": stamp(row.recorded_at),
        "traceparent": row.traceparent,
    }
    # The event is stored as the JSON it is sent as.
    data = f'{json.dumps(fields, separators=(",", ":"))[:-1]},"event":{row.content}}}'
    return f"id: {row.sequence}\nevent: entry\ndata: {data}\n\n".encode()


def incident_frame(row: Row[Any]) -> bytes:
    """An incident; without an id, so that the last id a reader saw is always an entry's."""
    return f"event: incident\ndata: {incident_answer(row).model_dump_json()}\n\n".encode()
