"""Noise chosen for the length of a pass, and noise that falls step by step."""

import math
from dataclasses import replace
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.guarantees import Assumption
from accounting.literature.contraction import online as online_module
from accounting.literature.contraction import schedules
from accounting.literature.contraction.contraction import (
    ProjectedNoisySgd,
    record_delta,
    shuffled_delta,
)
from accounting.literature.contraction.kernels import Noise, step_kernel
from accounting.literature.contraction.online import (
    Online,
    log_kept_at,
    online_delta,
    online_limit,
    online_run,
)
from accounting.literature.contraction.schedules import (
    Schedule,
    kappa,
    lambert_w,
    laplace_gap,
    limit_delta,
    loss_rate,
    scheduled_delta,
    scheduled_run,
)
from tests.accounting.contraction_runs import GOLDEN, PLAIN

PROPERTY = settings(deadline=None, max_examples=25)
PAPER = replace(PLAIN, gradient_bound=10.0, learning_rate=0.1)
FIG_1 = replace(PAPER, noise=Noise.LAPLACE)
LAPLACE = Schedule(c1=1e5, c2=2.0)
GAUSSIAN = Schedule(c1=1e5, c2=100.0)
ONLINE = Online(schedule=Schedule(c1=100.0, c2=100.0), alpha=1.5)


def online_paper(noise: str) -> ProjectedNoisySgd:
    return replace(PAPER, noise=Noise(noise), learning_rate=0.01)


# Schedules by number


@pytest.mark.parametrize("row", GOLDEN["A.fig1_laplace_shuffled"], ids=str)
def test_laplace_schedules_are_the_golden_ones(row: dict[str, float]) -> None:
    n = int(row["n"])
    assert scheduled_run(FIG_1, LAPLACE, steps=n).noise_scale == pytest.approx(row["v"], rel=1e-12)
    found = scheduled_delta(FIG_1, LAPLACE, epsilon=1.0, steps=n)
    assert found.delta == pytest.approx(row["delta"], rel=1e-9)
    limit = limit_delta(Noise.LAPLACE, LAPLACE, epsilon=1.0)
    assert limit == pytest.approx(row["delta_star"], rel=1e-12)
    power, gap = laplace_gap(FIG_1, LAPLACE, epsilon=1.0)
    assert power == 1.0
    assert gap == pytest.approx(row["gap_limit_K"], rel=1e-9)
    assert n * (found.delta - limit) == pytest.approx(row["n_times_gap"], rel=1e-6)


@pytest.mark.parametrize("row", GOLDEN["A.fig2_3_gauss_shuffled"], ids=str)
def test_gaussian_schedules_are_the_golden_ones(row: dict[str, float]) -> None:
    n, run = int(row["n"]), replace(PAPER, learning_rate=row["eta"])
    chosen = scheduled_run(run, GAUSSIAN, steps=n)
    assert chosen.noise_scale == pytest.approx(row["sigma"], rel=1e-12)
    assert 0.25 * chosen.domain_shift**2 == pytest.approx(row["W"], rel=1e-12)
    found = scheduled_delta(run, GAUSSIAN, epsilon=1.0, steps=n)
    assert found == shuffled_delta(chosen, epsilon=1.0, steps=n)
    assert found.delta == pytest.approx(row["delta"], rel=1e-9)
    limit = limit_delta(Noise.GAUSSIAN, GAUSSIAN, epsilon=1.0)
    assert limit == pytest.approx(row["delta_star"], rel=1e-12)


def test_the_limit_is_no_bound() -> None:
    # Document 001, Figure 1: delta is above its limit at every length tried.
    limit = limit_delta(Noise.LAPLACE, LAPLACE, epsilon=1.0)
    for n in (1, 10**3, 10**6, 10**9, 10**12):
        assert scheduled_delta(FIG_1, LAPLACE, epsilon=1.0, steps=n).delta > limit


