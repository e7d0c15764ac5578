"""The values of a backup's rows: what JSON has no form for, and what belongs in no such column."""

import base64
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Boolean, Column, DateTime, Float, Integer, LargeBinary, String

from service.clock import utc

WHOLE: Final = 2**63  # what no whole number of a database reaches
Codec = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """How the values of a column are read; what belongs not in it raises ValueError."""

    column: str
    read: Codec
    words: str  # what a value must be


def _text_of_time(moment: datetime) -> str:
    return utc(moment).isoformat(timespec="microseconds")


def _text_of_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _time(value: Any) -> datetime:
    return utc(datetime.fromisoformat(_text(value)))


def _bytes(value: Any) -> bytes:
    return base64.b64decode(_text(value), validate=True)


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not -WHOLE <= value < WHOLE:
        raise ValueError
    return value


def _number(value: Any) -> float:
    if type(value) is not float or not math.isfinite(value):
        raise ValueError
    return value


def _text(value: Any) -> str:
    if type(value) is not str or "\0" in value:  # for which PostgreSQL has no place
        raise ValueError
    value.encode()  # half a character has no bytes
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict | list):
        raise ValueError
    return value


_WRITTEN: Final = ((DateTime, _text_of_time), (LargeBinary, _text_of_bytes))
_READ: Final[tuple[tuple[type, Codec, str], ...]] = (
    (DateTime, _time, "a time"),
    (LargeBinary, _bytes, "bytes in base64"),
    (Boolean, _truth, "true or false"),
    (Integer, _whole, "a whole number of 64 bits"),
    (Float, _number, "a finite number with a fraction"),
    (String, _text, "text"),
)


def written_as(column: Column[Any]) -> Codec | None:
    """How a value of a column is brought into JSON; none where it is there as it is."""
    return next((codec for kind, codec in _WRITTEN if isinstance(column.type, kind)), None)


def reading_of(column: Column[Any] | str) -> Reading:
    """How a column's values are read; of one that this version does not know its name is given."""
    if isinstance(column, str):
        return Reading(column, _plain, "no list and no object")
    for kind, codec, words in _READ:
        if isinstance(column.type, kind):
            if column.nullable:
                return Reading(column.name, _nullable(codec), f"{words}, or null")
            return Reading(column.name, codec, words)
    raise TypeError(f"{column} is of no kind that backups have.")


def _nullable(codec: Codec) -> Codec:
    return lambda value: None if value is None else codec(value)
