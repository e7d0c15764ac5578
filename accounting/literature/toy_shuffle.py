"""Two records, two steps: the smallest example in which shuffling costs more than drawing."""

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import permutations, product
from types import MappingProxyType
from typing import Final

from accounting.events import NeighboringRelation
from accounting.guarantees import Status, theorem
from accounting.rounding import rounded_up

# Slope of the first loss, -sin(pi x)/pi, wherever two steps of length one from 0 can lead. The
# second loss is its negative.
_SLOPES: Final[Mapping[int, int]] = MappingProxyType({-1: 1, 0: -1, 1: 1})
ENDS: Final = (-2, 0, 2)  # where two steps can end
_DATASETS: Final = ((1, 1), (1, -1), (-1, -1))  # +1 stands for the first loss, -1 for the second
_NEIGHBOURS: Final = ((0, 1), (1, 2))  # up to the order of the records


def toy_law(
    dataset: tuple[int, int], *, keep_probability: float, replacement: bool
) -> dict[int, Fraction]:
    """What the toy example answers on a dataset of two losses, +1 or -1 each: exact chances."""
    keep = Fraction(keep_probability)
    orders = list(product(dataset, repeat=2) if replacement else permutations(dataset))
    ends = [_end(order) for order in orders]
    return {
        end: keep * Fraction(ends.count(end), len(ends)) + (1 - keep) / len(ENDS) for end in ENDS
    }


def _end(order: tuple[int, ...]) -> int:
    place = 0
    for loss in order:
        place -= loss * _SLOPES[place]
    return place


def _ratios(keep_probability: float, *, replacement: bool) -> Iterator[Fraction | None]:
    """How much likelier each answer is on a dataset than on its neighbour; None is infinitely."""
    laws = [
        toy_law(dataset, keep_probability=keep_probability, replacement=replacement)
        for dataset in _DATASETS
    ]
    for one, other in _NEIGHBOURS:
        for end in ENDS:
            for above, below in ((one, other), (other, one)):
                top, bottom = laws[above][end], laws[below][end]
                if top:
                    yield top / bottom if bottom else None


@theorem(
    id="toy-two-records",
    source="docs/theory/errata.md, Proposition 1",
    status=Status.DERIVED,
    relations=(NeighboringRelation.REPLACE_ONE,),
)
def toy_epsilon(*, keep_probability: float, replacement: bool) -> float:
    """Pure DP of two gradient steps on two records, one of three answers given.

    From 0, with step length 1, along -sin(pi x)/pi or its negative, as the record of the step says.
    The end is told with probability p, else one of -2, 0 and 2 at random.

    with replacement    epsilon = log max((2+4p)/(2+p), (4-p)/(4(1-p)))
    shuffled            epsilon = log((1+2p)/(1-p))

    Found by listing the orders in exact arithmetic; the two formulas hold the tests.

    Args:
        keep_probability: p, in [0, 1].
        replacement: whether each step draws its record afresh; else each record is used once.

    Returns:
        epsilon in nats, infinite for p = 1. Exact, rounded up.

    Raises:
        ValueError: keep_probability is not in [0, 1].
    """
    if not 0 <= keep_probability <= 1:
        raise ValueError("keep_probability lies in [0, 1].")
    excess = Fraction(0)
    for ratio in _ratios(keep_probability, replacement=replacement):
        if ratio is None:
            return math.inf
        excess = max(excess, ratio - 1)
    return rounded_up(math.log1p(float(excess)), ulps=4) if excess else 0.0


THEOREMS = (toy_epsilon,)
