"""A record that is replaced, through a null record: two comparisons of which each has a pair."""

import math
from typing import Final

from accounting.events import Direction, NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.pld.certified_composition import WIDTH, delta_in_order, epsilon_in_order
from accounting.pld.pairs import Units
from accounting.rounding import LIBRARY_ULPS, rounded_down, rounded_up

_SHARE: Final = 0.5  # of delta for the first comparison; the best is near, and little is lost
_PARTS: Final = (0.4, 0.45, 0.5, 0.55, 0.6)  # of epsilon for the first comparison


@theorem(
    id="through-null-record",
    source="Vadhan 2017, The Complexity of Differential Privacy, Lemma 2.2, as in docs/theory/"
    "pld.md, Proposition 4",
    status=Status.PUBLISHED,
    relations=(NeighboringRelation.REPLACE_ONE,),
    assumptions=(Assumption.PARAMETERS_FIXED_IN_ADVANCE,),
)
def replaced_epsilon(units: Units, *, delta: float, width: float = WIDTH) -> float:
    """Epsilon at a delta when a record is replaced, from pairs that hold against a null record.

    From the record to the null record, and from there to its replacement:
    delta(epsilon + epsilon') <= delta_remove(epsilon) + e^epsilon delta_add(epsilon').

    Args:
        units: pairs that dominate under replace_special, and how often each counts; not empty.
        delta: in (0, 1).
        width: relative width to aim at.

    Returns:
        Epsilon in nats. Upper.
    """
    first = epsilon_in_order(units, Direction.REMOVE, delta=_SHARE * delta, width=width)
    if not first < math.inf:
        return math.inf
    left = rounded_down((1 - _SHARE) * delta * math.exp(-first), ulps=2 * LIBRARY_ULPS)
    if not left > 0:
        return math.inf
    second = epsilon_in_order(units, Direction.ADD, delta=left, width=width)
    return rounded_up(first + second)


def replaced_delta(units: Units, *, epsilon: float, width: float = WIDTH) -> float:
    """Delta at an epsilon, by the same theorem. Upper, in [0, 1].

    Args:
        units: pairs that dominate under replace_special, and how often each counts; not empty.
        epsilon: nats, >= 0.
        width: relative width to aim at.
    """
    least = 1.0
    for part in _PARTS:
        first = part * epsilon
        second = max(0.0, rounded_down(epsilon - first))
        total = delta_in_order(units, Direction.REMOVE, epsilon=first, width=width)
        if first < math.log(1e300):
            grown = rounded_up(math.exp(first), ulps=LIBRARY_ULPS)
            total += grown * delta_in_order(units, Direction.ADD, epsilon=second, width=width)
            least = min(least, rounded_up(total, ulps=2))
    return least


THEOREMS = (replaced_epsilon,)
