"""What was lost, doubled or over a limit, from what trainers remember and a database holds."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

WRONG: Final = ("lost", "doubled", "over a limit", "verify")
HEAD: Final = ("fault", "through", "tries", "acknowledged", "refused", "no answer", *WRONG,
               "stuck", "median s", "most s")  # fmt: skip

Spans = Iterable[tuple[int, int]]  # first steps and numbers of steps


@dataclass(frozen=True, slots=True)
class Told:
    """What one trainer remembers of its run."""

    run: str
    acknowledged: int  # steps
    sent: int  # steps; the service may not have acknowledged the last one


def wrongs_of(told: Told, spans: Spans) -> Counter[str]:
    """Steps that were lost, and steps that are there twice or were never sent.

    Args:
        told: by the trainer.
        spans: the entries of the run, from which every step is counted.
    """
    counts = Counter(step for first, steps in spans for step in range(first, first + steps))
    lost = sum(1 for step in range(told.acknowledged) if not counts[step])
    doubled = sum(count - 1 for count in counts.values())
    unsent = sum(1 for step in counts if step >= told.sent)
    return +Counter({"lost": lost, "doubled": doubled + unsent})


def over_limit(recorded: int, room: int) -> Counter[str]:
    """How many steps were admitted beyond those that a budget has room for."""
    return +Counter({"over a limit": recorded - room})


def longest_silence(acknowledged_at: Sequence[float], begin: float, end: float) -> float:
    """The longest time in [begin, end] in which no step was acknowledged, seconds."""
    moments = [begin, *(at for at in acknowledged_at if begin < at < end), end]
    return max(after - before for before, after in pairwise(moments))


@dataclass(slots=True)
class Tally:
    """What one kind of fault came to, through one way to the database."""

    fault: str
    way: str
    tries: int = 0
    acknowledged: int = 0
    answers: Counter[int | str] = field(default_factory=Counter)  # by status; "none" without
    wrong: Counter[str] = field(default_factory=Counter)
    stuck: int = 0
    silences: list[float] = field(default_factory=list)  # seconds, one a try

    def cells(self) -> list[str]:
        """As a line of the table under HEAD."""
        half = f"{statistics.median(self.silences):.1f}" if self.silences else "-"
        most = f"{max(self.silences):.1f}" if self.silences else "-"
        refused = sum(n for status, n in self.answers.items() if status in (500, 502, 503))
        counts = [self.tries, self.acknowledged, refused, self.answers["none"]]
        wrong = [self.wrong[one] for one in WRONG]
        return [self.fault, self.way, *map(str, [*counts, *wrong, self.stuck]), half, most]


def table(tallies: Sequence[Tally]) -> list[str]:
    """The lines of the table, and of their sum."""
    used = [one for one in tallies if one.tries]
    whole = Tally("all", "")
    for one in used:
        whole.tries += one.tries
        whole.acknowledged += one.acknowledged
        whole.stuck += one.stuck
        whole.answers += one.answers
        whole.wrong += one.wrong
        whole.silences += one.silences
    rows = [list(HEAD), *(one.cells() for one in [*used, whole])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows]  # fmt: skip


def is_right(tallies: Iterable[Tally]) -> bool:
    """Whether nothing was wrong and no trainer was stuck."""
    return not any(one.wrong.total() or one.stuck for one in tallies)
