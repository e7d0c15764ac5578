"""What verification found: what was checked, and what is broken, the first of it first."""

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

KEPT_MAX: Final = 100  # broken places that are kept of one log; the others are counted


class Rank(IntEnum):
    """How closely a place is known; of a log, what is known best is named first."""

    LEAF = 0  # this very leaf
    STATE = 1  # the latest leaf of something that changes, unless a later one is gone
    RANGE = 2  # some leaf from here on
    DERIVED = 3  # a sum, a head or a cache of what leaves say


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A place that is not what was recorded."""

    dataset: str | None  # none: the installation's log
    rank: Rank
    position: int | None  # of the leaf in its log, or of the first it may be
    what: str
    why: str
    sequence: int | None = None  # of an entry

    @property
    def text(self) -> str:
        """On one line, whatever the database says."""
        log = "installation" if self.dataset is None else f"dataset {self.dataset}"
        return to_printable(f"{log}, {self.what}: {self.why}", most=500)

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "dataset": None if self.dataset is None else to_printable(self.dataset),
            "position": self.position,
            "sequence": self.sequence,
            "exact": self.rank is Rank.LEAF,
            "text": self.text,
        }


def to_printable(value: object, *, most: int = 100) -> str:
    """A stored value as it may be printed: no control characters, never long."""
    text = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in str(value))
    return text if len(text) <= most else f"{text[:most]}..."


@dataclass(slots=True)
class VerificationReport:
    """What verification did."""

    checked: Counter[str] = field(default_factory=Counter)
    total: int = 0  # broken places
    notes: list[str] = field(default_factory=list)  # what to know beside it
    _logs: dict[str | None, list[Broken]] = field(default_factory=dict)

    def add(self, broken: Broken) -> None:
        """Keep a broken place; of many of one log, those that come first."""
        self.total += 1
        found = self._logs.setdefault(broken.dataset, [])
        found.append(broken)
        if len(found) >= 2 * KEPT_MAX:
            found.sort(key=_place)
            del found[KEPT_MAX:]

    def sound(self, dataset: str | None) -> bool:
        """Whether nothing of a log is known to be broken."""
        return dataset not in self._logs

    @property
    def broken(self) -> list[Broken]:
        """What is broken, log by log, each from its first broken leaf.

        Logs of which a leaf is known to be broken come before those with a wrong sum, which may
        rest on it.
        """
        found = [sorted(of_log, key=_place)[:KEPT_MAX] for of_log in self._logs.values()]
        found.sort(key=lambda of_log: of_log[0].rank)
        return [one for of_log in found for one in of_log]

    @property
    def first(self) -> Broken | None:
        """The first broken place of the first log that has one."""
        return next(iter(self.broken), None)


def _place(broken: Broken) -> tuple[int, int, int]:
    unknown = broken.position is None
    return broken.rank, int(unknown), broken.position or 0
