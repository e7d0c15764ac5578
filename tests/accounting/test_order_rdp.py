import json
import math
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.literature.contraction.order_rdp import (
    almost_convex_rdp,
    place_rdps,
    small_rate_rdp,
    softmax_rdp,
)
from accounting.rounding import Array

GOLDEN = Path(__file__).parents[1] / "golden"


def golden(file: str, name: str) -> list[dict[str, float]]:
    found: list[dict[str, float]] = json.loads((GOLDEN / file).read_text(encoding="utf-8"))[name]
    return found


def reference(name: str) -> list[float]:
    rows = json.loads((GOLDEN / "last_iterate.json").read_text(encoding="utf-8"))
    return [float(row["value"]) for row in rows if row["name"] == name]


def test_softmax_agrees_with_the_reference() -> None:
    rdps = place_rdps(order=4.0, gradient_ratio=1 / 8, step_lipschitz=1.0, steps=20)
    (value,) = reference("shuffle_softmax_rdp")
    assert softmax_rdp(rdps=rdps, order=4.0) == pytest.approx(value, rel=1e-9)


def test_places_agree_with_the_reference() -> None:
    rdps = place_rdps(order=2.0, gradient_ratio=0.5, step_lipschitz=1.01, steps=1000)
    for row in golden("documents_random_order.json", "C.thm36"):
        assert rdps[1000 - int(row["t"])] == pytest.approx(row["value"], rel=1e-9)


@pytest.mark.parametrize("count", [3, 1000, 10**6])
def test_one_divergence_among_many_is_not_lost(count: int) -> None:
    rdps = np.zeros(count)
    rdps[0] = 1.0
    with mpmath.workdps(60):
        exact = mpmath.log1p((mpmath.e - 1) / count)
        found = softmax_rdp(rdps=rdps, order=2.0)
        assert exact <= found <= exact * (1 + mpmath.mpf(10) ** -10)


def test_divergences_beyond_the_range_of_exponentials() -> None:
    found = softmax_rdp(rdps=np.array([1000.0, 1.0]), order=2.0)
    assert found == pytest.approx(1000 - math.log(2), rel=1e-11)
    assert found > 1000 - math.log(2)
    weighted = softmax_rdp(rdps=np.array([1000.0, 1.0]), order=2.0, weights=np.array([0.5, 0.5]))
    assert weighted == pytest.approx(found, rel=1e-11)


@pytest.mark.parametrize("constant", [0.3, 0.97, 1.0, 1.0001, 2.5])
def test_places_are_not_rounded_down(constant: float) -> None:
    rdps = place_rdps(order=3.3, gradient_ratio=0.7, step_lipschitz=constant, steps=60)
    with mpmath.workdps(50):
        for left, found in enumerate(rdps, start=1):
            powers = mpmath.fsum(mpmath.mpf(constant) ** (-2 * k) for k in range(left))
            exact = 2 * mpmath.mpf(3.3) * mpmath.mpf(0.7) ** 2 / powers
            assert exact <= found <= exact * (1 + mpmath.mpf(10) ** -11)


def test_small_rates_agree_with_the_reference_and_not_with_the_logarithm() -> None:
    for row in golden("documents_random_order.json", "C.prop31"):
        found = small_rate_rdp(
            order=2.0, gradient_ratio=0.5, step_lipschitz=row["C"], steps=int(row["n"])
        )
        assert found == pytest.approx(row["value"], rel=1e-9)
    # Learning rate 1 / (smoothness n): document 004's second formula is below the sum.
    for count, factor in ((1000, 1.25), (10**5, 1.15)):
        added = small_rate_rdp(
            order=2.0, gradient_ratio=0.5, step_lipschitz=1 + 1 / count, steps=count
        )
        claimed = 4 * 2 * 0.25 * math.log(count) / count
        assert added / claimed == pytest.approx(factor, abs=0.01)


@settings(max_examples=40, deadline=None)
@given(
    rdps=st.lists(st.floats(0.0, 50.0), min_size=1, max_size=8).map(np.array),
    order=st.floats(1.01, 200.0),
)
def test_softmax_lies_between_the_mean_and_the_largest(rdps: Array, order: float) -> None:
    found = softmax_rdp(rdps=rdps, order=order)
    assert np.mean(rdps) <= found * (1 + 1e-12)
    assert found <= np.max(rdps) * (1 + 1e-15) + 1e-300
    with mpmath.workdps(60):
        # Less one, for sixty digits hold no power of a loss of 1e-57.
        less_one = [mpmath.expm1((mpmath.mpf(order) - 1) * mpmath.mpf(float(d))) for d in rdps]
        exact = mpmath.log1p(mpmath.fsum(less_one) / len(rdps)) / (mpmath.mpf(order) - 1)
        assert found >= exact
        assert found <= exact * (1 + mpmath.mpf(10) ** -8) + mpmath.mpf(10) ** -11


