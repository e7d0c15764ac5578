"""Many passes: pairs, one order for all of them, Renyi curves, and what no Gaussian can say."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.composition import optimal_composition_epsilon
from accounting.gaussian import gaussian_epsilon
from accounting.guarantees import Assumption
from accounting.literature.contraction import passes as passes_module
from accounting.literature.contraction.contraction import record_delta, shuffled_delta
from accounting.literature.contraction.inversion import least_epsilon
from accounting.literature.contraction.kernels import Noise
from accounting.literature.contraction.pass_curves import pass_rdp, profile_rdp
from accounting.literature.contraction.passes import (
    PASSES_MAX,
    fixed_order_epsilon,
    gdp_needed,
    one_order_epsilon,
    pass_pair,
    passes_epsilon,
)
from accounting.pld.certified_composition import Bracket, delta_bracket
from accounting.pld.pairs import DensePair, GaussianPair
from accounting.renyi.conversion import rdp_epsilon
from accounting.renyi.orders import ORDERS
from accounting.rounding import Array
from tests.accounting.contraction_runs import GOLDEN, PLAIN, golden_run, run_with

DELTA = 1e-5
EACH = pytest.mark.parametrize("row", GOLDEN["A.multi_epoch"], ids=lambda row: str(row["epochs"]))


def asked(row: dict[str, Any]) -> dict[str, Any]:
    return {"steps": row["n"], "passes": row["epochs"], "delta": row["delta"]}


@EACH
def test_passes_in_fresh_orders_are_the_golden_ones(row: dict[str, Any]) -> None:
    found = passes_epsilon(golden_run(row), **asked(row))
    assert found == pytest.approx(row["eps_profile_pld_fresh"], rel=row["tol"])
    assert found >= row["eps_profile_pld_fresh"] * (1 - 1e-6)
    alone = gaussian_epsilon(DELTA, mu=golden_run(row).record_shift * math.sqrt(row["epochs"]))
    assert alone == pytest.approx(row["eps_no_amplification_gdp"], rel=1e-6)
    assert found < alone


@EACH
def test_passes_in_one_order_are_the_golden_ones(row: dict[str, Any]) -> None:
    run = golden_run(row)
    found = one_order_epsilon(run, **asked(row))
    assert found == pytest.approx(row["eps_shuffle_once"], rel=row["tol"])
    assert found >= passes_epsilon(run, **asked(row)) * (1 - 1e-3)


@EACH
def test_renyi_curves_from_the_profile_are_the_golden_ones(row: dict[str, Any]) -> None:
    curve = row["epochs"] * pass_rdp(golden_run(row), steps=row["n"])
    whole = (ORDERS % 1 == 0) & (ORDERS >= 2)  # the reference's orders
    found = rdp_epsilon(rdp=curve[whole], orders=ORDERS[whole], delta=row["delta"])[0]
    assert found == pytest.approx(row["eps_rdp_from_profile"], rel=row["tol"])
    assert passes_epsilon(golden_run(row), **asked(row)) < found


@EACH
def test_composing_one_epsilon_and_delta_says_far_less(row: dict[str, Any]) -> None:
    run, passes = golden_run(row), row["epochs"]
    # The reference halves delta: one half for the passes' own deltas, the other for the sum.
    each = row["delta"] / 2 / passes

    def one_pass(epsilon: float) -> Any:
        return shuffled_delta(run, epsilon=epsilon, steps=row["n"])

    epsilon = least_epsilon(one_pass, delta=each)
    total = optimal_composition_epsilon(
        epsilon=epsilon, delta=each, steps=passes, delta_total=row["delta"]
    )
    assert total >= passes_epsilon(run, **asked(row))
    if passes > 1:
        assert total > 1.5 * passes_epsilon(run, **asked(row))


@pytest.mark.parametrize("row", GOLDEN["A.gdp_needed"], ids=lambda row: str(row["eps"]))
def test_as_a_gaussian_release_a_pass_has_no_amplification(row: dict[str, Any]) -> None:
    run = run_with(row["two_L_over_sigma"], 1.0, Noise.GAUSSIAN)
    log_delta = shuffled_delta(run, epsilon=row["eps"], steps=row["n"]).log_delta
    assert log_delta == pytest.approx(row["log_delta"], rel=1e-9)
    found = gdp_needed(epsilon=row["eps"], log_delta=log_delta)
    assert found == pytest.approx(row["mu_needed"], rel=row["tol"])


def test_the_gaussian_needed_comes_ever_closer_to_that_of_one_step() -> None:
    run = run_with(1.0, 1.0, Noise.GAUSSIAN)
    needed = [
        gdp_needed(epsilon=e, log_delta=shuffled_delta(run, epsilon=e, steps=1000).log_delta)
        for e in (0.0, 1.0, 5.0, 20.0, 80.0, 400.0)
    ]
    assert needed == sorted(needed)
    assert 0.9995 < needed[-1] < 1.0


def test_needs_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="epsilon"):
        gdp_needed(epsilon=-1.0, log_delta=-1.0)
    with pytest.raises(ValueError, match="No value"):
        gdp_needed(epsilon=1.0, log_delta=1.0)


# Pairs


def profile_of(pair: DensePair, loss: float) -> float:
    """The pair's profile by its definition."""
    p, q = np.array(pair.first), np.array(pair.second)
    return math.fsum(np.maximum(p - math.exp(loss) * q, 0.0))