def test_below_kappa_one_the_gap_falls_like_that_power_and_from_below() -> None:
    # kappa = 2 L eta / (M D) = 1/2: the claimed rate 1/n is not met.
    run = replace(FIG_1, gradient_bound=2.5)
    assert kappa(run) == pytest.approx(0.5, rel=1e-14)
    few = Schedule(c1=100.0, c2=2.0)
    power, gap = laplace_gap(run, few, epsilon=1.0)
    assert power == pytest.approx(0.5, rel=1e-14)
    assert gap == pytest.approx(-0.1, rel=1e-3)
    limit = limit_delta(Noise.LAPLACE, few, epsilon=1.0)
    for n in (10**9, 10**13):
        off = scheduled_delta(run, few, epsilon=1.0, steps=n).delta - limit
        assert math.sqrt(n) * off == pytest.approx(gap, rel=2e-3)


@pytest.mark.parametrize("bound", [5.0, 10.0])
def test_from_kappa_one_on_the_gap_falls_like_one_over_n(bound: float) -> None:
    run, few = replace(FIG_1, gradient_bound=bound), Schedule(c1=5.0, c2=2.0)
    power, gap = laplace_gap(run, few, epsilon=0.5)
    assert power == 1.0
    limit = limit_delta(Noise.LAPLACE, few, epsilon=0.5)
    off = scheduled_delta(run, few, epsilon=0.5, steps=10**7).delta - limit
    assert 1e7 * off == pytest.approx(gap, rel=1e-4)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_the_gaussian_gap_falls_like_one_over_w(epsilon: float) -> None:
    # W (delta/limit - 1) tends to 1 + epsilon^2/8 where A is near 1, and e^-x near 0.
    run = replace(PAPER, learning_rate=0.5)
    limit = limit_delta(Noise.GAUSSIAN, GAUSSIAN, epsilon=epsilon)
    off = []
    for n in (10**9, 10**15):
        w = 0.25 * scheduled_run(run, GAUSSIAN, steps=n).domain_shift ** 2
        found = scheduled_delta(run, GAUSSIAN, epsilon=epsilon, steps=n).delta
        off.append(abs(w * (found / limit - 1) - (1 + epsilon**2 / 8)))
    assert off[1] < off[0] < 0.4
    assert off[1] < 0.12


@PROPERTY
@given(st.floats(0, 1e4))
def test_lambert_w_solves_its_equation(log_x: float) -> None:
    w = float(lambert_w(np.array([log_x]))[0])
    with mp.workdps(40):
        exact = mp.lambertw(mp.exp(log_x)).real
        assert abs(w / exact - 1) < 1e-14


