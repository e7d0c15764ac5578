"""What is known against each quarantined statement, computed without the code it refutes."""

import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from accounting.gaussian import gaussian_delta
from accounting.renyi.conversion import conversion_costs
from accounting.shuffling.partial import partial_shuffle_rdp
from tests.accounting.quarantined import against, golden, said

# Shuffled passes that stop early


def star_pair_rdp(order: int, *, n: int, k: int, sigma: float) -> float:
    """RDP of one record +1 among n - 1 of -1, in one pass of single records stopped after k.

    Exact: E[X^order] for X = 1 - k/n + (1/n) sum of k independent e^(2x/sigma^2 - 2/sigma^2), x
    being normal: order! times a coefficient of a power of a power series.
    """
    with mp.workdps(60):
        first = [
            mp.exp(mp.mpf(2 * m * (m - 1)) / mp.mpf(sigma) ** 2)
            / (mp.factorial(m) * mp.mpf(n) ** m)
            for m in range(order + 1)
        ]
        power = [mp.mpf(1)]  # Miller's recurrence for first^k
        for m in range(1, order + 1):
            terms = ((j * (k + 1) - m) * first[j] * power[m - j] for j in range(1, m + 1))
            power.append(mp.fsum(terms) / m)
        rest = mp.mpf(n - k) / n
        moment = mp.factorial(order) * mp.fsum(
            power[m] * rest ** (order - m) / mp.factorial(order - m) for m in range(order + 1)
        )
        return float(mp.log(moment) / (order - 1))


def proved_rdp(order: float) -> float:
    (found,) = partial_shuffle_rdp(
        noise_multiplier=2.0,
        batch_size=1,
        dataset_size=1000,
        steps_per_pass=500,
        orders=np.array([order]),
    )
    return float(found)


def conjectured(order: float) -> float:
    return said(
        "partial-shuffle-conjecture",
        noise_multiplier=2.0,
        dataset_size=1000,
        steps_per_pass=500,
        orders=[order],
    )


@pytest.mark.parametrize(
    "bound", ["partial-shuffle-conjecture-step", "partial-shuffle-retracted-step"]
)
def test_a_first_step_loses_more_than_the_formula_of_a_step(bound: str) -> None:
    with mp.workdps(60):  # a batch of one record of 1000, one +1 among -1, noise 2
        moment = mp.fsum(
            mp.binomial(49, j) * mp.mpf(999) ** (49 - j) / mp.mpf(1000) ** 49
            * mp.exp(mp.mpf(j * (j - 1)) / 2)
            for j in range(50)
        )  # fmt: skip
        exact = float(mp.log(moment) / 48)
    formula = said(bound, noise_multiplier=2.0, dataset_size=1000, steps_before=0, orders=[49.0])
    assert exact == pytest.approx(17.45, abs=0.005)
    assert formula == pytest.approx(0.000196, abs=5e-7)
    assert "17.45" in against(bound)
    assert "0.000196" in against(bound)


@pytest.mark.parametrize("row", golden("C.conj_violation"), ids=lambda row: str(row["alpha"]))
def test_the_star_and_the_formula_are_those_of_another_implementation(row: Any) -> None:
    exact = star_pair_rdp(row["alpha"], n=1000, k=500, sigma=2.0)
    assert exact == pytest.approx(row["exact_star_pair_rdp_one_pass"], rel=1e-9)
    stated = said(
        "partial-shuffle-conjecture-global",
        noise_multiplier=2.0,
        dataset_size=1000,
        fraction=0.5,
        epochs=0.5,
        orders=[float(row["alpha"])],
    )
    # The golden table sums the steps; the document's integral is what the global formula holds.
    assert conjectured(row["alpha"]) == pytest.approx(
        row["conj16_without_O_term"] * (1 - 1e-3), rel=2e-3
    )
    assert stated == pytest.approx(row["conj16_without_O_term"], rel=2e-3)
    assert (exact > stated) == (row["alpha"] >= 14)


