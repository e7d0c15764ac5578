"""The share of a budget's capacity that is used, and its division into parts.

A filter counts what it holds in whole numbers, and each has a limit. What is used is a fraction of
such a limit: it adds up over runs, never falls while steps are added, is 0 where nothing ran and 1
where the budget is full. An epsilon has none of these properties, because a conversion has a cost
of its own that the first step pays.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final

from accounting.filters.integer_totals import Total, copies, left, sum_of, within

_UNCOVERED: Final = 0  # the component of a total that counts units without a bound


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
        return left(self, total)

    def admissible(self, total: Total, cost: Total) -> int:
        """How many further units of a cost the budget holds, at most COUNT_MAX."""
        return copies(total, cost, self.limits)
