"""Mechanisms as textbooks state them, against their definitions."""

import json
import math
from pathlib import Path

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.gaussian import classical_gaussian_noise, gaussian_delta, gaussian_mu
from accounting.literature.local_dp import coin_response_epsilon, laplace_noise

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "documents_models.json").read_text(encoding="utf-8")
)
PROPERTY = settings(deadline=None, max_examples=40)


@pytest.mark.parametrize("row", GOLDEN["C.gaussian"], ids=lambda row: f"{row['eps']}")
def test_the_classical_noise_is_the_reference_below_one_and_refused_above(
    row: dict[str, float],
) -> None:
    epsilon, delta = row["eps"], row["delta"]
    least = 1 / gaussian_mu(epsilon, delta=delta)
    assert least == pytest.approx(row["sigma_analytic"], rel=1e-9)
    if epsilon < 1:
        found = classical_gaussian_noise(epsilon=epsilon, delta=delta, sensitivity=1.0)
        assert found == pytest.approx(row["sigma_classic"], rel=1e-9)
        assert math.log(gaussian_delta(epsilon, mu=1 / found)) == pytest.approx(
            row["log_delta_true_at_classic"], rel=1e-8
        )
        assert least < found
    else:
        with pytest.raises(ValueError, match=r"epsilon lies in \(0, 1\)"):
            classical_gaussian_noise(epsilon=epsilon, delta=delta, sensitivity=1.0)


@pytest.mark.parametrize(
    ("delta", "failing"), list(GOLDEN["C.gaussian_classic_first_failing_eps"].items())
)
def test_the_classical_formula_fails_from_some_epsilon_on(delta: str, failing: float) -> None:
    level = float(delta)
    factor = math.sqrt(2 * math.log(1.25 / level))
    for epsilon, enough in ((failing * (1 - 1e-6), True), (failing * (1 + 1e-6), False)):
        assert (gaussian_delta(epsilon, mu=epsilon / factor) <= level) is enough


@PROPERTY
@given(epsilon=st.floats(1e-6, 0.999999), delta=st.floats(1e-200, 0.999))
def test_below_one_the_classical_noise_is_enough(epsilon: float, delta: float) -> None:
    sigma = classical_gaussian_noise(epsilon=epsilon, delta=delta, sensitivity=1.0)
    assert gaussian_delta(epsilon, mu=1 / sigma) <= delta
    with mp.workdps(40):
        exact = mp.sqrt(2 * mp.log(mp.mpf("1.25") / mp.mpf(delta))) / mp.mpf(epsilon)
        assert exact <= sigma <= exact * (1 + 1e-13)


@pytest.mark.parametrize(
    ("epsilon", "delta", "moved", "message"),
    [
        (0.0, 0.1, 1.0, "epsilon lies"),
        (1.0, 0.1, 1.0, "epsilon lies"),
        (math.nan, 0.1, 1.0, "epsilon lies"),
        (0.5, 0.0, 1.0, "delta lies"),
        (0.5, 1.0, 1.0, "delta lies"),
        (0.5, 0.1, -1.0, "sensitivity is finite"),
        (0.5, 0.1, math.inf, "sensitivity is finite"),
    ],
)
def test_a_classical_question_out_of_range_is_refused(
    epsilon: float, delta: float, moved: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        classical_gaussian_noise(epsilon=epsilon, delta=delta, sensitivity=moved)


@PROPERTY
@given(epsilon=st.floats(1e-3, 30), moved=st.floats(1e-3, 1e3))
def test_laplace_noise_keeps_every_ratio_of_densities(epsilon: float, moved: float) -> None:
    scale = laplace_noise(epsilon, sensitivity=moved)
    with mp.workdps(40):
        for x in (-1.0, 0.0, moved / 3, moved, 2 * moved):
            ratio = (abs(mp.mpf(x) - mp.mpf(moved)) - abs(mp.mpf(x))) / mp.mpf(scale)
            assert abs(ratio) <= epsilon
        assert mp.mpf(moved) / mp.mpf(scale) >= epsilon * (1 - 1e-15)


@pytest.mark.parametrize(
    ("epsilon", "moved"), [(0.0, 1.0), (math.inf, 1.0), (1.0, -1.0), (1.0, math.nan)]
)
def test_laplace_noise_out_of_range_is_refused(epsilon: float, moved: float) -> None:
    with pytest.raises(ValueError, match="epsilon is positive and finite"):
        laplace_noise(epsilon, sensitivity=moved)


@PROPERTY
@given(heads=st.floats(1e-15, 0.999999))
def test_a_coin_loses_the_logarithm_of_its_ratio(heads: float) -> None:
    found = coin_response_epsilon(heads=heads)
    with mp.workdps(40):
        truth = mp.mpf(heads) + (1 - mp.mpf(heads)) / 2
        exact = mp.log(truth / (1 - truth))
        assert exact <= found <= exact * (1 + 1e-13)


def test_two_fair_coins_lose_log_three() -> None:
    assert coin_response_epsilon(heads=0.5) == pytest.approx(math.log(3), rel=1e-14)
    assert coin_response_epsilon(heads=0.5) >= math.log(3)
    assert coin_response_epsilon(heads=1.0) == math.inf
    assert coin_response_epsilon(heads=0.0) < 1e-300


@pytest.mark.parametrize("heads", [-0.1, 1.1, math.nan])
def test_what_is_no_coin_is_refused(heads: float) -> None:
    with pytest.raises(ValueError, match=r"heads lies in \[0, 1\]"):
        coin_response_epsilon(heads=heads)