@pytest.mark.parametrize(
    ("order", "attained", "formula"),
    [(14, 0.07911018163, 0.05591606533), (16, 1.046, 0.0639), (49, 17.58, 0.1957)],
)
def test_the_conjecture_without_its_open_terms_is_violated(
    order: int, attained: float, formula: float
) -> None:
    exact = star_pair_rdp(order, n=1000, k=500, sigma=2.0)
    assert exact == pytest.approx(attained, rel=1e-3)
    assert conjectured(order) == pytest.approx(formula, rel=2e-3)
    assert exact > 1.4 * conjectured(order)
    assert exact < proved_rdp(order)


def test_the_star_respects_the_conjecture_at_small_orders_and_so_does_the_bound() -> None:
    for order in range(2, 14):
        assert star_pair_rdp(order, n=1000, k=500, sigma=2.0) < conjectured(order)
    for order in range(2, 13):
        assert proved_rdp(order) < conjectured(order)


def test_the_retracted_noise_is_too_little() -> None:
    noise = said(
        "partial-shuffle-retracted-noise",
        dataset_size=1000, fraction=0.5, epochs=0.5, order=14.0, rdp=0.056,
    )  # fmt: skip
    assert noise == pytest.approx(2.0, rel=1e-12)
    assert star_pair_rdp(14, n=1000, k=500, sigma=noise) > 0.079


def test_after_all_but_one_answer_a_record_is_certain_where_the_formula_says_half() -> None:
    # Two records, noise that hides nothing: the second step holds the record not seen in the first.
    shown = said(
        "partial-shuffle-conjecture-step",
        noise_multiplier=2.0, dataset_size=2, steps_before=1, orders=[2.0],
    )  # fmt: skip
    nothing_hidden = said(
        "partial-shuffle-conjecture-step",
        noise_multiplier=2.0, dataset_size=1, steps_before=0, orders=[2.0],
    )  # fmt: skip
    assert shown == nothing_hidden == 16 * 2 / (4 * 4)  # a quarter: 1/(n-t+1)^2 with n - t = 1


# Single mechanisms


def exact_gaussian_delta(epsilon: float, sigma: float) -> float:
    with mp.workdps(40):
        e, s = mp.mpf(epsilon), mp.mpf(sigma)
        return float(mp.ncdf(1 / (2 * s) - e * s) - mp.exp(e) * mp.ncdf(-1 / (2 * s) - e * s))


@pytest.mark.parametrize(
    ("delta", "holds_at", "fails_at"), [(1e-5, 8.41, 8.42), (0.01, 6.77, 6.78)]
)
def test_the_classic_gaussian_fails_for_large_epsilon(
    delta: float, holds_at: float, fails_at: float
) -> None:
    def true_delta(epsilon: float) -> float:
        sigma = said("gaussian-classic-unrestricted", epsilon=epsilon, delta=delta, sensitivity=1.0)
        return exact_gaussian_delta(epsilon, sigma)

    assert true_delta(holds_at) <= delta < true_delta(fails_at)
    assert f"{fails_at}" in against("gaussian-classic-unrestricted")


def test_the_classic_gaussian_at_epsilon_twenty() -> None:
    sigma = said("gaussian-classic-unrestricted", epsilon=20.0, delta=1e-5, sensitivity=1.0)
    assert exact_gaussian_delta(20.0, sigma) == pytest.approx(1.53e-3, rel=3e-3)


def test_laplace_noise_as_printed_has_a_larger_total_variation() -> None:
    scale = said("tv-laplace-as-printed", sensitivity=1.0, delta=0.01)
    with mp.workdps(30):
        b = mp.mpf(scale)
        apart = mp.quad(
            lambda x: abs(mp.exp(-abs(x) / b) - mp.exp(-abs(x - 1) / b)) / (4 * b),
            [-400, 0, 0.5, 1, 400],
        )
    assert float(apart) == pytest.approx(0.0683, abs=5e-5)
    assert float(apart) == pytest.approx(-math.expm1(-1 / (2 * scale)), rel=1e-9)
    assert -1 / (2 * math.log1p(-0.01)) == pytest.approx(49.75, abs=5e-3)
    for text in ("0.0683", "49.75", "7.07"):
        assert text in against("tv-laplace-as-printed")


