"""Write numbers and times for people: upper bounds are rounded up, lower bounds down."""

import math
import re
import sys
from collections.abc import Callable
from datetime import datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Any, Final

from service.clock import now, utc

_DIGITS: Final = 4  # significant, of an epsilon
_ALL_DIGITS: Final = 17  # of a double
PLACES: Final = 3  # after the point, of what is 1 or more
SMALL: Final = Decimal("1e-4")  # below, and from this on: powers of ten
LARGE: Final = Decimal("1e15")
NO_NUMBER: Final = "—"
NO_BOUND: Final = "no finite bound"  # an upper bound that is infinite, wherever one is written
TIMES_FROM: Final = 10.0  # a charged share beyond is told as so many times the capacity
NARROW: Final = "\u202f"  # a space at which no line is broken
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86_400
_YEAR: Final = 365.25
YEARS_MAX: Final = 10
_UP: Final = Context(prec=6, rounding=ROUND_CEILING)
_DOWN: Final = Context(prec=6, rounding=ROUND_FLOOR)
_UP_3: Final = Context(prec=3, rounding=ROUND_CEILING)
_UP_4: Final = Context(prec=4, rounding=ROUND_CEILING)
PLAIN_DIGITS: Final = 6  # before or after the point; beyond, powers of ten


def up(value: float | None, digits: int = _DIGITS) -> str:
    """An upper bound: never less than the value. Infinity and nothing known are said so."""
    return NO_BOUND if value == math.inf else _rounded(value, digits, ROUND_CEILING)


def at_most(value: float | None, digits: int = _DIGITS) -> str:
    """An upper bound in the form of an answer, where null stands for infinity."""
    return up(math.inf if value is None else value, digits)


def down(value: float | None, digits: int = _DIGITS) -> str:
    """A lower bound: never more than the value."""
    return _rounded(value, digits, ROUND_FLOOR)


def plain(value: float | None, digits: int = _DIGITS) -> str:
    """What is no bound: a setting, to the nearest digit."""
    return _rounded(value, digits, ROUND_HALF_EVEN)


def all_digits(value: float | None) -> str:
    """Return all digits of a number: of a limit, or of the delta at which a bound is stated."""
    if value is None or not math.isfinite(value) or value == 0:
        return plain(value)
    exact = _shortest(value)
    if not SMALL <= abs(exact) < LARGE:
        return _scientific(exact, ROUND_HALF_EVEN, _ALL_DIGITS)
    return _told(f"{exact:,f}", whole=True)


def _rounded(value: float | None, digits: int, rounding: str) -> str:
    if value is None or math.isnan(value):
        return NO_NUMBER
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    exact = _shortest(value)
    if not SMALL <= abs(exact) < LARGE:
        return _scientific(exact, rounding, digits)
    # As many digits as asked for, but no more than three places of what is 1 or more, and none cut
    # off before the point.
    most = PLACES if abs(exact) >= 1 else sys.maxsize
    place = max(exact.adjusted() - digits + 1, -most)
    found = exact.quantize(Decimal(1).scaleb(min(0, place)), rounding=rounding)
    return _told(f"{found:,f}", whole=found == exact)


def _shortest(value: float) -> Decimal:
    """By the shortest text that is read back as the same number."""
    return Decimal(repr(float(value)))


def _scientific(value: Decimal, rounding: str, digits: int) -> str:
    exponent = value.adjusted()
    step = Decimal(1).scaleb(1 - digits)
    scaled = value.scaleb(-exponent).quantize(step, rounding=rounding)
    whole = scaled.scaleb(exponent) == value
    if abs(scaled) >= 10:
        scaled, exponent = (scaled / 10).quantize(step), exponent + 1
    return f"{_told(f'{scaled:f}', whole=whole)}e{exponent}"


def _told(text: str, *, whole: bool) -> str:
    """Zeros at the end say that there were further digits; where there were none, they go."""
    return text.rstrip("0").rstrip(".") if whole and "." in text else text


def count(value: int | None) -> str:
    """A whole number, in groups of three."""
    return NO_NUMBER if value is None else f"{value:,}"


def percent_up(share: float | None) -> str:
    """A share of something that is used up: never less."""
    if share is None or math.isinf(share):
        return up(share)
    return f"{up(100 * share, 3)}{NARROW}%"


def charged_share(share: float | None) -> str:
    """A charged share of capacity, null for infinity: in percent, or "697 times" the capacity."""
    if share is None or not TIMES_FROM < share < math.inf:
        return percent_up(math.inf if share is None else share)
    return f"{up(share, 3)} times"


def charged_of(share: float | None, whole: str) -> str:
    """A charged share of something that is named."""
    joint = " " if share is not None and TIMES_FROM < share < math.inf else " of "
    return f"{charged_share(share)}{joint}{whole}"


def percent_down(share: float | None) -> str:
    """A share of something that is left: never more."""
    return NO_NUMBER if share is None else f"{down(100 * share, 3)}{NARROW}%"


