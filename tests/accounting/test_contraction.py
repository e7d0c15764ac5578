"""Bounds of one pass of projected noisy gradient steps, and the inverse questions."""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.gaussian import gaussian_delta
from accounting.guarantees import Assumption, Status
from accounting.literature.contraction import contraction, refined
from accounting.literature.contraction.contraction import (
    DeltaBound,
    Lipschitz,
    ProjectedNoisySgd,
    log_product,
    log_share_up,
    log_sum_up,
    random_stop_coarse_delta,
    random_stop_delta,
    record_delta,
    run_kernels,
    shuffled_delta,
)
from accounting.literature.contraction.kernels import Kernel, Noise
from accounting.literature.contraction.refined import (
    refined_contraction_delta,
    refined_shuffled_delta,
)
from tests.accounting.contraction_runs import GOLDEN, PLAIN, golden_run, run_with

PROPERTY = settings(deadline=None, max_examples=60)
EPSILON = st.floats(0, 4)
STEPS = st.integers(1, 10**9)
SHIFT = st.floats(0.05, 20)
STRONG = replace(PLAIN, smoothness=2.0, convexity=1.0, learning_rate=0.6)


def logs_of(run: ProjectedNoisySgd, epsilon: float, n: int, i: int) -> tuple[float, ...]:
    bounds = (
        record_delta(run, epsilon=epsilon, steps=n, record=i),
        shuffled_delta(run, epsilon=epsilon, steps=n),
        random_stop_delta(run, epsilon=epsilon, steps=n, record=i),
        random_stop_coarse_delta(run, epsilon=epsilon, steps=n),
    )
    return tuple(bound.log_delta for bound in bounds)


@pytest.mark.parametrize("row", GOLDEN["A.delta"], ids=str)
def test_bounds_of_one_pass_are_the_golden_ones(row: dict[str, Any]) -> None:
    found = logs_of(golden_run(row), row["eps"], row["n"], row["i"])
    names = ("index", "shuffled", "random_stop_i", "random_stop_coarse")
    for value, name in zip(found, names, strict=True):
        expected = row[f"log_delta_{name}"]
        if expected == -math.inf and row["noise"] == "gaussian":
            assert value < -1e5  # the reference's B^(n-i) underflowed
        else:
            assert value == pytest.approx(expected, rel=1e-9)


def test_a_pass_of_a_billion_steps_each_of_which_loses_1e_16_is_right_at_delta_1e_300() -> None:
    # A = 1e-300 and q = 1e-16 by choice of the shifts.
    epsilon = 8.0
    tiny = math.exp(least_true_log(lambda mu: gaussian_delta(epsilon, mu=mu), 1e-300))
    run = replace(PLAIN, gradient_bound=tiny, diameter=17.25)
    first, later = run_kernels(run, epsilon)
    assert first.log_kept == pytest.approx(math.log(1e-300), rel=1e-6)
    assert math.log(1e-17) < later.log_lost < math.log(1e-15)
    q = math.exp(later.log_lost)
    for n in (10**9, 10**12):
        found = shuffled_delta(run, epsilon=epsilon, steps=n).log_delta
        expected = first.log_kept + math.log(-math.expm1(n * math.log1p(-q)) / (n * q))
        assert found == pytest.approx(expected, rel=1e-12)
        last = record_delta(run, epsilon=epsilon, steps=n, record=1).log_delta
        assert last == pytest.approx(first.log_kept + (n - 1) * math.log1p(-q), rel=1e-12)


def least_true_log(delta: Callable[[float], float], target: float) -> float:
    """The log of 2/scale of the shift at which a profile is about the target."""
    low, high = -30.0, 3.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if delta(math.exp(middle)) > target else (middle, high)
    return high  # PLAIN has 2 L / sigma = L


# What is declared


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": math.nan}, "learning_rate"),
        ({"learning_rate": 4.1}, "learning_rate is at most"),
        ({"convexity": 0.5, "learning_rate": 2.1}, "learning_rate is at most"),
        ({"gradient_bound": math.inf}, "gradient_bound"),
        ({"convexity": 0.4, "gradient_bound": 0.19}, "gradient_bound is at least"),
        ({"convexity": 0.4, "diameter": math.inf}, "gradient_bound is at least"),
        ({"convexity": -0.1}, "convexity"),
        ({"convexity": 0.6}, "convexity"),
        ({"convexity": math.nan}, "convexity"),
        ({"smoothness": math.inf}, "convexity"),
        ({"diameter": 0.0}, "diameter"),
        ({"diameter": math.nan}, "diameter"),
        ({"noise_scale": 0.0}, "noise_scale"),
        ({"batch_size": 0}, "batch_size"),
        ({"dimension": 0}, "dimension"),
        ({"noise": Noise.LAPLACE, "dimension": 2}, "dimension is 1"),
        ({"clip_can_be_active": True, "dimension": 2}, "clip_can_be_active"),
        ({"clip_can_be_active": True, "convexity": 0.1}, "clip_can_be_active"),
    ],
)
def test_facts_that_cannot_be_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        replace(PLAIN, **changes)


