"""What was kept of logs elsewhere: their leaves, or at least their sizes and roots."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from service.merkle import DIGEST_SIZE


@dataclass(frozen=True, slots=True, order=True)
class Head:
    """A log as it was: its first leaves add up to a root."""

    size: int
    root: bytes
    source: str  # who says so, in words: "the checkpoint"
    epoch: int = 0  # of the ledger, in which it was signed
    key: str = ""  # that signed it
    excused: bool = False  # an admin declared it lost: it need not fit


@dataclass(frozen=True, slots=True)
class KeptLog:
    """What was kept of one log."""

    leaves: bytes = b""  # the hashes of its first leaves, one after the other
    source: str = "the witness"  # of the leaves
    heads: Sequence[Head] = ()

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
