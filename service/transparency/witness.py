"""The witness: a file on another disk that follows the logs, a line at a time.

    {"format": "dpledger-witness/1",
     "checkpoint": {"checkpoint": {...}, "key_id": ..., "public_key": ..., "signature": ...},
     "heads": [{"dataset": ..., "size": ..., "root": ..., "steps": ...,
                "first": ..., "leaves": base64url}]}

A line names the logs that moved since the line before, each with its new leaf hashes, from `first`
on, which is its size before. The checkpoint signs all heads so far. So a reader with the file and
the public key knows every leaf.

The first line of a generation names all logs, and no other log counts any more; of a log that goes
on without what it had lost `first` is 0. The heads at the end of each generation stay known: the
reader decides whether they were rightly abandoned.
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

from service.ledger.log.merkle import DIGEST_SIZE, tree_root
from service.schemas.base64url import to_bytes, to_text
from service.schemas.event_codec import canonical
from service.schemas.message import Wire
from service.transparency.checkpoints import LogHeads, SignedCheckpoint, root_of
from service.transparency.log_heads import Head, LeafCount
from service.transparency.signing import Signer
from service.transparency.stored_tree import Tree

_FORMAT: Final = "dpledger-witness/1"
_PRIVATE: Final = 0o600  # names of datasets are private


class WitnessError(Exception):
    """A witness that cannot be believed; the text says where and why."""


class Moved(Head):
    """A log that moved, with its new leaves."""

    first: LeafCount
    leaves: str

    def head(self) -> Head:
        """Without the leaves."""
        return Head(dataset=self.dataset, size=self.size, root=self.root, steps=self.steps)


class WitnessLine(Wire):
    """A line of the file."""

    format: Literal["dpledger-witness/1"]
    checkpoint: SignedCheckpoint
    heads: list[Moved]


@dataclass(frozen=True, slots=True)
class WitnessedHead:
    """All heads at one line."""

    signed: SignedCheckpoint
    heads: dict[str | None, Head]

    @property
    def generation(self) -> int:
        """In which they were signed."""
        return self.signed.checkpoint.generation

    def require_signed(self, public_key: str | None) -> None:
        """Believe the checkpoint, and with it every head.

        Raises:
            WitnessError: it was not signed for these heads, or not with this key.
        """
        given = self.signed.checkpoint
        if (given.logs, given.root) != (len(self.heads), root_of(self.heads.values())):
            raise WitnessError("The heads are not those that the last line was signed for.")
        if public_key is not None and not self.signed.holds(public_key):
            raise WitnessError(f"The last line was not signed with the key {public_key}.")


@dataclass(slots=True)
class Witness:
    """What a witness has seen, up to its last whole line: heads, and leaves if they are asked for.

    Who only follows the logs needs no leaf again: its memory does not grow with them.
    """

    last: WitnessedHead | None = None  # none before the first line
    ended: list[WitnessedHead] = field(default_factory=list)  # the last of each generation before
    length: int = 0  # bytes of its whole lines
    _leaves: dict[str | None, bytearray] | None = None  # None: not needed

    @classmethod
    def with_leaves(cls) -> Self:
        """One that keeps the leaves."""
        return cls(_leaves={})

    @property
    def generation(self) -> int:
        """In which the last line was signed."""
        return self.last.generation if self.last else 0

    @property
    def heads(self) -> dict[str | None, Head]:
        """Of all logs, as they were last."""
        return self.last.heads if self.last else {}

    def leaves(self, dataset: str | None) -> list[bytes]:
        """The leaf hashes of a log, which are those that its head was signed for.

        Raises:
            WitnessError: they are not.
        """
        data = bytes((self._leaves or {}).get(dataset, b""))
        found = [data[at : at + DIGEST_SIZE] for at in range(0, len(data), DIGEST_SIZE)]
        if dataset in self.heads and tree_root(found).hex() != self.heads[dataset].root:
            raise WitnessError(f"The leaves of {dataset} are not those that were signed.")
        return found

    def after(self, line: WitnessLine) -> WitnessedHead:
        """All heads once a line is taken in.

        Raises:
            WitnessError: it does not follow.
        """
        given, before = line.checkpoint.checkpoint, self.last or WitnessedHead(line.checkpoint, {})
        if given.ledger_id != before.signed.checkpoint.ledger_id:
            raise WitnessError("it is of another ledger than the line before")
        if (generation := given.generation) < self.generation:
            raise WitnessError(
                f"generation {generation} does not follow generation {self.generation}"
            )
        begins = generation > self.generation
        heads = {} if begins else dict(self.heads)
        for moved in line.heads:
            known = self.heads.get(moved.dataset)
            size = 0 if known is None else known.size
            whole = moved.first * DIGEST_SIZE + len(to_bytes(moved.leaves))
            follows = moved.first == size or (begins and moved.first == 0)
            if not follows or whole != moved.size * DIGEST_SIZE:
                raise WitnessError(f"the leaves of {moved.dataset} do not follow")
            heads[moved.dataset] = moved.head()
        return WitnessedHead(line.checkpoint, heads)

    def take(self, line: WitnessLine) -> None:
        """Take in the next line.

        Raises:
            WitnessError: it does not follow.
        """
        seen = self.after(line)
        if self._leaves is not None:
            self._leaves = self._extended(
                self._leaves, line, begins=seen.generation > self.generation
            )
        if self.last is not None and seen.generation > self.generation:
            self.ended.append(self.last)
        self.last = seen

    def _extended(
        self, before: dict[str | None, bytearray], line: WitnessLine, *, begins: bool
    ) -> dict[str | None, bytearray]:
        found = {} if begins else before
        for moved in line.heads:
            known = before.get(moved.dataset, bytearray())
            del known[moved.first * DIGEST_SIZE :]
            known += to_bytes(moved.leaves)
            found[moved.dataset] = known
        return found

    def require_signed(self, public_key: str | None) -> None:
        """Believe the last checkpoint of each generation, and with them every head.

        Raises:
            WitnessError: one was not signed with this key, or not for these heads.
        """
        for seen in (*self.ended, *([self.last] if self.last else [])):
            seen.require_signed(public_key)


def read_witness(path: Path, public_key: str | None = None, *, leaves: bool = False) -> Witness:
    """What a witness file says; a last line without its end was never finished.

    Args:
        path: of the file.
        public_key: that must have signed the last line of each generation, and so all of it; by
            default no signature is checked.
        leaves: whether leaves are kept, too.

    Raises:
        WitnessError: it cannot be believed.
        OSError: it cannot be read.
    """
    found = Witness.with_leaves() if leaves else Witness()
    for number, text in enumerate(_whole_lines(path), start=1):
        try:
            found.take(WitnessLine.model_validate(json.loads(text)))
            found.length += len(text)
        except (ValueError, RecursionError, WitnessError) as error:
            reason = "it is no line of a witness" if _is_form(error) else str(error)
            raise WitnessError(f"{path}, line {number}: {reason}") from None
    try:
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


def next_line(
    connection: Connection, present: LogHeads, signer: Signer, seen: Witness
) -> WitnessLine | None:
    """What a witness has not seen yet; None where nothing moved.

    The heads it has seen are not contradicted: they are continued, or were abandoned.
    """
    begins = present.generation(signer.public_key) > seen.generation
    moved = [
        _read_moved_head(connection, present, head, seen.heads.get(head.dataset))
        for head in present.in_order
        if begins or head != seen.heads.get(head.dataset)
    ]
    if not moved:
        return None
    return WitnessLine(format=_FORMAT, checkpoint=present.signed(signer), heads=moved)


def _read_moved_head(
    connection: Connection, present: LogHeads, head: Head, known: Head | None
) -> Moved:
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
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, _PRIVATE)
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

    def append(self, line: WitnessLine) -> None:
        """Write a line, all of it or none, and wait for the disk.

        Raises:
            WitnessError: the file would become invalid; nothing was written.
            OSError: it could not be written.
        """
        self.seen.after(line).require_signed(None)
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
