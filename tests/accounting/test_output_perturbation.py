import json
import math
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from accounting.gaussian import gaussian_delta
from accounting.last_iterate.random_order import averaged_gaussian_delta
from accounting.literature.contraction.output_perturbation import (
    output_perturbation_mu,
    output_perturbation_sensitivity,
)
from accounting.rounding import Array

GOLDEN = Path(__file__).parents[1] / "golden" / "last_iterate.json"


def moved(**changed: float) -> float:
    given_: dict[str, float] = {"sensitivity": 0.3, "contraction": 0.9, "steps_per_pass": 5}
    given_ |= {"passes": 3, "position": 2}
    return output_perturbation_sensitivity(**{**given_, **changed})  # type: ignore[arg-type]


def test_the_sensitivity_agrees_with_the_reference() -> None:
    rows = json.loads(GOLDEN.read_text(encoding="utf-8"))
    (row,) = [row for row in rows if row["name"] == "outpert_sens"]
    assert moved() == pytest.approx(float(row["value"]), rel=1e-9)
    assert moved() >= float(row["value"])


@settings(max_examples=50, deadline=None)
@given(
    contraction=st.floats(0.05, 1.3),
    length=st.integers(1, 40),
    passes=st.integers(1, 20),
    data=st.data(),
)
def test_the_sensitivity_is_the_sum_over_uses_and_not_below_it(
    contraction: float, length: int, passes: int, data: st.DataObject
) -> None:
    position = data.draw(st.integers(1, length))
    found = moved(contraction=contraction, steps_per_pass=length, passes=passes, position=position)
    with mpmath.workdps(50):
        rho = mpmath.mpf(contraction)
        exact = mpmath.mpf(0.3) * mpmath.fsum(
            rho ** (length - position + length * later) for later in range(passes)
        )
        assert exact <= found <= exact * (1 + mpmath.mpf(10) ** -11) + mpmath.mpf(10) ** -300


def test_steps_that_keep_distances_forget_everything_or_explode() -> None:
    assert moved(contraction=1.0) == pytest.approx(0.9)
    assert moved(contraction=0.0) == 0.0
    assert moved(contraction=0.0, position=5) == 0.3
    assert moved(sensitivity=0.0) == 0.0
    assert moved(contraction=3.0, passes=1000) == math.inf
    assert moved(contraction=1e-100, position=1) > 0


def test_the_worst_place_is_the_last_of_a_contraction_and_the_first_of_an_expansion() -> None:
    for contraction, worst in ((0.8, 5), (1.2, 1)):
        found = [moved(contraction=contraction, position=i) for i in range(1, 6)]
        assert int(np.argmax(found)) + 1 == worst


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"sensitivity": -1.0}, "sensitivity"),
        ({"sensitivity": math.inf}, "sensitivity"),
        ({"contraction": -0.1}, "contraction"),
        ({"contraction": math.nan}, "contraction"),
        ({"steps_per_pass": 0}, "steps_per_pass"),
        ({"steps_per_pass": 10**13}, "steps_per_pass"),
        ({"passes": 0}, "passes"),
        ({"position": 0}, "position"),
        ({"position": 6}, "position"),
    ],
)
def test_arguments_out_of_range_are_refused(changed: dict[str, float], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        moved(**changed)


def mu(*, position: int, noise: float = 0.5, contraction: float = 0.9) -> float:
    return output_perturbation_mu(
        sensitivity=0.3,
        contraction=contraction,
        steps_per_pass=5,
        passes=3,
        position=position,
        noise=noise,
    )


def test_mu_is_the_sensitivity_over_the_noise() -> None:
    assert mu(position=2) == pytest.approx(moved() / 0.5, rel=1e-14)
    assert mu(position=2) >= moved() / 0.5
    assert mu(position=1, contraction=0.0) == 0.0
    for noise in (0.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="noise"):
            mu(position=1, noise=noise)


@pytest.mark.parametrize("noise", [0.3, 0.7, 1.1, 3.0, 49.0])
def test_mu_is_not_rounded_down(noise: float) -> None:
    found = Fraction(mu(position=2, noise=noise)) * Fraction(noise)
    assert found >= Fraction(moved())
    found = Fraction(mu(position=5, noise=noise, contraction=0.0)) * Fraction(noise)
    assert found >= Fraction(0.3)


def test_a_secret_order_costs_no_more_than_the_worst_place() -> None:
    mus = np.array([mu(position=i) for i in range(1, 6)])
    assert averaged_gaussian_delta(0.5, mus=mus) < gaussian_delta(0.5, mu=float(np.max(mus)))


@pytest.mark.parametrize("seed", range(12))
def test_the_exact_output_of_two_runs_is_within_the_bound(seed: int) -> None:
    """Experiment of docs/theory/output_perturbation.md: runs on smooth, strongly convex losses."""
    generator = np.random.default_rng(seed)
    size, length, passes = 3, int(generator.integers(1, 8)), int(generator.integers(1, 5))
    convexity, smoothness = 0.2, 1.0
    rate = float(generator.uniform(0.2, 2 / (convexity + smoothness)))
    contraction = max(abs(1 - rate * convexity), abs(1 - rate * smoothness))
    directions = generator.normal(size=(length, size))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    centres = generator.normal(size=(length, size))
    place = int(generator.integers(0, length))
    # mu (x - centre) + (beta - mu) sigmoid(4 <a, x>) a has slopes between mu and beta.
    pulled = generator.normal(size=size)
    sensitivity = rate * convexity * float(np.linalg.norm(pulled))

    def run(shift: Array) -> Array:
        x = np.zeros(size)
        for _ in range(passes):
            for i in range(length):
                a, centre = directions[i], centres[i] + (shift if i == place else 0.0)
                bent = (smoothness - convexity) * special.expit(4 * (a @ x)) * a
                x = x - rate * (convexity * (x - centre) + bent)
        return x

    apart = float(np.linalg.norm(run(np.zeros(size)) - run(pulled)))
    bound = output_perturbation_mu(
        sensitivity=sensitivity,
        contraction=contraction,
        steps_per_pass=length,
        passes=passes,
        position=place + 1,
        noise=0.5,
    )
    assert 0 < apart / 0.5 <= bound * (1 + 1e-12)
    assert gaussian_delta(0.3, mu=apart / 0.5) <= gaussian_delta(0.3, mu=bound * (1 + 1e-12))


@pytest.mark.parametrize("contraction", [0.5, 0.9, 1.0])
def test_quadratic_losses_attain_the_bound(contraction: float) -> None:
    x = 0.0
    for _ in range(3):
        for i in range(1, 6):
            x = contraction * x + (0.3 if i == 2 else 0.0)
    assert moved(contraction=contraction) == pytest.approx(x, rel=1e-11)
