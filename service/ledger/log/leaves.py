"""Leaves of the logs: an entry, or an act, which is whatever else happened.

There is a log for each dataset, appended to under the dataset's lock, and one for what belongs to
none: the installation's. An act stands behind the entry that was the latest when it was written.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, select, update

from service import trace_context
from service.clock import now, utc
from service.ledger.log.merkle import Frontier, Tile, leaf_hash
from service.schemas.event_codec import canonical
from service.storage import bulk
from service.storage.tables import acts, datasets, installation, log_tiles

ACT: Final = (
    "dataset_id", "position", "after_sequence", "kind", "content", "by", "acted_at", "traceparent",
    "leaf",
)  # fmt: skip
TILE: Final = ("dataset_id", "level", "tile_index", "root")
_DATASET: Final = (
    select(datasets.c.name, datasets.c.head_sequence, datasets.c.log_size, datasets.c.log_frontier)
    .where(datasets.c.id == bindparam("dataset"))
    .with_for_update()
)
INSTALLATION_ROW: Final = select(
    installation.c.log_size, installation.c.log_frontier
).with_for_update()


# Every kind of act; `act_row` makes a row of no other.
KINDS: Final = (
    "appends", "branch", "certificate", "certificate_facts", "change_decision", "change_request",
    "copied", "correction", "dataset", "finding", "incident_note", "key_created", "key_revoked",
    "key_rotated", "lineage", "overdraft", "reconciled", "recovering", "release", "reservation",
    "reservation_end", "restatement", "restored", "run", "run_end_reason", "run_state", "settings",
    "suspended",
)  # fmt: skip
_KNOWN: Final = frozenset(KINDS)


@dataclass(frozen=True, slots=True)
class Act:
    """What happened, in words; nothing secret."""

    kind: str  # one of KINDS
    content: Mapping[str, Any]
    by: str | None = None  # the key that did it, if any
    # Of the request in which it is made.
    traceparent: str | None = field(default_factory=trace_context.traceparent.get, compare=False)


@dataclass(frozen=True, slots=True)
class DatasetLog:
    """A log under its lock, as it must be known to append to it."""

    size: int
    frontier: bytes | None  # a Frontier's bytes; none before the first leaf

    def extended(self, leaves: Sequence[bytes]) -> tuple["DatasetLog", list[Tile]]:
        """The log with more leaves, and the tiles that they complete."""
        known = Frontier.from_bytes(self.size, self.frontier or b"")
        longer, tiles = known.extended(leaves)
        return DatasetLog(longer.size, longer.to_bytes()), tiles


NO_LOG: Final = DatasetLog(0, None)


def exact(moment: datetime | str) -> str:
    """A time, as it is or as SQLite stores it, as leaves have it: to the microsecond."""
    if isinstance(moment, str):
        return f"{moment[:10]}T{moment[11:]}+00:00"
    return utc(moment).isoformat(timespec="microseconds")


def entry_data(
    *,
    dataset: str,
    run: str,
    branch: str,
    sequence: int,
    first_step: int,
    steps: int,
    content: str,
    mode: str,
    verdict: str,
    recorded_at: str,
) -> bytes:
    """What is hashed of an entry: canonical JSON; `content` is the event as it is stored."""
    return (
        f'{{"branch":"{branch}","dataset":"{dataset}","event":{content},'
        f'"first_step":{first_step},"kind":"entry","mode":"{mode}",'
        f'"recorded_at":"{recorded_at}","run":"{run}","sequence":{sequence},'
        f'"steps":{steps},"verdict":"{verdict}"}}'
    ).encode()


def entry_row_data(dataset: str, row: Row[Any]) -> bytes:
    """What is hashed of an entry's row, read with the names and the event that it refers to."""
    return entry_data(
        dataset=dataset,
        run=row.run,
        branch=row.branch,
        sequence=row.sequence,
        first_step=row.first_step,
        steps=row.steps,
        content=row.content,
        mode=row.mode,
        verdict=row.verdict,
        recorded_at=exact(row.recorded_at),
    )


def act_data(
    *,
    dataset: str | None,
    position: int,
    after_sequence: int,
    kind: str,
    content: str,
    by: str | None,
    acted_at: str,
) -> bytes:
    """What is hashed of an act: canonical JSON; `content` is what is stored."""
    return (
        f'{{"acted_at":"{acted_at}","after_sequence":{after_sequence},"by":{json.dumps(by)},'
        f'"content":{content},"dataset":{json.dumps(dataset)},"kind":"{kind}",'
        f'"position":{position}}}'
    ).encode()


def act_row(
    act: Act,
    *,
    dataset: tuple[int, str] | None,
    position: int,
    after_sequence: int,
    acted_at: datetime | str,
) -> tuple[Any, ...]:
    """An act's row, as `ACT` has its columns; its leaf comes last.

    Raises:
        ValueError: there is no such kind of act.
    """
    if act.kind not in _KNOWN:
        raise ValueError("An act has one of the kinds in KINDS.")
    content = canonical(dict(act.content))
    data = act_data(
        dataset=dataset[1] if dataset else None,
        position=position,
        after_sequence=after_sequence,
        kind=act.kind,
        content=content,
        by=act.by,
        acted_at=exact(acted_at),
    )
    dataset_id = dataset[0] if dataset else None
    leaf = leaf_hash(data)
    return (
        dataset_id, position, after_sequence, act.kind, content, act.by, acted_at,
        act.traceparent, leaf,
    )  # fmt: skip


def append_leaves(connection: Connection, dataset_id: int | None, happened: Sequence[Act]) -> None:
    """Append acts to a dataset's log, or to the installation's; its row is locked from here on.

    Not between a unit of work's lock of the same dataset and its writing: it appends by itself.
    """
    if not happened:
        return
    row: Any
    if dataset_id is None:
        row = connection.execute(INSTALLATION_ROW).one()
        dataset, head = None, 0
    else:
        row = connection.execute(_DATASET, {"dataset": dataset_id}).one()
        dataset, head = (dataset_id, row.name), row.head_sequence
    moment = bulk.to_driver_time(connection, now())
    rows = [
        act_row(
            act,
            dataset=dataset,
            position=row.log_size + index,
            after_sequence=head,
            acted_at=moment,
        )
        for index, act in enumerate(happened)
    ]
    bulk.insert(connection, acts, ACT, rows)
    log, tiles = DatasetLog(row.log_size, row.log_frontier).extended([one[-1] for one in rows])
    _store(connection, dataset_id, log, tiles)


def _store(
    connection: Connection, dataset_id: int | None, log: DatasetLog, tiles: Sequence[Tile]
) -> None:
    values = {"log_size": log.size, "log_frontier": log.frontier}
    if dataset_id is None:  # whose few leaves need no tiles
        connection.execute(update(installation).values(values))
        return
    connection.execute(update(datasets).where(datasets.c.id == dataset_id).values(values))
    bulk.insert(connection, log_tiles, TILE, [(dataset_id, *tile) for tile in tiles])
