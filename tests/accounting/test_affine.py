import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.literature.contraction import affine_guarantee
from accounting.literature.contraction.affine import (
    DIMENSION_MAX,
    AffineLaw,
    affine_audit,
    affine_audit_mu,
    affine_law,
    covariance_of,
)
from accounting.literature.contraction.affine_guarantee import affine_constant_hessian_mu
from accounting.rounding import Array

GOLDEN = Path(__file__).parents[1] / "golden" / "last_iterate.json"
FEEDBACK = pytest.mark.parametrize("feedback", [False, True])


def steps(seed: int, *, count: int = 6, size: int = 3) -> tuple[Array, Array]:
    """Hessians with eigenvalues in (0, 1) and offsets."""
    generator = np.random.default_rng(seed)
    hessians = []
    for _ in range(count):
        basis = np.linalg.qr(generator.normal(size=(size, size)))[0]
        hessians.append(basis @ np.diag(generator.uniform(0, 1, size)) @ basis.T)
    symmetric = np.array([(one + one.T) / 2 for one in hessians])
    return symmetric, np.asarray(generator.normal(size=(count, size)))


def joint_covariance(hessians: Array, rate: float, noise: float, *, feedback: bool) -> Array:
    """By propagating the noise of the last step and the iterate together: another route."""
    size = hessians.shape[1]
    eye, zero = np.eye(size), np.zeros((size, size))
    joint = np.zeros((2 * size, 2 * size))  # of (last noise, iterate)
    for hessian in hessians:
        move = np.block([[zero, zero], [eye if feedback else zero, eye - rate * hessian]])
        fresh = np.block([[eye, -eye], [-eye, eye]]) * noise**2
        joint = move @ joint @ move.T + fresh
    return np.asarray(joint[size:, size:])


def test_the_audit_agrees_with_the_reference() -> None:
    rows = json.loads(GOLDEN.read_text(encoding="utf-8"))
    (row,) = [row for row in rows if row["name"] == "affine_mu_feedback_True"]
    given_ = row["input"]
    found = affine_audit_mu(
        hessians=np.array(given_["A"]),
        offsets=np.array(given_["b"]),
        other_offsets=np.array(given_["b_prime"]),
        learning_rate=given_["gamma"],
        noise=given_["gamma"] * given_["sigma_on_gradient"],
        feedback=True,
    )
    assert found == pytest.approx(float(row["value"]), rel=1e-9)


@FEEDBACK
@pytest.mark.parametrize("seed", range(5))
def test_the_law_is_that_of_noise_and_iterate_propagated_together(
    seed: int, feedback: bool
) -> None:
    hessians, offsets = steps(seed)
    law = affine_law(
        hessians=hessians, offsets=offsets, learning_rate=0.7, noise=0.4, feedback=feedback
    )
    joint = joint_covariance(hessians, 0.7, 0.4, feedback=feedback)
    assert np.allclose(law.covariance, joint, rtol=1e-12, atol=1e-14)
    mean = np.zeros(3)
    for hessian, offset in zip(hessians, offsets, strict=True):
        mean = mean - 0.7 * (hessian @ mean + offset)
    assert np.allclose(law.mean, mean, rtol=1e-12)


@FEEDBACK
def test_the_law_is_that_of_simulated_runs(feedback: bool) -> None:
    """Experiment of docs/theory/affine.md, where document 004's recursion fails by 83 %."""
    hessians, offsets = np.full((2, 1, 1), 0.8), np.zeros((2, 1))
    law = affine_law(
        hessians=hessians, offsets=offsets, learning_rate=0.3, noise=1.5, feedback=feedback
    )
    generator = np.random.default_rng(1)
    first, second = 1.5 * generator.normal(size=(2, 400_000))
    x = -first
    x = (1 - 0.3 * 0.8) * x - second + (first if feedback else 0.0)
    assert law.covariance[0, 0] == pytest.approx(np.var(x), rel=0.01)
    if feedback:
        assert law.covariance[0, 0] == pytest.approx(2.3796, rel=1e-9)
        claimed = 2 * 0.3**2 * 1.5**2 * 0.8**2
        claimed += (1 - 0.24) ** 2 * 2 * 0.3**2 * 1.5**2 * 0.8**2
        assert claimed < 0.2 * law.covariance[0, 0]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("rate", "less"), [(0.3, True), (0.99, False)])
