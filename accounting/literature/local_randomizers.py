"""Local answers that a shuffler mixes: of n messages, one a user, only the collection is seen.

A user's message is, with some chance, a copy of what another would have sent: a clone. How many
clones there are is told, and the record in question hides among them. Where answers are yes or no
they can be counted exactly (responses). docs/theory/local_models.md has the proofs.
"""

import math
from collections.abc import Callable
from enum import StrEnum
from itertools import pairwise
from typing import Final

import numpy as np

from accounting.binomial import TAIL, TRIALS_FAIR, Window, fair_tails, window
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF

_RELATIONS: Final = (NeighboringRelation.REPLACE_ONE,)
_SHUFFLED: Final = (Assumption.FRESH_SECRET_ORDER, Assumption.INDEPENDENT_ANSWERS)
_ROUNDING: Final = 8 * LIBRARY_ULPS * UNIT_ROUNDOFF  # relative, of a dozen operations
CUT: Final = 1e-40  # counts this much less likely than the likeliest are added whole to delta
SHARE: Final = 1e-13  # of a delta that is asked for: what may be added whole to it
EPSILON0_MAX: Final = 300.0  # nats; e^(2 epsilon0) must be a double, and nobody is a clone
_EPSILON0_MIN: Final = 1e-250  # below, odds are those of this much: they must be a double


class Randomizer(StrEnum):
    """What is known of how a message is drawn."""

    BINARY_RR = "binary_rr"  # yes or no, randomized response
    K_RR = "k_rr"  # one of k categories: its own, or any other with equal chances
    DECLARED_CLASS = "declared_class"  # declared: R(y|x) >= (R(y|a) + R(y|b)) / (e^epsilon0 + 1)
    GENERAL = "general"  # epsilon0-DP and no more


def answer_weights(epsilon: float, epsilon0: float) -> tuple[float, float]:
    """(u, w) with P - e^epsilon Q = u f(x-1) - w f(x), f being what hides an answer of 0 or 1.

    With a = 1/(1 + e^-epsilon0): u = a - (1-a) e^epsilon and w = a e^epsilon - (1-a), >= 0 where
    epsilon <= epsilon0; both to a few roundoffs.
    """
    truth = 1 / (1 + math.exp(-epsilon0))
    u = -truth * math.expm1(epsilon - epsilon0)
    return u, -truth * math.exp(epsilon) * math.expm1(-(epsilon + epsilon0))


def _clones_delta(epsilon: float, *, epsilon0: float, clones: Window) -> float:
    """E over the number c of clones of the delta among them. Upper.

    Among c clones, each of them 0 or 1 at random, delta = max_a u S(a-1) - w S(a) with
    S(a) = P(Bin(c, 1/2) >= a), attained at the least a above w (c+1)/(u+w). Rounding moves that a
    by at most one, and so it is sought among three.
    """
    if epsilon >= epsilon0:
        return 0.0
    u, w = answer_weights(epsilon, epsilon0)
    count = clones.first + np.arange(len(clones.masses), dtype=np.float64)
    least = np.floor(w / (u + w) * (count + 1)) + 1
    tails = [fair_tails(count, least + shift) for shift in (-2, -1, 0, 1)]
    deltas = [
        u * before * (1 + TAIL + _ROUNDING) - w * after * (1 - TAIL - _ROUNDING)
        for before, after in pairwise(tails)
    ]
    delta = float(np.dot(clones.masses, np.maximum.reduce([np.zeros_like(count), *deltas])))
    return min(1.0, delta * (1 + clones.error + (len(count) + 8) * UNIT_ROUNDOFF) + clones.left_out)