@pytest.mark.parametrize("noise", Noise)
@pytest.mark.parametrize(
    ("shift", "reach", "n"), [(1.0, 1.0, 1000), (5.0, 8.0, 10**6), (0.01, 3.0, 4), (30.0, 9.0, 50)]
)
def test_the_pair_of_a_pass_dominates_its_profile_and_hardly_more(
    noise: Noise, shift: float, reach: float, n: int
) -> None:
    run = run_with(shift, reach, noise)
    pair = pass_pair(run, steps=n)
    losses = np.linspace(0, min(shift * (0.99 if noise is Noise.LAPLACE else 4), 40), 301)
    deltas = np.array([shuffled_delta(run, epsilon=float(e), steps=n).delta for e in losses])
    found = np.array([profile_of(pair, float(one)) for one in losses])
    assert np.all(found >= deltas * (1 - 1e-12) - 1e-16)
    assert np.all(found <= deltas * 1.02 + 1e-12)
    mirror = DensePair(first=pair.second, second=pair.first)
    assert profile_of(mirror, 0.1) == pytest.approx(profile_of(pair, 0.1), rel=1e-9)


@settings(deadline=None, max_examples=6)
@given(st.floats(0.1, 4), st.floats(0.1, 6), st.integers(2, 10**6), st.floats(1e-9, 1e-3))
def test_one_pass_is_its_own_profile(shift: float, reach: float, n: int, delta: float) -> None:
    run = run_with(shift, reach, Noise.GAUSSIAN)
    exact = least_epsilon(lambda e: shuffled_delta(run, epsilon=e, steps=n), delta=delta)
    found = passes_epsilon(run, steps=n, passes=1, delta=delta)
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-3) + 1e-4


def test_laplace_passes_are_pure_in_the_end() -> None:
    run = replace(PLAIN, noise=Noise.LAPLACE)  # 2 L / v = 1
    found = passes_epsilon(run, steps=10, passes=3, delta=1e-30)
    assert 2.5 < found <= 3 * (1 + 1e-4)


def test_passes_that_differ_less_than_delta_cost_nothing() -> None:
    run = run_with(1e-3, 1.0, Noise.GAUSSIAN)
    variation = shuffled_delta(run, epsilon=0.0, steps=100).delta
    for passes in (1, 7):
        free = passes * variation * (1 + 1e-9)
        assert passes_epsilon(run, steps=100, passes=passes, delta=free) == 0.0
        assert passes_epsilon(run, steps=100, passes=passes, delta=free * 0.5) > 0.0


def test_a_fixed_order_is_composed_for_one_record() -> None:
    run = run_with(1.0, 2.0, Noise.GAUSSIAN)
    early, last = (
        fixed_order_epsilon(run, steps=6, record=i, passes=4, delta=DELTA) for i in (4, 6)
    )
    assert early < 0.95 * last
    assert last == pytest.approx(gaussian_epsilon(DELTA, mu=2.0), rel=1e-12)
    pure = replace(PLAIN, noise=Noise.LAPLACE)  # 2 L / v = 1
    last = fixed_order_epsilon(pure, steps=6, record=6, passes=2, delta=1e-30)
    assert last == pytest.approx(2.0, rel=1e-4)
    single = fixed_order_epsilon(run, steps=6, record=4, passes=1, delta=DELTA)
    exact = least_epsilon(lambda e: record_delta(run, epsilon=e, steps=6, record=4), delta=DELTA)
    assert exact <= single <= exact * 1.001