@pytest.mark.parametrize(
    ("c1", "c2", "named"),
    [(0.0, 2.0, "c1"), (math.inf, 2.0, "c1"), (1.0, 0.99, "c2"), (1.0, math.nan, "c2")],
)
def test_schedules_without_noise_are_refused(c1: float, c2: float, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Schedule(c1=c1, c2=c2)


def test_runs_that_no_schedule_fits_are_refused() -> None:
    with pytest.raises(ValueError, match="diameter is finite"):
        scheduled_run(replace(PLAIN, diameter=math.inf), LAPLACE, steps=5)
    with pytest.raises(ValueError, match="steps lies"):
        scheduled_delta(PLAIN, LAPLACE, epsilon=1.0, steps=0)
    with pytest.raises(ValueError, match="noise_scale"):
        scheduled_run(replace(FIG_1, diameter=1e60, learning_rate=1e-60), LAPLACE, steps=5)


# Noise that falls step by step


@pytest.mark.parametrize("entry", GOLDEN["A.online"], ids=lambda entry: entry["noise"])
def test_online_deltas_are_the_golden_ones(entry: dict[str, Any]) -> None:
    run, tolerance = online_paper(entry["noise"]), entry["tol"]
    own = online_run(run, ONLINE, step=entry["i"])
    assert own.noise_scale == pytest.approx(entry["scale_i"], rel=1e-12)
    alone = step_kernel(run.noise, 1.0, shift=own.record_shift).log_kept
    assert math.exp(alone) == pytest.approx(entry["A_i"], rel=1e-9)
    for row in entry["rows"]:
        found = online_delta(run, ONLINE, epsilon=1.0, steps=row["n"], record=entry["i"])
        assert found.record == entry["i"]
        assert found.delta == pytest.approx(row["delta_n"], rel=tolerance)
        assert found.delta >= row["delta_n"] * (1 - 1e-12)
        assert (found.delta <= entry["delta_star_seed"]) == row["le_seed_star"]
    limit = online_limit(run, ONLINE, epsilon=1.0, record=entry["i"])
    assert limit.upper.record == entry["i"]
    assert limit.upper.delta == pytest.approx(entry["delta_limit_true"], rel=tolerance)
    assert limit.integral == pytest.approx(entry["delta_star_seed"], rel=tolerance)
    assert limit.lower == pytest.approx(entry["delta_lower"], rel=tolerance)
    assert limit.lower < limit.upper.delta < limit.integral


@pytest.mark.parametrize("row", GOLDEN["A.online_by_index"], ids=str)
def test_later_records_are_protected_less(row: dict[str, Any]) -> None:
    run = online_paper(row["noise"])
    limit = online_limit(run, ONLINE, epsilon=1.0, record=row["i"])
    assert limit.integral == pytest.approx(row["delta_star_seed"], rel=row["tol"])


def test_the_newest_record_has_no_protection_by_others() -> None:
    run = online_paper("laplace")
    found = [online_delta(run, ONLINE, epsilon=1.0, steps=n, record=n).delta for n in (1, 10**12)]
    assert found[0] == pytest.approx(GOLDEN["A.online_by_index"][0]["A_i"], rel=1e-9)
    assert found[1] > 0.98  # so that nothing is promised of the data set
    assert all(Assumption.SINGLE_RECORD in one.assumptions for one in online_module.THEOREMS)
    assert all(Assumption.SINGLE_RECORD not in one.assumptions for one in schedules.THEOREMS)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_the_gap_to_the_limit_falls_like_a_power_of_n(noise: str) -> None:
    # Document 001, Appendices E and F, take the rate for 1/log n.
    run, (first, later) = online_paper(noise), (10**9, 10**11)
    limit = online_limit(run, ONLINE, epsilon=1.0, record=100).upper.delta
    gaps = [
        online_delta(run, ONLINE, epsilon=1.0, steps=n, record=100).delta - limit
        for n in (first, later)
    ]
    assert gaps[0] / gaps[1] == pytest.approx(10.0, rel=0.05)  # 100^(alpha-1)
    constant = limit * loss_rate(run.noise, ONLINE.schedule, epsilon=1.0) / (ONLINE.alpha - 1)
    assert gaps[1] * math.sqrt(later) == pytest.approx(constant, rel=0.05)


@pytest.mark.parametrize("alpha", [1.1, 1.2, 1.5, 3.0])
def test_the_laplace_integral_is_its_closed_form(alpha: float) -> None:
    online, run = replace(ONLINE, alpha=alpha), online_paper("laplace")
    c, start = 100 * math.exp(0.5), 101.0

    def part(p: float) -> mp.mpf:
        z = -p * mp.mpf(start) ** -alpha
        series = mp.hyp2f1(1, 1 - 1 / mp.mpf(alpha), 2 - 1 / mp.mpf(alpha), z)
        tail = alpha * p * mp.mpf(start) ** (1 - alpha) / (alpha - 1) * series
        return -start * mp.log1p(-z) + tail

    with mp.workdps(40):
        integral = part(1e4 - c) - part(1e4)
    own = online_run(run, online, step=100)
    alone = step_kernel(run.noise, 1.0, shift=own.record_shift).log_kept
    found = online_limit(run, online, epsilon=1.0, record=100).integral
    assert math.log(found) - alone == pytest.approx(-float(abs(integral)), rel=1e-8)


@pytest.mark.parametrize("noise", Noise)
def test_a_limit_far_in_the_future_is_between_its_integrals(noise: Noise) -> None:
    online = Online(schedule=Schedule(c1=0.01, c2=5.0), alpha=1.05)
    limit = online_limit(online_paper(noise.value), online, epsilon=0.5, record=3)
    assert 0 < limit.lower < limit.upper.delta < limit.integral < 1.1 * limit.lower


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("alpha", [1.05, 1.5, 2.5, 10.0])
@pytest.mark.parametrize("c1", [1.0, 3e4])
def test_sums_of_blocks_are_above_sums_of_steps_by_little(
    noise: str, alpha: float, c1: float
) -> None:
    online = Online(schedule=Schedule(c1=c1, c2=5.0), alpha=alpha)
    last = 400_000
    terms = log_kept_at(Noise(noise), online, 0.5, np.arange(8.0, last + 1))
    exact = math.fsum(terms)
    run = online_paper(noise)
    own = online_run(run, online, step=7)
    alone = step_kernel(run.noise, 0.5, shift=own.record_shift).log_kept
    found = online_delta(run, online, epsilon=0.5, steps=last, record=7).log_delta - alone
    # Where log B is not yet concave a block counts as its last step.
    loose = 1e-4 if c1 > 1 else 3e-7
    assert exact * (1 + 1e-12) - 1e-13 <= found <= exact * (1 - loose)


@pytest.mark.parametrize("noise", Noise)
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 9.0])
@pytest.mark.parametrize("alpha", [1.05, 2.0, 10.0])
@pytest.mark.parametrize("c2", [1.0, 50.0])
def test_the_logarithm_of_what_is_kept_rises_and_is_concave_where_it_is_used_to_be(
    noise: Noise, epsilon: float, alpha: float, c2: float
) -> None:
    online = Online(schedule=Schedule(c1=20.0, c2=c2), alpha=alpha)
    start = max(1.0, online_module._concave_from(noise, online, epsilon))
    with mp.workdps(60):
        for time in (start, 1.3 * start, 7 * start):
            t = mp.mpf(time)
            low, middle, high = (_log_kept(noise, online, epsilon, t * f) for f in (0.9, 1, 1.1))
            assert low <= middle <= high
            if time > start:  # three points around a later time are all in the concave part
                assert low + high <= 2 * middle


