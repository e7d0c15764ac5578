"""What is known against quarantined statements on descent, computed without them."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import integrate

from tests.accounting.quarantined import against, golden, said

# Affine gradients


def test_noise_on_the_gradient_is_scaled_by_the_learning_rate() -> None:
    printed = said(
        "affine-gradients-as-printed", curvatures=[0.8], learning_rate=0.3, noise_std=1.5
    )
    assert printed == pytest.approx(2.25)
    assert pytest.approx(0.2025) == (0.3 * 1.5) ** 2  # the variance of -gamma times the noise


def feedback_weights(curvatures: list[float], rate: float) -> list[float]:
    """What each noise eta_1, .., eta_t weighs in the last iterate, step by step."""
    weights: list[float] = []
    for curvature in curvatures:
        weights = [(1 - rate * curvature) * weight for weight in weights]
        if weights:
            weights[-1] += 1.0  # the last step's noise is given back
        weights.append(-1.0)
    return weights


@pytest.mark.parametrize(
    ("curvatures", "exact", "printed"),
    [([0.8, 0.8], 2.3796, 0.40891392), ([0.8], 2.25, 0.2592), ([0.8, 0.2, 2.0], None, None)],
)
def test_noise_feedback_never_falls_below_its_own_noise(
    curvatures: list[float], exact: float | None, printed: float | None
) -> None:
    variance = 1.5**2 * math.fsum(w * w for w in feedback_weights(curvatures, 0.3))
    recursion = 1.5**2  # the corrected one: V_1 = s^2, V+ = 2 gamma s^2 a + (1 - gamma a)^2 V
    for curvature in curvatures[1:]:
        recursion = 2 * 0.3 * 1.5**2 * curvature + (1 - 0.3 * curvature) ** 2 * recursion
    claimed = said(
        "noise-feedback-as-printed", curvatures=curvatures, learning_rate=0.3, noise_std=1.5
    )
    assert variance == pytest.approx(recursion, rel=1e-12)
    assert variance >= 1.5**2 * (1 - 1e-12)
    assert claimed < 1.5**2
    if exact and printed:
        assert (variance, claimed) == pytest.approx((exact, printed))


# Steps


def clipped(gradient: Any) -> Any:
    return gradient / max(1.0, float(np.linalg.norm(gradient)))


def test_a_clipped_step_on_a_convex_loss_moves_points_apart() -> None:
    # f(x) = x_1^2/2 + l.x: one curvature is 1, the other 0. At u the gradient is 1.0001 times
    # (sqrt 2, 1)/sqrt 3, just outside the norm bound.
    gradient = 1.0001 * np.array([math.sqrt(2), 1.0]) / math.sqrt(3)
    u = np.array([0.3, -0.2])
    linear = gradient - np.array([u[0], 0.0])

    def step(x: Any) -> Any:
        return x - clipped(np.array([x[0], 0.0]) + linear)

    ratios = []
    for angle in np.linspace(0, math.pi, 721):
        moved = 1e-5 * np.array([math.cos(angle), math.sin(angle)])
        ratios.append(float(np.linalg.norm(step(u + moved) - step(u)) / 1e-5))
    claimed = said(
        "proximal-step-with-clipping", learning_rate=1.0, weak_convexity=0.0, smoothness=1.0
    )
    assert claimed == 1.0
    assert max(ratios) == pytest.approx(2 / math.sqrt(3), abs=2e-4)
    assert f"{2 / math.sqrt(3):.4f}" in against("proximal-step-with-clipping")


def test_a_long_step_doubles_distances() -> None:
    claimed = said(
        "contraction-without-step-condition",
        learning_rate=3.0, smoothness=1.0, strong_convexity=0.0,
    )  # fmt: skip
    assert claimed == 1.0
    assert abs((1 - 3 * 1.0) - (0 - 3 * 0.0)) == 2  # the images of 1 and 0 on x^2/2


def exact_sum(n: int, lipschitz: float) -> float:
    """Sum over i = 1 .. n of (1 - C^-2)/(1 - C^-2i), the inverse of 1 + C^-2 + .. ."""
    inverse = np.cumsum(np.power(lipschitz, -2.0 * np.arange(n)))
    return math.fsum(1 / inverse)


@pytest.mark.parametrize(("n", "times"), [(1000, 1.25), (10**5, 1.15), (10**6, 1.13)])
def test_the_rate_of_small_steps_is_below_the_sum_it_stands_for(n: int, times: float) -> None:
    claimed = said("small-step-rate", noise_multiplier=2.0, order=2.0, dataset_size=n)
    needed = 4 * 2 / (4 * n) * exact_sum(n, 1 + 1 / n)
    assert needed / claimed == pytest.approx(times, abs=5e-3)
    assert exact_sum(n, 1 + 1 / n) - math.log(n) == pytest.approx(1.739, abs=0.01)


def test_the_rate_of_larger_steps_has_a_logarithm_too_many_and_is_too_small_at_first() -> None:
    for n in range(2, 40):
        claimed = said("small-step-rate-root", noise_multiplier=2.0, order=2.0, dataset_size=n)
        needed = 4 * 2 / (4 * n) * exact_sum(n, 1 + 1 / math.sqrt(n))
        assert (claimed < needed) == (n <= 4)
    assert exact_sum(10**6, 1 + 1e-3) / 1e3 == pytest.approx(2, rel=5e-3)


@pytest.mark.parametrize("row", golden("C.prop31"), ids=lambda row: str(row["n"]))
def test_the_sums_are_those_of_another_implementation(row: Any) -> None:
    factor = 4 * row["alpha"] * row["L_over_sigma"] ** 2 / row["n"]
    assert factor * exact_sum(row["n"], row["C"]) == pytest.approx(row["value"], rel=1e-9)


def test_an_epoch_of_one_step_is_not_free() -> None:
    for bound in ("small-step-rate", "small-step-rate-root"):
        assert said(bound, noise_multiplier=2.0, order=2.0, dataset_size=1) == 0  # true: 1


# Schedules

GROWTH = 100 * math.exp(0.5)  # C1 e^(epsilon/2) of document 001's Appendix G, online
SHIFT = 100.0 * 100.0  # C1 C2


def online_deltas(counts: list[int]) -> tuple[list[float], float]:
    """Delta of record 100 after some numbers of records, and its limit; Laplace, exponent 1.5."""
    most = 4 * 10**6
    first = 1 - math.exp(0.5) * (100**1.5 / 100 + 100) ** -0.2
    t = np.arange(101, most + 1, dtype=np.float64)
    logs = np.cumsum(np.log1p(-GROWTH / (t**1.5 + SHIFT)))
    found = [first * math.exp(logs[count - 101]) for count in counts]
    # The rest of the sum is that of -c t^-1.5, to a relative error of 1e-5: an integral.
    rest, _ = integrate.quad(
        lambda u: -GROWTH * 2 / (1 + SHIFT * u**3), 0, (most + 0.5) ** -0.5, epsrel=1e-12
    )
    return found, first * math.exp(logs[-1] + rest)


def test_the_online_limit_is_no_bound_and_its_rate_no_logarithm() -> None:
    counts = [10_000, 100_000, 1_000_000]
    deltas, limit = online_deltas(counts)
    stated = said(
        "online-limit-as-bound",
        epsilon=1.0, step_sensitivity=0.2, exponent=1.5, constant=100.0, offset=100.0, record=100,
    )  # fmt: skip
    assert stated == pytest.approx(1.5587524304018856e-08, rel=1e-9)
    assert limit == pytest.approx(1.5470401313177387e-08, rel=1e-6)
    assert deltas[0] == pytest.approx(4.15e-7, rel=1e-3)
    assert all(delta > stated > limit for delta in deltas)
    fallen = (deltas[2] - limit) / (deltas[1] - limit)
    claimed = said("online-rate-as-printed", start=1e5, end=1e6)
    assert fallen == pytest.approx(0.213, abs=5e-4)
    assert claimed == pytest.approx(0.833, abs=5e-4)


def test_the_online_limit_bounds_no_late_record() -> None:
    late = [
        said(
            "online-limit-as-bound",
            epsilon=1.0, step_sensitivity=0.2, exponent=1.5, constant=100.0, offset=100.0,
            record=record,
        )
        for record in (1, 100, 10_000, 10**6, 10**9)
    ]  # fmt: skip
    assert late == sorted(late)
    assert late[2] == pytest.approx(0.0276, abs=5e-5)
    assert late[-1] > 0.9


def laplace_gap(n: float, kappa: float) -> float:
    """delta(n) - delta* of Theorem 4 with C1 = 100, C2 = 2 and epsilon = 1."""
    x = 100 * math.exp(0.5)
    first = 1 - math.exp(0.5) * (n / 100 + 2) ** -kappa
    apart = x / (n + 200)
    found: float = first * -math.expm1(n * math.log1p(-apart)) / (n * apart)
    return found + math.expm1(-x) / x


@pytest.mark.parametrize(("kappa", "fallen"), [(0.5, 0.1), (1.0, 0.01), (2.0, 0.01)])
def test_the_laplace_schedule_converges_at_its_rate_from_kappa_one_on(
    kappa: float, fallen: float
) -> None:
    ratio = laplace_gap(1e9, kappa) / laplace_gap(1e7, kappa)
    assert ratio == pytest.approx(fallen, rel=0.02)
    assert said("laplace-schedule-rate", start=1e7, end=1e9) == pytest.approx(0.01)
    if kappa < 1:
        # n^kappa gap tends to -delta* e^(epsilon/2) C1^kappa, with delta* = 1/(C1 e^(epsilon/2)).
        assert laplace_gap(1e9, 0.5) * 1e9**0.5 == pytest.approx(-0.1, rel=1e-3)


def test_the_shuffled_bound_is_never_below_that_of_a_random_stop() -> None:
    b, n = 0.9, 10
    shuffled = math.fsum(b ** (n - j) for j in range(1, n + 1)) / n
    stopped = [math.fsum(b ** (t - i) for t in range(i, n + 1)) / n for i in range(1, n + 1)]
    ratios = [shuffled / one for one in stopped]
    assert ratios[0] == pytest.approx(1, rel=1e-12)
    assert all(ratio > 1 for ratio in ratios[1:])
    assert ratios[-1] == pytest.approx(6.5, abs=0.02)
    claimed = said("shuffled-below-random-stop", contraction=b, dataset_size=n)
    assert claimed == pytest.approx(shuffled * n * (1 - b))  # against 1/(n (1-B)), which is coarse
    assert claimed < 1
