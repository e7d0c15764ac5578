"""What a bound says of tests, guesses and losses: whoever looks at the answer can do this much.

Curves of a whole profile, and the membership advantage read off one, are in curves.
docs/theory/composition.md has the proofs.
"""

import math
from typing import Final

from accounting.events import NeighboringRelation
from accounting.guarantees import Status, theorem
from accounting.literature.total_variation import total_variation_of_dp
from accounting.rounding import rounded_down, rounded_up

_ALL: Final = tuple(NeighboringRelation)
_PAGE: Final = "docs/theory/composition.md"


def _check_distance(distance: float) -> None:
    if not 0 <= distance <= 1:
        raise ValueError("distance lies in [0, 1].")


@theorem(
    id="test-errors",
    source=f"{_PAGE}, Theorem 8; Le Cam's inequality, as document 004 (Berthier 2019), "
    "Section 2.4.3",
    status=Status.DERIVED,
    relations=_ALL,
)
def least_test_errors(*, distance: float) -> float:
    """The least sum of a test's two error rates, between two neighbours.

    1 - delta, for a total variation of delta: false positives and false negatives together. The
    advantage of a membership test, its true positives less its false ones, is at most delta.

    Args:
        distance: delta, in [0, 1].

    Returns:
        The sum of both error rates, in [0, 1]. Lower; attained by the likelihood ratio test.

    Raises:
        ValueError: distance is not in [0, 1].
    """
    _check_distance(distance)
    return max(0.0, rounded_down(1 - distance))


@theorem(
    id="guess-success",
    source=f"{_PAGE}, Theorem 8; Le Cam's inequality, as document 004 (Berthier 2019), "
    "Section 2.4.3",
    status=Status.DERIVED,
    relations=_ALL,
)
def guess_success(*, distance: float, prior: float) -> float:
    """The chance that whoever sees the answer guesses right which neighbour it came from.

    max(p, 1-p) + min(p, 1-p) delta; 1/2 + delta/2 where both are equally likely beforehand.

    Args:
        distance: delta, the total variation, in [0, 1].
        prior: p, the chance of one of the neighbours beforehand, in [0, 1].

    Returns:
        The chance, in [0, 1]. Upper; attained where p is 1/2.

    Raises:
        ValueError: an argument is not in [0, 1].
    """
    _check_distance(distance)
    if not 0 <= prior <= 1:
        raise ValueError("prior lies in [0, 1].")
    rare = min(prior, 1 - prior)
    return min(1.0, rounded_up(1 - rare * (1 - distance), ulps=4))


@theorem(
    id="dp-stability",
    source=f"{_PAGE}, Theorem 9; sharper than document 004 (Berthier 2019), Section 5.2",
    status=Status.DERIVED,
    relations=_ALL,
)
def uniform_stability(*, epsilon: float, delta: float, loss_range: float) -> float:
    """How much the expected loss on any example may change with one record of the training data.

    r (t + delta (1 - t)) with t = tanh(epsilon/2): at most r epsilon / 2 where delta is zero.

    Args:
        epsilon: nats, >= 0, of what was trained.
        delta: in [0, 1].
        loss_range: r, the length of an interval that holds every value of the loss; > 0. It must be
            declared: for a loss without bounds nothing follows.

    Returns:
        The change, in the unit of the loss. Upper; attained.

    Raises:
        ValueError: an argument is out of range.
    """
    if not 0 < loss_range < math.inf:
        raise ValueError("loss_range is positive and finite.")
    return rounded_up(loss_range * total_variation_of_dp(epsilon=epsilon, delta=delta))


THEOREMS = (least_test_errors, guess_success, uniform_stability)
