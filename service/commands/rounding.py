"""How commands print the two ends of an epsilon."""

from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Final

_UP: Final = Context(prec=6, rounding=ROUND_CEILING)
_DOWN: Final = Context(prec=6, rounding=ROUND_FLOOR)


def upper(value: float) -> str:
    """Six digits, rounded up: an upper bound is never printed below itself."""
    return f"{_UP.create_decimal_from_float(value):g}"


def lower(value: float) -> str:
    """Six digits, rounded down: a lower bound is never printed above itself."""
    return f"{_DOWN.create_decimal_from_float(value):g}"
