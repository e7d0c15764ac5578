"""The kernels of one noisy step, against their definitions at many digits."""

import json
import math
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from accounting.literature.contraction.kernels import (
    Kernel,
    Noise,
    log_gaussian_lost,
    log_mean_power,
    step_kernel,
)

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "documents_contraction.json").read_text()
)
PROPERTY = settings(deadline=None, max_examples=120)


def gaussian_logs(epsilon: float, shift: float) -> tuple[mp.mpf, mp.mpf]:
    """Log theta and log(1 - theta) as defined; erfc keeps its digits in the tails."""
    e, r, root = mp.mpf(epsilon), mp.mpf(shift), mp.sqrt(2)
    a, b = (e / r - r / 2) / root, (e / r + r / 2) / root
    other = mp.exp(e) * mp.erfc(b)
    theta, rest = (mp.erfc(a) - other) / 2, (mp.erfc(-a) + other) / 2
    if theta < rest:  # the smaller of the two has all its digits
        return mp.log(theta), mp.log1p(-theta)
    return mp.log1p(-rest), mp.log(rest)


def laplace_logs(epsilon: float, shift: float) -> tuple[mp.mpf, mp.mpf]:
    exponent = (mp.mpf(epsilon) - mp.mpf(shift)) / 2
    return mp.log(-mp.expm1(exponent)), exponent


def assert_close_above(found: Kernel, kept: mp.mpf, lost: mp.mpf, relative: float) -> None:
    """On the safe side of both logarithms, by a small share of each."""
    assert kept <= found.log_kept <= kept * (1 - relative) + relative
    assert lost * (1 + relative) - relative <= found.log_lost <= lost


@pytest.mark.parametrize("row", GOLDEN["A.theta"], ids=str)
def test_gaussian_kernels_are_the_golden_ones(row: dict[str, float]) -> None:
    found = step_kernel(Noise.GAUSSIAN, row["eps"], shift=row["r"])
    assert found.log_kept == pytest.approx(row["log_theta"], rel=1e-12)
    assert found.log_lost == pytest.approx(row["log_one_minus_theta"], rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("row", GOLDEN["A.laplace_E"], ids=str)
def test_laplace_kernels_are_the_golden_ones(row: dict[str, float]) -> None:
    found = step_kernel(Noise.LAPLACE, row["eps"], shift=row["shift_over_scale"])
    assert math.exp(found.log_kept) == pytest.approx(row["E"], rel=1e-12)
    assert found.log_lost == pytest.approx(math.log1p(-row["E"]), rel=1e-12)


@PROPERTY
@given(epsilon=st.floats(0, 60), log_shift=st.floats(-5, 5))
@example(epsilon=1.0, log_shift=math.log(0.02))
@example(epsilon=0.0, log_shift=math.log(18))
def test_gaussian_kernels_are_above_their_definition_by_roundoffs(
    epsilon: float, log_shift: float
) -> None:
    shift = math.exp(log_shift)
    epsilon *= min(1.0, shift)  # the far tails have a test of their own
    with mp.workdps(80 + int(epsilon + shift)):
        kept, lost = gaussian_logs(epsilon, shift)
        found = step_kernel(Noise.GAUSSIAN, epsilon, shift=shift)
        assert_close_above(found, kept, lost, 1e-12)


@pytest.mark.parametrize(("epsilon", "shift"), [(1.0, 0.0267), (3.0, 0.08), (20.0, 0.53)])
def test_deltas_of_1e_300_and_far_below_are_right(epsilon: float, shift: float) -> None:
    with mp.workdps(60):
        kept, _ = gaussian_logs(epsilon, shift)
        assert kept < -690
        found = step_kernel(Noise.GAUSSIAN, epsilon, shift=shift).log_kept
        assert kept <= found <= kept * (1 - 1e-13)


@PROPERTY
@given(epsilon=st.floats(0, 30), over=st.floats(1e-9, 60))
def test_laplace_kernels_are_above_their_definition_by_roundoffs(
    epsilon: float, over: float
) -> None:
    shift = epsilon + over
    found = step_kernel(Noise.LAPLACE, epsilon, shift=shift)
    if not shift > epsilon:
        assert found == Kernel(-math.inf, 0.0)
        return
    with mp.workdps(60):
        assert_close_above(found, *laplace_logs(epsilon, shift), 1e-12)


@pytest.mark.parametrize("noise", Noise)
def test_without_a_shift_nothing_is_kept_and_beyond_all_doubles_everything(noise: Noise) -> None:
    assert step_kernel(noise, 1.0, shift=0.0) == Kernel(-math.inf, 0.0)
    for shift in (1e160, math.inf):
        kernel = step_kernel(noise, 1.0, shift=shift)
        assert kernel.log_kept == 0
        assert kernel.log_lost < -1e100


def test_a_tiny_shift_is_rounded_up() -> None:
    kernel = step_kernel(Noise.GAUSSIAN, 0.0, shift=1e-310)
    assert math.exp(kernel.log_kept) == pytest.approx(1e-300 / math.sqrt(2 * math.pi), rel=1e-9)
    assert step_kernel(Noise.GAUSSIAN, 1.0, shift=1e-310).log_kept == -math.inf


@pytest.mark.parametrize(
    ("epsilon", "shift"),
    [(-1.0, 1.0), (math.nan, 1.0), (math.inf, 1.0), (1.0, -1.0), (1.0, math.nan)],
)
def test_kernels_out_of_range_are_refused(epsilon: float, shift: float) -> None:
    with pytest.raises(ValueError, match="epsilon lies in"):
        step_kernel(Noise.GAUSSIAN, epsilon, shift=shift)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 5.0])
