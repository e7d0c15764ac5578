"""Logs for ledgers that were begun before there were logs: what is there becomes their beginning.

The entries come first, in their order, then an act for every other row, all behind the last entry.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection, bindparam, select, text, update

from service.ledger.log.leaves import TILE, Act, Log, append, entry_row_data
from service.ledger.log.merkle import leaf_hash
from service.ledger.log.row_records import APPENDS, FACTS, STATES, build_log_records
from service.storage import bulk
from service.storage.tables import (
    api_keys,
    branches,
    datasets,
    distinct_events,
    entries,
    installation,
    log_tiles,
    runs,
)

BATCH: Final = 10_000  # entries in memory at a time
ADOPTED: Final = "adopted"  # the act that says that a log began so
_ENTRIES: Final = (
    select(
        entries,
        runs.c.name.label("run"),
        branches.c.name.label("branch"),
        distinct_events.c.content,
    )
    .join(runs, runs.c.id == entries.c.run_id)
    .join(branches, branches.c.id == entries.c.branch_id)
    .join(distinct_events, distinct_events.c.id == entries.c.event_id)
    .where(entries.c.dataset_id == bindparam("dataset"), entries.c.sequence > bindparam("after"))
    .order_by(entries.c.sequence)
    .limit(BATCH)
)
_SET_LEAF: Final = (
    update(entries)
    .where(entries.c.dataset_id == bindparam("home"), entries.c.sequence == bindparam("number"))
    .values(leaf=bindparam("hashed"))
)


def adopt(connection: Connection) -> None:
    """Give each dataset that has no log one, and keys their acts; the schema is the newest."""
    if not connection.scalar(select(installation.c.log_size)):
        append(connection, None, _keys(connection))
    lacking = connection.execute(
        select(datasets.c.id, datasets.c.name).where(datasets.c.log_size == 0)
    ).all()
    if not lacking:
        return
    with _changeable(connection):
        for dataset in lacking:
            _log_entries(connection, dataset.id, dataset.name)
    for dataset in lacking:
        append(connection, dataset.id, _others(connection, dataset.id))


def _keys(connection: Connection) -> list[Act]:
    """What keys were created as, and that some were revoked."""
    found = []
    for row in connection.execute(select(api_keys).order_by(api_keys.c.id)):
        terms = ("expires_at", "datasets", "requests_per_second", "body_bytes_max")
        content = {"name": row.name, "scope": row.scope, "digest": row.digest}
        found.append(Act("key_created", content | dict.fromkeys(terms), ADOPTED))
        if row.revoked_at is not None:
            found.append(Act("key_revoked", {"name": row.name}, ADOPTED))
    return found


def _others(connection: Connection, dataset_id: int) -> list[Act]:
    found = [Act(ADOPTED, {})]
    for kind in (*FACTS, *STATES):
        found += [
            act
            for act in build_log_records(connection, kind, dataset_id=dataset_id)
            if kind not in STATES or _moved(act)
        ]
    return found


def _moved(act: Act) -> bool:
    """Whether a row is no longer in the state in which it began."""
    if act.kind == APPENDS:
        return act.content["key"] is not None
    return act.content["state"] not in ("active", "open") or bool(act.content.get("reopened"))


def _log_entries(connection: Connection, dataset_id: int, name: str) -> None:
    log, after = Log(0, None), 0
    while rows := connection.execute(_ENTRIES, {"dataset": dataset_id, "after": after}).all():
        hashed = [leaf_hash(entry_row_data(name, row)) for row in rows]
        connection.execute(
            _SET_LEAF,
            [
                {"home": dataset_id, "number": row.sequence, "hashed": leaf}
                for row, leaf in zip(rows, hashed, strict=True)
            ],
        )
        log, tiles = log.extended(hashed)
        bulk.insert(connection, log_tiles, TILE, [(dataset_id, *tile) for tile in tiles])
        after = rows[-1].sequence
    values = {"log_size": log.size, "log_frontier": log.frontier}
    connection.execute(update(datasets).where(datasets.c.id == dataset_id).values(values))


@contextmanager
def _changeable(connection: Connection) -> Iterator[None]:
    """Let the leaves of entries be filled in, which the database itself refuses otherwise."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("ALTER TABLE entries DISABLE TRIGGER USER"))
        yield
        connection.execute(text("ALTER TABLE entries ENABLE TRIGGER USER"))
        return
    query = text(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'entries'"
    )
    triggers = connection.execute(query).all()
    for trigger in triggers:
        connection.exec_driver_sql(f"DROP TRIGGER {trigger.name}")
    yield
    for trigger in triggers:
        connection.exec_driver_sql(trigger.sql)
