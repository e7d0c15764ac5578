"""Document 001: a test for each row."""

import math

import mpmath as mp
import numpy as np
import pytest

from accounting.gaussian import gaussian_delta
from accounting.literature.contraction.contraction import (
    random_stop_coarse_delta,
    random_stop_delta,
    record_delta,
    run_kernels,
    shuffled_delta,
)
from accounting.literature.contraction.inversion import least_epsilon, least_noise
from accounting.literature.contraction.kernels import Noise, step_kernel
from accounting.literature.contraction.online import Online, online_delta, online_limit
from accounting.literature.contraction.passes import gdp_needed, one_order_epsilon, passes_epsilon
from accounting.literature.contraction.schedules import (
    Schedule,
    kappa,
    laplace_gap,
    limit_delta,
    scheduled_delta,
    scheduled_run,
)
from service.cli.figures.document_001 import (
    figure_1,
    figure_2,
    figure_3,
    figure_4,
    lengths,
    online_constant,
    shuffled,
)
from service.cli.figures.figure import Figure, FigureKind
from tests.accounting.quarantined import said
from tests.rows.runs import projected

ONLINE = Online(schedule=Schedule(c1=100.0, c2=100.0), alpha=1.5)  # Appendix G


def kept(noise: Noise, epsilon: float, shift: float) -> float:
    return math.exp(step_kernel(noise, epsilon, shift=shift).log_kept)


def test_row_001_egamma__a_kernel_contracts_by_what_it_leaves_of_two_points() -> None:
    assert kept(Noise.GAUSSIAN, 1.0, 2.0) == pytest.approx(gaussian_delta(1.0, mu=2.0))
    assert kept(Noise.LAPLACE, 1.0, 2.0) == pytest.approx(-math.expm1((1 - 2) / 2))
    draws = np.random.default_rng(3)
    for _ in range(50):
        kernel, p, q = draws.dirichlet(np.ones(4), 5), *draws.dirichlet(np.ones(5), 2)
        for gamma in (1.0, 1.3, 2.0):
            after = np.maximum(p @ kernel - gamma * (q @ kernel), 0).sum()
            rows = kernel[:, None, :] - gamma * kernel[None, :, :]
            most = np.maximum(rows, 0).sum(axis=2).max()
            assert after <= most * np.maximum(p - gamma * q, 0).sum() + 1e-12


def test_row_001_pnsgd__facts_that_contradict_each_other_are_refused() -> None:
    assert projected().record_shift == pytest.approx(2.0)
    assert projected().domain_shift == pytest.approx(10.0)  # D / (eta sigma)
    with pytest.raises(ValueError, match="learning_rate"):
        projected(learning_rate=4.01)
    with pytest.raises(ValueError, match="gradient_bound"):
        projected(convexity=0.5, gradient_bound=0.2)
    with pytest.raises(ValueError, match="dimension"):
        projected(noise=Noise.LAPLACE, dimension=2)


@pytest.mark.parametrize("dimension", [1, 10])
def test_row_001_t1g__a_record_is_forgotten_at_a_geometric_rate(dimension: int) -> None:
    run = projected(noise_scale=5.0, dimension=dimension)
    with mp.workdps(40):
        a, b = (
            mp.ncdf(mp.mpf(r) / 2 - 1 / mp.mpf(r)) - mp.e * mp.ncdf(-mp.mpf(r) / 2 - 1 / mp.mpf(r))
            for r in (mp.mpf(2) / 5, mp.mpf(1) / (mp.mpf("0.1") * 5))
        )
        exact = [float(a * b ** (5 - record)) for record in range(1, 6)]
    found = [record_delta(run, epsilon=1.0, steps=5, record=i).delta for i in range(1, 6)]
    assert found == pytest.approx(exact, rel=1e-9)
    assert all(one >= other for one, other in zip(found, exact, strict=True))
    # Without its condition on the step, the factor may be too small.
    assert said(
        "contraction-without-step-condition",
        learning_rate=3.0, smoothness=1.0, strong_convexity=0.0,
    ) < abs(1 - 3 * 1.0)  # fmt: skip


