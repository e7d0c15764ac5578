"""What was found, and what to do about it."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"  # works, and should not stay so
    FAIL = "fail"  # do something now


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    level: Level
    found: str
    remedy: str = ""


def ok(name: str, found: str) -> Finding:
    """As it should be."""
    return Finding(name, Level.OK, found)


def warn(name: str, found: str, remedy: str) -> Finding:
    """Should not stay so."""
    return Finding(name, Level.WARN, found, remedy)


def fail(name: str, found: str, remedy: str) -> Finding:
    """Must not stay so."""
    return Finding(name, Level.FAIL, found, remedy)
