"""Document 004, chapter 3: a test for each row."""

import math
from pathlib import Path

import numpy as np
import pytest

from accounting.last_iterate.closed_forms import single_use_mu
from accounting.last_iterate.lipschitz import step_lipschitz
from accounting.last_iterate.shift import shift_mu
from accounting.literature.contraction.affine import affine_law
from accounting.literature.contraction.order_rdp import (
    almost_convex_rdp,
    small_rate_rdp,
    softmax_rdp,
)
from accounting.literature.contraction.output_perturbation import output_perturbation_mu
from accounting.literature.subsampled_renyi import subsampled_rdp
from accounting.rounding import Array
from tests.accounting.quarantined import golden, said

ERRATA = Path(__file__).parents[2] / "docs" / "theory" / "errata.md"


def test_row_004_obj__objective_perturbation_is_named_and_left_out() -> None:
    text = ERRATA.read_text(encoding="utf-8")
    assert "bjective perturbation" in text
    assert "exact minimum" in text


def test_row_004_tab1__the_excess_losses_are_cited_and_not_claimed() -> None:
    text = ERRATA.read_text(encoding="utf-8")
    assert "Table 1" in text
    assert "excess loss" in text


def test_row_004_t3_2__the_documents_subsampling_lacks_the_terms_that_make_it_tight() -> None:
    rdp: Array = np.arange(2.0, 33.0) * 0.5
    for order, rate, full, printed in (
        (2, 0.01, 0.0005435086381094331, 0.0006870766401610658),
        (8, 0.01, 0.002684165012688936, 0.0032469844096525728),
        (32, 0.001, 8.891773492072037, 8.891773492072037),
    ):
        found = subsampled_rdp(rate=rate, rdp=rdp, epsilon=math.inf)[order - 2]
        assert found == pytest.approx(full, rel=1e-8)
        document = said(
            "data-dependent-weights", noise_multiplier=2.0, max_weight=rate, order=order
        )
        assert document == pytest.approx(printed, rel=1e-9)
        assert found <= document * (1 + 1e-8)
    assert said("subsampling-leading-term", noise_multiplier=2.0) < 4 * math.expm1(1)


@pytest.mark.parametrize("row", golden("C.thm36"), ids=lambda row: str(row["t"]))
def test_row_004_t3_5_3_6__a_smooth_loss_amplifies_by_iteration_convex_or_not(
    row: dict[str, float],
) -> None:
    alpha, ratio, c = row["alpha"], row["L_over_sigma"], row["C"]
    left = int(row["n"] - row["t"] + 1)
    mu = single_use_mu(lipschitz=c, sensitivity=2 * ratio, noise=1.0, steps_left=left)
    assert alpha * mu**2 / 2 == pytest.approx(row["value"], rel=1e-9)
    sensitivities = np.zeros(left)
    sensitivities[0] = 2 * ratio
    engine = shift_mu(lipschitz=np.full(left, c), sensitivities=sensitivities, noises=np.ones(left))
    assert engine == pytest.approx(mu, rel=1e-9)


def test_row_004_out__a_contracting_training_forgets_before_its_noise_is_added() -> None:
    contraction = step_lipschitz(learning_rate=1.0, smoothness=1.0, convexity=0.5)
    assert contraction == pytest.approx(max(abs(1 - 1.0 * 0.5), abs(1 - 1.0 * 1.0)))
    gradients = np.array([[0.5, 1.0]])  # curvatures of the steps' losses in two dimensions
    for place in range(1, 5):
        apart = np.zeros(2)
        for step in range(1, 5):
            apart = (1 - gradients[0]) * apart
            if step == place:
                apart = apart + np.array([0.3, 0.0])
        mu = output_perturbation_mu(
            sensitivity=0.3, contraction=contraction, steps_per_pass=4, passes=1, position=place,
            noise=2.0,
        )  # fmt: skip
        assert mu == pytest.approx(float(np.linalg.norm(apart)) / 2, rel=1e-9)
    # The noise for a given RDP: alpha s^2/(2 rdp) and not over rdp^2.
    printed = said("output-perturbation-as-printed", sensitivity=1.0, order=2.0, rdp=4.0)
    assert 2 / (2 * printed**2) > 4
    assert pytest.approx(4) == 2 / (2 * (2 / (2 * 4.0)))


def test_row_004_l3_1__a_mixture_has_at_most_the_mean_of_the_moments() -> None:
    draws = np.random.default_rng(4)
    for order in (1.5, 3.0):
        parts = [draws.dirichlet(np.ones(4), 2) for _ in range(3)]
        rdps = np.array(
            [math.log(float(np.sum(p**order * q ** (1 - order)))) / (order - 1) for p, q in parts]
        )
        p, q = (sum(part[side] for part in parts) / 3 for side in (0, 1))
        mixture = math.log(float(np.sum(p**order * q ** (1 - order)))) / (order - 1)
        bound = softmax_rdp(rdps=rdps, order=order)
        assert mixture <= bound
        assert rdps.mean() <= bound <= rdps.max() * (1 + 1e-9)
        moments = np.exp((order - 1) * rdps)
        assert bound == pytest.approx(math.log(float(moments.mean())) / (order - 1), rel=1e-9)


