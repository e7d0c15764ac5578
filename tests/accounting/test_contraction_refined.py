"""The refined chain of divergences, and the inverse questions."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.gaussian import gaussian_delta
from accounting.literature.contraction import refined as refined_module
from accounting.literature.contraction.contraction import (
    DeltaBound,
    ProjectedNoisySgd,
    record_delta,
    shuffled_delta,
)
from accounting.literature.contraction.inversion import least_epsilon, least_noise
from accounting.literature.contraction.kernels import Noise
from accounting.literature.contraction.refined import (
    CHAIN_MAX,
    refined_contraction_delta,
    refined_shuffled_delta,
)
from tests.accounting.contraction_runs import GOLDEN, PLAIN, golden_run, run_with

PROPERTY = settings(deadline=None, max_examples=40)
SHIFT = st.floats(0.05, 20)


# The refined chain


@pytest.mark.parametrize("row", GOLDEN["A.refined_chain"], ids=lambda row: row["noise"])
def test_refined_chains_are_the_golden_ones(row: dict[str, Any]) -> None:
    run = run_with(row["shift_A"], row["shift_B"], Noise(row["noise"]))
    for k, (fine, coarse) in enumerate(zip(row["chain"], row["seed"], strict=True)):
        asked: dict[str, Any] = {"epsilon": row["eps"], "steps": k + 1, "record": 1}
        assert record_delta(run, **asked).delta == pytest.approx(coarse, rel=1e-9)
        found = refined_contraction_delta(run, **asked).delta
        assert found == pytest.approx(fine, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("row", GOLDEN["A.refined_shuffled"], ids=str)
def test_refined_means_are_the_golden_ones(row: dict[str, Any]) -> None:
    run = run_with(1.0, 1.0, Noise.GAUSSIAN)
    asked: dict[str, Any] = {"epsilon": row["eps"], "steps": row["n"]}
    assert refined_shuffled_delta(run, **asked).delta == pytest.approx(row["refined"], rel=1e-9)
    assert shuffled_delta(run, **asked).delta == pytest.approx(row["seed"], rel=1e-9)


@PROPERTY
@given(st.floats(0, 4), SHIFT, SHIFT, st.integers(1, 4000), st.sampled_from(Noise))
def test_the_refined_chain_is_never_above_the_plain_one(
    epsilon: float, shift: float, reach: float, n: int, noise: Noise
) -> None:
    run = run_with(shift, reach, noise)
    i = (n + 1) // 2
    fine = refined_contraction_delta(run, epsilon=epsilon, steps=n, record=i).log_delta
    plain = record_delta(run, epsilon=epsilon, steps=n, record=i).log_delta
    assert fine <= plain * (1 - 1e-11) + 1e-11 or fine == -math.inf
    mean = refined_shuffled_delta(run, epsilon=epsilon, steps=n).log_delta
    assert mean <= shuffled_delta(run, epsilon=epsilon, steps=n).log_delta + 1e-11
    if epsilon == 0:
        assert fine == pytest.approx(plain, rel=1e-11)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-3, 0.3])
def test_the_chain_follows_its_recursion(epsilon: float) -> None:
    run = run_with(2.0, 3.0, Noise.GAUSSIAN)
    value = gaussian_delta(epsilon, mu=2.0)
    for k in range(6):
        found = refined_contraction_delta(run, epsilon=epsilon, steps=k + 1, record=1).delta
        assert value <= found * (1 + 1e-11)
        assert found == pytest.approx(value, rel=1e-10)
        value *= gaussian_delta(math.log1p(math.expm1(epsilon) / value), mu=3.0)


@settings(deadline=None, max_examples=300)
@given(st.floats(1e-12, 30), st.floats(-60, 0))
def test_levels_are_rounded_down(epsilon: float, log_delta: float) -> None:
    with mp.workdps(50):
        exact = mp.log1p(mp.expm1(mp.mpf(epsilon)) / mp.exp(mp.mpf(log_delta)))
        found = refined_module._level(epsilon, log_delta)
        assert exact * (1 - 1e-12) <= found <= exact


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 13, 21, 34, 55, 89])
@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.2])
def test_means_of_chains_are_rounded_up(steps: int, epsilon: float) -> None:
    run = run_with(2.0, 5.0, Noise.GAUSSIAN)
    chain, _ = refined_module._chain(run, epsilon, steps - 1)
    found = refined_shuffled_delta(run, epsilon=epsilon, steps=steps).log_delta
    with mp.workdps(50):
        exact = mp.log(mp.fsum(mp.exp(mp.mpf(one)) for one in chain) / steps)
        assert exact <= found <= exact + 1e-13


def test_long_chains_end_with_the_share_of_their_last_step() -> None:
    run = run_with(2.0, 7.0, Noise.GAUSSIAN)
    lengths = (CHAIN_MAX, CHAIN_MAX + 1, CHAIN_MAX + 2, 3 * CHAIN_MAX)
    bounds: tuple[Callable[[int], DeltaBound], ...] = (
        lambda n: refined_contraction_delta(run, epsilon=0.0, steps=n + 1, record=1),
        lambda n: refined_shuffled_delta(run, epsilon=0.0, steps=n + 1),
    )
    for bound in bounds:
        logs = [bound(n).log_delta for n in lengths]
        assert logs == sorted(logs, reverse=True)
        assert len(set(logs)) == len(logs)
    for n in lengths:  # at epsilon 0 both chains are one
        found = refined_shuffled_delta(run, epsilon=0.0, steps=n + 1).log_delta
        plain = shuffled_delta(run, epsilon=0.0, steps=n + 1).log_delta
        assert found == pytest.approx(plain, rel=1e-10)


def test_a_chain_that_has_vanished_is_not_followed() -> None:
    run = run_with(1.0, 1.0, Noise.GAUSSIAN)
    assert refined_contraction_delta(run, epsilon=1.0, steps=2**53, record=1).log_delta < -1e6
    pure = run_with(1.0, 1.0, Noise.LAPLACE)
    for n in (1, 2, 10**6):
        assert refined_contraction_delta(pure, epsilon=1.1, steps=n, record=1).delta == 0
        assert refined_shuffled_delta(pure, epsilon=1.1, steps=n).delta == 0


# The inverse questions


def shuffled_at(run: ProjectedNoisySgd, steps: int) -> Callable[[float], DeltaBound]:
    return lambda epsilon: shuffled_delta(run, epsilon=epsilon, steps=steps)


@pytest.mark.parametrize("row", GOLDEN["A.invert_eps"], ids=str)
def test_epsilons_at_a_delta_are_the_golden_ones(row: dict[str, Any]) -> None:
    bound = shuffled_at(golden_run(row), row["n"])
    found = least_epsilon(bound, delta=row["delta"])
    assert found == pytest.approx(row["eps"], rel=row["tol"])
    assert bound(found).delta <= row["delta"] < bound(found * (1 - 1e-12)).delta


@pytest.mark.parametrize("row", GOLDEN["A.invert_sigma"], ids=str)
def test_noises_for_a_pair_are_the_golden_ones(row: dict[str, Any]) -> None:
    def bound(run: ProjectedNoisySgd) -> DeltaBound:
        return shuffled_delta(run, epsilon=row["eps"], steps=row["n"])

    run = golden_run(row)
    found = least_noise(bound, run, delta=row["delta"])
    assert found == pytest.approx(row["sigma"], rel=row["tol"])
    assert bound(replace(run, noise_scale=found)).delta <= row["delta"]
    assert bound(replace(run, noise_scale=found * (1 - 1e-11))).delta > row["delta"]


@PROPERTY
@given(st.floats(0.01, 6), SHIFT, SHIFT, st.integers(1, 10**6))
def test_the_epsilon_of_a_delta_of_an_epsilon_is_that(
    epsilon: float, shift: float, reach: float, n: int
) -> None:
    bound = shuffled_at(run_with(shift, reach, Noise.GAUSSIAN), n)
    delta = bound(epsilon).delta
    nearby = bound(epsilon * (1 - 1e-7)).delta
    if 1e-250 < delta < nearby:  # next to 1/n, delta does not depend on epsilon
        found = least_epsilon(bound, delta=delta)
        assert found == pytest.approx(epsilon, rel=1e-7)
        assert bound(found).delta <= delta


def test_questions_with_simple_answers() -> None:
    assert least_epsilon(shuffled_at(PLAIN, 10), delta=0.9) == 0.0
    pure = replace(PLAIN, noise=Noise.LAPLACE, noise_scale=0.1)  # 2 L / v = 20
    assert least_epsilon(shuffled_at(pure, 1), delta=1e-300) == pytest.approx(20, rel=1e-12)
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="delta lies"):
            least_epsilon(shuffled_at(PLAIN, 10), delta=delta)
    with pytest.raises(ValueError, match="No value"):
        least_epsilon(shuffled_at(replace(PLAIN, noise_scale=1e-50), 3), delta=0.1)


def test_noise_is_looked_for_as_far_as_it_may_be_declared() -> None:
    def at_zero(run: ProjectedNoisySgd) -> DeltaBound:
        return shuffled_delta(run, epsilon=0.0, steps=1)

    with pytest.raises(ValueError, match="No value"):
        least_noise(at_zero, replace(PLAIN, gradient_bound=1e90), delta=1e-30)

    def never(run: ProjectedNoisySgd) -> DeltaBound:
        return DeltaBound(log_delta=-math.inf, record=None)

    assert least_noise(never, PLAIN, delta=0.5) == 1e-100
