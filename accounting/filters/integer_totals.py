"""Totals: what a filter adds up, as exact whole numbers.

Sums of whole numbers are the same in whatever order they come, and what was added can be taken off
again. Costs are rounded up to units, limits down.
"""

import math
from collections.abc import Iterable
from typing import Final, Protocol

from accounting.rounding import rounded_down

# The first component counts units that no accepted bound covers; any of them makes the total
# infinite. Of the others, losses are in units of 2**-80 and probabilities in units of 2**-200.
Total = tuple[int, ...]

LOSS_BITS: Final = 80  # 1e-24 nats: 1e15 steps that are each rounded up by a unit cost 1e-9
DELTA_BITS: Final = 200  # 6e-61: failures are tiny, and many of them must still be told apart
# What a loss counts as that is this large, infinite or not a number: more than any limit. It keeps
# totals below 200 bits.
CEILING: Final = 1 << (64 + LOSS_BITS)
COUNT_MAX: Final = 10**15  # steps; more are never asked for


def plus(a: Total, b: Total) -> Total:
    """The sum, component by component."""
    return tuple([x + y for x, y in zip(a, b, strict=True)])


def times(cost: Total, count: int) -> Total:
    """What so many units cost; a negative count takes them off again."""
    return tuple([x * count for x in cost])


def sum_of(totals: Iterable[Total], zero: Total) -> Total:
    """All of them together, component by component."""
    for total in totals:
        zero = plus(zero, total)
    return zero


def loss_units(loss: float) -> int:
    """A loss in whole units. Upper; CEILING where it is infinite, huge or not a number."""
    scaled = math.ldexp(min(loss, 2.0**65), LOSS_BITS) if loss >= 0 else math.inf
    return math.ceil(scaled) if scaled < CEILING else CEILING


def limit_units(limit: float) -> int:
    """A limit on losses in whole units. Lower; -1, which admits nothing, unless it is a number."""
    if not 0 <= limit < math.inf:
        return -1
    return min(math.floor(math.ldexp(min(limit, 2.0**65), LOSS_BITS)), CEILING - 1)


def delta_units(delta: float) -> int:
    """A probability in whole units. Upper."""
    return math.ceil(math.ldexp(delta, DELTA_BITS))


def delta_limit(delta: float) -> int:
    """A limit on a sum of probabilities in whole units. Lower; -1 unless it is a number."""
    return math.floor(math.ldexp(delta, DELTA_BITS)) if 0 <= delta < 1 else -1


def loss_of(units: int) -> float:
    """The loss that so many units stand for. Upper; infinite from CEILING on."""
    if units >= CEILING:
        return math.inf
    return math.nextafter(math.ldexp(units, -LOSS_BITS), math.inf) if units else 0.0


def within(total: Total, limits: Total) -> bool:
    """Whether no component is negative or above its limit."""
    for x, most in zip(total, limits, strict=True):  # noqa: SIM110, this is asked at every step
        if not 0 <= x <= most:
            return False
    return True


def copies(total: Total, cost: Total, limits: Total) -> int:
    """The largest n, at most COUNT_MAX, with total + n cost within the limits; 0 if there is none.

    Raises:
        ValueError: the cost is negative.
    """
    if min(cost) < 0:
        raise ValueError("A cost is not negative.")
    if not within(total, limits):
        return 0
    fits = [(most - x) // each for x, each, most in zip(total, cost, limits, strict=True) if each]
    return min([COUNT_MAX, *fits])


class Held(Protocol):
    """A budget's filter, as far as what is left of it needs one."""

    @property
    def epsilon(self) -> float:
        """The limit, in nats."""

    def admits(self, total: Total) -> bool:
        """Whether so much is within the budget."""

    def spent(self, total: Total) -> float:
        """The epsilon that a total stands for, in nats. Upper."""


def left(held: Held, total: Total) -> float:
    """What is left of epsilon: nothing where not even the total is admitted. Lower, nats."""
    return max(0.0, rounded_down(held.epsilon - held.spent(total))) if held.admits(total) else 0.0