def test_what_many_steps_lose_is_what_each_loses(epsilon: float) -> None:
    shifts = np.geomspace(0.05, 60, 200)
    found = log_gaussian_lost(epsilon, shifts=shifts)
    with mp.workdps(80):
        for shift, value in zip(shifts, found, strict=True):
            lost = gaussian_logs(epsilon, float(shift))[1]
            assert lost * (1 + 1e-12) - 1e-11 <= value <= lost


# The mean of powers


@pytest.mark.parametrize("row", GOLDEN["A.log_geom_mean"], ids=str)
def test_mean_powers_are_the_golden_ones(row: dict[str, float]) -> None:
    found = log_mean_power(row["log_one_minus_B"], int(row["n"]))
    assert math.exp(found) == pytest.approx(math.exp(row["value"]), rel=1e-9)


@PROPERTY
@given(log_lost=st.floats(-800, 0), log_count=st.floats(0, 36))
@example(log_lost=0.0, log_count=math.log(7))
@example(log_lost=math.log(1e-16), log_count=math.log(1e9))
@example(log_lost=math.log(1e-6), log_count=math.log(9))
@example(log_lost=math.log(1e-6), log_count=math.log(11))
@example(log_lost=-1e-20, log_count=math.log(1e9))
@example(log_lost=-0.1, log_count=0.0)
@example(log_lost=-728.5, log_count=0.8)
@example(log_lost=-735.0, log_count=7.0)
@example(log_lost=-691.0, log_count=30.0)
def test_mean_powers_are_above_their_definition_by_roundoffs(
    log_lost: float, log_count: float
) -> None:
    count = round(math.exp(log_count))
    found = log_mean_power(log_lost, count)
    with mp.workdps(800):
        lost = mp.exp(mp.mpf(log_lost))
        # (1 - q)^n at more digits than q is small.
        exact = mp.log(-mp.expm1(count * mp.log1p(-lost)) / (count * lost)) if lost < 1 else None
        exact = -mp.log(count) if exact is None else exact
        assert exact - mp.mpf(10) ** -390 <= found
        assert found <= exact + 1e-12 * (1 + abs(exact) + abs(log_lost))
        if count * lost < 1e-6:
            assert found <= exact * (1 - 1e-9) + mp.mpf("1e-300")


def test_mean_powers_of_little_loss_are_rounded_up() -> None:
    rng = np.random.default_rng(3)
    with mp.workdps(60):
        for _ in range(300):
            count = int(rng.integers(3, 1000))
            log_lost = float(rng.uniform(-60, -11.6)) - math.log(count)
            lost = mp.exp(mp.mpf(log_lost))
            exact = mp.log(-mp.expm1(count * mp.log1p(-lost)) / (count * lost))
            assert exact <= log_mean_power(log_lost, count) <= exact * (1 - 1e-9)


def test_a_mean_of_nothing_lost_is_one() -> None:
    assert log_mean_power(-math.inf, 10**9) == 0.0


@pytest.mark.parametrize("log_lost", [-1e-3, -1.0, -20.0, -40.0, -200.0])
def test_a_mean_falls_in_its_count(log_lost: float) -> None:
    means = [log_mean_power(log_lost, count) for count in (1, 2, 3, 10, 10**3, 10**9, 10**15)]
    assert means == sorted(means, reverse=True)
    assert means[0] <= 0
