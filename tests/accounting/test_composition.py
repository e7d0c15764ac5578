"""Composition of (epsilon, delta) guarantees, by enumeration and against references."""

import json
import math
from fractions import Fraction
from itertools import product
from pathlib import Path

import mpmath as mp
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from accounting.binomial import TRIALS_MAX
from accounting.composition import (
    advanced_composition,
    basic_composition,
    group_privacy,
    optimal_composition_delta,
    optimal_composition_epsilon,
)
from accounting.pld.certified_composition import epsilon_bracket
from accounting.pld.pairs import DiscretePair

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "documents_models.json").read_text(encoding="utf-8")
)["C.composition"]
ROWS = pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"{row['k']}x{row['eps']}")
PROPERTY = settings(deadline=None, max_examples=30)
EPSILON = st.floats(1e-6, 5)
DELTA = st.one_of(st.just(0.0), st.floats(1e-12, 0.1))


@ROWS
def test_the_optimal_composition_is_the_reference(row: dict[str, float]) -> None:
    found = optimal_composition_epsilon(
        epsilon=row["eps"],
        delta=row["delta"],
        steps=int(row["k"]),
        delta_total=row["delta_total"],
    )
    assert found == pytest.approx(row["kov"], rel=row["tol"])


@ROWS
def test_the_advanced_composition_is_the_lesser_of_both(row: dict[str, float]) -> None:
    steps = int(row["k"])
    epsilon, delta = advanced_composition(
        epsilon=row["eps"], delta=row["delta"], steps=steps, delta_slack=row["delta_total"]
    )
    assert epsilon == pytest.approx(min(row["basic"], row["advanced"]), rel=1e-9)
    assert delta == pytest.approx(steps * row["delta"] + row["delta_total"], rel=1e-12)


def worst_delta(epsilon: float, delta: float, steps: int, total: float) -> mp.mpf:
    """Every outcome of the worst steps: two that give themselves away, two of a response."""
    with mp.workdps(30):
        truth = mp.exp(epsilon) / (1 + mp.exp(epsilon))
        rest = 1 - mp.mpf(delta)
        outcomes = [
            (mp.mpf(delta), mp.mpf(0)),
            (rest * truth, rest * (1 - truth)),
            (rest * (1 - truth), rest * truth),
            (mp.mpf(0), mp.mpf(delta)),
        ]
        found = mp.mpf(0)
        for several in product(outcomes, repeat=steps):
            p, q = mp.mpf(1), mp.mpf(1)
            for one, other in several:
                p, q = p * one, q * other
            found += max(mp.mpf(0), p - mp.exp(total) * q)
        return found


@PROPERTY
@given(epsilon=EPSILON, delta=DELTA, steps=st.integers(1, 5), share=st.floats(0, 1))
def test_the_optimal_delta_is_that_of_every_outcome(
    epsilon: float, delta: float, steps: int, share: float
) -> None:
    total = share * steps * epsilon
    found = optimal_composition_delta(
        epsilon=epsilon, delta=delta, steps=steps, total_epsilon=total
    )
    exact = worst_delta(epsilon, delta, steps, total)
    # Near the largest loss, e^-t - 1 is a difference of two losses, each with its rounding.
    assert exact <= found <= exact * (1 + 1e-12) + 1e-14 * (1 + steps * epsilon)


def test_six_steps_are_composed_as_every_outcome() -> None:
    found = optimal_composition_delta(epsilon=0.7, delta=1e-3, steps=6, total_epsilon=1.1)
    exact = worst_delta(0.7, 1e-3, 6, 1.1)
    assert exact <= found <= exact * (1 + 1e-12)


@pytest.mark.parametrize(("epsilon", "steps"), [(0.1, 1000), (0.01, 10**5), (2.0, 40)])
def test_the_optimal_composition_is_within_the_bracket_of_the_worst_step(
    epsilon: float, steps: int
) -> None:
    truth = 1 / (1 + math.exp(-epsilon))
    lie = math.exp(-epsilon) * truth
    pair = DiscretePair(first=(truth, lie), second=(lie, truth))
    bracket = epsilon_bracket([(pair, steps)], delta=1e-6)
    found = optimal_composition_epsilon(epsilon=epsilon, delta=0.0, steps=steps, delta_total=1e-6)
    assert bracket.lower * (1 - 1e-9) <= found <= bracket.upper * (1 + 1e-9)


@PROPERTY
@given(
    epsilon=st.floats(1e-4, 3),
    delta=DELTA,
    steps=st.integers(1, 3000),
    extra=st.floats(1e-12, 0.5),
)
def test_the_optimal_composition_is_never_above_the_others(
    epsilon: float, delta: float, steps: int, extra: float
) -> None:
    advanced, total = advanced_composition(
        epsilon=epsilon, delta=delta, steps=steps, delta_slack=extra
    )
    if not total < 1:
        return
    optimal = optimal_composition_epsilon(
        epsilon=epsilon, delta=delta, steps=steps, delta_total=total
    )
    basic, _ = basic_composition(epsilons=[epsilon] * steps, deltas=[delta] * steps)
    assert optimal <= advanced <= basic * (1 + 1e-15)
    assert (
        optimal_composition_delta(epsilon=epsilon, delta=delta, steps=steps, total_epsilon=optimal)
        <= total
    )