def least_epsilon(delta_at: Callable[[float], float], *, delta: float, high: float) -> float:
    """The least epsilon in [0, high] found at which a delta that falls to zero is small enough."""
    from scipy import optimize  # half of SciPy comes with it, and few answers need it

    if delta_at(0.0) <= delta:
        return 0.0
    if delta_at(high * (1 - 1e-9)) > delta:
        return high
    log_delta = math.log(delta)
    found = float(
        optimize.brentq(
            lambda epsilon: math.log(max(delta_at(epsilon), 1e-320)) - log_delta,
            0.0,
            high,
            xtol=1e-300,
            rtol=1e-13,
        )
    )
    step = 1e-12
    while found < high and not delta_at(found) <= delta:  # the root may be on either side
        found, step = found * (1 + step), 2 * step
    return min(found, high)


def _clones(epsilon0: float, records: int, copies: float, cut: float = CUT) -> Window:
    """How many others' messages are clones, each of them with odds copies / (e^epsilon0 - 1)."""
    # More records only add clones: fewer of them give an upper bound.
    odds = copies / math.expm1(max(epsilon0, _EPSILON0_MIN))
    return window(min(records - 1, TRIALS_FAIR), odds=odds, cut=cut)


def _check(*, epsilon0: float, records: int, epsilon: float = 0.0, delta: float = 0.5) -> None:
    if not (0 <= epsilon0 < math.inf and 0 <= epsilon < math.inf):
        raise ValueError("epsilon0 and epsilon are finite and not negative.")
    if not 0 < delta < 1:
        raise ValueError("delta lies in (0, 1).")
    if not records >= 1:
        raise ValueError("There is at least one record.")


def _delta_of_clones(epsilon: float, *, epsilon0: float, records: int, copies: float) -> float:
    _check(epsilon0=epsilon0, records=records, epsilon=epsilon)
    if epsilon >= epsilon0:
        return 0.0
    if epsilon0 > EPSILON0_MAX:
        return 1.0
    clones = _clones(epsilon0, records, copies)
    return _clones_delta(epsilon, epsilon0=epsilon0, clones=clones)


def _epsilon_of_clones(*, epsilon0: float, records: int, delta: float, copies: float) -> float:
    _check(epsilon0=epsilon0, records=records, delta=delta)
    if epsilon0 > EPSILON0_MAX:
        return epsilon0
    clones = _clones(epsilon0, records, copies, max(CUT, SHARE * delta))
    return least_epsilon(
        lambda epsilon: _clones_delta(epsilon, epsilon0=epsilon0, clones=clones),
        delta=delta,
        high=epsilon0,
    )


@theorem(
    id="clones-general-delta",
    source="Feldman, McMillan and Talwar 2021, FOCS, arXiv:2012.12803v3, Section 3; proved in "
    "docs/theory/local_models.md, Theorem 4",
    status=Status.PUBLISHED,
    relations=_RELATIONS,
    assumptions=_SHUFFLED,
)
def clones_general_delta(epsilon: float, *, epsilon0: float, records: int) -> float:
    """Delta at epsilon of n shuffled messages, each epsilon0-DP in its user's record.

    Given C ~ Bin(n-1, e^-epsilon0) clones, A ~ Bin(C, 1/2) and a truth b ~ Bern(e^epsilon0 /
    (1 + e^epsilon0)): the hockey-stick divergence of (A + b, C - A + 1 - b) from (A + 1 - b,
    C - A + b), which is the same in both orders.

    Args:
        epsilon: nats, >= 0.
        epsilon0: nats, >= 0, of each message, between any two records.
        records: n, >= 1; messages, one a user. Above TRIALS_FAIR it counts as that many.

    Returns:
        Delta in [0, 1]. Upper; relative excess about 1e-7 where delta is above 1e-30.

    Raises:
        ValueError: an argument is out of range.
    """
    return _delta_of_clones(epsilon, epsilon0=epsilon0, records=records, copies=1.0)