def moment(value: datetime | str | None) -> str:
    """A time, to the minute, in UTC."""
    return NO_NUMBER if value is None else f"{_time(value):%Y-%m-%d %H:%M} UTC"


def day(value: datetime | str | None) -> str:
    """The day of a time, in UTC."""
    return NO_NUMBER if value is None else f"{_time(value):%Y-%m-%d}"


def iso(value: datetime | str) -> str:
    """A time for machines: the attribute of `<time>`."""
    return _time(value).isoformat(timespec="seconds")


def ago(value: datetime | str | None) -> str:
    """How long ago a time was."""
    if value is None:
        return NO_NUMBER
    seconds = (now() - _time(value)).total_seconds()
    if seconds < _MINUTE:
        return "just now"
    for unit, size in (("minute", _MINUTE), ("hour", _HOUR)):
        if seconds < size * (_MINUTE if unit == "minute" else 24):
            return f"{_many(int(seconds // size), unit)} ago"
    return f"{_many(int(seconds // _DAY), 'day')} ago"


def beyond(value: float | None, limit: float) -> str:
    """By how much an upper bound is above a limit, rounded up; infinity is said so."""
    over = math.inf if value is None else math.nextafter(value - limit, math.inf)
    return up(max(0.0, over))


def many(number: int, unit: str) -> str:
    """A number of things: "1 step", "2 steps"."""
    return _many(number, unit)


def days(value: float | None) -> str:
    """How long something lasts: never more than it does."""
    if value is None:
        return NO_NUMBER
    if value < 1:
        hours = int(value * 24)
        return _many(hours, "hour") if hours else "under an hour"
    if value > YEARS_MAX * _YEAR:
        return f"over {YEARS_MAX} years"
    return _many(int(value), "day")


def upper(value: float) -> str:
    """Six digits, rounded up: an upper bound is never printed below itself."""
    return f"{_UP.create_decimal_from_float(value):g}"


def lower(value: float) -> str:
    """Six digits, rounded down: a lower bound is never printed above itself."""
    return f"{_DOWN.create_decimal_from_float(value):g}"


def four_digits_up(value: float) -> str:
    """Four digits for a sentence, rounded up."""
    found = _UP_4.create_decimal_from_float(value)
    return f"{found:,f}" if abs(found.adjusted()) < PLAIN_DIGITS else f"{found:g}"


def percent_rounded_up(share: float) -> str:
    """A share in percent with three digits for a sentence, never less than it is."""
    return f"{trimmed(_UP_3.multiply(Decimal(share), Decimal(100)))}{NARROW}%"


def one_in(delta: float) -> str:
    """A small chance, as one in so many; never less than it is."""
    return f"one in {math.floor(1 / Decimal(repr(delta))):,}"


def trimmed(value: Decimal) -> str:
    """A decimal number without zeros at its end."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def words(kind: str) -> str:
    """A kind that code names, as words: sampling_contradicted as "Sampling contradicted"."""
    return kind.replace("_", " ").capitalize()


# What the reason for no bound advises for a plan, and what is so of a dataset that there is.
_OTHER_RELATION: Final = "Use replace_special or replace_one."
_FIXED_RELATION: Final = (
    "The dataset's neighbouring relation was fixed when it was created, because every ε that was "
    "certified since is stated in it; only a new dataset can use “replace one” or “replace "
    "by nothing”."
)


def bound_reason(reason: str) -> str:
    """Why no bound of a dataset is finite, without names of code."""
    said = reason.replace(_OTHER_RELATION, _FIXED_RELATION)
    said = re.sub(
        r"\b(?:add|replace)_[a-z_]+\b", lambda name: f"“{name[0].replace('_', ' ')}”", said
    )
    return said.replace("_", " ")


_ACCOUNTANTS: Final = {
    "pld": "PLD",
    "rdp": "Rényi",
    "gdp": "Gaussian DP",
    "last_iterate": "last iterate",
    "odometer": "odometer",
    "filter": "filter",
}


def accountant_words(name: str | None) -> str:
    """An accountant as pages name it."""
    return _ACCOUNTANTS.get(name or "", NO_NUMBER)


def schedule_words(valid_for: str) -> str:
    """For which steps a bound holds."""
    return "steps fixed in advance" if valid_for == "fixed_schedule" else "steps chosen adaptively"


def _many(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def _time(value: datetime | str) -> datetime:
    return utc(datetime.fromisoformat(value) if isinstance(value, str) else value)


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "up": up,
    "down": down,
    "plain": plain,
    "all_digits": all_digits,
    "count": count,
    "percent_up": percent_up,
    "at_most": at_most,
    "charged_share": charged_share,
    "charged_of": charged_of,
    "percent_down": percent_down,
    "moment": moment,
    "day": day,
    "iso": iso,
    "ago": ago,
    "days": days,
    "beyond": beyond,
    "many": many,
    "words": words,
    "bound_reason": bound_reason,
    "accountant_words": accountant_words,
    "schedule_words": schedule_words,
}
