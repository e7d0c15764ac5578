"""Times, for the record only: no number depends on them."""

from datetime import UTC, datetime
from typing import overload


def now() -> datetime:
    """The present."""
    return datetime.now(UTC)


@overload
def utc(moment: datetime) -> datetime: ...
@overload
def utc(moment: None) -> None: ...
def utc(moment: datetime | None) -> datetime | None:
    """A time as it was stored; SQLite returns it without its zone, which is UTC."""
    if moment is None:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def stamp(moment: datetime) -> str:
    """A time as text."""
    return utc(moment).isoformat(timespec="milliseconds")