@theorem(
    id="clones-general",
    source="Feldman, McMillan and Talwar 2021, FOCS, arXiv:2012.12803v3, Section 3; proved in "
    "docs/theory/local_models.md, Theorem 4",
    status=Status.PUBLISHED,
    relations=_RELATIONS,
    assumptions=_SHUFFLED,
)
def clones_general_epsilon(*, epsilon0: float, records: int, delta: float) -> float:
    """Epsilon at delta of n shuffled messages, each epsilon0-DP in its user's record.

    The inverse of clones_general_delta, which falls in epsilon and is zero at epsilon0.

    Args:
        epsilon0: nats, >= 0, of each message, between any two records.
        records: n, >= 1; messages, one a user. Above TRIALS_FAIR it counts as that many.
        delta: in (0, 1).

    Returns:
        Epsilon in nats, at most epsilon0. Upper: at it, delta was evaluated to be small enough.

    Raises:
        ValueError: an argument is out of range.
    """
    return _epsilon_of_clones(epsilon0=epsilon0, records=records, delta=delta, copies=1.0)


def _refuse_general(randomizer: Randomizer) -> None:
    if randomizer is Randomizer.GENERAL:
        raise ValueError(
            "Its authors withdrew this bound for general randomizers (erratum of arXiv:2208.04591)."
            " Use clones_general_epsilon."
        )


@theorem(
    id="clones-class-delta",
    source="docs/theory/local_models.md, Theorem 5; for the class that Feldman, McMillan and "
    "Talwar 2023, SODA, arXiv:2208.04591v2, Section 3, keep in their erratum",
    status=Status.CONDITIONAL,
    relations=_RELATIONS,
    assumptions=(*_SHUFFLED, Assumption.ANSWERS_ABOVE_MIXTURES),
)
def clones_class_delta(
    epsilon: float, *, epsilon0: float, records: int, randomizer: Randomizer
) -> float:
    """Delta at epsilon of n shuffled messages of a class of epsilon0-DP randomizers.

    clones_general_delta with C ~ Bin(n-1, 2/(e^epsilon0 + 1)), where
    R(y|x) >= (R(y|a) + R(y|b)) / (e^epsilon0 + 1) for every x, y and a other than b. Randomized
    response on two or more categories is in the class; what else is must be declared.

    Args:
        epsilon: nats, >= 0.
        epsilon0: nats, >= 0, of each message, between any two records.
        records: n, >= 1; messages, one a user. Above TRIALS_FAIR it counts as that many.
        randomizer: what is known of it; GENERAL is refused.

    Returns:
        Delta in [0, 1]. Upper; relative excess about 1e-7 where delta is above 1e-30.

    Raises:
        ValueError: an argument is out of range, or the randomizer is general.
    """
    _refuse_general(randomizer)
    return _delta_of_clones(epsilon, epsilon0=epsilon0, records=records, copies=2.0)


@theorem(
    id="clones-class",
    source="docs/theory/local_models.md, Theorem 5; for the class that Feldman, McMillan and "
    "Talwar 2023, SODA, arXiv:2208.04591v2, Section 3, keep in their erratum",
    status=Status.CONDITIONAL,
    relations=_RELATIONS,
    assumptions=(*_SHUFFLED, Assumption.ANSWERS_ABOVE_MIXTURES),
)
def clones_class_epsilon(
    *, epsilon0: float, records: int, delta: float, randomizer: Randomizer
) -> float:
    """Epsilon at delta of n shuffled messages of a class of epsilon0-DP randomizers.

    The inverse of clones_class_delta.

    Args:
        epsilon0: nats, >= 0, of each message, between any two records.
        records: n, >= 1; messages, one a user. Above TRIALS_FAIR it counts as that many.
        delta: in (0, 1).
        randomizer: what is known of it; GENERAL is refused.

    Returns:
        Epsilon in nats, at most epsilon0. Upper: at it, delta was evaluated to be small enough.

    Raises:
        ValueError: an argument is out of range, or the randomizer is general.
    """
    _refuse_general(randomizer)
    return _epsilon_of_clones(epsilon0=epsilon0, records=records, delta=delta, copies=2.0)


THEOREMS = (
    clones_general_delta,
    clones_general_epsilon,
    clones_class_delta,
    clones_class_epsilon,
)
