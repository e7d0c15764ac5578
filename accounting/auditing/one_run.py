"""Audits in one run: what counts of right guesses say against a claimed (epsilon, delta).

docs/theory/audits.md has the proofs.
"""

import math
from typing import Final

import numpy as np

from accounting.binomial import LEAST, Window, window
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, Theorem, theorem
from accounting.rounding import UNIT_ROUNDOFF, Array, crossing, require, rounded_down, rounded_up
from accounting.work_limit import spend

CANARIES_MAX: Final = 10**7
EPSILON_MAX: Final = 100.0  # nats; no claim above it is looked at
_MARGIN: Final = 1e-13  # relative, by which an epsilon is lower than the root that was found
_RELATIONS: Final = tuple(NeighboringRelation)
_ASSUMPTIONS: Final = (Assumption.FAIR_CANARY_COINS,)


def _require(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> None:
    require(1 <= canaries <= CANARIES_MAX, f"canaries from 1 to {CANARIES_MAX}")
    require(1 <= guesses <= canaries, "guesses from 1 to canaries")
    require(0 <= correct <= guesses, "correct from 0 to guesses")
    require(0 <= epsilon <= EPSILON_MAX, f"epsilon from 0 to {EPSILON_MAX:g}")
    require(0 <= delta < 1, "delta in [0, 1)")


@theorem(
    id="one-run-audit",
    source="docs/theory/audits.md, Theorem 1",
    status=Status.DERIVED,
    relations=_RELATIONS,
    assumptions=_ASSUMPTIONS,
)
def one_run_p_value(
    *, canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    """The chance that so many guesses are right although the claim (epsilon, delta) holds.

    Each of m canaries is in or out by its own fair coin, and the mechanism is (epsilon, delta)-DP
    in each coin. Of r guesses W are right, an abstention counted as a wrong guess. Then

    Pr[W >= v] <= b + m delta (1 - b) b / (v Pr[B = v]),  b = Pr[B >= v],

    B a binomial of r trials with chance e^epsilon / (1 + e^epsilon). Some mechanism attains it.

    Args:
        canaries: m, from 1 to 1e7.
        guesses: r, fixed before any score is seen; from 1 to m.
        correct: v, from 0 to r.
        epsilon: of the claim, nats, from 0 to 100.
        delta: of the claim, in [0, 1).

    Returns:
        The p-value of the claim. Upper, at most 1; 1 where v is at most the most likely count.

    Raises:
        ValueError: an argument is out of range.
    """
    _require(canaries, guesses, correct, epsilon, delta)
    odds = _odds(epsilon)
    if correct <= (guesses + 1) * (odds / (1 + odds)):
        return 1.0
    law = _law(guesses, odds)
    beyond = _tail(law, correct)
    if delta == 0:
        return min(1.0, beyond)
    # (1 - b) is at most one; b / Pr[B = v] is a sum of positive terms that begins with one.
    added = canaries * delta / correct * (1 - _tail_down(law, correct))
    return min(1.0, rounded_up(beyond + added * _ratio(guesses, correct, odds), ulps=16))


@theorem(
    id="one-run-audit-as-printed",
    source="docs/theory/audits.md, Corollary 2: the formula of the code of Steinke, Nasr and "
    "Jagielski 2023, arXiv:2305.08846, which could not be opened",
    status=Status.DERIVED,
    relations=_RELATIONS,
    assumptions=_ASSUMPTIONS,
)
def printed_p_value(
    *, canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    """The p-value of a claim by the formula that auditing libraries print.

    b + 2 m delta max_i (Pr[B >= v - i] - b) / i over i from 1 to m, with the names of
    `one-run-audit`. Its last term is larger than what is attained.

    Args:
        canaries: m, from 1 to 1e7.
        guesses: r, from 1 to m.
        correct: v, from 0 to r.
        epsilon: of the claim, nats, from 0 to 100.
        delta: of the claim, in [0, 1).

    Returns:
        The larger of this number and that of `one-run-audit`. Upper, at most 1.

    Raises:
        ValueError: an argument is out of range.
    """
    proved = one_run_p_value(
        canaries=canaries, guesses=guesses, correct=correct, epsilon=epsilon, delta=delta
    )
    if proved == 1 or delta == 0:
        return proved
    law = _law(guesses, _odds(epsilon))
    # Counts below the window are at most as likely as certain, those above it as what is left out.
    counts = np.arange(law.first, min(correct, law.first + len(law.masses)))
    tails = np.minimum(1.0, _tails(law)[: len(counts)])
    gains = (tails - _tail_down(law, correct)) / (correct - counts)
    steepest = max(float(np.max(gains)), 1 / (correct - law.first + 1), law.left_out)
    printed = _tail(law, correct) + 2 * canaries * delta * steepest
    return min(1.0, max(proved, rounded_up(printed, ulps=16)))


def epsilon_at_least(
    bound: Theorem[..., float],
    *,
    canaries: int,
    guesses: int,
    correct: int,
    delta: float,
    level: float,
) -> float:
    """The largest epsilon found whose claim (epsilon, delta) an audit rejects.

    Every smaller epsilon is rejected with it, as (epsilon, delta)-DP implies that at any larger
    epsilon.

    Args:
        bound: one of THEOREMS.
        canaries: m, from 1 to 1e7.
        guesses: r, from 1 to m.
        correct: v, from 0 to r.
        delta: of the claims, in [0, 1).
        level: a claim is rejected where its p-value is at most this; in (0, 1).

    Returns:
        An epsilon at which the p-value was evaluated; 0 where no claim is rejected. Lower: a
        mechanism with a smaller epsilon at this delta gives such counts with at most this chance.

    Raises:
        ValueError: an argument is out of range.
    """
    from scipy import optimize  # half of SciPy comes with it, and few answers need it

    require(0 < level < 1, "level in (0, 1)")

    def excess(epsilon: float) -> float:
        return (
            bound(canaries=canaries, guesses=guesses, correct=correct, epsilon=epsilon, delta=delta)
            - level
        )

    if excess(0.0) > 0:
        return 0.0
    high = 1.0
    while excess(high) <= 0:  # at the largest epsilon all guesses are most likely right
        high *= 2
    near = (1 - _MARGIN) * float(optimize.brentq(excess, 0.0, high, rtol=_MARGIN / 4))
    return near if excess(near) <= 0 else crossing(lambda e: excess(e) > 0, low=0.0, high=high)[0]


def level_of_audit(number: int, significance: float) -> float:
    """The level of the j-th audit of a run: all audits together alarm falsely at most so often.

    Args:
        number: j, >= 1.
        significance: of all audits that a run ever has, in (0, 1).

    Returns:
        6 significance / (pi^2 j^2). Lower, so that their sum over j is at most the significance.

    Raises:
        ValueError: an argument is out of range.
    """
    require(number >= 1, "number at least 1")
    require(0 < significance < 1, "significance in (0, 1)")
    return rounded_down(6 * significance / (math.pi * number) ** 2, ulps=6)


def _odds(epsilon: float) -> float:
    """e^epsilon, upper: the claim that is looked at is no stronger than the one that is asked."""
    return rounded_up(math.exp(epsilon), ulps=4)


def _law(guesses: int, odds: float) -> Window:
    law = window(guesses, odds=odds, cut=LEAST)
    spend(8 * len(law.masses))
    return law


def _tails(law: Window) -> Array:
    """Pr[B >= x] for each x of the window. Upper."""
    sums = np.cumsum(law.masses[::-1])[::-1]
    error = law.error + (len(law.masses) + 4) * UNIT_ROUNDOFF
    return np.asarray(sums * (1 + 2 * error) + law.left_out)


def _tail(law: Window, least: int) -> float:
    """Pr[B >= least]. Upper."""
    place = least - law.first
    return float(_tails(law)[place]) if place < len(law.masses) else law.left_out


def _tail_down(law: Window, least: int) -> float:
    """Pr[B >= least]. Lower."""
    sums = float(np.sum(law.masses[least - law.first :]))
    error = law.error + (len(law.masses) + 4) * UNIT_ROUNDOFF
    return max(0.0, sums * (1 - 2 * error))


def _ratio(guesses: int, correct: int, odds: float) -> float:
    """Pr[B >= v] / Pr[B = v] for v above the most likely count. Upper.

    1 + q_v + q_v q_(v+1) + ..., q_x = (r - x) odds / (x + 1) < 1 and falling: terms are added where
    they are small, and what follows is below a geometric series.
    """
    last = min(guesses, correct + math.ceil(10 * math.sqrt(guesses)) + 50)
    factors = (guesses - np.arange(correct, last + 1.0)) / np.arange(correct + 1.0, last + 2) * odds
    with np.errstate(under="ignore"):
        terms = np.cumprod(factors[:-1])
    spend(4 * len(factors))
    beyond = float(terms[-1]) if len(terms) else 1.0
    total = 1 + float(np.sum(terms)) + beyond * float(factors[-1] / (1 - factors[-1]))
    return total * (1 + 16 * (len(factors) + 4) * UNIT_ROUNDOFF)


THEOREMS: Final = (one_run_p_value, printed_p_value)