def test_row_001_t1l__so_it_is_with_laplace_noise_in_one_dimension() -> None:
    run = projected(noise=Noise.LAPLACE, noise_scale=0.5)
    a, b = -math.expm1(0.5 - 1 / 0.5), -math.expm1(0.5 - 1 / (2 * 0.1 * 0.5))
    for record in range(1, 6):
        found = record_delta(run, epsilon=1.0, steps=5, record=record).delta
        assert found == pytest.approx(a * b ** (5 - record), rel=1e-9)


def test_row_001_rs__a_random_stop_is_worst_for_the_first_record_and_the_same_as_shuffling() -> (
    None
):
    run = projected(noise_scale=5.0)
    first = random_stop_delta(run, epsilon=1.0, steps=20, record=1)
    assert first.log_delta == pytest.approx(shuffled_delta(run, epsilon=1.0, steps=20).log_delta)
    assert first.log_delta <= random_stop_coarse_delta(run, epsilon=1.0, steps=20).log_delta
    later = [random_stop_delta(run, epsilon=1.0, steps=20, record=i).delta for i in range(1, 21)]
    assert later == sorted(later, reverse=True)


def test_row_001_t2__shuffled_delta_is_the_mean_over_places_and_never_below_the_last() -> None:
    run = projected(noise_scale=5.0)
    places = [record_delta(run, epsilon=1.0, steps=9, record=i).delta for i in range(1, 10)]
    found = shuffled_delta(run, epsilon=1.0, steps=9).delta
    assert found == pytest.approx(math.fsum(places) / 9, rel=1e-9)
    assert places[-1] / 9 < found < places[-1]


def test_row_001_cmp__shuffling_is_never_strictly_better_than_the_refined_random_stop() -> None:
    run = projected(noise_scale=5.0)
    shuffled = shuffled_delta(run, epsilon=1.0, steps=20).delta
    for record in range(1, 21):
        stopped = random_stop_delta(run, epsilon=1.0, steps=20, record=record).delta
        assert stopped <= shuffled * (1 + 1e-9)
    assert said("shuffled-below-random-stop", contraction=0.9, dataset_size=20) < 1


def test_row_001_r3__passes_compose_by_their_profile_and_not_by_one_point() -> None:
    run = projected(noise_scale=2.0, learning_rate=0.5)  # 2 L / sigma = D / (eta sigma) = 1
    fresh = [passes_epsilon(run, steps=1000, passes=e, delta=1e-5) for e in (1, 10)]
    assert fresh == pytest.approx([2.3218, 3.1846], rel=5e-3)
    one_order = one_order_epsilon(run, steps=20, passes=2, delta=1e-5)
    assert one_order > passes_epsilon(run, steps=20, passes=2, delta=1e-5)
    # As a Gaussian, a pass has no amplification: the mu needed tends to 2 L / sigma.
    far = shuffled_delta(run, epsilon=200.0, steps=1000).log_delta
    assert 0.9 < gdp_needed(epsilon=200.0, log_delta=far) <= 1
    near = least_epsilon(lambda e: shuffled_delta(run, epsilon=e, steps=1000), delta=1e-5)
    assert said("single-point-gdp", epsilon=near, delta=1e-5) < 0.9


def test_row_001_t4__the_laplace_schedule_meets_its_limit_like_one_over_n_from_kappa_one() -> None:
    schedule = Schedule(c1=1e5, c2=2.0)  # Appendix G, Figure 1: kappa = 2 L eta = 2
    run = projected(noise=Noise.LAPLACE, gradient_bound=10.0)
    limit = limit_delta(Noise.LAPLACE, schedule, epsilon=1.0)
    assert limit == pytest.approx(6.065307e-6, rel=1e-6)
    deltas = {n: scheduled_delta(run, schedule, epsilon=1.0, steps=n).delta for n in (10**4, 10**8)}
    assert deltas[10**4] == pytest.approx(7.97524e-5, rel=1e-5)
    assert 1e8 * (deltas[10**8] - limit) == pytest.approx(1.21206, rel=1e-3)
    assert laplace_gap(run, schedule, epsilon=1.0) == pytest.approx((1.0, 1.21306), rel=1e-5)
    slow = projected(noise=Noise.LAPLACE, gradient_bound=2.5)  # kappa 0.5
    assert kappa(slow) == pytest.approx(0.5)
    power, constant = laplace_gap(slow, Schedule(c1=100.0, c2=2.0), epsilon=1.0)
    assert (power, constant) == pytest.approx((0.5, -0.1), rel=1e-3)