def _log_kept(noise: Noise, online: Online, epsilon: float, time: mp.mpf) -> mp.mpf:
    """Log B by its definition."""
    c1, c2 = online.schedule.c1, online.schedule.c2
    n = time**online.alpha
    if noise is Noise.LAPLACE:
        return mp.log1p(-min(mp.mpf("0.999999"), c1 * mp.exp(epsilon / 2) / (n + c1 * c2)))
    r = 2 * mp.sqrt(mp.lambertw(n**2 / (2 * mp.pi * c1**2) + c2).real)
    return mp.log1p(
        -(mp.ncdf(epsilon / r - r / 2) + mp.exp(epsilon) * mp.ncdf(-epsilon / r - r / 2))
    )


@pytest.mark.parametrize("noise", Noise)
def test_blocks_of_steps_that_are_not_concave_yet_count_as_their_last(noise: Noise) -> None:
    # t^alpha stays below C1 C2 up to 4e6: log B is convex in most of this range.
    online = Online(schedule=Schedule(c1=1e65, c2=10.0), alpha=10.0)
    first, last = 2_000_000, 2_600_000
    terms = log_kept_at(noise, online, 0.5, np.arange(first + 1.0, last + 1))
    assert np.all(np.diff(terms[::50_000], 2) > 0)
    found = online_module._later_log_kept(noise, online, 0.5, first, float(last))
    exact = math.fsum(terms)
    assert exact <= found <= exact * (1 - 1e-2)


