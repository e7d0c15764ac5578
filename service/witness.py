"""The witness: a file on another disk that follows the logs, a line at a time.

    {"format": "dpledger-witness/1",
     "checkpoint": {"checkpoint": {...}, "key_id": ..., "public_key": ..., "signature": ...},
     "heads": [{"dataset": ..., "size": ..., "root": ..., "steps": ...,
                "first": ..., "leaves": base64url}]}

A line names the logs that moved since the line before, each with its new leaf hashes, from `first`
on, which is its size before. All heads so far, in the order in which they appeared, are what the
checkpoint signs. So whoever has the file and the public key knows every leaf there was.

The first line of an epoch names all logs, and no other log counts any more; `first` may be less
than the size before, where the ledger goes on without what it had lost.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import ValidationError
from sqlalchemy import Connection

from service.checkpoints import Count, Head, Heads, SignedCheckpoint
from service.documents import canonical
from service.merkle import DIGEST_SIZE, tree_root
from service.signing import Signer, to_bytes, to_text
from service.trees import Tree
from service.wire import Wire

FORMAT: Final = "dpledger-witness/1"
PRIVATE: Final = 0o600  # the names of datasets are nobody else's business


class WitnessError(Exception):
    """A witness that cannot be believed; the text says where and why."""


class Moved(Head):
    """A log that moved, with its new leaves."""

    first: Count
    leaves: str

    def head(self) -> Head:
        """Without the leaves."""
        return Head(dataset=self.dataset, size=self.size, root=self.root, steps=self.steps)


class Line(Wire):
    """A line of the file."""

    format: Literal["dpledger-witness/1"]
    checkpoint: SignedCheckpoint
    heads: list[Moved]


@dataclass(slots=True)
class Witness:
    """What a witness has seen, up to its last whole line."""

    signed: SignedCheckpoint | None = None  # none before the first line
    heads: dict[str | None, Head] = field(default_factory=dict)
    length: int = 0  # bytes of its whole lines
    _leaves: dict[str | None, bytearray] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """In which the last line was signed."""
        return self.signed.checkpoint.epoch if self.signed else 0

    def leaves(self, dataset: str | None) -> list[bytes]:
        """The leaf hashes of a log, which are those that its head was signed for.

        Raises:
            WitnessError: they are not.
        """
        data = bytes(self._leaves.get(dataset, b""))
        found = [data[at : at + DIGEST_SIZE] for at in range(0, len(data), DIGEST_SIZE)]
        if dataset in self.heads and tree_root(found).hex() != self.heads[dataset].root:
            raise WitnessError(f"The leaves of {dataset} are not those that were signed.")
        return found

    def take(self, line: Line) -> None:
        """Take in the next line.

        Raises:
            WitnessError: it does not follow.
        """
        before, begins = self._leaves, line.checkpoint.checkpoint.epoch > self.epoch
        if begins:
            self.heads, self._leaves = {}, {}
        for moved in line.heads:
            known = before.get(moved.dataset, bytearray())
            kept = moved.first * DIGEST_SIZE
            fresh = to_bytes(moved.leaves)
            whole = kept + len(fresh) == moved.size * DIGEST_SIZE
            if not whole or kept > len(known) or (kept < len(known) and not begins):
                raise WitnessError(f"the leaves of {moved.dataset} do not follow")
            del known[kept:]
            known += fresh
            self._leaves[moved.dataset] = known
            self.heads[moved.dataset] = moved.head()
        self.signed = line.checkpoint

    def require_signed(self, public_key: str) -> None:
        """Believe the last checkpoint, and with it every head and leaf.

        Raises:
            WitnessError: it was not signed with this key, or not for these heads.
        """
        if self.signed is None:
            return
        given = self.signed.checkpoint
        root = tree_root(head.leaf() for head in self.heads.values()).hex()
        if (given.logs, given.root) != (len(self.heads), root):
            raise WitnessError("The heads are not those that the last line was signed for.")
        if not self.signed.holds(public_key):
            raise WitnessError(f"The last line was not signed with the key {public_key}.")


def read_witness(path: Path, public_key: str | None = None) -> Witness:
    """What a witness file says; a last line without its end was never finished.

    Args:
        path: of the file.
        public_key: that must have signed the last line, and so all of it; by default no
            signature is checked.

    Raises:
        WitnessError: it cannot be believed.
        OSError: it cannot be read.
    """
    found = Witness()
    for number, text in enumerate(_whole_lines(path), start=1):
        try:
            found.take(Line.model_validate(json.loads(text)))
            found.length += len(text)
        except (ValueError, RecursionError, WitnessError) as error:
            reason = "it is no line of a witness" if _is_form(error) else str(error)
            raise WitnessError(f"{path}, line {number}: {reason}") from None
    try:
        if public_key is not None:
            found.require_signed(public_key)
    except WitnessError as error:
        raise WitnessError(f"{path}: {error}") from None
    return found


def _is_form(error: Exception) -> bool:
    return isinstance(error, (ValidationError, json.JSONDecodeError, RecursionError))


def _whole_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def next_line(connection: Connection, present: Heads, signer: Signer, seen: Witness) -> Line | None:
    """What a witness has not seen yet; None where nothing moved.

    The heads it has seen are not contradicted: they are continued, or were abandoned.
    """
    begins = present.epoch > seen.epoch
    moved = [
        _moved(connection, present, head, seen.heads.get(head.dataset))
        for head in present.in_order
        if begins or head != seen.heads.get(head.dataset)
    ]
    if not moved:
        return None
    return Line(format=FORMAT, checkpoint=present.signed(signer), heads=moved)


def _moved(connection: Connection, present: Heads, head: Head, known: Head | None) -> Moved:
    tree = Tree(connection, present.logs[head.dataset][0], head.size)
    first = 0
    if known is not None and known.size <= head.size:
        same = tree.subtree(0, known.size).hex() == known.root
        first = known.size if same else 0
    leaves = to_text(b"".join(tree.leaves(first, head.size)))
    return Moved(**head.model_dump(), first=first, leaves=leaves)


class WitnessFile:
    """A witness file that this process alone writes to, while it holds it."""

    def __init__(self, descriptor: int, path: Path, seen: Witness) -> None:
        self._descriptor = descriptor
        self._path = path
        self.seen: Final = seen

    @classmethod
    def open(cls, path: Path, public_key: str) -> Self | None:
        """Hold the file, which is made where there is none; None while another process does.

        Raises:
            WitnessError: it cannot be believed.
            OSError: it cannot be written.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, PRIVATE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            seen = read_witness(path, public_key)
            # A last line that has no end: a process died while it wrote it.
            os.ftruncate(descriptor, seen.length)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, path, seen)

    def append(self, line: Line) -> None:
        """Write a line, all of it or none, and wait for the disk.

        Raises:
            OSError: it could not be written.
        """
        data = canonical(line.model_dump()).encode() + b"\n"
        before = os.fstat(self._descriptor).st_size
        try:
            _write(self._descriptor, data)
            os.fsync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, before)
            raise
        self.seen.take(line)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
