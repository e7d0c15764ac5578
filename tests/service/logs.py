"""What every log must be: recomputed from the rows by its definition, not by the service's code."""

import hashlib
import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, select

from service.ledger.log.merkle import Frontier
from service.ledger.log.row_records import FACTS, STATE_CODES, build_log_records
from service.storage.tables import (
    acts,
    branches,
    datasets,
    distinct_events,
    entries,
    log_tiles,
    runs,
)

_ENTRIES = (
    select(entries, runs.c.name, branches.c.name.label("branch"), distinct_events.c.content)
    .join(runs, runs.c.id == entries.c.run_id)
    .join(branches, branches.c.id == entries.c.branch_id)
    .join(distinct_events, distinct_events.c.id == entries.c.event_id)
    .order_by(entries.c.sequence)
)


def _time(moment: datetime) -> str:
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _hash(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(b"\x00" + text.encode()).digest()


def root_of(leaves: list[bytes]) -> bytes:
    """RFC 9162, section 2.1.1, as it is written there."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return hashlib.sha256(b"\x01" + root_of(leaves[:half]) + root_of(leaves[half:])).digest()


def require_logged(connection: Connection, *, changed: tuple[str, ...] = ()) -> None:
    """Every log is the tree over the entries and acts of its dataset, and every row has an act.

    But for columns that a test itself has changed.
    """
    for dataset in connection.execute(select(datasets)).all():
        leaves = _leaves(connection, dataset)
        known = Frontier.from_bytes(dataset.log_size, dataset.log_frontier)
        assert dataset.log_size == len(leaves)
        assert known.root() == root_of(leaves)
        for tile in connection.execute(
            select(log_tiles).where(log_tiles.c.dataset_id == dataset.id)
        ):
            width = 256**tile.level
            part = leaves[tile.tile_index * width : (tile.tile_index + 1) * width]
            assert len(part) == width
            assert tile.root == root_of(part)
        _require_facts(connection, dataset.id, changed)


def _leaves(connection: Connection, dataset: Any) -> list[bytes]:
    here = select(acts).where(acts.c.dataset_id == dataset.id).order_by(acts.c.position)
    found: list[tuple[int, int, bytes, bytes]] = []
    for act in connection.execute(here):
        content = {
            "acted_at": _time(act.acted_at),
            "after_sequence": act.after_sequence,
            "by": act.by,
            "content": json.loads(act.content),
            "dataset": dataset.name,
            "kind": act.kind,
            "position": act.position,
        }
        found.append((act.after_sequence, act.position + 1, _hash(content), act.leaf))
    for one in connection.execute(_ENTRIES.where(entries.c.dataset_id == dataset.id)):
        content = {
            "branch": one.branch,
            "dataset": dataset.name,
            "event": json.loads(one.content),
            "first_step": one.first_step,
            "kind": "entry",
            "mode": one.mode,
            "recorded_at": _time(one.recorded_at),
            "run": one.name,
            "sequence": one.sequence,
            "steps": one.steps,
            "verdict": one.verdict,
        }
        found.append((one.sequence, 0, _hash(content), one.leaf))
    found.sort(key=lambda leaf: leaf[:2])
    assert all(computed == stored for *_, computed, stored in found)
    # An act says itself where it stands.
    assert all(place in (0, at + 1) for at, (_, place, *_) in enumerate(found))
    return [leaf for *_, leaf in found]


def _require_facts(connection: Connection, dataset_id: int, changed: tuple[str, ...]) -> None:
    said: dict[str, list[dict[str, Any]]] = {}
    query = select(acts).where(acts.c.dataset_id == dataset_id).order_by(acts.c.position)
    for act in connection.execute(query):
        said.setdefault(act.kind, []).append(json.loads(act.content))
    for kind in FACTS:
        there = [
            dict(act.content) for act in build_log_records(connection, kind, dataset_id=dataset_id)
        ]
        kept = [_settled(kind, content, changed) for content in said.get(kind, [])]
        assert _counted(kept) == _counted([_settled(kind, one, changed) for one in there])
    for kind in STATE_CODES:
        for state in build_log_records(connection, kind, dataset_id=dataset_id):
            latest = [one for one in said.get(kind, []) if _same(one, state.content)]
            if latest:
                assert latest[-1] == state.content
            else:
                assert state.content.get("state") in ("active", "open", None)
                assert state.content.get("key") is None


def _settled(kind: str, content: Any, changed: tuple[str, ...]) -> dict[str, Any]:
    # An earlier revision's filter is told by its act alone.
    left_out = (*changed, "budget_filter") if kind == "settings" else changed
    return {k: v for k, v in content.items() if k not in left_out}


def _counted(contents: list[dict[str, Any]]) -> Counter[str]:
    return Counter(json.dumps(content, sort_keys=True) for content in contents)


def _same(one: dict[str, Any], other: Any) -> bool:
    keys = ("run", "branch", "name", "first_step")
    return all(one.get(key) == other.get(key) for key in keys)