def test_a_million_steps_are_composed() -> None:
    found = optimal_composition_epsilon(epsilon=1e-3, delta=0.0, steps=10**6, delta_total=1e-6)
    # As in the limit: a Gaussian of mu = sqrt(steps) epsilon.
    assert found == pytest.approx(4.8865437, rel=1e-6)
    assert optimal_composition_delta(
        epsilon=1e-3, delta=1e-9, steps=10**6, total_epsilon=found
    ) == pytest.approx(1e-6 - math.expm1(10**6 * math.log1p(-1e-9)), rel=1e-3)


def test_no_epsilon_makes_up_for_a_step_that_fails() -> None:
    ask = {"epsilon": 0.5, "delta": 1e-3, "steps": 100}
    assert optimal_composition_epsilon(**ask, delta_total=0.09) == math.inf  # type: ignore[arg-type]
    assert optimal_composition_epsilon(**ask, delta_total=0.0953) <= 50.001  # type: ignore[arg-type]


def test_pure_steps_compose_to_a_pure_guarantee_without_a_delta() -> None:
    found = optimal_composition_epsilon(epsilon=0.1, delta=0.0, steps=7, delta_total=0.0)
    assert Fraction(found) >= 7 * Fraction(0.1)
    assert found == pytest.approx(0.7, rel=1e-14)


def test_a_delta_that_is_large_needs_no_epsilon() -> None:
    assert optimal_composition_epsilon(epsilon=0.1, delta=0.0, steps=1, delta_total=0.5) == 0
    assert optimal_composition_epsilon(epsilon=0.0, delta=0.1, steps=3, delta_total=0.28) == 0


def test_losses_too_unlikely_for_a_double_are_not_impossible() -> None:
    # Only if all of ten thousand answers are true is more lost: a chance of 0.525^10000.
    found = optimal_composition_delta(epsilon=0.1, delta=0.0, steps=10**4, total_epsilon=999.95)
    assert 0 < found < 1e-280


def test_failures_are_rounded_up() -> None:
    with mp.workdps(40):
        for i in range(1, 200):
            delta, steps = 1 / (13 * i), 1 + i % 90
            found = optimal_composition_delta(
                epsilon=0.1, delta=delta, steps=steps, total_epsilon=10.0
            )
            exact = 1 - (1 - mp.mpf(delta)) ** steps
            assert exact <= found <= exact * (1 + 1e-13)


@pytest.mark.parametrize(("share", "delta"), [(1.0, 0.0), (1.0, 0.01), (1.1, 0.0)])
def test_at_the_largest_loss_only_failures_are_left(share: float, delta: float) -> None:
    found = optimal_composition_delta(
        epsilon=0.3, delta=delta, steps=9, total_epsilon=share * 2.7 + 1e-15
    )
    assert found == pytest.approx(1 - (1 - delta) ** 9, abs=1e-15)


def test_the_loss_of_an_answer_that_never_comes_is_no_loss() -> None:
    # e^-700 is a chance that no double holds a hundred times over.
    found = optimal_composition_epsilon(epsilon=700.0, delta=0.0, steps=2, delta_total=1e-6)
    assert 699 < found <= 1400.001


@PROPERTY
@given(parts=st.lists(st.tuples(st.floats(0, 9), st.floats(0, 0.2)), min_size=0, max_size=9))
def test_basic_composition_adds_and_rounds_up(parts: list[tuple[float, float]]) -> None:
    epsilon, delta = basic_composition(
        epsilons=[one for one, _ in parts], deltas=[other for _, other in parts]
    )
    exact = sum((Fraction(one) for one, _ in parts), Fraction())
    assert exact <= Fraction(epsilon) <= exact * (1 + Fraction(1, 2**50)) + Fraction(5e-324)
    assert (
        min(Fraction(1), sum((Fraction(d) for _, d in parts), Fraction())) <= Fraction(delta) <= 1
    )


@PROPERTY
@given(
    epsilon=st.floats(1e-9, 2),
    delta=st.floats(0, 0.01),
    steps=st.integers(1, 10**6),
    slack=st.floats(1e-300, 0.99),
)
def test_advanced_composition_is_rounded_up(
    epsilon: float, delta: float, steps: int, slack: float
) -> None:
    found, total = advanced_composition(
        epsilon=epsilon, delta=delta, steps=steps, delta_slack=slack
    )
    with mp.workdps(40):
        one = mp.mpf(epsilon)
        advanced = mp.sqrt(2 * steps * mp.log(1 / mp.mpf(slack))) * one
        advanced += steps * one * mp.expm1(one)
        exact = min(advanced, steps * one)
        assert exact <= found <= exact * (1 + 1e-13)
        assert total >= min(mp.mpf(1), steps * mp.mpf(delta) + mp.mpf(slack))