def test_laplace_noise_as_printed_is_too_little_from_a_threshold_on() -> None:
    delta = 0.01
    for factor, enough in ((0.99, True), (1.01, False)):
        sensitivity = factor * 2 * math.log1p(-delta) ** 2 / delta
        scale = said("tv-laplace-as-printed", sensitivity=sensitivity, delta=delta)
        assert (-math.expm1(-sensitivity / (2 * scale)) <= delta) == enough


def test_the_noise_of_an_output_is_too_little_where_more_than_one_is_spent() -> None:
    noise = said("output-perturbation-as-printed", sensitivity=1.0, order=2.0, rdp=4.0)
    assert noise**2 == pytest.approx(0.0625, rel=1e-12)
    assert 2 / (2 * noise**2) == pytest.approx(16)  # alpha s^2 / (2 sigma^2)


def test_a_subsampled_response_is_listed() -> None:
    epsilon, p = 1.0, 0.5
    keep = p * epsilon / (2 + epsilon)
    chances = {bit: keep * bit + (1 - keep) / 2 for bit in (0, 1)}
    assert keep == pytest.approx(1 / 6)
    assert said(
        "subsampled-response-as-printed", epsilon=epsilon, sampling_probability=p
    ) == pytest.approx(0.2)
    assert math.log(chances[1] / chances[0]) == pytest.approx(math.log(1.4))
    other = 2 * p * epsilon / (2 + (1 - p) * epsilon)
    assert other / (2 + other) == pytest.approx(keep)


def test_the_mean_of_data_without_bounds_has_no_epsilon() -> None:
    scale = said("central-mean-of-unbounded-data", epsilon=1.0, dataset_size=100)
    moved = 5 / 100
    assert moved / scale == pytest.approx(5)  # the log ratio of two Laplace densities far out


# Adaptive choices


def test_choosing_the_step_by_the_answer_outgrows_every_orders_budget() -> None:
    orders = np.array([2, 4, 6, 8, 12, 16, 24, 32], dtype=float)
    first = (0.986013, 0.0136844, 0.0003026), (0.9920564, 0.0078044, 0.0001392)
    second = ((4.88e-5, 2.017e-6), (0.00636, 0.0005093), (0.9047, 0.0946))

    def rdp(p: tuple[float, ...], q: tuple[float, ...]) -> Any:
        def one(above: tuple[float, ...], below: tuple[float, ...]) -> Any:
            terms = [
                np.array(a) ** orders * b ** (1 - orders) for a, b in zip(above, below, strict=True)
            ]
            return np.log(np.sum(terms, axis=0)) / (orders - 1)

        return np.maximum(one(p, q), one(q, p))

    delta, deciding = 0.0, []
    for outcome, (p, q) in enumerate(second):
        spent = rdp(*first) + rdp((p, 1 - p), (q, 1 - q))
        room = said(
            "any-order-filter", rdp=spent.tolist(), orders=orders.tolist(), epsilon=3.0, delta=1e-5
        )
        assert 0 <= room < 2e-3
        left = 3.0 - conversion_costs(orders, delta=1e-5) - spent
        deciding.append(int(orders[int(np.argmax(left))]))
        assert np.sum(left >= 0) == 1
        for a, b in ((p, q), (1 - p, 1 - q)):
            delta += max(0.0, first[0][outcome] * a - math.exp(3) * first[1][outcome] * b)
    assert deciding == [6, 12, 32]
    assert delta == pytest.approx(2.439e-5, rel=1e-3)
    assert delta > 1e-5


def test_one_point_of_a_profile_bounds_no_other() -> None:
    mu = said("single-point-gdp", epsilon=1.0, delta=1e-5)
    assert gaussian_delta(1.0, mu=mu) == pytest.approx(1e-5, rel=1e-6)
    # A mechanism that tells all with a chance of 1e-5, else nothing, has delta 1e-5 everywhere.
    told = {"all": (1e-5, 0.0), "nothing": (1 - 1e-5, 1.0)}
    exact = sum(max(0.0, p - math.exp(3) * q) for p, q in told.values())
    assert exact == pytest.approx(1e-5)
    assert gaussian_delta(3.0, mu=mu) == pytest.approx(2.4e-30, rel=0.03)
