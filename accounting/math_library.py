"""Whether the mathematical library of this machine is as accurate as bounds assume.

Rounding errors are proved from how far a library function may be off. Another C library, another
processor or another version of numpy may be off by more; then no bound is certified.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

import numpy as np

from accounting import special
from accounting.rounding import ERFCX_UNITS, LIBRARY_ULPS, UNIT_ROUNDOFF

_LIBRARY: Final = 2 * LIBRARY_ULPS  # units of roundoff, relative
_TAIL: Final = 1e-9 / UNIT_ROUNDOFF  # of a binomial tail
_QUANTILE: Final = 1e-12 / UNIT_ROUNDOFF  # of a normal quantile
_LENGTH: Final = 67  # of arrays: numpy has other code for most of a long one than for its end


class InaccurateLibraryError(ArithmeticError):
    """A library function is off by more than the bounds allow for; the text says which."""


def _normal(z: float) -> float:
    """What a normal distribution function may be off by, in units of roundoff."""
    return 16 + 8 * z * z


@dataclass(frozen=True, slots=True)
class _Point:
    """A value to thirty digits, by mpmath, and how far off it may be."""

    function: str
    arguments: tuple[float, ...]
    value: str
    units: float  # of roundoff, relative


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    f"{name}.{function}": getattr(module, function)
    for name, module, functions in (
        ("math", math, "exp log log10 log1p expm1 tanh log2 hypot cos"),
        ("np", np, "exp log log1p expm1 tanh sinh sin cos hypot arctan2 logaddexp log2"),
        ("special", special, "erf erfcx expit ndtr log_ndtr gammaln betainc ndtri"),
    )
    for function in functions.split()
}

POINTS: Final = (
    _Point("math.exp", (0.1,), "1.10517091807564763094663882346", _LIBRARY),
    _Point("math.exp", (-36.7,), "1.15184094930760963219746061572e-16", _LIBRARY),
    _Point("math.log", (1.1,), "9.53101798043249407874448232921e-2", _LIBRARY),
    _Point("math.log", (1e-05,), "-1.15129254649702283382869033594e+1", _LIBRARY),
    _Point("math.log10", (0.7,), "-1.54901959985743196839997071501e-1", _LIBRARY),
    _Point("math.log1p", (-0.3,), "-3.56674943938732363052309788025e-1", _LIBRARY),
    _Point("math.expm1", (0.001,), "1.0005001667083416888932627983e-3", _LIBRARY),
    _Point("math.expm1", (-2.5,), "-9.17915001376101204830471325533e-1", _LIBRARY),
    _Point("math.tanh", (0.7,), "6.04367777117163468120586885518e-1", _LIBRARY),
    _Point("math.log2", (3.3,), "1.72246602447109101212395822628", _LIBRARY),
    _Point("math.hypot", (1.3, 0.4), "1.36014705087354438347812582658", _LIBRARY),
    _Point("math.cos", (0.9,), "6.21609968270664439091364733869e-1", _LIBRARY),
    _Point("np.exp", (0.1,), "1.10517091807564763094663882346", _LIBRARY),
    _Point("np.exp", (-300.3,), "3.81388052848044886687666426688e-131", _LIBRARY),
    _Point("np.log", (0.7,), "-3.56674943938732442353954404107e-1", _LIBRARY),
    _Point("np.log", (1e-290,), "-6.67749676968273248296089653259e+2", _LIBRARY),
    _Point("np.log1p", (-0.3,), "-3.56674943938732363052309788025e-1", _LIBRARY),
    _Point("np.log1p", (1e-06,), "9.99999500000333287831490611062e-7", _LIBRARY),
    _Point("np.expm1", (0.001,), "1.0005001667083416888932627983e-3", _LIBRARY),
    _Point("np.expm1", (-2.5,), "-9.17915001376101204830471325533e-1", _LIBRARY),
    _Point("np.tanh", (0.7,), "6.04367777117163468120586885518e-1", _LIBRARY),
    _Point("np.sinh", (0.3,), "3.04520293447142607352846397872e-1", _LIBRARY),
    _Point("np.sin", (2.2,), "8.08496403819590079765238447294e-1", _LIBRARY),
    _Point("np.cos", (0.9,), "6.21609968270664439091364733869e-1", _LIBRARY),
    _Point("np.hypot", (1.3, 0.4), "1.36014705087354438347812582658", _LIBRARY),
    _Point("np.arctan2", (0.2, -1.1), "2.96173915379731497231498248452", _LIBRARY),
    _Point("np.logaddexp", (-3.1, -3.4), "-2.54564475553147289440905895248", _LIBRARY),
    _Point("np.logaddexp", (2.0, -30.5), "2.00000000000000768120468520207", _LIBRARY),
    _Point("np.log2", (3.3,), "1.72246602447109101212395822628", _LIBRARY),
    _Point("special.erfcx", (0.05,), "9.4599004355496147836374245821e-1", ERFCX_UNITS),
    _Point("special.erfcx", (1.4,), "3.38743540679734648547448075718e-1", ERFCX_UNITS),
    _Point("special.erfcx", (7.3,), "7.65806084714789144157821047541e-2", ERFCX_UNITS),
    _Point("special.erfcx", (60.2,), "9.37062750625643818762083668337e-3", ERFCX_UNITS),
    _Point("special.erf", (1e-05,), "1.12837916705790002729896536198e-5", _LIBRARY),
    _Point("special.erf", (0.3,), "3.28626759459127416189617985318e-1", _LIBRARY),
    _Point("special.erf", (1.4,), "9.52285119762648796399623216609e-1", _LIBRARY),
    _Point("special.erf", (3.2,), "9.99993974238848237912186555686e-1", _LIBRARY),
    _Point("special.expit", (-1.3,), "2.14165016957441379923962846947e-1", _LIBRARY),
    _Point("special.ndtr", (-0.4,), "3.44578258389675825085879543044e-1", _normal(-0.4)),
    _Point("special.ndtr", (-5.1,), "1.6982674071476014615872386393e-7", _normal(-5.1)),
    _Point("special.ndtr", (-30.2,), "1.18429147861093793093418736706e-200", _normal(-30.2)),
    _Point("special.log_ndtr", (-0.4,), "-1.06543404918957664844132622148", 2 * _normal(-0.4)),
    _Point("special.log_ndtr", (-12.3,), "-7.90800417961839959748984900021e+1", 2 * _normal(-12.3)),
    _Point("special.log_ndtr", (3.2,), "-6.87374125390490223937082240547e-4", 2 * _normal(3.2)),
    _Point("special.gammaln", (0.7,), "2.60867246531666568565662013035e-1", _LIBRARY),
    _Point("special.gammaln", (123.5,), "4.69817275491930604943665068706e+2", _LIBRARY),
    _Point("special.betainc", (40.0, 61.0, 0.3), "2.09885760039246666967794399748e-2", _TAIL),
    _Point(
        "special.betainc",
        (385.0, 59617.0, 0.004266666666666667),
        "3.24011261664575699961467639061e-14",
        _TAIL,
    ),
    _Point("special.ndtri", (0.001,), "-3.09023230616781353535800457626", _QUANTILE),
)


def inaccuracies() -> list[str]:
    """What is off by more than is allowed; empty on a machine whose bounds can be believed."""
    return [text for point in POINTS if (text := _inaccuracy(point))]


def _inaccuracy(point: _Point) -> str:
    function = FUNCTIONS[point.function]
    if point.function.startswith("math."):
        found = {float(function(*point.arguments))}
    else:
        columns = [np.full(_LENGTH, argument) for argument in point.arguments]
        found = {float(value) for value in function(*columns)}
    off = max(_units(value, point.value) for value in found)
    if off <= point.units:
        return ""
    arguments = ", ".join(map(repr, point.arguments))
    return f"{point.function}({arguments}) is off by {off:.3g} roundoffs; {point.units:.3g} allowed"


def _units(value: float, reference: str) -> float:
    """The relative error in units of roundoff; infinite where the value is not finite."""
    if not math.isfinite(value):
        return math.inf
    true = Fraction(Decimal(reference))
    return float(abs(Fraction(value) - true) / abs(true)) / UNIT_ROUNDOFF


@lru_cache(maxsize=1)
def require_accurate_library() -> None:
    """Refuse to bound anything with a library that is not accurate; looked at once a process.

    Raises:
        InaccurateLibraryError: some function is off by more than the bounds allow for.
    """
    if found := inaccuracies():
        raise InaccurateLibraryError(
            f"The mathematical library of this machine cannot be relied on: {'; '.join(found)}."
        )