def test_one_order_is_between_fresh_orders_and_the_last_place() -> None:
    run = run_with(1.0, 2.0, Noise.GAUSSIAN)
    question: dict[str, Any] = {"steps": 40, "passes": 5, "delta": 1e-3}
    once = one_order_epsilon(run, **question)
    assert passes_epsilon(run, **question) < once
    assert once < fixed_order_epsilon(run, record=40, **question)
    assert one_order_epsilon(run, steps=40, passes=5, delta=0.9) == 0.0


def test_places_are_averaged_at_the_worst_of_their_group() -> None:
    # At delta above 1/n the last place may fail altogether; the mean over places is what counts.
    run, places, passes, delta = run_with(3.0, 2.0, Noise.GAUSSIAN), 6, 2, 0.02
    found = one_order_epsilon(run, steps=places, passes=passes, delta=delta)
    pairs = [passes_module._place_pair(run, later) for later in range(places)]

    def brackets(epsilon: float) -> list[Bracket]:
        return [delta_bracket([(pair, passes)], epsilon=epsilon) for pair in pairs]

    assert math.fsum(one.lower for one in brackets(found)) / places <= delta
    assert math.fsum(one.upper for one in brackets(0.97 * found)) / places > delta
    assert one_order_epsilon(run, steps=places, passes=passes, delta=0.9) <= 1e-6


def test_after_the_last_group_all_places_count_as_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(0.5, 6.0, Noise.GAUSSIAN)  # little contraction
    question: dict[str, Any] = {"steps": 10**3, "passes": 2, "delta": 1e-4}
    full = one_order_epsilon(run, **question)
    monkeypatch.setattr(passes_module, "GROUPS", 2)
    few = one_order_epsilon(run, **question)
    second = fixed_order_epsilon(run, record=10**3 - 1, **question)
    assert full < 0.9 * few
    assert few == pytest.approx(second, rel=2e-2)


def test_places_that_cost_nothing_are_not_composed() -> None:
    run = run_with(1.0, 1e-13, Noise.GAUSSIAN)  # a step forgets nearly all
    question: dict[str, Any] = {"steps": 1000, "passes": 2, "delta": 1e-4}
    mean = passes_module._MeanOverPlaces(run, 1000, 2)
    assert mean.is_at_most(1e-3, epsilon=3.0)
    assert set(mean._pairs) == {0}
    # The last place alone costs: delta 1000 times as large there.
    alone = fixed_order_epsilon(run, record=1000, steps=1000, passes=2, delta=0.1)
    assert one_order_epsilon(run, **question) == pytest.approx(alone, rel=5e-3)


def test_a_pass_of_few_places_ends_with_its_first() -> None:
    run = run_with(1.0, 6.0, Noise.GAUSSIAN)
    assert list(passes_module._groups(1)) == [(0, 1)]
    assert list(passes_module._groups(7)) == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (6, 1)]
    found = one_order_epsilon(run, steps=1, passes=2, delta=1e-3)
    alone = fixed_order_epsilon(run, steps=1, record=1, passes=2, delta=1e-3)
    assert found == pytest.approx(alone, rel=2e-3)


@pytest.mark.parametrize("of", [passes_epsilon, one_order_epsilon])
def test_counts_and_deltas_out_of_range_are_refused(of: Any) -> None:
    for passes in (0, PASSES_MAX + 1):
        with pytest.raises(ValueError, match="passes lies"):
            of(PLAIN, steps=5, passes=passes, delta=DELTA)
    with pytest.raises(ValueError, match="steps lies"):
        of(PLAIN, steps=0, passes=1, delta=DELTA)
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="delta lies"):
            of(PLAIN, steps=5, passes=1, delta=delta)
    with pytest.raises(ValueError, match="record lies"):
        fixed_order_epsilon(PLAIN, steps=5, record=6, passes=1, delta=DELTA)
    with pytest.raises(ValueError, match="steps lies"):
        pass_pair(PLAIN, steps=0)


def test_theorems_of_passes_say_which_order_they_need() -> None:
    assert Assumption.FRESH_SECRET_ORDER in pass_pair.assumptions
    assert Assumption.SECRET_ORDER in one_order_epsilon.assumptions


