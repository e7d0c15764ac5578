"""Audits in one run: docs/theory/audits.md against every mechanism there is, and against games."""

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linprog
from scipy.stats import binom

from accounting.auditing.one_run import (
    epsilon_at_least,
    level_of_audit,
    one_run_p_value,
    printed_p_value,
)

# (canaries, guesses, correct, delta) at level .05 -> epsilon, rounded down.
PRINTED = [
    (1000, 100, 100, 0.0, 3.492965),
    (1000, 100, 95, 1e-5, 2.165175),
    (1000, 1000, 700, 1e-5, 0.731740),
    (10_000, 500, 480, 1e-5, 2.770387),
    (100, 10, 10, 0.0, 1.051873),
    (1000, 200, 190, 0.0, 2.397871),
    (1000, 100, 50, 1e-5, 0.0),
]


@pytest.mark.parametrize(("canaries", "guesses", "correct", "delta", "epsilon"), PRINTED)
def test_the_printed_formula_gives_the_numbers_of_its_published_code(
    canaries: int, guesses: int, correct: int, delta: float, epsilon: float
) -> None:
    counts: dict[str, Any] = {
        "canaries": canaries,
        "guesses": guesses,
        "correct": correct,
        "delta": delta,
    }
    found = epsilon_at_least(printed_p_value, **counts, level=0.05)
    assert found == pytest.approx(epsilon, abs=1e-6)
    assert epsilon_at_least(one_run_p_value, **counts, level=0.05) >= found
    if found:
        assert printed_p_value(**counts, epsilon=found) <= 0.05
        assert printed_p_value(**counts, epsilon=found * (1 + 1e-12) + 1e-12) > 0.05


def test_a_claim_has_the_p_value_of_the_printed_formula() -> None:
    found = printed_p_value(canaries=1000, guesses=100, correct=95, epsilon=2.0, delta=1e-5)
    assert found == pytest.approx(0.01782463, abs=5e-9)


def best_mechanism(
    canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    """The largest chance of so many right guesses of any (epsilon, delta)-DP mechanism.

    A linear program over Pr[t | s]: s the coins, t the guesses, with excesses above e^epsilon times
    the neighbour's chance.
    """
    coins = list(itertools.product((-1, 1), repeat=canaries))
    answers = [
        guess for guess in itertools.product((-1, 0, 1), repeat=canaries)
        if sum(map(abs, guess)) == guesses
    ]  # fmt: skip
    chances = len(coins) * len(answers)
    pairs = [(s, i) for s in range(len(coins)) for i in range(canaries)]
    goal = np.zeros(chances + len(pairs) * len(answers))
    upper = sparse.lil_matrix((len(pairs) * len(answers) + len(pairs), len(goal)))
    limits = np.zeros(upper.shape[0])
    equal = sparse.lil_matrix((len(coins), len(goal)))
    for s, truth in enumerate(coins):
        for t, guess in enumerate(answers):
            equal[s, s * len(answers) + t] = 1
            right = sum(a == b for a, b in zip(truth, guess, strict=True))
            goal[s * len(answers) + t] = -(right >= correct) / len(coins)
    for row, (s, i) in enumerate(pairs):
        other = coins.index(tuple(-c if j == i else c for j, c in enumerate(coins[s])))
        for t in range(len(answers)):
            at = row * len(answers) + t
            upper[at, s * len(answers) + t] = 1
            upper[at, other * len(answers) + t] = -math.exp(epsilon)
            upper[at, chances + at] = -1
            upper[len(pairs) * len(answers) + row, chances + at] = 1
        limits[len(pairs) * len(answers) + row] = delta
    found = linprog(goal, upper.toarray(), limits, equal.toarray(), np.ones(len(coins)))
    assert found.fun is not None
    return -float(found.fun)


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct"), [(2, 2, 2), (3, 3, 3), (4, 4, 4), (3, 2, 2), (4, 2, 2)]
)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.02), (0.4, 0.01), (0.4, 0.05), (0.6, 0.0)])
def test_the_best_mechanism_attains_the_bound_and_none_exceeds_it(
    canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> None:
    claim: dict[str, Any] = {
        "canaries": canaries,
        "guesses": guesses,
        "epsilon": epsilon,
        "delta": delta,
    }
    assert correct > (guesses + 1) / (1 + math.exp(-epsilon))
    best = best_mechanism(canaries, guesses, correct, epsilon, delta)
    bound = one_run_p_value(**claim, correct=correct)
    assert best <= bound + 1e-9
    assert best == pytest.approx(bound, rel=1e-7)
    assert printed_p_value(**claim, correct=correct) >= bound


@pytest.mark.parametrize(("guesses", "correct", "epsilon"), [(20, 19, 1.0), (60, 45, 0.5)])
def test_large_counts_are_attained_by_the_mechanism_of_the_proof(
    guesses: int, correct: int, epsilon: float
) -> None:
    # With a small chance the guesses follow randomized response given that enough are right.
    canaries, delta = 3 * guesses, 1e-4
    law = binom(guesses, 1 / (1 + math.exp(-epsilon)))
    beyond, here = law.sf(correct - 1), law.pmf(correct)
    shown = delta * canaries * beyond / (correct * here)  # each coin's excess is then delta
    attained = (1 - shown) * beyond + shown
    found = one_run_p_value(
        canaries=canaries, guesses=guesses, correct=correct, epsilon=epsilon, delta=delta
    )
    assert 0 < shown < 1
    assert found == pytest.approx(attained, rel=1e-9)
    assert found >= attained * (1 - 1e-12)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0])
