import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.last_iterate.lipschitz import (
    clipped_step_lipschitz,
    glm_step_lipschitz,
    regularized_step_lipschitz,
    step_constant,
    step_lipschitz,
)
from accounting.rounding import Array

RATE = st.floats(1e-3, 5.0)
CURVATURE = st.floats(-1.0, 1.0)
SOUND = {"learning_rate": 0.1, "smoothness": 1.0, "convexity": 0.0}


def clip(gradients: Array) -> Array:
    """Rows shortened to length one."""
    lengths = np.linalg.norm(gradients, axis=-1, keepdims=True)
    return np.asarray(gradients / np.maximum(lengths, 1.0))


def steepest(*, eta: float, curvatures: tuple[float, float], turns: Array, lengths: Array) -> float:
    """The largest ratio found of a clipped step on two quadratics with linear parts, in a plane.

    Near a gradient g of length at least one the clipped gradient moves by (I - gg/|g|^2) H d / |g|;
    the ratio is measured between two points.
    """
    angles, sizes, ways = np.meshgrid(turns, lengths, turns, indexing="ij")
    gradient = sizes[..., None] * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    apart = 1e-6 * np.stack([np.cos(ways), np.sin(ways)], axis=-1)
    other = gradient + apart * np.array(curvatures)
    moved = apart - eta * (clip(other) - clip(gradient))
    return float(np.max(np.linalg.norm(moved, axis=-1)) / 1e-6)


def test_a_clipped_step_of_a_convex_loss_can_expand() -> None:
    turns = np.linspace(0, math.pi, 721)
    lengths = np.array([1 + 1e-5, 1.05])
    found = steepest(eta=1.0, curvatures=(1.0, 0.0), turns=turns, lengths=lengths)
    bound = clipped_step_lipschitz(learning_rate=1.0, smoothness=1.0, convexity=0.0)
    assert bound == pytest.approx(2 / math.sqrt(3), rel=1e-15)
    assert 1.1546 < found <= bound * (1 + 1e-8)
    assert step_lipschitz(learning_rate=1.0, smoothness=1.0, convexity=0.0) == 1.0


@pytest.mark.parametrize(("eta", "least"), [(0.5, -0.1), (0.3, 0.0), (1.7, 0.2), (0.6, -0.8)])
def test_a_search_in_the_plane_attains_the_constant_of_a_clipped_step(
    eta: float, least: float
) -> None:
    bound = clipped_step_lipschitz(learning_rate=eta, smoothness=1.0, convexity=least)
    turns, lengths = np.linspace(0, math.pi, 181), np.array([0.5, 1 + 1e-5, 1.02])
    curvatures = np.unique(np.linspace(least, 1.0, 5))
    found = max(
        steepest(eta=eta, curvatures=(1.0, float(low)), turns=turns, lengths=lengths)
        for low in curvatures
    )
    assert found <= bound * (1 + 1e-8)
    assert found >= 1 + 0.98 * (bound - 1)