@pytest.mark.parametrize("noise", Noise)
def test_what_is_kept_is_above_what_the_rounded_noise_keeps(noise: Noise) -> None:
    run = replace(online_paper(noise.value), diameter=0.7)
    rng = np.random.default_rng(8)
    for alpha in (1.5, 4.0, 10.0):
        online = replace(ONLINE, alpha=alpha)
        late = np.geomspace(2, 2.0**53, 20).astype(int)
        for step in (*late.tolist(), *rng.integers(2, 10**6, 20).tolist()):
            scale = online_run(run, online, step=step).noise_scale
            with mp.workdps(500):
                r = mp.mpf(run.diameter) / (mp.mpf(run.learning_rate) * mp.mpf(scale))
                if noise is Noise.LAPLACE:
                    lost = mp.exp((1 - r) / 2)
                else:
                    root = mp.sqrt(2)
                    lost = mp.erfc(-(1 / r - r / 2) / root) + mp.e * mp.erfc((1 / r + r / 2) / root)
                    lost /= 2
                exact = mp.log1p(-lost)
                found = log_kept_at(noise, online, 1.0, np.array([float(step)]))[0]
                assert exact <= found <= exact * (1 - 1e-10)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 9.0, 60.0])
@pytest.mark.parametrize("alpha", [1.05, 2.0, 10.0])
@pytest.mark.parametrize("c2", [1.0, 50.0])
def test_the_time_of_concavity_is_that_of_the_lemma(
    epsilon: float, alpha: float, c2: float
) -> None:
    online = Online(schedule=Schedule(c1=20.0, c2=c2), alpha=alpha)
    start = online_module._concave_from(Noise.GAUSSIAN, online, epsilon)
    crowd = start ** (2 * alpha) / (2 * math.pi * 20.0**2)
    assert crowd >= (2 * alpha - 1) * c2 * (1 - 1e-9)
    w = float(lambert_w(np.log(np.array([crowd + c2])))[0])
    assert w >= max(1.0, epsilon / 2) * (1 - 1e-9)
    laplace = online_module._concave_from(Noise.LAPLACE, online, epsilon)
    assert laplace**alpha == pytest.approx(20 * c2, rel=1e-9)


def test_a_step_that_forgets_all_protects_for_ever() -> None:
    run = online_paper("laplace")
    online = Online(schedule=Schedule(c1=1e4, c2=1.0), alpha=1.5)  # C2 < e^(epsilon/2)
    found = online_delta(run, online, epsilon=1.0, steps=50, record=10)
    assert found.log_delta == -math.inf
    limit = online_limit(run, online, epsilon=1.0, record=10)
    assert (limit.upper.delta, limit.integral, limit.lower) == (0.0, 0.0, 0.0)


def test_an_online_run_of_equal_noise_is_the_plain_one() -> None:
    # The same step twice: A at its noise, B at the next one's.
    run = online_paper("gaussian")
    found = online_delta(run, ONLINE, epsilon=1.0, steps=6, record=5)
    own, after = (online_run(run, ONLINE, step=t) for t in (5, 6))
    one = step_kernel(run.noise, 1.0, shift=own.record_shift).log_kept
    two = step_kernel(run.noise, 1.0, shift=after.domain_shift).log_kept
    assert found.log_delta == pytest.approx(one + two, rel=1e-12)
    assert record_delta(own, epsilon=1.0, steps=6, record=6).log_delta == one


@pytest.mark.parametrize("alpha", [1.0, 1.04, 10.5, math.nan])
def test_exponents_out_of_range_are_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha lies"):
        Online(schedule=LAPLACE, alpha=alpha)


def test_places_out_of_range_are_refused() -> None:
    run = online_paper("laplace")
    with pytest.raises(ValueError, match="record lies"):
        online_delta(run, ONLINE, epsilon=1.0, steps=5, record=6)
    with pytest.raises(ValueError, match="steps lies"):
        online_limit(run, ONLINE, epsilon=1.0, record=0)
    with pytest.raises(ValueError, match="epsilon"):
        online_delta(run, ONLINE, epsilon=-1.0, steps=5, record=5)
