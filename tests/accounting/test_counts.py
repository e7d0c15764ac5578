import math
from fractions import Fraction
from itertools import product
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from accounting.events import Direction
from accounting.pld.certified_composition import Engine, delta_bracket, epsilon_bracket
from accounting.pld.contour import contour_bounds
from accounting.pld.contour.contour_bounds import contour_epsilon
from accounting.pld.multinomial import OUTCOMES_MAX, _compositions, counted_delta, find_few_counts
from accounting.pld.pairs import DiscretePair, GaussianPair

TWO = DiscretePair(first=(0.75, 0.25), second=(0.4, 0.6))
THREE = DiscretePair(first=(0.5, 0.3, 0.2), second=(0.1, 0.3, 0.6))
ONE_SIDED = DiscretePair(first=(0.01, 0.99), second=(0.0, 1.0))
DISJOINT = DiscretePair(first=(1.0, 0.0), second=(0.0, 1.0))
FAILING = DiscretePair(first=(1e-6, 0.8, 0.2, 0.0), second=(0.0, 0.2, 0.8, 1e-6))
UNITS: list[tuple[tuple[DiscretePair, int], ...]] = [
    ((TWO, 1),),
    ((TWO, 25),),
    ((THREE, 9),),
    ((ONE_SIDED, 12),),
    ((DISJOINT, 2),),
    ((FAILING, 5),),
    ((TWO, 6), (THREE, 4)),
    ((FAILING, 3), (ONE_SIDED, 4)),
]


def outcomes_of(pair: DiscretePair, count: int) -> list[tuple[Fraction, Fraction]]:
    found = []
    size = len(pair.first)
    for counts in product(range(count + 1), repeat=size):
        if sum(counts) != count:
            continue
        ways = Fraction(math.factorial(count))
        for n in counts:
            ways /= math.factorial(n)
        one = other = ways
        for n, p, q in zip(counts, pair.first, pair.second, strict=True):
            one, other = one * Fraction(p) ** n, other * Fraction(q) ** n
        found.append((one, other))
    return found


def exact_delta(
    units: tuple[tuple[DiscretePair, int], ...], direction: Direction, epsilon: float
) -> Any:
    """The sum over every way the outcomes can be counted, in fractions; e^epsilon at 60 digits."""
    whole = [(Fraction(1), Fraction(1))]
    for pair, count in units:
        more = outcomes_of(pair, count)
        whole = [(p * r, q * s) for p, q in whole for r, s in more]
    with mp.workdps(60):
        factor = mp.exp(mp.mpf(epsilon))
        total = mp.mpf(0)
        for p, q in whole:
            above, below = (p, q) if direction is Direction.REMOVE else (q, p)
            part = mp.mpf(above.numerator) / above.denominator
            part -= factor * below.numerator / below.denominator
            total += max(part, mp.mpf(0))
        return total


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.5, 9.0])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("units", UNITS)
def test_delta_is_the_exact_sum_over_counts(
    units: tuple[tuple[DiscretePair, int], ...], direction: Direction, epsilon: float
) -> None:
    lower, upper = counted_delta(units, direction=direction, epsilon=epsilon)
    exact = exact_delta(units, direction, epsilon)
    assert lower <= exact <= upper
    assert upper - lower <= 1e-10 * upper + 1e-12


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("count", [1, 40])
def test_parameters_off_by_eight_roundoffs_stay_inside(
    sign: int, count: int, direction: Direction
) -> None:
    # Every P off one way and every Q the other moves delta as far as it will go.
    up, down = 1 + sign * 8 * Fraction(1, 2**53), 1 - sign * 8 * Fraction(1, 2**53)
    lower, upper = counted_delta(((TWO, count),), direction=direction, epsilon=0.25)
    removed = direction is Direction.REMOVE
    with mp.workdps(60):
        factor, total = mp.exp(mp.mpf(0.25)), mp.mpf(0)
        for p, q in outcomes_of(TWO, count):
            above, below = (p, q) if removed else (q, p)
            above, below = above * up**count, below * down**count
            part = mp.mpf(above.numerator) / above.denominator
            part -= factor * below.numerator / below.denominator
            total += max(part, mp.mpf(0))
    assert lower <= total <= upper


def test_only_few_counts_of_discrete_pairs_are_counted() -> None:
    assert find_few_counts([(TWO, OUTCOMES_MAX - 1)]) == ((TWO, OUTCOMES_MAX - 1),)
    assert find_few_counts([(TWO, OUTCOMES_MAX)]) is None
    assert find_few_counts([(TWO, 999), (TWO, 99)]) is not None
    assert find_few_counts([(TWO, 999), (THREE, 13)]) is None
    assert find_few_counts([(THREE, 445)]) is not None  # 447 * 446 / 2 ways
    assert find_few_counts([(THREE, 446)]) is None


def test_outcomes_beside_other_losses_are_not_counted() -> None:
    gaussian = GaussianPair(noise_multiplier=1.0)
    assert delta_bracket([(TWO, 2)], epsilon=0.1).engine is Engine.CLOSED_FORM
    assert delta_bracket([(TWO, 2), (gaussian, 1)], epsilon=0.1).engine is not Engine.CLOSED_FORM


def test_a_number_of_counts_beyond_any_double_is_too_many() -> None:
    assert find_few_counts([(THREE, 10**200)]) is None


def test_a_delta_too_small_for_a_double_is_not_said_to_be_zero() -> None:
    rare = DiscretePair(first=(1 - 1e-9, 1e-100), second=(1 - 1e-9, 1e-101))
    _, upper = counted_delta(((rare, 4),), direction=Direction.REMOVE, epsilon=8.0)
    assert upper > 0  # 4 log 10 exceeds 8: the delta is about 1e-400


def test_every_way_to_count_is_listed_once() -> None:
    ways = _compositions(5, 3)
    assert len(ways) == math.comb(7, 2) == len({tuple(way) for way in ways.tolist()})
    assert np.all(np.sum(ways, axis=1) == 5)


@pytest.mark.parametrize("delta", [1e-3, 1e-8])
def test_the_contour_agrees_with_counts_of_binary_responses(
    monkeypatch: pytest.MonkeyPatch, delta: float
) -> None:
    monkeypatch.setattr(
        contour_bounds, "_ROUGH_NODES", contour_bounds.NODES_MAX
    )  # else left to the lattice
    pair = DiscretePair(first=(0.55, 0.45), second=(0.45, 0.55))
    counts = epsilon_bracket([(pair, 300)], delta=delta)
    assert counts.engine is Engine.CLOSED_FORM
    assert counts.upper - counts.lower <= 1e-9
    # A Gaussian step that tells next to nothing sends the same ledger to the contour.
    hint = GaussianPair(noise_multiplier=100.0)
    other = epsilon_bracket([(pair, 300), (hint, 1)], delta=delta)
    assert other.engine is not Engine.CLOSED_FORM
    assert other.upper >= counts.lower
    assert other.lower <= counts.upper + 0.05
    low, high = contour_epsilon([(pair, 300)], Direction.REMOVE, delta=delta, width=1e-3)
    assert low <= counts.upper
    assert high >= counts.lower