def test_softmax_takes_weights() -> None:
    rdps = np.array([2.0, 0.1])
    thrice = softmax_rdp(rdps=np.array([2.0, 0.1, 0.1, 0.1]), order=3.0)
    found = softmax_rdp(rdps=rdps, order=3.0, weights=np.array([0.25, 0.75]))
    assert found == pytest.approx(thrice, rel=1e-9)
    small = softmax_rdp(rdps=0.1 * rdps, order=3.0, weights=np.array([0.25, 0.75]))
    assert small == pytest.approx(
        softmax_rdp(rdps=np.array([0.2, 0.01, 0.01, 0.01]), order=3.0), rel=1e-9
    )


def test_softmax_of_nothing_and_of_everything() -> None:
    assert softmax_rdp(rdps=np.zeros(3), order=2.0) == 0.0
    assert softmax_rdp(rdps=np.array([0.0, math.inf]), order=2.0) == math.inf


@settings(max_examples=40, deadline=None)
@given(
    rdps=st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=8).map(np.array),
    order=st.floats(1.01, 100.0),
)
def test_the_almost_convex_average_is_never_below_softmax(rdps: Array, order: float) -> None:
    scaled = rdps / max(1.0, (order - 1) * float(np.max(rdps))) * (1 - 1e-12)
    found = almost_convex_rdp(rdps=scaled, order=order)
    assert softmax_rdp(rdps=scaled, order=order) <= found * (1 + 1e-9)
    assert found <= 2 * np.mean(scaled) * (1 + 1e-11)


@pytest.mark.parametrize("seed", range(20))
def test_the_almost_convex_average_is_not_rounded_down(seed: int) -> None:
    rdps = np.random.default_rng(seed).uniform(0, 0.4, 7)
    parts = [Fraction(one) for one in rdps.tolist()]
    exact = (1 + Fraction(1.7) * max(parts)) * sum(parts, Fraction(0)) / 7
    assert Fraction(almost_convex_rdp(rdps=rdps, order=2.7)) >= exact


def test_beyond_its_range_the_almost_convex_average_is_false_and_refused() -> None:
    """A mixture whose part is told attains softmax: twice the mean would be far too small."""
    order, steps = 20.0, 300
    rdps = place_rdps(order=order, gradient_ratio=0.95, step_lipschitz=1.0, steps=steps)
    told = softmax_rdp(rdps=rdps, order=order)  # exact where the place is told
    assert told > 20 * 2 * np.mean(rdps)
    with pytest.raises(ValueError, match="must not exceed 1"):
        almost_convex_rdp(rdps=rdps, order=order)
    with pytest.raises(ValueError, match="must not exceed 1"):
        small_rate_rdp(order=order, gradient_ratio=0.95, step_lipschitz=1.0, steps=steps)


def test_steps_that_contract_or_expand_by_much_leave_what_they_must() -> None:
    shrinking = place_rdps(order=2.0, gradient_ratio=0.5, step_lipschitz=0.1, steps=400)
    assert shrinking[0] == pytest.approx(1.0)
    assert 0 < shrinking[-1] < 1e-100
    growing = place_rdps(order=2.0, gradient_ratio=0.5, step_lipschitz=3.0, steps=400)
    assert growing[-1] == pytest.approx(1 - 1 / 9)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"order": 1.0}, "order"),
        ({"gradient_ratio": 0.0}, "gradient_ratio"),
        ({"step_lipschitz": 0.0}, "step_lipschitz"),
        ({"steps": 0}, "steps"),
    ],
)
def test_places_out_of_range_are_refused(changed: dict[str, float], match: str) -> None:
    given_: dict[str, float] = {"order": 2.0, "gradient_ratio": 0.1, "step_lipschitz": 1.0}
    with pytest.raises(ValueError, match=match):
        place_rdps(**{**given_, "steps": 3, **changed})  # type: ignore[arg-type]


def test_divergences_out_of_range_are_refused() -> None:
    for rdps in (np.array([]), np.array([-1.0]), np.array([math.nan])):
        with pytest.raises(ValueError, match="rdps has"):
            softmax_rdp(rdps=rdps, order=2.0)
    with pytest.raises(ValueError, match="order"):
        almost_convex_rdp(rdps=np.ones(1), order=5000.0)