def test_row_004_wc__twice_the_mean_needs_its_condition() -> None:
    # Which of 100 places was taken is told; one of them tells much, the others nothing. Order 2.
    def places(top: float) -> Array:
        return np.array([top] + [0.0] * 99)

    assert softmax_rdp(rdps=places(1.0), order=2.0) <= 2 * 1.0 / 100
    assert almost_convex_rdp(rdps=places(1.0), order=2.0) == pytest.approx(2 * 1.0 / 100)
    beyond = softmax_rdp(rdps=places(40.0), order=2.0)  # attained, as the place is told
    assert beyond == pytest.approx(35.4, abs=0.05)
    assert beyond > 2 * 40.0 / 100
    with pytest.raises(ValueError, match="must not exceed 1"):
        almost_convex_rdp(rdps=places(40.0), order=2.0)
    # (alpha - 1) 2 alpha L^2/sigma^2 <= 1 is sigma >= L sqrt(2 alpha (alpha - 1)): by order.
    for ratio, allowed in ((0.499, True), (0.501, False)):  # L/sigma at order 2
        top = 2 * 2.0 * ratio**2
        assert (top <= 1) == allowed == (1 / ratio >= math.sqrt(2 * 2 * 1))


def test_row_004_p3_1__the_sum_is_evaluated_and_its_rates_are_not_used() -> None:
    n, ratio = 1000, 0.5
    for bound, c in (("small-step-rate", 1 + 1 / n), ("small-step-rate-root", 1 + n**-0.5)):
        exact = small_rate_rdp(order=2.0, gradient_ratio=ratio, step_lipschitz=c, steps=n)
        stated = said(bound, noise_multiplier=2.0, order=2.0, dataset_size=n)
        if bound == "small-step-rate":
            assert exact / stated == pytest.approx(1.25, abs=5e-3)
        else:
            assert exact == pytest.approx(0.12726714660994873, rel=1e-9)
            assert exact < stated
    with pytest.raises(ValueError, match="gradient_ratio"):
        small_rate_rdp(order=3.0, gradient_ratio=ratio, step_lipschitz=1.001, steps=n)


def affine_runs(*, feedback: bool) -> tuple[float, float]:
    """(mean, variance) by simulation: gamma 0.3, curvature 0.8, noise 1.5 on the iterate."""
    draws = np.random.default_rng(6)
    x, before = np.zeros(200_000), np.zeros(200_000)
    for _ in range(2):
        noise = 1.5 * draws.standard_normal(200_000)
        x = x - 0.3 * (0.8 * x + 1.0) - noise + (before if feedback else 0.0)
        before = noise
    return float(np.mean(x)), float(np.var(x))


def test_row_004_p3_2__affine_gradients_have_a_gaussian_law() -> None:
    law = affine_law(
        hessians=np.full((2, 1, 1), 0.8), offsets=np.ones((2, 1)), learning_rate=0.3, noise=1.5
    )
    mean, variance = affine_runs(feedback=False)
    assert law.mean[0] == pytest.approx(mean, abs=0.02)
    assert law.covariance[0, 0] == pytest.approx(variance, rel=0.02)
    assert law.covariance[0, 0] == pytest.approx(1.5**2 * (1 + 0.76**2), rel=1e-12)
    # What is printed is this law; the text puts the noise on the gradient, where it is 0.3 of it.
    printed = said(
        "affine-gradients-as-printed", curvatures=[0.8, 0.8], learning_rate=0.3, noise_std=1.5
    )
    assert printed == pytest.approx(float(law.covariance[0, 0]), rel=1e-12)


def test_row_004_p3_3__noise_that_is_taken_back_leaves_more_than_was_printed() -> None:
    law = affine_law(
        hessians=np.full((2, 1, 1), 0.8),
        offsets=np.ones((2, 1)),
        learning_rate=0.3,
        noise=1.5,
        feedback=True,
    )
    _, variance = affine_runs(feedback=True)
    assert law.covariance[0, 0] == pytest.approx(2.3796, rel=1e-9)
    assert law.covariance[0, 0] == pytest.approx(variance, rel=0.02)
    printed = said(
        "noise-feedback-as-printed", curvatures=[0.8, 0.8], learning_rate=0.3, noise_std=1.5
    )
    assert printed < 0.2 * law.covariance[0, 0]