def test_feedback_never_leaves_less_than_one_steps_noise(
    seed: int, rate: float, less: bool
) -> None:
    """And more than no feedback does, where steps are long: 2/(2-x) against 1/(x(2-x)), x > 1/2."""
    hessians, offsets = steps(seed, count=40)
    hessians = 0.25 * hessians + 0.75 * np.eye(3)  # eigenvalues of at least 3/4
    given_ = {"hessians": hessians, "offsets": offsets, "learning_rate": rate, "noise": 0.4}
    law = affine_law(**given_, feedback=True)  # type: ignore[arg-type]
    assert np.min(np.linalg.eigvalsh(law.covariance)) >= 0.16 * (1 - 1e-12)
    plain = affine_law(**given_)  # type: ignore[arg-type]
    assert bool(np.trace(law.covariance) < np.trace(plain.covariance)) is less


def test_a_start_moves_the_mean_alone() -> None:
    hessians, offsets = steps(3)
    start = np.array([1.0, -2.0, 0.5])
    given_ = {"hessians": hessians, "offsets": 0 * offsets, "learning_rate": 0.5, "noise": 1.0}
    moved = affine_law(**given_, start=start)  # type: ignore[arg-type]
    for hessian in hessians:
        start = start - 0.5 * hessian @ start
    assert np.allclose(moved.mean, start, rtol=1e-12)
    assert np.array_equal(moved.covariance, affine_law(**given_).covariance)  # type: ignore[arg-type]


# Audits


def test_laws_of_one_covariance_have_the_divergence_of_their_mu() -> None:
    hessians, offsets = steps(4)
    other = offsets + 0.3
    given_ = {"hessians": hessians, "learning_rate": 0.6, "noise": 0.8}
    first = affine_law(**given_, offsets=offsets)  # type: ignore[arg-type]
    second = affine_law(**given_, offsets=other)  # type: ignore[arg-type]
    mu = affine_audit_mu(**given_, offsets=offsets, other_offsets=other)  # type: ignore[arg-type]
    for order in (1.5, 4.0, 50.0):
        found = affine_audit(first=first, second=second, order=order)
        assert found.forth == pytest.approx(order * mu**2 / 2, rel=1e-9)
        assert found.back == pytest.approx(found.forth, rel=1e-9)


@pytest.mark.parametrize("order", [1.5, 3.0])
def test_laws_of_different_covariance_have_the_divergence_that_defines_it(order: float) -> None:
    first = AffineLaw(mean=np.array([0.3]), covariance=np.array([[1.3]]))
    second = AffineLaw(mean=np.array([-0.2]), covariance=np.array([[1.0]]))
    found = affine_audit(first=first, second=second, order=order)
    y = np.linspace(-30, 30, 200001)

    def log_density(law: AffineLaw) -> Array:
        variance = float(law.covariance[0, 0])
        return np.asarray(
            -((y - law.mean[0]) ** 2) / (2 * variance) - 0.5 * math.log(2 * math.pi * variance)
        )

    p, q = log_density(first), log_density(second)
    for value, a, b in ((found.forth, p, q), (found.back, q, p)):
        integral = np.sum(np.exp(order * a + (1 - order) * b)) * (y[1] - y[0])
        assert value == pytest.approx(math.log(integral) / (order - 1), rel=1e-9)


def test_a_wider_law_may_be_infinitely_far() -> None:
    first = AffineLaw(mean=np.zeros(1), covariance=np.array([[2.0]]))
    second = AffineLaw(mean=np.zeros(1), covariance=np.array([[1.0]]))
    found = affine_audit(first=first, second=second, order=2.0)
    assert found.forth == math.inf
    assert 0 < found.back < math.inf
    assert affine_audit(first=first, second=first, order=2.0).forth == 0.0


# The guarantee