def test_facts_at_the_edge_are_taken() -> None:
    assert replace(PLAIN, learning_rate=4.0).lipschitz_constant == 1.0
    assert replace(PLAIN, convexity=0.4, gradient_bound=0.2)
    assert replace(PLAIN, clip_can_be_active=True)
    assert replace(PLAIN, noise=Noise.LAPLACE)


@pytest.mark.parametrize("epsilon", [-1.0, math.inf, math.nan])
@pytest.mark.parametrize(("steps", "record"), [(5, 2)])
def test_epsilons_out_of_range_are_refused(epsilon: float, steps: int, record: int) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        record_delta(PLAIN, epsilon=epsilon, steps=steps, record=record)


@pytest.mark.parametrize(("steps", "record"), [(0, 1), (5, 0), (5, 6), (2**53 + 1, 1)])
def test_places_out_of_range_are_refused(steps: int, record: int) -> None:
    for bound in (record_delta, random_stop_delta, refined_contraction_delta):
        with pytest.raises(ValueError, match=r"steps lies|record lies"):
            bound(PLAIN, epsilon=1.0, steps=steps, record=record)
    if steps != 5:
        for whole in (shuffled_delta, random_stop_coarse_delta, refined_shuffled_delta):
            with pytest.raises(ValueError, match="steps lies"):
                whole(PLAIN, epsilon=1.0, steps=steps)


# The constant of a step


@PROPERTY
@given(beta=st.floats(1e-3, 1e3), share=st.floats(0, 1), part=st.floats(1e-6, 1))
def test_the_tight_constant_is_the_true_one_and_never_above_the_documents(
    beta: float, share: float, part: float
) -> None:
    rho = share * beta
    eta = part * 2 / (beta + rho) * (1 - 1e-15)
    common: dict[str, Any] = {"smoothness": beta, "convexity": rho, "learning_rate": eta}
    run = replace(PLAIN, gradient_bound=1e6, **common)
    tight = replace(run, lipschitz=Lipschitz.TIGHT).lipschitz_constant
    # A quadratic with both curvatures stretches by exactly this.
    true = max(abs(1 - eta * rho), abs(1 - eta * beta))
    assert true <= tight <= min(1.0, true + 1e-14)
    assert tight <= run.lipschitz_constant * (1 + 1e-12) + 1e-15
    square = 1 - 2 * eta * beta * rho / (beta + rho)
    assert square - 1e-15 <= run.lipschitz_constant**2 <= square + 1e-13


def test_constants_and_shifts_are_never_below_their_exact_values() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        beta, part, share, scale, diameter = (float(one) for one in rng.uniform(0.01, 1, 5))
        rho = beta * part
        run = replace(
            PLAIN,
            smoothness=beta,
            convexity=rho,
            learning_rate=share * 2 / (beta + rho) * (1 - 1e-15),
            noise_scale=scale,
            diameter=diameter,
            batch_size=int(rng.integers(1, 9)),
        )
        eta, b, r = Fraction(run.learning_rate), Fraction(beta), Fraction(rho)
        tight = replace(run, lipschitz=Lipschitz.TIGHT).lipschitz_constant
        assert Fraction(tight) >= max(abs(1 - eta * r), abs(1 - eta * b))
        assert Fraction(run.lipschitz_constant) ** 2 >= 1 - 2 * eta * b * r / (b + r)
        record = 2 * Fraction(run.gradient_bound) / run.batch_size / Fraction(scale)
        assert record <= Fraction(run.record_shift) <= record * (1 + Fraction(1, 10**14))
        domain = Fraction(run.lipschitz_constant) * Fraction(diameter) / eta / Fraction(scale)
        assert domain <= Fraction(run.domain_shift) <= domain * (1 + Fraction(1, 10**14))


def test_logarithms_of_products_are_never_below_their_exact_values() -> None:
    rng = np.random.default_rng(6)
    for _ in range(200):
        kept, later = -float(rng.uniform(0, 3)), -float(rng.uniform(0, 3))
        times = int(rng.integers(1, 10**9))
        found = log_product(Kernel(kept, 0.0), Kernel(later, 0.0), times)
        exact = Fraction(kept) + times * Fraction(later)
        assert exact <= Fraction(found) <= exact * (1 - Fraction(1, 10**14))