@given(eta=RATE, least=CURVATURE, seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_no_batch_of_clipped_gradients_exceeds_the_constant(
    eta: float, least: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    turns = np.linalg.qr(random.normal(size=(4, 3, 3)))[0]
    curved = random.uniform(least, 1.0, size=(4, 3, 1))
    hessians = turns @ (curved * np.swapaxes(turns, 1, 2))
    offsets = random.normal(size=(4, 3)) * random.choice([0.1, 1.0, 3.0])
    points = random.normal(size=(2, 200, 3)) * random.choice([0.1, 1.0])
    gradients = np.einsum("bij,pnj->bpni", hessians, points) + offsets[:, None, None, :]
    moved = points - eta * np.mean(clip(gradients), axis=0)
    ratio = np.linalg.norm(moved[0] - moved[1], axis=-1) / np.linalg.norm(
        points[0] - points[1], axis=-1
    )
    assert np.max(ratio) <= (1 + 1e-9) * clipped_step_lipschitz(
        learning_rate=eta, smoothness=1.0, convexity=least
    )


@given(eta=RATE, least=CURVATURE)
def test_without_clipping_a_quadratic_attains_the_constant(eta: float, least: float) -> None:
    found = Fraction(step_lipschitz(learning_rate=eta, smoothness=1.0, convexity=least))
    exact = max(abs(1 - Fraction(eta) * Fraction(least)), abs(1 - Fraction(eta)))
    assert 0 <= found - exact <= Fraction(2**-52) * exact


@given(eta=RATE, least=CURVATURE)
def test_clipping_never_lowers_the_constant_and_never_contracts(eta: float, least: float) -> None:
    declared = {"learning_rate": eta, "smoothness": 1.0, "convexity": least}
    assert clipped_step_lipschitz(**declared) >= max(1.0, step_lipschitz(**declared))


@given(eta=RATE, least=CURVATURE)
def test_the_constants_are_the_larger_the_less_convex_a_loss_is(eta: float, least: float) -> None:
    for rule in (step_lipschitz, clipped_step_lipschitz, glm_step_lipschitz):
        flat = rule(learning_rate=eta, smoothness=1.0, convexity=-1.0)
        assert rule(learning_rate=eta, smoothness=1.0, convexity=least) <= flat * (1 + 1e-15)


@pytest.mark.parametrize("eta_smoothness", [0.01, 0.5, 1.0, 2.0, 3.0])
def test_a_convex_clipped_step_has_a_short_formula(eta_smoothness: float) -> None:
    found = clipped_step_lipschitz(learning_rate=eta_smoothness, smoothness=1.0, convexity=0.0)
    exact = Fraction(4) / (4 - Fraction(eta_smoothness))
    assert exact <= Fraction(found) ** 2 <= exact * (1 + Fraction(1, 10**15))


def test_a_long_clipped_step_overshoots() -> None:
    assert clipped_step_lipschitz(learning_rate=3.5, smoothness=1.0, convexity=0.0) == 2.5
    assert clipped_step_lipschitz(learning_rate=5.0, smoothness=1.0, convexity=0.0) == 4.0
    assert clipped_step_lipschitz(learning_rate=0.25, smoothness=1.0, convexity=-1.0) == 1.25


def test_the_constant_is_continuous_where_the_formula_changes() -> None:
    # At small learning rates the worst angle is inside for weak convexity below a third of M.
    for center in (-1 / 3, -0.3, 0.0, 0.2):
        low, high = (
            clipped_step_lipschitz(learning_rate=1e-4, smoothness=1.0, convexity=center + shift)
            for shift in (1e-7, -1e-7)
        )
        assert low == pytest.approx(high, abs=1e-9)


def test_a_regularizer_outside_the_clip_contracts_what_the_clip_expands() -> None:
    declared = {"learning_rate": 0.1, "smoothness": 1.0, "convexity": 0.0}
    plain = clipped_step_lipschitz(**declared)
    assert regularized_step_lipschitz(**declared, regularization=0.0) >= plain
    found = regularized_step_lipschitz(**declared, regularization=0.5)
    inner = clipped_step_lipschitz(learning_rate=0.1 / 0.95, smoothness=1.0, convexity=0.0)
    assert found == pytest.approx(0.95 * inner, rel=1e-14)
    for weight in np.linspace(0.1, 5.0, 60).tolist():
        left = 1 - Fraction(0.1) * Fraction(weight)
        exact = left**2 * 4 / (4 - Fraction(0.1) / left)
        assert Fraction(regularized_step_lipschitz(**declared, regularization=weight)) ** 2 >= exact
        # Where the worst is concave the constant is 1 - eta w + eta m, with no root.
        concave = regularized_step_lipschitz(
            learning_rate=0.1, smoothness=1.0, convexity=-1.0, regularization=weight
        )
        assert Fraction(concave) >= left + Fraction(0.1)
    assert found < 1 < plain


def test_a_clipped_linear_model_keeps_the_constant_of_its_convex_loss() -> None:
    declared = {"learning_rate": 0.5, "smoothness": 1.0}
    assert glm_step_lipschitz(**declared, convexity=0.0) == 1.0
    # Where a gradient is clipped the loss is flat, however convex it was.
    assert glm_step_lipschitz(**declared, convexity=0.5) == 1.0
    assert glm_step_lipschitz(**declared, convexity=-0.5) == 1.25
    assert glm_step_lipschitz(**declared, convexity=0.0, regularization=0.5) == 0.75
    assert glm_step_lipschitz(learning_rate=3.0, smoothness=1.0, convexity=0.0) == 2.0


@given(least=st.floats(0.0, 1.0), eta=st.floats(0.01, 1.9), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_no_clipped_linear_model_exceeds_its_constant(least: float, eta: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    features = random.normal(size=(3, 2))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    points = random.normal(size=(2, 300, 2)) * 3
    scores = points @ features.T + random.normal(size=3)
    slopes = least * scores + (1 - least) * np.tanh(scores)  # curvature in [least, 1]
    gradients = np.clip(slopes, -0.7, 0.7)[..., None] * features
    moved = points - eta * np.mean(gradients, axis=2)
    ratio = np.linalg.norm(moved[0] - moved[1], axis=1) / np.linalg.norm(
        points[0] - points[1], axis=1
    )
    assert np.max(ratio) <= (1 + 1e-9) * glm_step_lipschitz(
        learning_rate=eta, smoothness=1.0, convexity=least
    )


@pytest.mark.parametrize(
    ("clipping", "linear", "rule"),
    [
        (False, False, step_lipschitz),
        (False, True, step_lipschitz),
        (True, False, clipped_step_lipschitz),
        (True, True, glm_step_lipschitz),
    ],
)
def test_the_constant_follows_from_what_was_declared(
    clipping: bool, linear: bool, rule: type[object]
) -> None:
    declared = {"learning_rate": 0.5, "smoothness": 1.0, "convexity": 0.2}
    found = step_constant(
        **declared, clipping_can_be_active=clipping, generalized_linear_model=linear
    )
    assert found == rule(**declared)


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": 0.0},
        {"learning_rate": math.inf},
        {"learning_rate": math.nan},
        {"smoothness": 0.0},
        {"smoothness": math.inf},
        {"smoothness": math.nan},
        {"convexity": 1.5},
        {"convexity": -1.5},
        {"convexity": math.nan},
    ],
)
def test_what_cannot_be_declared_is_refused(wrong: dict[str, float]) -> None:
    name = next(iter(wrong))
    for rule in (step_lipschitz, clipped_step_lipschitz, glm_step_lipschitz):
        with pytest.raises(ValueError, match=name):
            rule(**{**SOUND, **wrong})


@pytest.mark.parametrize("weight", [-0.1, 10.0, 11.0, math.inf, math.nan])
def test_a_regularizer_that_overshoots_is_refused(weight: float) -> None:
    for rule in (regularized_step_lipschitz, glm_step_lipschitz):
        with pytest.raises(ValueError, match="regularization"):
            rule(**SOUND, regularization=weight)


def test_a_constant_beyond_the_doubles_is_infinite() -> None:
    huge = {"learning_rate": 1e200, "smoothness": 1e200, "convexity": 0.0}
    assert step_lipschitz(**huge) == math.inf
    assert clipped_step_lipschitz(**huge) == math.inf
