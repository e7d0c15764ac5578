"""A log's Merkle tree as it is stored: its leaves, and the roots of its parts.

The nodes of a level, each the root of 256**level leaves, are read 256 at a time: so a proof of any
leaf among millions reads a few hundred of them.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, func, select

from service.errors import NotFoundError, UnavailableError
from service.ledger.log.leaves import act_data, entry_row_data, exact
from service.ledger.log.merkle import TILE_HEIGHT, Frontier, perfect_subtrees, tree_root
from service.storage.tables import (
    acts,
    branches,
    datasets,
    distinct_events,
    entries,
    log_tiles,
    runs,
)

_WIDTH: Final = 1 << TILE_HEIGHT  # nodes of a level that are read at once
_OF_DATASET: Final = acts.c.dataset_id == bindparam("dataset")
_OF_NONE: Final = acts.c.dataset_id.is_(None)
_RANGE: Final = acts.c.position.between(bindparam("begin"), bindparam("end") - 1)
_ACTS: Final = {
    of_dataset: select(acts.c.position, acts.c.leaf).where(owner, _RANGE).order_by(acts.c.position)
    for of_dataset, owner in ((True, _OF_DATASET), (False, _OF_NONE))
}
_ACT: Final = {
    of_dataset: select(acts, datasets.c.name.label("dataset"))
    .outerjoin(datasets, datasets.c.id == acts.c.dataset_id)
    .where(owner, acts.c.position == bindparam("position"))
    for of_dataset, owner in ((True, _OF_DATASET), (False, _OF_NONE))
}
_ACT_BEFORE: Final = (
    select(acts.c.position, acts.c.after_sequence)
    .where(_OF_DATASET, acts.c.position < bindparam("begin"))
    .order_by(acts.c.position.desc())
    .limit(1)
)
# The latest act that stands before an entry: behind an entry before it.
_BEHIND: Final = (
    select(func.max(acts.c.after_sequence))
    .where(_OF_DATASET, acts.c.after_sequence < bindparam("sequence"))
    .scalar_subquery()
)
_LAST_BEHIND: Final = (
    select(acts.c.position, acts.c.after_sequence)
    .where(_OF_DATASET, acts.c.after_sequence == _BEHIND)
    .order_by(acts.c.position.desc())
    .limit(1)
)
_LEAVES: Final = (
    select(entries.c.leaf)
    .where(
        entries.c.dataset_id == bindparam("dataset"),
        entries.c.sequence.between(bindparam("first"), bindparam("last")),
    )
    .order_by(entries.c.sequence)
)
_TILES: Final = (
    select(log_tiles.c.root)
    .where(
        log_tiles.c.dataset_id == bindparam("dataset"),
        log_tiles.c.level == bindparam("level"),
        log_tiles.c.tile_index.between(bindparam("first"), bindparam("last")),
    )
    .order_by(log_tiles.c.tile_index)
)
_ENTRY: Final = (
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
    .where(
        entries.c.dataset_id == bindparam("dataset"), entries.c.sequence == bindparam("sequence")
    )
)


class Tree:
    """The tree of a dataset's log, or of the installation's, within one transaction."""

    def __init__(self, connection: Connection, dataset_id: int | None, size: int) -> None:
        self._connection = connection
        self._dataset_id = dataset_id
        self.size = size  # leaves
        self._read: dict[tuple[int, int], list[bytes]] = {}

    def subtree(self, begin: int, end: int) -> bytes:
        """The root of the leaves [begin, end), as `service.ledger.log.merkle` needs it."""
        roots = tuple(self._perfect(at, height) for at, height in perfect_subtrees(begin, end))
        return Frontier(end - begin, roots).root()

    def leaves(self, begin: int, end: int) -> list[bytes]:
        """The hashes of the leaves [begin, end).

        Raises:
            UnavailableError: some of them are not there.
        """
        own = self._dataset_id is not None
        found = self._rows(_ACTS[own], begin=begin, end=end)
        of_acts = {row.position: row.leaf for row in found}
        of_entries: Sequence[Row[Any]] = ()
        count = end - begin - len(of_acts)
        if own and count:
            first = self._entries_before(begin) + 1
            of_entries = self._rows(_LEAVES, first=first, last=first + count - 1)
        if len(of_entries) != count or any(row.leaf is None for row in of_entries):
            raise UnavailableError(
                "Leaves of a log are missing: `dpledger verify` names the first."
            )
        rest = iter(of_entries)
        return [of_acts[at] if at in of_acts else next(rest).leaf for at in range(begin, end)]

    def position_of(self, sequence: int) -> int:
        """Where an entry stands in the log."""
        last = self._connection.execute(
            _LAST_BEHIND, {"dataset": self._dataset_id, "sequence": sequence}
        ).one_or_none()
        return sequence - 1 if last is None else sequence + last.position - last.after_sequence

    def data(self, position: int) -> bytes:
        """What the leaf at a position is the hash of, from the rows as they are now.

        Raises:
            NotFoundError: there is no such leaf.
        """
        act, entry = self._row(position)
        if act is not None:
            return act_data(
                dataset=act.dataset,
                position=act.position,
                after_sequence=act.after_sequence,
                kind=act.kind,
                content=act.content,
                by=act.by,
                acted_at=exact(act.acted_at),
            )
        return entry_row_data(entry.dataset, entry)

    def traceparent(self, position: int) -> str | None:
        """The traceparent beside a leaf's row, which is not part of the leaf; None without one.

        Raises:
            NotFoundError: there is no such leaf.
        """
        act, entry = self._row(position)
        found: str | None = (entry if act is None else act).traceparent
        return found

    def _row(self, position: int) -> tuple[Row[Any] | None, Any]:
        """The act at a position, or None and the entry there."""
        if not 0 <= position < self.size:
            raise NotFoundError("The log has no such leaf.")
        acted = self._rows(_ACT[self._dataset_id is not None], position=position)
        if acted:
            return acted[0], None
        found = self._rows(_ENTRY, sequence=self._entries_before(position) + 1)
        if not found:
            raise UnavailableError(
                "A leaf of the log is missing: `dpledger verify` names the first."
            )
        return None, found[0]

    def _rows(self, query: Any, **asked: Any) -> Sequence[Row[Any]]:
        return self._connection.execute(query, {"dataset": self._dataset_id, **asked}).all()

    def _entries_before(self, begin: int) -> int:
        """How many of the leaves before a position are entries: not acts, which are counted."""
        last = self._rows(_ACT_BEFORE, begin=begin)
        return begin - 1 - last[0].position + last[0].after_sequence if last else begin

    def _perfect(self, at: int, height: int) -> bytes:
        """The root of the 2**height leaves from a multiple of as many on."""
        level = height // TILE_HEIGHT
        node = at >> level * TILE_HEIGHT
        nodes = self._nodes(level, node // _WIDTH)
        first, count = node % _WIDTH, 1 << height - level * TILE_HEIGHT
        return tree_root(nodes[first : first + count])

    def _nodes(self, level: int, part: int) -> list[bytes]:
        """Nodes of a level, as many of WIDTH as there are."""
        if (level, part) not in self._read:
            first = part * _WIDTH
            last = min(first + _WIDTH, self.size >> level * TILE_HEIGHT)
            self._read[level, part] = self._fetched(level, first, last)
        return self._read[level, part]

    def _fetched(self, level: int, first: int, last: int) -> list[bytes]:
        if not level:
            return self.leaves(first, last)
        if self._dataset_id is None:  # the installation's log is short, and has no tiles
            return [tree_root(self._nodes(level - 1, part)) for part in range(first, last)]
        rows = self._rows(_TILES, level=level, first=first, last=last - 1)
        if len(rows) != last - first:
            raise UnavailableError("Tiles of a log are missing: `dpledger verify` names the first.")
        return [row.root for row in rows]