@pytest.mark.parametrize(("guesses", "correct"), [(12, 12), (40, 39), (300, 297)])
def test_the_p_value_is_above_its_value_in_rationals(
    guesses: int, correct: int, epsilon: float
) -> None:
    odds = Fraction(math.exp(epsilon)) * (1 - Fraction(1, 10**15))  # below e^epsilon
    delta = Fraction(1e-3)
    masses = [math.comb(guesses, x) * odds**x for x in range(guesses + 1)]
    beyond = sum(masses[correct:]) / sum(masses)
    here = masses[correct] / sum(masses)
    exact = beyond + 2 * guesses * delta * (1 - beyond) * beyond / (correct * here)
    found = one_run_p_value(
        canaries=2 * guesses, guesses=guesses, correct=correct, epsilon=epsilon, delta=1e-3
    )
    assert (
        exact * (1 - Fraction(1, 10**10))
        <= Fraction(found)
        <= min(1, exact) * (1 + Fraction(1, 10**8))
    )
    if exact <= 1:
        assert Fraction(found) >= exact * (1 - Fraction(1, 10**13))


def test_a_million_guesses_that_are_all_right() -> None:
    counts: dict[str, Any] = {"canaries": 10**6, "guesses": 10**6, "correct": 10**6, "delta": 1e-12}
    found = epsilon_at_least(one_run_p_value, **counts, level=0.05)
    assert found == pytest.approx(-math.log(math.expm1(-math.log(0.05) / 10**6)), abs=1e-4)
    beyond_the_window = one_run_p_value(**counts, epsilon=0.1)
    assert 0 < beyond_the_window < 1e-11
    assert printed_p_value(**counts, epsilon=0.1) >= beyond_the_window


def test_a_guesser_who_chooses_how_many_to_count_afterwards_is_not_covered() -> None:
    # Fair guesses in an order; the auditor stops where the p-value at epsilon 0 is least.
    most = 1000
    level: dict[str, Any] = {"canaries": most, "epsilon": 0.0, "delta": 0.0}
    least_right = [
        next(
            right
            for right in range(guesses + 2)
            if right > guesses or one_run_p_value(**level, guesses=guesses, correct=right) <= 0.05
        )
        for guesses in range(1, most + 1)
    ]
    law, alarmed = np.array([1.0]), 0.0
    for right in least_right:
        law = np.convolve(law, [0.5, 0.5])
        alarmed += law[right:].sum()
        law[right:] = 0
    assert alarmed > 0.2
    assert 1 - law.sum() == pytest.approx(alarmed)


def test_the_levels_of_all_audits_of_a_run_add_up_to_its_significance() -> None:
    levels = [level_of_audit(number, 0.05) for number in range(1, 20_000)]
    assert 0.0499 < math.fsum(levels) < 0.05 - 0.05 * 6 / math.pi**2 / 20_001
    for family in (5, 100):
        false_alarm = 1 - math.prod(1 - level for level in levels[:family])
        so_far = 1 - math.prod(1 - 0.05 / number for number in range(1, family + 1))
        assert false_alarm <= 0.05 < so_far  # .11 and .23


@pytest.mark.parametrize(
    "wrong",
    [
        {"canaries": 0}, {"canaries": 10**7 + 1}, {"guesses": 0}, {"guesses": 101},
        {"correct": -1}, {"correct": 51}, {"epsilon": -0.1}, {"epsilon": 101.0},
        {"epsilon": math.nan}, {"delta": -1e-9}, {"delta": 1.0}, {"delta": math.nan},
    ],
)  # fmt: skip
def test_what_is_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    counts: dict[str, Any] = {
        "canaries": 100,
        "guesses": 50,
        "correct": 50,
        "epsilon": 1.0,
        "delta": 1e-5,
    }
    for bound in (one_run_p_value, printed_p_value):
        with pytest.raises(ValueError, match="Out of range"):
            bound(**(counts | wrong))


def test_levels_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="level"):
        epsilon_at_least(one_run_p_value, canaries=9, guesses=9, correct=9, delta=0.0, level=0.0)
    with pytest.raises(ValueError, match="number"):
        level_of_audit(0, 0.05)
    with pytest.raises(ValueError, match="significance"):
        level_of_audit(1, math.nan)
