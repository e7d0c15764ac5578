"""Composition of (epsilon, delta) guarantees: basic, advanced and optimal; groups of records.

Each step may be chosen after seeing the answers of those before. What several records of one person
cost is the same question asked of the data. docs/theory/composition.md has the proofs.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from accounting.binomial import LEAST, TRIALS_MAX, Window, window
from accounting.events import NeighboringRelation
from accounting.guarantees import Status, theorem
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, least_true, rounded_up, sum_up

_ALL: Final = tuple(NeighboringRelation)
_LEAST_STEP: Final = 1e-290  # nats; below, doubles lose the digits that a quotient needs
_ROUNDING: Final = 16 * LIBRARY_ULPS * UNIT_ROUNDOFF  # relative, of a dozen operations
EPSILON_MAX: Final = 700.0  # nats, of one step or of a group: e^epsilon must be a double


def _check(*, epsilon: float, delta: float, steps: int) -> None:
    if not 0 <= epsilon <= EPSILON_MAX:
        raise ValueError(f"epsilon lies in [0, {EPSILON_MAX:g}].")
    if not 0 <= delta < 1:
        raise ValueError("delta lies in [0, 1).")
    if not 1 <= steps <= TRIALS_MAX:
        raise ValueError(f"steps lie in [1, {TRIALS_MAX}].")


@theorem(
    id="basic-composition",
    source="Dwork, McSherry, Nissim and Smith 2006, TCC, as in document 004 (Berthier 2019), "
    "Section 2.3",
    status=Status.PUBLISHED,
    relations=_ALL,
)
def basic_composition(*, epsilons: Sequence[float], deltas: Sequence[float]) -> tuple[float, float]:
    """What steps lose together, each (epsilon_i, delta_i)-DP whatever came before.

    (sum of epsilon_i, sum of delta_i)

    Args:
        epsilons: nats, >= 0, one for each step.
        deltas: in [0, 1], one for each step.

    Returns:
        (epsilon in nats, delta at most 1). Upper, to rounding.

    Raises:
        ValueError: a value is out of range, or there are more of one kind than of the other.
    """
    if len(epsilons) != len(deltas):
        raise ValueError("There is one epsilon and one delta for each step.")
    if not all(epsilon >= 0 for epsilon in epsilons):
        raise ValueError("epsilons are not negative.")
    if not all(0 <= delta <= 1 for delta in deltas):
        raise ValueError("deltas lie in [0, 1].")
    return sum_up(list(epsilons)), min(1.0, sum_up(list(deltas)))


@theorem(
    id="advanced-composition",
    source="Dwork, Rothblum and Vadhan 2010, FOCS, as in document 004 (Berthier 2019), Theorem 2.1",
    status=Status.PUBLISHED,
    relations=_ALL,
)
def advanced_composition(
    *, epsilon: float, delta: float, steps: int, delta_slack: float
) -> tuple[float, float]:
    """What k steps lose together, each (epsilon, delta)-DP whatever came before.

    epsilon' = sqrt(2 k log(1/delta')) epsilon + k epsilon (e^epsilon - 1), delta_total = k delta +
    delta'. Where k epsilon is smaller it is taken: the basic composition holds at a smaller delta.

    Args:
        epsilon: nats, in [0, EPSILON_MAX].
        delta: in [0, 1).
        steps: k, in [1, TRIALS_MAX].
        delta_slack: delta', in (0, 1); zero would cost an infinite epsilon.

    Returns:
        (epsilon' in nats, delta_total at most 1). Upper, to rounding.

    Raises:
        ValueError: an argument is out of range.
    """
    _check(epsilon=epsilon, delta=delta, steps=steps)
    if not 0 < delta_slack < 1:
        raise ValueError("delta_slack lies in (0, 1).")
    deviation = math.sqrt(2 * steps * -math.log(delta_slack)) * epsilon
    mean = steps * epsilon * math.expm1(epsilon)
    advanced = (deviation + mean) * (1 + _ROUNDING)
    total = sum_up([rounded_up(steps * delta), delta_slack])
    return min(advanced, rounded_up(steps * epsilon)), min(1.0, total)


def _failure(delta: float, steps: int) -> float:
    """1 - (1 - delta)^steps. Upper."""
    return min(1.0, -math.expm1(steps * math.log1p(-delta)) * (1 + _ROUNDING))


def _total_delta(law: Window, *, epsilon: float, delta: float, steps: int, total: float) -> float:
    """Delta of the composition at epsilon `total`; `law` counts the unlikely answers. Upper."""
    failed = _failure(delta, steps)
    if total >= rounded_up(steps * epsilon):  # the largest loss there is
        return failed
    counts = law.first + np.arange(len(law.masses), dtype=np.float64)
    beyond = (steps - 2 * counts) * epsilon - total
    beyond += 4 * UNIT_ROUNDOFF * (steps * epsilon + total)  # the losses' own rounding
    kept = beyond > 0
    parts = law.masses[kept] * -np.expm1(-beyond[kept])
    lost = float(np.sum(parts)) * (1 + law.error + (len(parts) + 64) * UNIT_ROUNDOFF)
    return min(1.0, (failed + (1 - failed) * (lost + law.left_out)) * (1 + _ROUNDING))


@theorem(
    id="optimal-composition",
    source="Kairouz, Oh and Viswanath 2015, ICML, arXiv:1311.0776v4, Theorem 3.3",
    status=Status.PUBLISHED,
    relations=_ALL,
)
def optimal_composition_delta(
    *, epsilon: float, delta: float, steps: int, total_epsilon: float
) -> float:
    """The least delta at which k steps are (total_epsilon, delta)-DP, each (epsilon, delta)-DP.

    1 - (1-delta)^k (1 - sum_l C(k,l) e^((k-l) epsilon) / (1+e^epsilon)^k
                             max(0, 1 - e^(total_epsilon - (k-2l) epsilon)))
    The worst step fails with probability delta and is randomized response otherwise; l counts its
    untruthful answers. With f the chance of a failure it is summed as f + (1-f) S, all positive.

    Args:
        epsilon: nats, in [0, EPSILON_MAX], of each step whatever came before.
        delta: in [0, 1), of each step.
        steps: k, in [1, TRIALS_MAX].
        total_epsilon: nats, >= 0.

    Returns:
        Delta in [0, 1]. Upper; attained, to a relative 1e-10 up to a million steps and 1e-280.

    Raises:
        ValueError: an argument is out of range.
    """
    _check(epsilon=epsilon, delta=delta, steps=steps)
    if not 0 <= total_epsilon < math.inf:
        raise ValueError("total_epsilon is finite and not negative.")
    law = window(steps, odds=math.exp(-epsilon), cut=LEAST)
    return _total_delta(law, epsilon=epsilon, delta=delta, steps=steps, total=total_epsilon)


@theorem(
    id="optimal-composition-epsilon",
    source="Kairouz, Oh and Viswanath 2015, ICML, arXiv:1311.0776v4, Theorem 3.3",
    status=Status.PUBLISHED,
    relations=_ALL,
)
def optimal_composition_epsilon(
    *, epsilon: float, delta: float, steps: int, delta_total: float
) -> float:
    """The least epsilon at which k steps are (epsilon, delta_total)-DP, each (epsilon, delta)-DP.

    The inverse of optimal_composition_delta, which falls in its epsilon.

    Args:
        epsilon: nats, in [0, EPSILON_MAX], of each step whatever came before.
        delta: in [0, 1), of each step.
        steps: k, in [1, TRIALS_MAX].
        delta_total: in [0, 1).

    Returns:
        Epsilon in nats, at most k epsilon; infinite where delta_total is below 1 - (1-delta)^k, the
        chance that some step fails. Upper: at it, delta was evaluated to be small enough.

    Raises:
        ValueError: an argument is out of range.
    """
    _check(epsilon=epsilon, delta=delta, steps=steps)
    if not 0 <= delta_total < 1:
        raise ValueError("delta_total lies in [0, 1).")
    law = window(steps, odds=math.exp(-epsilon), cut=LEAST)

    def holds(total: float) -> bool:
        found = _total_delta(law, epsilon=epsilon, delta=delta, steps=steps, total=total)
        return found <= delta_total

    high = rounded_up(steps * epsilon)
    if not holds(high):
        return math.inf
    return 0.0 if holds(0.0) else least_true(holds, low=0.0, high=high)


@theorem(
    id="group-privacy",
    source="docs/theory/composition.md, Theorem 3",
    status=Status.DERIVED,
    relations=_ALL,
)
def group_privacy(*, epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """What is lost by somebody who has several records, such as copies of one.

    (k epsilon, delta (e^(k epsilon) - 1)/(e^epsilon - 1)): k neighbours lead from the dataset with
    all of them to the one with none, or with others in their place.

    Args:
        epsilon: nats, in [0, EPSILON_MAX], for one record.
        delta: in [0, 1), for one record.
        size: k, the records of one person, in [1, TRIALS_MAX].

    Returns:
        (epsilon in nats, delta at most 1). Upper, to rounding.

    Raises:
        ValueError: an argument is out of range.
    """
    _check(epsilon=epsilon, delta=delta, steps=size)
    together = rounded_up(size * epsilon)
    if not delta:
        return together, 0.0
    # Between k delta and delta k e^((k-1) epsilon); a group that size is told apart anyway.
    if together > EPSILON_MAX:
        return together, 1.0
    step = max(epsilon, _LEAST_STEP)  # delta rises in it
    ways = math.expm1(rounded_up(size * step)) / math.expm1(step)
    # The rounding of k epsilon is magnified by as much as it is.
    lost = delta * ways * (1 + _ROUNDING * (1 + together))
    return together, min(1.0, rounded_up(lost))


THEOREMS = (
    basic_composition,
    advanced_composition,
    optimal_composition_delta,
    optimal_composition_epsilon,
    group_privacy,
)
