"""The law of the number of trials: as the service has it, and a number drawn from it exactly."""

import math
import secrets
from collections.abc import Callable, Iterator, Mapping
from decimal import Context, Decimal
from typing import Any, Final

BITS: Final = 128  # drawn at first; more where they do not tell the number yet
_DIGITS: Final = 60  # that each probability has at first
_MORE: Final = 40
HALTING_MIN: Final = 1e-12
_SOLVED_DIGITS: Final = 9
Bits = Callable[[int], int]  # so many random bits, as a whole number


def negative_binomial_trials(
    *, shape: float, halting_probability: float | None = None, mean: float | None = None
) -> dict[str, Any]:
    """At least one trial: their number is truncated negative binomial.

    Args:
        shape: eta, in (-1, 100]; 0 is the logarithmic law, 1 the geometric one.
        halting_probability: gamma, in [1e-12, 1), with which the number is drawn; or
        mean: of the number, in (1, 1e6], for which gamma is solved, down to nine digits.

    Raises:
        ValueError: not exactly one of the two is given, one is out of range, or no gamma has the
            mean.
    """
    if (halting_probability is None) == (mean is None):
        raise ValueError("Give exactly one of halting_probability and mean.")
    if not -1 < shape <= 100:
        raise ValueError("shape must be above -1 and at most 100.")
    gamma = _solved(shape, mean) if halting_probability is None else halting_probability
    if not HALTING_MIN <= gamma < 1:
        raise ValueError("halting_probability must be at least 1e-12 and below 1.")
    return {
        "kind": "truncated_negative_binomial",
        "shape": float(shape),
        "halting_probability": float(gamma),
    }


def poisson_trials(*, mean: float) -> dict[str, Any]:
    """A Poisson number of trials; with none of them nothing is released.

    Args:
        mean: in [1, 1e6]; below 1 no bound is proved.

    Raises:
        ValueError: it is out of range.
    """
    if not 1 <= mean <= 1e6:
        raise ValueError("mean must be at least 1 and at most 1e6.")
    return {"kind": "poisson", "mean": float(mean)}


def _mean(shape: float, gamma: float) -> float:
    doubt = -math.log(gamma)
    power = shape * doubt
    grown = 1.0 if abs(power) < 1e-16 else power / -math.expm1(-power)
    return (1 - gamma) / (gamma * doubt) * grown


def _solved(shape: float, mean: float | None) -> float:
    low, high = HALTING_MIN, 1 - 2.0**-40
    if mean is None or not (1 < mean <= 1e6 and _mean(shape, high) <= mean <= _mean(shape, low)):
        raise ValueError("mean must be above 1, and that of some halting_probability.")
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if _mean(shape, middle) <= mean else (middle, high)
    power = math.floor(math.log10(high * (1 + 2.0**-40))) + 1 - _SOLVED_DIGITS
    return float(f"{math.floor(high * (1 + 2.0**-40) / 10.0**power)}e{power}")


def draw_trials(law: Mapping[str, Any], bits: Bits = secrets.randbits) -> int:
    """Return a number of trials, drawn exactly: as many bits are read as it takes to tell it.

    Args:
        law: by `negative_binomial_trials` or `poisson_trials`.
        bits: where random bits come from; the operating system.
    """
    count, drawn, digits = BITS, bits(BITS), _DIGITS
    while True:
        found = _read(law, drawn, count, digits)
        if found is not None:
            return found
        drawn = drawn << BITS | bits(BITS)
        count, digits = count + BITS, digits + _MORE


def _read(law: Mapping[str, Any], drawn: int, count: int, digits: int) -> int | None:
    """The number that the bits so far tell; None where two are still possible."""
    context = Context(prec=digits + 40 + _lost(law), Emin=-(10**9), Emax=10**9)
    scale = context.power(Decimal(2), Decimal(count))
    least = context.divide(Decimal(drawn), scale)
    most = context.divide(Decimal(drawn + 1), scale)
    total = Decimal(0)
    for number, chance in _chances(law, context):
        total = context.add(total, chance)
        # Each chance is a product of a few rounded factors for each number before it, each good
        # to forty digits more than are asked for.
        doubt = context.multiply(Decimal(10) ** -digits, total)
        if most <= context.subtract(total, doubt):
            return number
        if least < context.add(total, doubt) or context.add(total, doubt) >= 1:
            return None
    return None


def _lost(law: Mapping[str, Any]) -> int:
    """How many digits the difference from 1 of a power near 1 loses."""
    shape = law.get("shape", 0.0)
    return 0 if not shape else max(0, -math.floor(math.log10(abs(shape)))) + 20


def _chances(law: Mapping[str, Any], context: Context) -> Iterator[tuple[int, Decimal]]:
    if law["kind"] == "poisson":
        mean = Decimal(law["mean"])
        chance, number = context.exp(-mean), 0
        while True:
            yield number, chance
            number += 1
            chance = context.divide(context.multiply(chance, mean), Decimal(number))
    shape, gamma = Decimal(law["shape"]), Decimal(law["halting_probability"])
    rest = context.subtract(Decimal(1), gamma)
    doubt = context.minus(context.ln(gamma))
    whole = doubt
    if shape:
        power = context.exp(context.multiply(shape, doubt))
        whole = context.divide(context.subtract(power, Decimal(1)), shape)
    chance, number = context.divide(rest, whole), 1
    while True:
        yield number, chance
        grown = context.multiply(context.multiply(chance, rest), context.add(shape, number))
        chance, number = context.divide(grown, Decimal(number + 1)), number + 1
