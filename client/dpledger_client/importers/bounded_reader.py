"""Files of other tools, read within bounds: nothing in them is run, repaired or believed."""

import json
import math
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final, NoReturn

BYTES_MAX: Final = 16 * 2**20  # of a text file; a year of steps, one a row, is less
ROWS_MAX: Final = 100_000  # of a history
ROW_STEPS_MAX: Final = 10**9  # of one event, by the contract

FilePath = str | PathLike[str]


class BadFile(ValueError):  # noqa: N818 - as the client's other refusals
    """A file is not what it should be; the text is one line that names the place."""


def refuse(place: str, reason: str) -> NoReturn:
    """Refuse a file, or a place in it.

    Raises:
        BadFile: always.
    """
    raise BadFile(f"{place}: {reason}" if place else reason)


def text_of(path: FilePath) -> str:
    """A text file's content.

    Raises:
        BadFile: it cannot be read, is larger than BYTES_MAX, or is not UTF-8.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(BYTES_MAX + 1)  # bounds what has no end, too
    except OSError as error:
        refuse("", f"the file cannot be read: {error.strerror or 'input/output error'}")
    if len(content) > BYTES_MAX:
        refuse("", f"the file is larger than {BYTES_MAX} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        refuse("", "the file is not UTF-8 text")


def json_of(path: FilePath) -> Any:
    """A JSON file's content.

    Raises:
        BadFile: as `text_of`, or it is no JSON, names a key twice, has NaN or an infinity, or is
            nested too deep.
    """
    return parse_json(text_of(path))


def parse_json(text: str) -> Any:
    """JSON text, strictly: no key twice, no NaN, no infinity.

    Raises:
        BadFile: it is anything else.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_finite)
    except json.JSONDecodeError as error:
        refuse(f"line {error.lineno}, column {error.colno}", "is no JSON")
    except RecursionError:
        refuse("", "the file is nested too deep")
    except BadFile:
        raise
    except ValueError:  # Python's own bound of the digits of a number
        refuse("", "the file has a number of too many digits")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        refuse("", "an object of the file has a key twice")
    return found


def _finite(_: str) -> NoReturn:
    refuse("", "the file has a number that is not finite")


def mapping(place: str, value: Any, keys: tuple[str, ...]) -> Mapping[str, Any]:
    """An object with exactly these keys.

    Raises:
        BadFile: it is anything else.
    """
    if not isinstance(value, Mapping) or set(value) != set(keys):
        refuse(place, f"must have {', '.join(keys)} and nothing else")
    return value


def rows(place: str, value: Any) -> list[Any]:
    """A list of at most ROWS_MAX.

    Raises:
        BadFile: it is anything else.
    """
    if not isinstance(value, (list, tuple)):
        refuse(place, "must be a list")
    if len(value) > ROWS_MAX:
        refuse(place, f"has more than {ROWS_MAX} rows")
    return list(value)


def real(place: str, value: Any, low: float, high: float) -> float:
    """A number in [low, high].

    Raises:
        BadFile: it is anything else.
    """
    number = math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = math.inf if isinstance(value, int) and abs(value) > 2**1000 else float(value)
    if not low <= number <= high:
        refuse(place, f"must be a number in [{low:g}, {high:g}]")
    return number


def count(place: str, value: Any, high: int = ROW_STEPS_MAX) -> int:
    """A whole number in [1, high].

    Raises:
        BadFile: it is anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
        refuse(place, f"must be a whole number in [1, {high}]")
    return value
