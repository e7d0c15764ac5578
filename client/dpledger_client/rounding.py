"""Numbers for people: an upper bound is rounded up, a lower one down."""

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Final

_DIGITS: Final = 400  # of any double, and its places


def up(value: float, places: int = 4) -> str:
    """A finite upper bound with so many places; never less than it is."""
    return _rounded(value, places, ROUND_CEILING)


def down(value: float, places: int = 4) -> str:
    """A finite lower bound with so many places; never more than it is."""
    return _rounded(value, places, ROUND_FLOOR)


def percent_up(share: float) -> str:
    """An upper bound of a share in percent with at most one place; never less than it is."""
    return f"{(100 * Decimal(up(share, 3))).normalize():f} %"


def _rounded(value: float, places: int, rounding: str) -> str:
    exact = Decimal(repr(float(value)))  # the shortest text that is read back as the same number
    context = Context(prec=_DIGITS, rounding=rounding)
    return f"{exact.quantize(Decimal(1).scaleb(-places), context=context):f}"
