"""Read what was saved of logs elsewhere: their leaves, or at least their sizes and roots."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from service.ledger.log.merkle import DIGEST_SIZE
from service.transparency.checkpoints import Part, Whole
from service.transparency.log_heads import Head as LogHead
from service.transparency.witness import WitnessedHead, WitnessError, read_witness

HEADS_BYTES_MAX: Final = 64 * 1024 * 1024  # of a file of checkpoints
_KEPT: Final[TypeAdapter[Part | Whole]] = TypeAdapter(Part | Whole)


@dataclass(frozen=True, slots=True, order=True)
class SavedHead:
    """A log as it was: its first leaves add up to a root."""

    size: int
    root: bytes
    source: str  # who says so, in words: "the checkpoint"
    generation: int = 0  # of the ledger, in which it was signed
    key: str = ""  # that signed it
    excused: bool = False  # an admin declared it lost: it need not fit


@dataclass(frozen=True, slots=True)
class KeptLog:
    """What was kept of one log."""

    leaves: bytes = b""  # the hashes of its first leaves, one after the other
    source: str = "the witness"  # of the leaves
    heads: Sequence[SavedHead] = ()

    @property
    def size(self) -> int:
        """How many leaves are known one by one."""
        return len(self.leaves) // DIGEST_SIZE

    @property
    def longest(self) -> int:
        """How many leaves the log had at least."""
        return max([self.size, *(head.size for head in self.heads if not head.excused)])

    def between(self, begin: int, end: int) -> bytes:
        """The hashes of leaves, as far as they are known."""
        return self.leaves[begin * DIGEST_SIZE : end * DIGEST_SIZE]


@dataclass(frozen=True, slots=True)
class Kept:
    """What was kept of a ledger."""

    logs: dict[str | None, KeptLog] = field(default_factory=dict)  # by dataset; none: installation
    ledger_id: str | None = None

    def of(self, dataset: str | None) -> KeptLog:
        """Of one log; nothing is a beginning of everything."""
        return self.logs.get(dataset, KeptLog())


def first_difference(one: bytes, other: bytes) -> int:
    """The first leaf that differs, of as many in both."""
    low, high = 0, min(len(one), len(other)) // DIGEST_SIZE
    while high - low > 1:
        middle = (low + high) // 2
        here, there = low * DIGEST_SIZE, middle * DIGEST_SIZE
        low, high = (low, middle) if one[here:there] != other[here:there] else (middle, high)
    return low


class KeptError(Exception):
    """What was kept cannot be believed; the text says why."""


def of_witness(path: Path, public_key: str | None) -> Kept:
    """All leaves that a witness saw.

    Raises:
        KeptError: it cannot be read or believed.
    """
    try:
        found = read_witness(path, public_key, leaves=True)
        if found.last is None:
            raise KeptError(f"{path}: it has seen nothing yet.")
        heads: dict[str | None, list[SavedHead]] = defaultdict(list)
        for seen in (*found.ended, found.last):
            for name, head in seen.heads.items():
                heads[name].append(_of(seen, head, public_key))
        logs = {
            name: KeptLog(leaves=b"".join(found.leaves(name)), heads=tuple(sorted(of_log)))
            for name, of_log in heads.items()
        }
    except OSError as error:
        raise KeptError(f"{path}: {error.strerror}") from None
    except WitnessError as error:
        raise KeptError(str(error)) from None
    return Kept(logs, found.last.signed.checkpoint.ledger_id)


def _of(seen: WitnessedHead, head: LogHead, public_key: str | None) -> SavedHead:
    return SavedHead(
        size=head.size,
        root=bytes.fromhex(head.root),
        source="the witness"
        if not seen.generation
        else f"the witness, in generation {seen.generation},",
        generation=seen.generation,
        key=public_key or seen.signed.public_key,
    )


def of_checkpoints(path: Path, public_key: str | None) -> Kept:
    """The heads in saved checkpoints: one JSON object, or one a line.

    Raises:
        KeptError: one cannot be read or believed, or they are of different ledgers.
    """
    heads: dict[str | None, list[SavedHead]] = defaultdict(list)
    ledgers: set[str] = set()
    for part in _checkpoints(path):
        signed = part.checkpoint
        key = part.public_key if public_key is None else public_key
        if not part.holds(key):
            raise KeptError(f"{path}: a checkpoint was not signed with the key, or not so.")
        source = f"the checkpoint of {signed.issued_at}"
        for head in part.heads if isinstance(part, Whole) else [part.head]:
            root = bytes.fromhex(head.root)
            heads[head.dataset].append(SavedHead(head.size, root, source, signed.generation, key))
        ledgers.add(signed.ledger_id)
    if len(ledgers) != 1:
        raise KeptError(f"{path}: it is of no ledger, or of several.")
    logs = {name: KeptLog(heads=tuple(sorted(found))) for name, found in heads.items()}
    return Kept(logs, ledgers.pop())


def _checkpoints(path: Path) -> Iterator[Part | Whole]:
    try:
        with path.open("rb") as file:
            data = file.read(HEADS_BYTES_MAX + 1)
    except OSError as error:
        raise KeptError(f"{path}: {error.strerror}") from None
    if len(data) > HEADS_BYTES_MAX:
        raise KeptError(f"{path}: it is larger than {HEADS_BYTES_MAX} bytes.")
    try:
        for one in _objects(data):
            yield _KEPT.validate_python(one)
    except (ValidationError, ValueError, RecursionError):
        # A checkpoint alone does not say what it signed of any log.
        raise KeptError(
            f"{path}: it holds no checkpoint with a log's head: keep what `dpledger checkpoint` "
            "writes, or what GET /v1/datasets/{dataset}/checkpoint answers."
        ) from None


def _objects(data: bytes) -> list[Any]:
    try:
        return [json.loads(data)]
    except ValueError:
        return [json.loads(line) for line in data.splitlines() if line.strip()]


def join_heads(one: Kept, other: Kept) -> Kept:
    """What both say.

    Raises:
        KeptError: they are of different ledgers.
    """
    if None not in (one.ledger_id, other.ledger_id) and one.ledger_id != other.ledger_id:
        raise KeptError("What was kept is of different ledgers.")
    logs = dict(one.logs)
    for name, log in other.logs.items():
        known = logs.get(name, KeptLog())
        longer = max(known, log, key=lambda found: found.size)
        logs[name] = replace(longer, heads=tuple(sorted((*known.heads, *log.heads))))
    return Kept(logs, one.ledger_id or other.ledger_id)