def test_the_noise_of_the_last_place_and_variations_are_rounded_outward() -> None:
    rng = np.random.default_rng(4)
    for shift in rng.uniform(0.01, 9, 100):
        run = run_with(float(shift), 1.0, Noise.GAUSSIAN)
        alone = passes_module._place_pair(run, 0)
        assert isinstance(alone, GaussianPair)
        assert Fraction(alone.noise_multiplier) * Fraction(run.record_shift) <= 1
        profile = passes_module._place_delta(run, 3)
        passes = int(rng.integers(2, 1000))
        exact = passes * Fraction(profile(0.0).delta)
        assert exact <= Fraction(passes_module._variation(profile, passes)) <= exact * 2


# Renyi curves


def test_the_curve_of_a_gaussian_profile_is_the_gaussians() -> None:
    # One step of one record: the profile is A, whose curve is a mu^2 / 2.
    for mu in (0.05, 1.0, 2.0):
        curve = pass_rdp(run_with(mu, 1.0, Noise.GAUSSIAN), steps=1)
        exact = ORDERS * mu**2 / 2
        assert np.all(curve >= exact * (1 - 1e-12))
        served = ORDERS <= 60
        assert np.all(curve[served] <= exact[served] * 1.01)


def test_the_curve_of_a_laplace_profile_is_laplaces() -> None:
    for shift in (0.2, 3.0):
        curve = pass_rdp(run_with(shift, 1.0, Noise.LAPLACE), steps=1)
        a = ORDERS
        log_share = np.logaddexp(
            np.log(a / (2 * a - 1)) + (a - 1) * shift,
            np.log((a - 1) / (2 * a - 1)) - a * shift,
        )
        exact = log_share / (a - 1)
        assert np.all(curve >= exact * (1 - 1e-12))
        assert np.all(curve <= exact * 1.01)


def test_a_laplace_shift_beyond_the_grid_is_still_bounded() -> None:
    curve = pass_rdp(run_with(500.0, 1.0, Noise.LAPLACE), steps=1)
    assert np.all(curve >= np.log(ORDERS / (2 * ORDERS - 1)) / (ORDERS - 1) + 500)
    assert np.all(np.isfinite(curve))


@pytest.mark.parametrize(
    "epsilons", [[0.0], [0.1, 0.2], [0.0, 0.0], [0.0, 0.4], [0.0, math.nan], []]
)
def test_profiles_at_other_epsilons_are_refused(epsilons: list[float]) -> None:
    grid = np.array(epsilons)
    with pytest.raises(ValueError, match="epsilons rise"):
        profile_rdp(
            epsilons=grid,
            log_deltas=np.full(len(grid), -1.0),
            log_tails=np.array([-1.0]),
            orders=np.array([2.0]),
        )


def test_a_curve_is_rounded_up_from_its_cells_and_its_tail() -> None:
    rng = np.random.default_rng(7)
    for _ in range(100):
        epsilons = np.concatenate(([0.0], np.cumsum(rng.uniform(0.001, 0.3, 4))))
        logs = np.sort(rng.uniform(-30, 0, 5))[::-1]
        a, tail = float(rng.uniform(1.1, 40)), float(rng.uniform(-40, 3))
        found = profile_rdp(
            epsilons=epsilons, log_deltas=logs, log_tails=np.array([tail]), orders=np.array([a])
        )[0]
        with mp.workdps(50):
            exact = _curve(epsilons, logs, a, tail)
            assert exact <= found <= exact * (1 + 1e-10)


def _curve(epsilons: Array, logs: Array, order: float, tail: float) -> mp.mpf:
    a, total = mp.mpf(order), 2 * mp.exp(mp.mpf(tail))
    for j in range(len(epsilons) - 1):
        x, h = mp.mpf(epsilons[j]), mp.mpf(epsilons[j + 1]) - mp.mpf(epsilons[j])
        before, after = mp.exp(mp.mpf(logs[j])), mp.exp(mp.mpf(logs[j + 1]))
        for c in (a - 1, -a):
            share = max(h**2 / 2 + c * h**3 / 3, 0) / mp.expm1(h)
            total += mp.exp(c * x) * (before * mp.expm1(c * h) / c - (before - after) * share)
    return mp.log1p(a * (a - 1) * total) / (a - 1)


def test_curves_refuse_orders_and_steps_out_of_range() -> None:
    with pytest.raises(ValueError, match="Orders lie"):
        profile_rdp(
            epsilons=np.array([0.0, 0.1]),
            log_deltas=np.array([-1.0, -2.0]),
            log_tails=np.array([-1.0]),
            orders=np.array([1.0]),
        )
    with pytest.raises(ValueError, match="steps lies"):
        pass_rdp(PLAIN, steps=0)