def test_row_001_l8__little_noise_loses_as_the_expansion_says() -> None:
    errors = []
    for shift in (20.0, 40.0):
        lost = step_kernel(Noise.GAUSSIAN, 1.0, shift=shift).log_lost
        expanded = 0.5 - shift**2 / 8 + math.log(4 / shift) - 0.5 * math.log(2 * math.pi)
        errors.append(abs(lost - expanded))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)  # of order 1/shift^2
    assert errors[0] < 0.02


def test_row_001_t5__the_gaussian_schedule_meets_its_limit_like_one_over_log_n() -> None:
    appendix = Schedule(c1=1e5, c2=100.0)  # Appendix G, Figure 2
    assert limit_delta(Noise.GAUSSIAN, appendix, epsilon=1.0) == pytest.approx(3.032653e-6)
    run, schedule = projected(gradient_bound=10.0), Schedule(c1=100.0, c2=1.0)
    limit = limit_delta(Noise.GAUSSIAN, schedule, epsilon=1.0)
    left = []
    for n in (10**11, 10**15):
        delta = scheduled_delta(run, schedule, epsilon=1.0, steps=n).delta
        with mp.workdps(30):
            w = float(mp.lambertw(mp.mpf(n) ** 2 / (2 * mp.pi * 10**4) + 1))
        # W (delta/delta* - 1) tends to 1 + epsilon^2/8, itself like 1/W; and W grows like 2 log n.
        left.append(w * (1.125 - w * (delta / limit - 1)))
    assert left == pytest.approx([1.9, 1.9], abs=0.1)


def online_gap(noise: Noise, steps: int) -> tuple[float, float, float]:
    """(delta, its limit, the document's delta*) of record 100 in Appendix G's online setting."""
    run = projected(noise=noise, learning_rate=0.01, gradient_bound=10.0)
    limit = online_limit(run, ONLINE, epsilon=1.0, record=100)
    delta = online_delta(run, ONLINE, epsilon=1.0, steps=steps, record=100).delta
    return delta, limit.upper.delta, limit.integral


def test_row_001_t6__the_online_limit_is_below_delta_star_and_delta_above_both() -> None:
    delta, limit, star = online_gap(Noise.LAPLACE, 10**6)
    assert limit == pytest.approx(1.54704e-8, rel=1e-3)
    assert star == pytest.approx(1.55875e-8, rel=1e-5)
    assert limit < star < delta
    stated = said(
        "online-limit-as-bound",
        epsilon=1.0, step_sensitivity=0.2, exponent=1.5, constant=100.0, offset=100.0, record=100,
    )  # fmt: skip
    assert stated == pytest.approx(star, rel=1e-6)


def test_row_001_t7__so_it_is_with_gaussian_noise() -> None:
    delta, limit, star = online_gap(Noise.GAUSSIAN, 10**6)
    assert limit == pytest.approx(2.85617e-23, rel=1e-3)
    assert star == pytest.approx(3.00804e-23, rel=1e-4)
    assert limit < star < delta


def test_row_001_rate__the_online_delta_meets_its_limit_like_a_power_of_n() -> None:
    gaps = []
    for steps in (10**6, 10**8):
        delta, limit, _ = online_gap(Noise.LAPLACE, steps)
        gaps.append(delta - limit)
    assert gaps[1] / gaps[0] == pytest.approx(0.1, rel=0.2)
    assert said("online-rate-as-printed", start=1e6, end=1e8) == pytest.approx(0.75)


