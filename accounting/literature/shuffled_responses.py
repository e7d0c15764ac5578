"""Shuffled answers of yes or no by randomized response: what is seen is how many say yes.

The number of yes is a sum of independent coins, truthful or not; its law is computed for whatever
the other users hold. docs/theory/local_models.md has the proofs.
"""

import math
from typing import Final

import numpy as np

from accounting.binomial import Window, sum_window, window
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.literature.local_randomizers import (
    CUT,
    EPSILON0_MAX,
    SHARE,
    answer_weights,
    least_epsilon,
)
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF

_ROUNDING: Final = 8 * LIBRARY_ULPS * UNIT_ROUNDOFF  # relative, of a dozen operations
RECORDS_MAX: Final = 10**4  # users: a law takes a millisecond, and thousands are looked at
BLOCKS: Final = 4000  # of what the others hold, before epsilon is raised further
_STEP: Final = 1e-7  # relative, by which epsilon is raised to spare small blocks


def _block(low: int, high: int, *, records: int, epsilon0: float, cut: float) -> Window:
    """How many of the others say yes, not counting those who may hold either.

    `low` others hold yes, all but `high` hold no, and the rest are shown to the adversary: what is
    left hides no more than the whole, however many of the rest hold yes.
    """
    yes = window(low, odds=math.exp(epsilon0), cut=cut)
    no = window(records - 1 - high, odds=math.exp(-epsilon0), cut=cut)
    return sum_window(yes, no)


def _delta_behind(epsilon: float, *, epsilon0: float, others: Window) -> float:
    """Delta of a yes against a no behind what others say. Upper.

    sum_x max(0, u f(x-1) - w f(x)), f being the law of the others.
    """
    if epsilon >= epsilon0:
        return 0.0
    u, w = answer_weights(epsilon, epsilon0)
    off = others.error + _ROUNDING
    before = u * (1 + off) * others.masses
    after = w * (1 - off) * np.append(others.masses[1:], 0.0)
    delta = float(np.sum(np.maximum(before - after, 0.0)))
    return min(1.0, delta * (1 + (len(before) + 8) * UNIT_ROUNDOFF) + others.left_out)


def _check(*, epsilon0: float, records: int) -> None:
    if not 0 <= epsilon0 <= EPSILON0_MAX:
        raise ValueError(f"epsilon0 lies in [0, {EPSILON0_MAX:g}].")
    if not 1 <= records <= RECORDS_MAX:
        raise ValueError(f"records lie in [1, {RECORDS_MAX}]; use clones_class_epsilon for more.")


@theorem(
    id="shuffled-response-delta",
    source="docs/theory/local_models.md, Theorem 6",
    status=Status.DERIVED,
    relations=(NeighboringRelation.REPLACE_ONE,),
    assumptions=(Assumption.FRESH_SECRET_ORDER, Assumption.INDEPENDENT_ANSWERS),
)
def shuffled_response_delta(
    epsilon: float, *, epsilon0: float, records: int, others_with_yes: int
) -> float:
    """Delta at epsilon of one user among n who shuffle yes or no, where k others hold yes.

    With p = 1/(1 + e^epsilon0), the number of yes is Bin(k, 1-p) + Bin(n-1-k, p) plus the user's
    own; the hockey-stick divergence of its laws for a yes and a no of the user.

    Args:
        epsilon: nats, >= 0.
        epsilon0: nats, in [0, EPSILON0_MAX]; each answer is truthful with odds e^epsilon0.
        records: n, in [1, RECORDS_MAX].
        others_with_yes: k, in [0, n-1].

    Returns:
        Delta in [0, 1], the larger of both orders. Upper; exact to a relative 1e-8 or so.

    Raises:
        ValueError: an argument is out of range.
    """
    _check(epsilon0=epsilon0, records=records)
    if not (0 <= epsilon < math.inf and 0 <= others_with_yes < records):
        raise ValueError("epsilon is finite and not negative; others_with_yes is below records.")
    # With yes and no exchanged, the other order is that of n-1-k.
    return max(
        _delta_behind(
            epsilon,
            epsilon0=epsilon0,
            others=_block(k, k, records=records, epsilon0=epsilon0, cut=CUT),
        )
        for k in (others_with_yes, records - 1 - others_with_yes)
    )


@theorem(
    id="shuffled-response",
    source="docs/theory/local_models.md, Theorem 6",
    status=Status.DERIVED,
    relations=(NeighboringRelation.REPLACE_ONE,),
    assumptions=(Assumption.FRESH_SECRET_ORDER, Assumption.INDEPENDENT_ANSWERS),
)
def shuffled_response_epsilon(*, epsilon0: float, records: int, delta: float) -> float:
    """Epsilon at delta of n users who shuffle yes or no, whatever the others hold.

    The largest of the epsilons over the number k of others who hold yes. It starts from k = n - 1
    and is raised wherever another k loses more. Blocks of k are covered at once: the users who may
    hold either are shown to the adversary. A block that loses too much is halved.

    Args:
        epsilon0: nats, in [0, EPSILON0_MAX]; each answer is truthful with odds e^epsilon0.
        records: n, in [1, RECORDS_MAX].
        delta: in (0, 1).

    Returns:
        Epsilon in nats, at most epsilon0. Upper; attained, to a relative 1e-6 or so.

    Raises:
        ValueError: an argument is out of range.
    """
    _check(epsilon0=epsilon0, records=records)
    if not 0 < delta < 1:
        raise ValueError("delta lies in (0, 1).")
    cut = max(CUT, SHARE * delta)

    def behind(low: int, high: int) -> Window:
        return _block(low, high, records=records, epsilon0=epsilon0, cut=cut)

    def at_one(others: Window) -> float:
        return least_epsilon(
            lambda one: _delta_behind(one, epsilon0=epsilon0, others=others),
            delta=delta,
            high=epsilon0,
        )

    epsilon = at_one(behind(records - 1, records - 1)) * (1 + _STEP)
    blocks, seen = [(0, records - 1)], 0
    while blocks:
        low, high = blocks.pop()
        others = behind(low, high)
        seen += 1
        if seen % BLOCKS == 0:
            epsilon *= 1 + 100 * _STEP
        if _delta_behind(epsilon, epsilon0=epsilon0, others=others) <= delta:
            continue
        if low == high:
            epsilon = at_one(others) * (1 + _STEP)
        else:
            middle = (low + high) // 2
            blocks += [(low, middle), (middle + 1, high)]
    return min(epsilon, epsilon0)


THEOREMS = (shuffled_response_delta, shuffled_response_epsilon)
