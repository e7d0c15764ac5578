"""Directed rounding and safe-side root search: what keeps a bound on its side of the truth."""

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, Context, Decimal
from typing import Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
ComplexArray = npt.NDArray[np.complex128]

UNIT_ROUNDOFF: Final = 2.0**-53
# A library function (exp, log, expm1, ...) is trusted to this many units in the last place.
# numpy's vectorised kernels document at most 4; tests hold them against mpmath.
LIBRARY_ULPS: Final = 4
# The scaled complementary error function is off by up to 7.3 units of roundoff where it was
# measured, and is trusted to this many, relative.
ERFCX_UNITS: Final = 32
_DIGITS: Final = Context(prec=400, rounding=ROUND_CEILING)  # of any double, and its places
MAX_BISECTIONS: Final = 200  # halves any pair of doubles, whatever their exponents, to neighbours


def require(condition: bool, text: str) -> None:
    """Refuse an argument; the text says what holds of those that are taken.

    Raises:
        ValueError: the condition does not hold.
    """
    if not condition:
        raise ValueError(f"Out of range: {text}.")


def require_range(condition: bool, /, **values: object) -> None:
    """Refuse values by their names.

    Raises:
        ValueError: the condition does not hold.
    """
    if not condition:
        names = ", ".join(f"{name}={value!r}" for name, value in values.items())
        raise ValueError(f"Out of range: {names}.")


def rounded_up(value: float, *, ulps: int = 1) -> float:
    """A double above the true value, given a nearest-rounded one that is off by at most `ulps`."""
    return value + abs(value) * ulps * 2 * UNIT_ROUNDOFF + 5e-324


def rounded_down(value: float, *, ulps: int = 1) -> float:
    """A double below the true value, given a nearest-rounded one that is off by at most `ulps`."""
    return value - abs(value) * ulps * 2 * UNIT_ROUNDOFF - 5e-324


def up_to_places(value: float, places: int) -> Decimal:
    """Return the least decimal number of so many places that is not below a finite value.

    The value counts as it is written: as the shortest text that is read back as the same double.
    The double nearest to what is returned is not below it, either.
    """
    return Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-places), context=_DIGITS)


def sum_up(terms: list[float]) -> float:
    """The sum of the terms, rounded upwards; the same bits in whatever order they come."""
    return math.nextafter(math.fsum(terms), math.inf) if terms else 0.0


def exact_sum(values: Array) -> float:
    """The sum of many doubles, rounded once: math.fsum takes long where they differ much in size.

    Each is a whole number of 53 bits times a power of two; the halves of these numbers add up
    exactly, by power.

    Args:
        values: finite, fewer than 2^26, shape (k,).
    """
    mantissas, powers = np.frexp(values)
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    least = int(np.min(powers, initial=0))
    total = 0
    for half, shift in ((whole >> 26, 26), (whole & (2**26 - 1), 0)):
        sums = np.bincount(powers - least, half)
        total += sum(int(sums[place]) << (int(place) + shift) for place in np.flatnonzero(sums))
    return total / (1 << (53 - least))


def crossing(holds: Callable[[float], bool], *, low: float, high: float) -> tuple[float, float]:
    """Neighbours (last false, first true) of a condition that is false, then true in (low, high].

    Bisection to neighbouring doubles or a relative width of 1e-15. The first value is `low` or was
    evaluated and does not hold; the second was evaluated and holds.

    Raises:
        ValueError: `holds(high)` is false, so there is nothing to search for.
    """
    if not holds(high):
        raise ValueError(f"No value in ({low}, {high}] satisfies the condition.")
    for _ in range(MAX_BISECTIONS):
        middle = 0.5 * (low + high)
        if not low < middle < high or high - low <= 1e-15 * abs(high):
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def least_true(holds: Callable[[float], bool], *, low: float, high: float) -> float:
    """The least value in (low, high] found to satisfy a condition that is false, then true.

    The value returned has been evaluated and holds, so a condition that is itself evaluated on the
    safe side stays safe.

    Raises:
        ValueError: `holds(high)` is false, so there is nothing to search for.
    """
    return crossing(holds, low=low, high=high)[1]