@pytest.mark.parametrize(
    ("epsilon", "delta", "steps", "message"),
    [
        (-0.1, 0.0, 1, "epsilon lies"),
        (701.0, 0.0, 1, "epsilon lies"),
        (math.nan, 0.0, 1, "epsilon lies"),
        (1.0, 1.0, 1, "delta lies"),
        (1.0, -1.0, 1, "delta lies"),
        (1.0, math.nan, 1, "delta lies"),
        (1.0, 0.0, 0, "steps lie"),
        (1.0, 0.0, TRIALS_MAX + 1, "steps lie"),
    ],
)
def test_steps_out_of_range_are_refused(
    epsilon: float, delta: float, steps: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        advanced_composition(epsilon=epsilon, delta=delta, steps=steps, delta_slack=0.1)
    with pytest.raises(ValueError, match=message):
        optimal_composition_delta(epsilon=epsilon, delta=delta, steps=steps, total_epsilon=0.1)
    with pytest.raises(ValueError, match=message):
        optimal_composition_epsilon(epsilon=epsilon, delta=delta, steps=steps, delta_total=0.1)
    with pytest.raises(ValueError, match=message):
        group_privacy(epsilon=epsilon, delta=delta, size=steps)


@pytest.mark.parametrize("slack", [0.0, -0.1, 1.0, math.nan])
def test_the_advanced_composition_needs_a_delta_of_its_own(slack: float) -> None:
    with pytest.raises(ValueError, match=r"delta_slack lies in \(0, 1\)"):
        advanced_composition(epsilon=0.1, delta=0.0, steps=9, delta_slack=slack)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_a_target_out_of_range_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="total_epsilon is finite"):
        optimal_composition_delta(epsilon=0.1, delta=0.0, steps=9, total_epsilon=value)
    with pytest.raises(ValueError, match="delta_total lies"):
        optimal_composition_epsilon(epsilon=0.1, delta=0.0, steps=9, delta_total=value)


@pytest.mark.parametrize(
    ("epsilons", "deltas", "message"),
    [
        ([0.1], [], "one epsilon and one delta"),
        ([-0.1], [0.0], "epsilons are not negative"),
        ([math.nan], [0.0], "epsilons are not negative"),
        ([0.1], [1.1], "deltas lie in"),
        ([0.1], [math.nan], "deltas lie in"),
    ],
)
def test_sums_of_what_is_no_guarantee_are_refused(
    epsilons: list[float], deltas: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        basic_composition(epsilons=epsilons, deltas=deltas)


# Groups of records


def test_two_copies_of_a_record_lose_twice_as_much_and_somebody_does() -> None:
    # A count of yes among randomized responses, of which one person's record gives two.
    epsilon, _ = group_privacy(epsilon=1.0, delta=0.0, size=2)
    truth = 1 / (1 + math.exp(-1.0))
    assert math.log(truth**2 / (1 - truth) ** 2) == pytest.approx(2.0, rel=1e-12)
    assert 2.0 <= epsilon <= 2.0 * (1 + 1e-15)


@PROPERTY
@given(epsilon=st.floats(0, 3), delta=st.floats(0, 0.1), size=st.integers(1, 50))
@example(epsilon=5e-324, delta=0.0625, size=1)
@example(epsilon=1e-300, delta=0.0625, size=7)
@example(epsilon=0.0, delta=0.0625, size=7)
def test_a_group_is_a_chain_of_neighbours(epsilon: float, delta: float, size: int) -> None:
    together, lost = group_privacy(epsilon=epsilon, delta=delta, size=size)
    with mp.workdps(40):
        chain = sum(mp.mpf(delta) * mp.exp(i * mp.mpf(epsilon)) for i in range(size))
        assert together >= size * mp.mpf(epsilon)
        assert lost == 1 or chain <= lost <= chain * (1 + 1e-11) + 1e-320
        assert lost < 1 or chain >= 1 - 1e-11


def test_groups_are_rounded_up_at_many_epsilons() -> None:
    with mp.workdps(40):
        for i in range(1, 300):
            epsilon, delta, size = i / 3000, 1 / (i + 7), 2 + i % 5
            if i == 1:  # one in twenty thousand that roundoffs would put below
                epsilon, delta, size = 0.010962349753857636, 0.0008956420653688255, 3
            _, lost = group_privacy(epsilon=epsilon, delta=delta, size=size)
            chain = sum(mp.mpf(delta) * mp.exp(j * mp.mpf(epsilon)) for j in range(size))
            assert lost >= min(mp.mpf(1), chain)


def test_groups_at_the_ends_of_the_range() -> None:
    assert group_privacy(epsilon=700.0, delta=1e-300, size=2)[1] == 1.0
    assert group_privacy(epsilon=0.0, delta=0.1, size=3)[1] == pytest.approx(0.3)
    assert list(group_privacy(epsilon=0.5, delta=0.01, size=1)) == pytest.approx([0.5, 0.01])
    assert group_privacy(epsilon=1e-320, delta=0.1, size=3)[1] >= 0.3
