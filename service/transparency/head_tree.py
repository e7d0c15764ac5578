"""The Merkle tree over the heads of all logs, kept in memory and brought up to date by parts.

A checkpoint signs the root over the heads of all logs. Building that tree costs time in proportion
to the datasets; here only heads that have moved are hashed again, with the nodes above them. The
rows are the truth: when what is kept is older than AGE_SECONDS, the version and the size of every
log are read, and the heads of those that differ. So what other processes write is seen, and a
service that starts knows nothing.

The head of the dataset that is asked about is read in the asker's own transaction. The other heads
are what they were within the last AGE_SECONDS.
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, func, select

from service.errors import NotFoundError
from service.ledger.log.merkle import node_hash
from service.storage.tables import datasets, distinct_events, installation
from service.transparency.checkpoints import LogHeads, Part, SignedCheckpoint, head_of
from service.transparency.log_heads import Head, place
from service.transparency.reconciliation import Reconciliation, reconciliations
from service.transparency.signing import Signer

AGE_SECONDS: Final = 1.0  # that the heads of other datasets may be old
_AT_ONCE: Final = 500  # heads that are read with one statement
_STATES: Final = select(datasets.c.id, datasets.c.version, datasets.c.log_size)
_COLUMNS: Final = (
    datasets.c.id, datasets.c.name, datasets.c.version, datasets.c.log_size,
    datasets.c.log_frontier,
)  # fmt: skip
_ROWS: Final = select(*_COLUMNS).where(datasets.c.id.in_(bindparam("ids", expanding=True)))
_NAMED: Final = select(*_COLUMNS).where(datasets.c.name == bindparam("named"))
_STEPS: Final = (
    select(distinct_events.c.dataset_id, func.sum(distinct_events.c.steps))
    .where(distinct_events.c.dataset_id.in_(bindparam("ids", expanding=True)))
    .group_by(distinct_events.c.dataset_id)
)
_INSTALLATION: Final = select(installation)

_State = tuple[int, int]  # of a log: its dataset's version, which is drawn anew, and its size


class Levels:
    """The nodes of a Merkle tree, level by level; the last node of an odd level is moved up.

    That is the tree of RFC 9162, section 2.1.1: a part is split at the largest power of two.
    """

    def __init__(self, leaves: Iterable[bytes]) -> None:
        self._levels = [list(leaves)]
        while len(self._levels[-1]) > 1:
            level = self._levels[-1]
            above = [node_hash(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
            self._levels.append(above + level[len(level) & ~1 :])

    def __len__(self) -> int:
        """How many leaves there are."""
        return len(self._levels[0])

    @property
    def leaves(self) -> Sequence[bytes]:
        """The leaves."""
        return self._levels[0]

    def replace(self, index: int, leaf: bytes) -> None:
        """Put a leaf in the place of another, and hash the nodes above it."""
        self._levels[0][index] = leaf
        for level, above in zip(self._levels, self._levels[1:], strict=False):
            index //= 2
            pair = level[2 * index : 2 * index + 2]
            above[index] = node_hash(*pair) if len(pair) > 1 else pair[0]

    def path(self, index: int) -> list[bytes]:
        """The hashes that lead from a leaf to the root."""
        found = []
        for level in self._levels[:-1]:
            if (beside := index ^ 1) < len(level):
                found.append(level[beside])
            index //= 2
        return found

    def root_with(self, index: int, leaf: bytes) -> bytes:
        """The root, were this the leaf there."""
        node = leaf
        for level in self._levels[:-1]:
            if (beside := index ^ 1) < len(level):
                node = (
                    node_hash(level[beside], node) if index & 1 else node_hash(node, level[beside])
                )
            index //= 2
        return node


class PresentHead(LogHeads):
    """The present head of one log, in the tree over all."""

    def __init__(
        self,
        log: tuple[int | None, Head],
        *,
        ledger_id: str,
        told: Sequence[Reconciliation],
        index: int,
        count: int,
        path: Sequence[bytes],
        root: bytes,
    ) -> None:
        """What `HeadTree.head` found."""
        super().__init__([log], ledger_id=ledger_id, told=told)
        self._index, self._count, self._path, self._root = index, count, path, root

    @property
    def count(self) -> int:
        """How many logs there are."""
        return self._count

    @property
    def root(self) -> str:
        """The root over the heads of all logs."""
        return self._root.hex()

    def part(self, signer: Signer, dataset: str | None) -> Part:
        """The checkpoint, issued now, with this log's head.

        Raises:
            NotFoundError: it is of another log.
        """
        if dataset not in self.logs:
            raise NotFoundError("There is no such dataset.")
        path = [node.hex() for node in self._path]
        signed = self.signed(signer)
        return Part(head=self.logs[dataset][1], index=self._index, path=path, **dict(signed))


class HeadTree:
    """The tree of one process; for any thread."""

    def __init__(self, *, age_seconds: float = AGE_SECONDS) -> None:
        self._age_seconds = age_seconds
        self._lock = threading.Lock()
        self._read_at = -1e9
        self._states: dict[int, _State] = {}
        self._names: list[str] = []  # in the order of the leaves: the installation's is first
        self._levels = Levels([])

    def signed(self, connection: Connection, signer: Signer) -> SignedCheckpoint:
        """The checkpoint of all logs, issued now."""
        return self.head(connection, None).signed(signer)

    def head(self, connection: Connection, dataset: str | None) -> PresentHead:
        """A log's head as a transaction sees it, in the tree over all.

        Raises:
            NotFoundError: there is no such dataset.
        """
        own = connection.execute(_INSTALLATION).one()
        row, head = self._own(connection, own, dataset)
        told = reconciliations(connection)
        name, leaf = place(dataset), head.leaf()
        with self._lock:
            known = self._knows(name) and (row is None or row.id in self._states)
            if not known or time.monotonic() - self._read_at >= self._age_seconds:
                self._refresh(connection)
            index = bisect_left(self._names, name)
            self._learn(row, index, leaf)
            return PresentHead(
                (None if row is None else row.id, head),
                ledger_id=own.ledger_id,
                told=told,
                index=index,
                count=len(self._levels),
                path=self._levels.path(index),
                root=self._levels.root_with(index, leaf),
            )

    def _own(
        self, connection: Connection, own: Row[Any], dataset: str | None
    ) -> tuple[Row[Any] | None, Head]:
        if dataset is None:
            return None, head_of(None, own, 0)
        row: Any = connection.execute(_NAMED, {"named": dataset}).one_or_none()
        if row is None:
            raise NotFoundError("There is no such dataset.")
        ((_, head),) = _heads(connection, [row])
        return row, head

    def _knows(self, name: str) -> bool:
        at = bisect_left(self._names, name)
        return at < len(self._names) and self._names[at] == name

    def _learn(self, row: Row[Any] | None, index: int, leaf: bytes) -> None:
        """Take over a head that was read just now, unless a longer one is known."""
        if row is not None and row.log_size > self._states[row.id][1]:
            self._levels.replace(index, leaf)
            self._states[row.id] = (row.version, row.log_size)

    def _refresh(self, connection: Connection) -> None:
        """Read what has changed since the last time, in the asker's transaction; under the lock."""
        started = time.monotonic()
        own = head_of(None, connection.execute(_INSTALLATION).one(), 0)
        states = {row[0]: (row[1], row[2]) for row in connection.execute(_STATES).all()}
        moved = [one for one, state in states.items() if self._states.get(one) != state]
        heads: list[tuple[Row[Any], Head]] = []
        for first in range(0, len(moved), _AT_ONCE):
            ids = {"ids": moved[first : first + _AT_ONCE]}
            heads += _heads(connection, list(connection.execute(_ROWS, ids)))
        leaves = {place(None): own.leaf()} | {row.name: head.leaf() for row, head in heads}
        same = len(self._names) == len(states) + 1
        if same and all(self._knows(name) for name in leaves):
            for name, leaf in leaves.items():
                self._levels.replace(bisect_left(self._names, name), leaf)
            self._states = states
        else:
            self._rebuild(connection, leaves, states)
        self._read_at = started

    def _rebuild(
        self, connection: Connection, leaves: dict[str, bytes], states: dict[int, _State]
    ) -> None:
        """Build the tree anew: datasets were created, or the database is another."""
        known = dict(zip(self._names, self._levels.leaves, strict=True)) | leaves
        if len(known) != len(states) + 1:  # a dataset is gone: this is another database
            self._states, self._names, self._levels = {}, [], Levels([])
            self._refresh(connection)
            return
        self._names = sorted(known)
        self._levels = Levels(known[name] for name in self._names)
        self._states = states


def _heads(connection: Connection, rows: Sequence[Row[Any]]) -> list[tuple[Row[Any], Head]]:
    ids = [row.id for row in rows]
    steps = {
        dataset_id: int(count) for dataset_id, count in connection.execute(_STEPS, {"ids": ids})
    }
    return [(row, head_of(row.name, row, steps.get(row.id, 0))) for row in rows]