@FEEDBACK
@pytest.mark.parametrize("seed", range(4))
def test_no_pair_within_the_distance_exceeds_the_guarantee(seed: int, feedback: bool) -> None:
    """Experiment of docs/theory/affine.md: many audits, and the direction that attains it."""
    hessians, offsets = steps(seed, count=8)
    generator = np.random.default_rng(seed)
    given_ = {"hessians": hessians, "learning_rate": 0.8, "noise": 0.5, "feedback": feedback}
    for uses in ([2], [7], [1, 4, 6]):
        bound = affine_constant_hessian_mu(**given_, offset_distance=0.4, uses=uses)  # type: ignore[arg-type]
        largest = 0.0
        for _ in range(300):
            other = offsets.copy()
            for t in uses:
                direction = generator.normal(size=3)
                other[t] += 0.4 * direction / np.linalg.norm(direction)
            found = affine_audit_mu(**given_, offsets=offsets, other_offsets=other)  # type: ignore[arg-type]
            largest = max(largest, found)
        assert largest <= bound
        if len(uses) == 1:
            assert largest >= 0.97 * bound


@settings(max_examples=30, deadline=None)
@given(slope=st.floats(0.0, 1.9), count=st.integers(1, 60), feedback=st.booleans())
def test_one_dimension_has_a_closed_form(slope: float, count: int, feedback: bool) -> None:
    bound = affine_constant_hessian_mu(
        hessians=np.full((count, 1, 1), slope),
        learning_rate=1.0,
        noise=0.5,
        offset_distance=0.3,
        uses=[0],
        feedback=feedback,
    )
    rho = 1 - slope
    squares = math.fsum(rho ** (2 * k) for k in range(count))
    if feedback:
        squares = 1 + slope**2 * math.fsum(rho ** (2 * k) for k in range(count - 1))
    exact = 0.3 / 0.5 * abs(rho) ** (count - 1) / math.sqrt(squares)
    assert exact * (1 - 1e-12) <= bound <= exact * (1 + 1e-9) + 1e-9


def test_the_bound_is_not_rounded_below_the_exact_value() -> None:
    bound = affine_constant_hessian_mu(
        hessians=np.zeros((1, 1, 1)), learning_rate=0.1, noise=0.3, offset_distance=0.7, uses=[0]
    )
    assert 0.1 * 0.7 / 0.3 < bound <= 0.1 * 0.7 / 0.3 * (1 + 1e-9)


def test_what_rounding_leaves_open_is_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    given_ = {"learning_rate": 1.0, "noise": 1.0, "offset_distance": 1.0, "uses": [0]}
    # Steps that expand a thousandfold: the errors of the covariance outgrow one step's noise.
    wild = np.diag([1001.0, 0.5])[None].repeat(8, axis=0)
    assert affine_constant_hessian_mu(hessians=wild, **given_) == math.inf  # type: ignore[arg-type]
    tame = np.diag([0.1, 0.5])[None].repeat(8, axis=0)
    exact = affine_constant_hessian_mu(hessians=tame, **given_)  # type: ignore[arg-type]
    assert exact < math.inf
    monkeypatch.setattr(affine_guarantee, "UNIT_ROUNDOFF", 1e-9)
    assert affine_constant_hessian_mu(hessians=tame, **given_) > exact * (1 + 1e-8)  # type: ignore[arg-type]


def test_what_the_covariance_may_be_off_by_is_taken_off_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affine_guarantee, "covariance_error", lambda *_, **__: 5e-4)
    bound = affine_constant_hessian_mu(
        hessians=np.zeros((1, 1, 1)), learning_rate=1.0, noise=1.0, offset_distance=1.0, uses=[0]
    )
    assert bound >= 1 / math.sqrt(1 - 5e-4)


def test_what_products_may_be_off_by_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    operators = np.full((3, 1, 1), 0.5)
    given_ = {"operators": operators, "norms": np.full(3, 0.5), "factor": np.eye(1), "least": 1.0}
    exact = affine_guarantee.sum_of_norms(**given_, places=[2, 0])  # type: ignore[arg-type]
    assert exact == pytest.approx(1.25)
    monkeypatch.setattr(affine_guarantee, "product_error", lambda _: 1e-4)
    coarse = affine_guarantee.sum_of_norms(**given_, places=[2, 0])  # type: ignore[arg-type]
    assert exact + 1e-4 < coarse < exact + 1e-2


