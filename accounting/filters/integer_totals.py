"""Totals: what a filter adds up, as exact whole numbers, and the share of its capacity they use.

Sums of whole numbers are the same in whatever order they come, and what was added can be taken off
again. Costs are rounded up to units, limits down.

Each component has a limit, and what is used is a fraction of it: it adds up over runs, never falls
while steps are added, is 0 where nothing ran and 1 where the budget is full. An epsilon has none of
these properties, because a conversion has a cost of its own that the first step pays.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
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
_UNCOVERED: Final = 0  # the component of a total that counts units without a bound


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


def remaining_epsilon(held: Held, total: Total) -> float:
    """What is left of epsilon: nothing where not even the total is admitted. Lower, nats."""
    return max(0.0, rounded_down(held.epsilon - held.spent(total))) if held.admits(total) else 0.0


def fraction_of(used: int, limit: int) -> float:
    """Return how large a fraction of a limit is used. Upper, to the next double.

    It is at most 1 exactly where `used` is at most the limit, and 0 where nothing is used. Any use
    of a limit that holds nothing is infinite.
    """
    if not used:
        return 0.0
    if limit <= 0:
        return math.copysign(math.inf, used)
    nearest = used / limit  # of whole numbers, correctly rounded
    numerator, denominator = nearest.as_integer_ratio()
    below = numerator * limit < used * denominator
    return math.nextafter(nearest, math.inf) if below else nearest


def capacity_share(total: Total, limits: Total) -> float:
    """Return the largest fraction over all components. Upper; infinite where a unit is uncovered.

    Args:
        total: what is used, whole numbers >= 0; anything less is infinite, as no ledger adds it up.
        limits: how much of each component the budget holds.
    """
    return max(map(fraction_of, total, limits)) if min(total) >= 0 else math.inf


def binding_component(total: Total, limits: Total) -> int:
    """Return the component that uses the largest fraction, of all but the uncovered units.

    The last of equals is taken, which is the loss.

    Args:
        total: what is used, whole numbers >= 0.
        limits: how much of each component the budget holds.
    """
    covered = range(_UNCOVERED + 1, len(total))
    return max(covered, key=lambda at: (fraction_of(total[at], limits[at]), at))


def capacity_parts(totals: Iterable[Total], limits: Total, *, component: int) -> tuple[float, ...]:
    """Return the fraction that each total uses of one component. Upper, each by itself.

    Fractions of one component add up; each double is at most one rounding above its own fraction.

    Args:
        totals: of each part.
        limits: how much of each component the budget holds.
        component: which one is read; a part with uncovered units is infinite.
    """
    return tuple(
        math.inf if total[_UNCOVERED] > 0 else fraction_of(total[component], limits[component])
        for total in totals
    )


class LimitedFilter(ABC):
    """A filter that holds each component of a total below a limit of its own."""

    __slots__ = ()
    epsilon: float  # nats, the limit

    @property
    @abstractmethod
    def limits(self) -> Total:
        """What the budget holds."""

    @abstractmethod
    def zero(self) -> Total:
        """Nothing spent."""

    @abstractmethod
    def spent(self, total: Total) -> float:
        """The epsilon at the budget's delta that a total stands for, in nats. Upper."""

    def admits(self, total: Total) -> bool:
        """Whether so much is within the budget."""
        return within(total, self.limits)

    def share(self, total: Total) -> float:
        """The share of the budget's capacity that a total uses. Upper; at most 1 if admitted."""
        return capacity_share(total, self.limits)

    def parts(self, totals: Sequence[Total], *, whole: Total | None = None) -> tuple[float, ...]:
        """The shares that several totals use of what binds the whole, their sum if none is given.

        Upper. They add up to the share of the sum, and each is at least its own share of the whole.
        """
        at = binding_component(sum_of(totals, self.zero()) if whole is None else whole, self.limits)
        return capacity_parts(totals, self.limits, component=at)

    def remaining(self, total: Total) -> float:
        """What is left of epsilon, in nats. Lower, >= 0."""
        return remaining_epsilon(self, total)

    def admissible(self, total: Total, cost: Total) -> int:
        """How many further units of a cost the budget holds, at most COUNT_MAX."""
        return copies(total, cost, self.limits)
