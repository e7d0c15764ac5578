"""A statement of a document."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What became of a statement."""

    PROVEN = "proven"
    CONJECTURE = "conjecture"
    RETRACTED = "retracted"
    WRONG = "wrong as stated"
    DEFINITION = "definition"
    EXPERIMENT = "experiment"
    CITED = "cited"


@dataclass(frozen=True, slots=True)
class Row:
    """One statement, definition or experiment."""

    id: str  # document, then a name; as docs/theory/rows.md lists it
    statement: str  # one line, in our words
    verdict: Verdict
    lives: tuple[str, ...]  # ids of theorems, or paths in the repository, with / or a dot