def test_the_solver_is_given_room(monkeypatch: pytest.MonkeyPatch) -> None:
    given_ = {"learning_rate": 1.0, "noise": 1.0, "offset_distance": 1.0, "uses": [1]}
    hessians = np.diag([-2.0, 0.5])[None].repeat(2, axis=0)  # a condition number of 10 / 1.25
    exact = affine_constant_hessian_mu(hessians=hessians, **given_)  # type: ignore[arg-type]
    monkeypatch.setattr(affine_guarantee, "UNIT_ROUNDOFF", 1e-9)
    monkeypatch.setattr(affine_guarantee, "product_error", lambda _: 0.0)
    coarse = affine_constant_hessian_mu(hessians=hessians, **given_)  # type: ignore[arg-type]
    assert coarse >= exact * (1 + 64 * 4 * 8e-9)


def test_errors_of_the_covariance_are_covered() -> None:
    """Sixteen digits against four: what is computed with coarse numbers stays within the bound."""
    hessians, _ = steps(7, count=40, size=4)
    operators = np.eye(4) - 1.2 * hessians
    exact = covariance_of(operators, 0.25, feedback=False)
    coarse = np.zeros((4, 4), dtype=np.float32)
    for operator in operators.astype(np.float32):
        coarse = operator @ coarse @ operator + np.float32(0.25) * np.eye(4, dtype=np.float32)
    norms = np.array([np.linalg.norm(operator, 2) for operator in operators])
    bound = affine_guarantee.covariance_error(operators, norms, 0.25, feedback=False)
    assert np.linalg.norm(coarse - exact, 2) <= bound * 2.0**29


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"hessians": np.zeros((2, 2))}, "shape"),
        ({"hessians": np.zeros((0, 2, 2))}, "shape"),
        ({"hessians": np.zeros((1, DIMENSION_MAX + 1, DIMENSION_MAX + 1))}, "d lies"),
        ({"hessians": np.broadcast_to(0.0, (10**5 + 1, 1, 1))}, "at most"),
        ({"hessians": np.full((2, 1, 1), math.nan)}, "finite"),
        ({"hessians": np.array([[[0.0, 1.0], [0.0, 0.0]]])}, "symmetric"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"noise": 0.0}, "noise"),
        ({"offset_distance": -1.0}, "offset_distance"),
        ({"offset_distance": math.nan}, "offset_distance"),
        ({"uses": []}, "uses"),
        ({"uses": [0, 0]}, "uses"),
        ({"uses": [2]}, "uses"),
        ({"uses": [-1]}, "uses"),
    ],
)
def test_arguments_out_of_range_are_refused(changed: dict[str, object], match: str) -> None:
    given_: dict[str, object] = {"hessians": np.zeros((2, 1, 1)), "learning_rate": 0.5}
    given_ |= {"noise": 1.0, "offset_distance": 1.0, "uses": [0]}
    with pytest.raises(ValueError, match=match):
        affine_constant_hessian_mu(**{**given_, **changed})  # type: ignore[arg-type]


def test_laws_out_of_range_are_refused() -> None:
    hessians = np.zeros((2, 1, 1))
    with pytest.raises(ValueError, match="offsets"):
        affine_law(hessians=hessians, offsets=np.zeros((3, 1)), learning_rate=1.0, noise=1.0)
    with pytest.raises(ValueError, match="start"):
        affine_law(
            hessians=hessians,
            offsets=np.zeros((2, 1)),
            learning_rate=1.0,
            noise=1.0,
            start=np.zeros(2),
        )
    with pytest.raises(ValueError, match="finite"):
        affine_law(
            hessians=hessians, offsets=np.full((2, 1), math.inf), learning_rate=1.0, noise=1.0
        )
    law = AffineLaw(mean=np.zeros(1), covariance=np.eye(1))
    for order in (1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="order"):
            affine_audit(first=law, second=law, order=order)
    with pytest.raises(ValueError, match="dimension"):
        affine_audit(first=law, second=AffineLaw(mean=np.zeros(2), covariance=np.eye(2)), order=2.0)