def test_row_001_g__appendix_g_can_be_declared() -> None:
    run = projected(noise=Noise.LAPLACE, gradient_bound=10.0)
    assert run.lipschitz_constant == 1
    scheduled = scheduled_run(run, Schedule(c1=1e5, c2=2.0), steps=10**6)
    assert scheduled.noise_scale == pytest.approx(1 / (0.2 * math.log(12)))
    needed = least_noise(lambda one: shuffled_delta(one, epsilon=1.0, steps=1000), run, delta=1e-3)
    assert shuffled_delta(
        projected(noise=Noise.LAPLACE, gradient_bound=10.0, noise_scale=needed),
        epsilon=1.0, steps=1000,
    ).delta <= 1e-3 * (1 + 1e-9)  # fmt: skip
    assert run_kernels(scheduled, 1.0)[1].log_lost == pytest.approx(math.log(math.exp(0.5) / 12))


def curves(figure: Figure, panel: int, kind: FigureKind) -> list[list[float]]:
    """The values of a panel's curves of a kind, each from left to right."""
    return [
        [y for _, y in curve.points] for curve in figure.panels[panel].curves if curve.kind is kind
    ]


def test_row_001_f1__the_laplace_schedule_falls_towards_its_limit() -> None:
    figure = figure_1()
    (deltas,), (limit,) = (curves(figure, 0, kind) for kind in (FigureKind.BOUND, FigureKind.LIMIT))
    assert all(delta > limit[0] for delta in deltas)
    assert shuffled(Noise.LAPLACE, 0.1, [10**4, 10**7]) == pytest.approx(
        [7.97524e-5, 6.18563e-6], rel=1e-5
    )
    (scaled,), (constant,) = (
        curves(figure, 1, kind) for kind in (FigureKind.DIFFERENCE, FigureKind.LIMIT)
    )
    assert scaled[-1] == pytest.approx(constant[0], rel=1e-3)
    assert constant[0] == pytest.approx(1.21306, rel=1e-5)
    (online,), (star,) = (
        curves(figure, 2, kind) for kind in (FigureKind.BOUND, FigureKind.DOCUMENT)
    )
    assert online[8] > star[0] > online[-1]  # a bound of the limit, and of no run before it


def test_row_001_f2__the_gaussian_schedule_falls_towards_its_limit() -> None:
    found = shuffled(Noise.GAUSSIAN, 0.1, [10**4, 10**6, 10**9])
    assert found == pytest.approx([9.46773e-4, 1.01405e-5, 3.25233e-6], rel=1e-5)
    (deltas,), (limit,) = (
        curves(figure_2(), 0, kind) for kind in (FigureKind.BOUND, FigureKind.LIMIT)
    )
    assert min(deltas) > limit[0]


def test_row_001_f3__small_steps_meet_the_limit_from_below() -> None:
    for rate, expected in (
        (0.02, [2.92904e-4, 3.23651e-6, 2.55343e-6]),
        (0.01, [4.39927e-5, 5.02140e-7, 1.03407e-6]),
    ):
        found = shuffled(Noise.GAUSSIAN, rate, [10**4, 10**6, 10**9])
        assert found == pytest.approx(expected, rel=1e-5)
    one, other = curves(figure_3(), 0, FigureKind.BOUND)
    (limit,) = curves(figure_3(), 0, FigureKind.LIMIT)
    assert min(one) < limit[0] < max(one)
    assert min(other) < limit[0] < max(other)


def test_row_001_f4__the_rate_is_a_power_and_the_logarithm_is_labelled_as_the_documents() -> None:
    figure, last = figure_4(), lengths(2, 12)[-1]
    for panel, noise in enumerate((Noise.LAPLACE, Noise.GAUSSIAN)):
        distance = curves(figure, panel, FigureKind.DIFFERENCE)[0]
        assert distance[-1] * last**0.5 == pytest.approx(online_constant(noise), rel=0.05)
        (claimed,) = curves(figure, panel, FigureKind.DOCUMENT)
        assert claimed[-1] > 100 * distance[-1]