@pytest.mark.parametrize("steps", [3, 7, 10, 1001, 10**6 + 3, 10**9 + 7])
def test_stops_are_never_below_their_exact_values(steps: int) -> None:
    run = run_with(1.0, 2.0, Noise.GAUSSIAN)
    first, later = run_kernels(run, 0.5)
    with mp.workdps(50):
        kept, lost = mp.mpf(first.log_kept), mp.exp(mp.mpf(later.log_lost))
        for record in (1, 2, steps // 2, steps - 1, steps):
            powers = -mp.expm1((steps + 1 - record) * mp.log1p(-lost))
            exact = kept + mp.log(powers / (steps * lost))
            found = random_stop_delta(run, epsilon=0.5, steps=steps, record=record).log_delta
            assert exact <= found <= exact + 1e-13
        coarse = kept - mp.log(steps) - mp.mpf(later.log_lost)
        found = random_stop_coarse_delta(run, epsilon=0.5, steps=steps).log_delta
        assert coarse <= found <= coarse + 1e-13


def test_shares_of_stops_and_long_stops_are_rounded_up() -> None:
    rng = np.random.default_rng(9)
    run = replace(PLAIN, diameter=21.0)
    first, later = run_kernels(run, 8.0)
    with mp.workdps(50):
        for _ in range(300):
            whole = int(rng.integers(2, 10**9))
            part = int(rng.integers(1, whole + 1))
            assert mp.log(mp.mpf(part) / whole) <= log_share_up(part, whole) <= 0
            # n (1 - B) is near A: the logarithms cancel.
            steps = math.floor(math.exp(first.log_kept - later.log_lost + float(rng.uniform(0, 1))))
            exact = min(0, mp.mpf(first.log_kept) - mp.log(steps) - mp.mpf(later.log_lost))
            assert exact <= random_stop_coarse_delta(run, epsilon=8.0, steps=steps).log_delta


def test_a_loss_without_any_curvature_moves_every_point_alike() -> None:
    assert replace(PLAIN, smoothness=0.0).lipschitz_constant == 1.0


def test_a_step_that_forgets_its_start_protects_all_but_the_last_record() -> None:
    run = replace(PLAIN, smoothness=1.0, convexity=1.0, learning_rate=1.0)
    assert run.lipschitz_constant < 1e-7
    assert record_delta(run, epsilon=0.1, steps=3, record=2).delta < 1e-300
    assert record_delta(run, epsilon=0.1, steps=3, record=3).delta > 0.3


# Relations between the bounds


@PROPERTY
@given(EPSILON, SHIFT, SHIFT, STEPS, st.sampled_from(Noise), st.floats(0, 1))
def test_bounds_are_in_order(
    epsilon: float, shift: float, reach: float, n: int, noise: Noise, part: float
) -> None:
    run = run_with(shift, reach, noise)
    i = max(1, round(part * n))
    _, shuffled, stop, coarse = logs_of(run, epsilon, n, i)
    alone = record_delta(run, epsilon=epsilon, steps=n, record=n).log_delta
    worst = random_stop_delta(run, epsilon=epsilon, steps=n)
    near = 1e-12
    assert worst.record is None
    assert worst.log_delta == pytest.approx(shuffled, rel=1e-13)
    assert stop <= shuffled * (1 - near) + near
    assert shuffled <= coarse * (1 - near) + near
    assert alone - math.log(n) - near <= shuffled <= alone + near
    if n == 1:
        assert shuffled == pytest.approx(alone, rel=1e-14)


@PROPERTY
@given(EPSILON, SHIFT, SHIFT, st.integers(2, 10**6), st.sampled_from(Noise))
def test_bounds_fall_with_what_hides_and_rise_with_what_shows(
    epsilon: float, shift: float, reach: float, n: int, noise: Noise
) -> None:
    run = run_with(shift, reach, noise)
    i = n // 2

    def logs(changed: ProjectedNoisySgd, **other: Any) -> tuple[float, ...]:
        asked = {"epsilon": epsilon, "n": n, "i": i} | other
        return logs_of(changed, asked["epsilon"], asked["n"], asked["i"])

    here = logs(run)
    for smaller in (
        logs(run, epsilon=epsilon + 0.1),
        logs(replace(run, noise_scale=1.1)),
        logs(replace(run, learning_rate=1.1)),
        logs(replace(run, gradient_bound=shift / 2.2)),
        logs(replace(run, diameter=reach / 1.1)),
    ):
        assert all(one <= other + 1e-11 for one, other in zip(smaller, here, strict=True))
    longer = logs(run, n=n + 1)
    assert longer[0] <= here[0] + 1e-11
    assert longer[1] <= here[1] + 1e-11
    later = logs(run, i=i + 1)
    assert later[0] >= here[0] - 1e-11  # the later the record, the less comes after it
    assert later[2] <= here[2] + 1e-11  # and the rarer it is used before the stop


@pytest.mark.parametrize("run", [STRONG, PLAIN])
def test_contraction_protects_a_record_and_tight_constants_do_so_better(
    run: ProjectedNoisySgd,
) -> None:
    tight = replace(run, lipschitz=Lipschitz.TIGHT)
    for one, other in zip(logs_of(tight, 1.0, 9, 4), logs_of(run, 1.0, 9, 4), strict=True):
        assert one <= other
    assert shuffled_delta(STRONG, epsilon=1.0, steps=9).delta < (
        shuffled_delta(replace(STRONG, convexity=0.0), epsilon=1.0, steps=9).delta
    )


@pytest.mark.parametrize("noise", Noise)
def test_profiles_are_convex_in_e_to_the_epsilon(noise: Noise) -> None:
    run = run_with(2.0, 3.0, noise)
    g = np.linspace(1, 12, 500)
    profiles: tuple[Callable[[float], DeltaBound], ...] = (
        lambda e: record_delta(run, epsilon=e, steps=7, record=3),
        lambda e: shuffled_delta(run, epsilon=e, steps=7),
        lambda e: random_stop_delta(run, epsilon=e, steps=7, record=3),
    )
    for of in profiles:
        values = np.array([of(math.log(one)).delta for one in g])
        assert np.all(np.diff(values, 2) >= -1e-14)
        assert np.all(np.diff(values) <= 0)


def test_without_a_bounded_domain_a_fixed_order_amplifies_nothing() -> None:
    run = replace(PLAIN, diameter=math.inf)
    for i in (1, 500):
        index, shuffled, _, coarse = logs_of(run, 1.0, 1000, i)
        alone = run_kernels(run, 1.0)[0].log_kept
        assert alone <= min(index, shuffled)
        assert max(index, shuffled) <= alone + 1e-15
        assert coarse == 0.0  # a delta of one


def test_laplace_noise_is_pure_from_twice_the_bound_on() -> None:
    run = replace(PLAIN, noise=Noise.LAPLACE)  # 2 L / v = 1
    assert logs_of(run, 1.0 + 1e-12, 10, 3) == (-math.inf,) * 4
    assert shuffled_delta(run, epsilon=1.5, steps=10).delta == 0.0
    assert shuffled_delta(run, epsilon=0.99, steps=10).delta > 0


def test_a_batch_shares_the_reach_of_a_record() -> None:
    run = replace(PLAIN, batch_size=4)
    assert run.record_shift == pytest.approx(0.25, rel=1e-15)
    assert run.domain_shift == PLAIN.domain_shift
    alone = record_delta(run, epsilon=0.1, steps=5, record=5).delta
    assert alone == pytest.approx(gaussian_delta(0.1, mu=0.25), rel=1e-12)


def test_bounds_say_whom_they_are_for() -> None:
    assert record_delta(PLAIN, epsilon=1.0, steps=5, record=2).record == 2
    assert refined_contraction_delta(PLAIN, epsilon=1.0, steps=5, record=2).record == 2
    assert random_stop_delta(PLAIN, epsilon=1.0, steps=5, record=2).record == 2
    for bound in (random_stop_coarse_delta, shuffled_delta, refined_shuffled_delta):
        assert bound(PLAIN, epsilon=1.0, steps=5).record is None


def test_theorems_say_what_must_be_declared_and_which_are_for_one_record() -> None:
    theorems = (*contraction.THEOREMS, *refined.THEOREMS)
    assert all(one.status is Status.CONDITIONAL for one in theorems)
    assert all(Assumption.HIDDEN_ITERATES in one.assumptions for one in theorems)
    single = {one.id for one in theorems if Assumption.SINGLE_RECORD in one.assumptions}
    assert single == {"pnsgd-record", "pnsgd-record-refined"}


def test_logarithms_are_rounded_up_on_their_way_back() -> None:
    assert DeltaBound(log_delta=-math.inf, record=None).delta == 0.0
    assert DeltaBound(log_delta=0.0, record=None).delta == 1.0
    for value in (-1.0, -0.1, -700.0):
        assert DeltaBound(log_delta=value, record=None).delta > math.exp(value)
    assert log_sum_up(-1.0, -math.inf, 2.0) == -math.inf
    assert log_sum_up(1.0) == 0.0
    assert log_sum_up(-1.0, -1e-20) > -1.0 - 1e-20 - 1e-16
    assert log_sum_up(-0.1, -0.2) >= -0.3
