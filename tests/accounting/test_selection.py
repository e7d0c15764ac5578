"""Private selection against exact laws, and against what its bound does not cover."""

import math
from itertools import pairwise, product

import numpy as np
import pytest

from accounting.events import (
    Event,
    Gaussian,
    NegativeBinomialTrials,
    NeighboringRelation,
    Poisson,
    PoissonTrials,
    RandomizedResponse,
    Trials,
)
from accounting.renyi.orders import ORDERS
from accounting.renyi.selection import (
    expected_trials,
    negative_binomial_of_mean,
    negative_binomial_selection_rdp,
    poisson_selection_rdp,
    threshold,
)
from accounting.rounding import Array

ADD, ONE, NULL = NeighboringRelation
RESPONSE = RandomizedResponse(probability_of_truth=0.7, categories=2)
STEP = Event(mechanism=Gaussian(noise_multiplier=1.0), sampling=Poisson(sampling_probability=0.01))
SHAPES = (-0.9, -0.5, 0.0, 0.5, 1.0, 5.0)


def divergence(first: Array, second: Array) -> Array:
    """Renyi divergences of discrete laws, at ORDERS."""
    logs = np.log(first), np.log(second)
    powers = np.outer(ORDERS, logs[0]) + np.outer(1 - ORDERS, logs[1])
    return np.asarray(np.logaddexp.reduce(powers, axis=1) / (ORDERS - 1))


def curve(law: tuple[float, ...], other: tuple[float, ...]) -> Array:
    """What bounds a trial, in both orders."""
    laws = np.array(law), np.array(other)
    return np.maximum(divergence(*laws), divergence(*reversed(laws)))


def deltas(law: tuple[float, ...], other: tuple[float, ...]) -> Array:
    """The delta of a trial at each order's epsilon, in both orders."""
    scale = np.array([math.exp(threshold(order)) for order in ORDERS.tolist()])[:, None]
    laws = np.array(law), np.array(other)
    first, second = (np.maximum(a - scale * b, 0).sum(axis=1) for a, b in (laws, laws[::-1]))
    return np.asarray(np.maximum(first, second))


def chances(trials: Trials) -> Array:
    """P(K = k) for k = 0, 1, ..., until less than 1e-13 is left."""
    found: list[float] = []
    mass = 0.0
    if isinstance(trials, PoissonTrials):
        term = math.exp(-trials.mean)
        while not found or mass < 1 - 1e-13:
            found.append(term)
            mass += term
            term *= trials.mean / len(found)
        return np.array(found)
    eta, gamma = trials.shape, trials.halting_probability
    term = 1 - gamma  # of k = 1, without the factor that all share
    found = [0.0, term]
    for k in range(1, 200_000):
        term *= (1 - gamma) * (k + eta) / (k + 1)
        found.append(term)
        if term < 1e-14 * gamma:
            break
    total = math.log(1 / gamma) if eta == 0 else math.expm1(-eta * math.log(gamma)) / eta
    assert math.fsum(found) == pytest.approx(total, rel=1e-12)
    return np.array(found) / total


def best_of(law: tuple[float, ...], trials: Trials) -> Array:
    """The law of the best output, from the worst on; first that of no trial, if there may be."""
    weights = chances(trials)
    powers = np.arange(len(weights))
    below = [float(weights @ np.float_power(c, powers)) for c in np.cumsum(law).clip(0, 1)]
    tops = np.diff([float(weights[0]), *below])
    return tops if weights[0] == 0 else np.array([weights[0], *tops])


def bound_of(trials: Trials, law: tuple[float, ...], other: tuple[float, ...]) -> Array:
    rdp = curve(law, other)
    if isinstance(trials, PoissonTrials):
        read = deltas(law, other)
        return poisson_selection_rdp(rdp=rdp, deltas=read, mean=trials.mean, orders=ORDERS)
    return negative_binomial_selection_rdp(
        rdp=rdp,
        shape=trials.shape,
        halting_probability=trials.halting_probability,
        orders=ORDERS,
    )


TWO = [((p, 1 - p), (q, 1 - q)) for p, q in product((0.01, 0.3, 0.6, 0.95), repeat=2) if p != q]
THREE = [
    ((0.7, 0.2, 0.1), (0.5, 0.2, 0.3)),
    ((0.98, 0.01, 0.01), (0.9, 0.099, 0.001)),
    ((0.2, 0.7, 0.1), (0.1, 0.8, 0.1)),
]
LAWS: list[Trials] = [
    *(
        NegativeBinomialTrials(shape=eta, halting_probability=gamma)
        for eta in SHAPES
        for gamma in (0.01, 0.1, 0.5, 0.9)
    ),
    *(PoissonTrials(mean=mean) for mean in (1.0, 1.5, 10.0, 100.0)),
]


@pytest.mark.parametrize("trials", LAWS, ids=repr)
def test_no_selection_tells_more_than_its_bound(trials: Trials) -> None:
    closest = 0.0
    for law, other in [*TWO, *THREE]:
        bound = bound_of(trials, law, other)
        best = best_of(law, trials), best_of(other, trials)
        for first, second in (best, best[::-1]):
            exact = divergence(first, second)
            assert np.all(exact <= bound + 1e-10)
            closest = max(closest, float(np.max(exact / bound)))
    assert closest > 0.5  # the bound is not far above all of them


def test_a_fixed_number_of_trials_exceeds_the_bound() -> None:
    trials = NegativeBinomialTrials(shape=1.0, halting_probability=0.1)
    worst = max(_ratio_of_fixed(trials, p, 10) for p in (0.5, 0.2, 0.1, 0.03, 0.01))
    assert worst > 2


def _rare(p: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Two outcomes whose likelihood ratio is at most e^2; the better one is the rarer."""
    return (p, 1 - p), (p * math.exp(-2), 1 - p * math.exp(-2))


def _ratio_of_fixed(trials: Trials, p: float, k: int) -> float:
    law, other = _rare(p)
    tops = [np.array([c[0] ** k, 1 - c[0] ** k]) for c in (law, other)]
    return float(np.max(divergence(*tops) / bound_of(trials, law, other)))


def test_a_number_of_trials_that_is_told_exceeds_the_bound() -> None:
    trials = NegativeBinomialTrials(shape=1.0, halting_probability=0.1)
    weights = chances(trials)
    law, other = _rare(0.5)
    ks = np.arange(1, len(weights))
    first, second = (
        np.concatenate([weights[1:] * c[0] ** ks, weights[1:] * (1 - c[0] ** ks)])
        for c in (law, other)
    )
    kept = (first > 1e-200) & (second > 1e-200)
    told = divergence(first[kept], second[kept])  # a part of the sum: from below
    assert float(np.max(told / bound_of(trials, law, other))) > 4


def test_candidates_that_remember_earlier_trials_exceed_the_bound() -> None:
    # Each trial's candidate spells out all earlier answers and scores above them: the winner is
    # the last trial, and its hyper-parameters are the history.
    trials = NegativeBinomialTrials(shape=1.0, halting_probability=0.1)
    law, other = (0.6, 0.4), (0.4, 0.6)
    weights = chances(trials)
    alone = curve(law, other)
    index = ORDERS.tolist().index(2.0)
    each = math.exp(alone[index])  # the moment of a trial at order 2; those of k trials multiply
    whole = math.log(sum(w * each**k for k, w in enumerate(weights[:200].tolist())))
    assert whole > 1.2 * float(bound_of(trials, law, other)[index])


@pytest.mark.parametrize("mean", [1.0, 1.5, 3.0, 10.0])
@pytest.mark.parametrize("rate", [0.0, 1e-3, 0.2])
def test_the_bound_holds_the_fixed_output_of_no_trial(mean: float, rate: float) -> None:
    # The sum over outputs in the proof of Theorem 2: no trial adds its chance, the others at most
    # m exp((a - 1) (r + m d)). A curve that grows with the order is least where it stands.
    rdp, read = rate * ORDERS, np.full_like(ORDERS, 1e-6)
    nothing = math.log(chances(PoissonTrials(mean=mean))[0])
    others = math.log(mean) + (ORDERS - 1) * (rdp + mean * read)
    each = np.logaddexp(nothing, others) / (ORDERS - 1)
    proved = np.minimum.accumulate(each[::-1])[::-1]
    found = poisson_selection_rdp(rdp=rdp, deltas=read, mean=mean, orders=ORDERS)
    assert np.all(found >= proved * (1 - 1e-13))
    assert found == pytest.approx(proved, rel=1e-9, abs=1e-12)


def test_the_bound_rises_with_the_mean() -> None:
    rdp = curve((0.7, 0.3), (0.4, 0.6))
    read = deltas((0.7, 0.3), (0.4, 0.6))
    for eta in SHAPES:
        found = [
            negative_binomial_selection_rdp(
                rdp=rdp, shape=eta, halting_probability=gamma, orders=ORDERS
            )
            for gamma in (0.9, 0.5, 0.1, 0.01, 1e-6)
        ]
        assert all(np.all(less < more) for less, more in pairwise(found))
    several = [
        poisson_selection_rdp(rdp=rdp, deltas=read, mean=mean, orders=ORDERS)
        for mean in (1.0, 2.0, 10.0, 100.0)
    ]
    assert all(np.all(less < more) for less, more in pairwise(several))
    assert all(np.all(np.diff(each) >= 0) for each in [*several, *found])


def test_the_mean_is_that_of_the_law() -> None:
    for trials in LAWS:
        weights = chances(trials)
        mean = float(weights @ np.arange(len(weights)))
        assert mean <= expected_trials(trials) <= mean * (1 + 1e-9)


@pytest.mark.parametrize("shape", [-0.5, -1e-20, 0.0, 1e-20, 0.5, 1.0, 7.0])
@pytest.mark.parametrize("mean", [1.5, 5.0, 10.0, 100.0])
def test_a_law_is_found_for_a_mean(shape: float, mean: float) -> None:
    found = negative_binomial_of_mean(shape=shape, mean=mean)
    digits = f"{found.halting_probability!r}".split("e")[0].replace(".", "").lstrip("0")
    assert len(digits) <= 9
    assert mean * (1 - 1e-11) <= expected_trials(found) <= mean * (1 + 1e-7)


def test_the_laws_of_the_usual_means() -> None:
    found = {
        (shape, mean): negative_binomial_of_mean(shape=shape, mean=mean).halting_probability
        for shape, mean in [(0.0, 10.0), (0.5, 10.0), (1.0, 10.0), (0.0, 100.0)]
    }
    assert found[1.0, 10.0] == 0.1
    assert found[0.5, 10.0] == 0.0625
    assert found[0.0, 10.0] == pytest.approx(0.02691826, abs=1e-8)
    assert found[0.0, 100.0] == pytest.approx(0.0015421, abs=1e-7)


@pytest.mark.parametrize(
    ("shape", "mean"), [(-1.0, 5.0), (101.0, 5.0), (0.0, 1.0), (0.0, 1e7), (-0.99, 10.0),
                        (0.0, 1 + 2.0**-50), (math.nan, 5.0), (0.0, math.nan)],
)  # fmt: skip
def test_a_mean_that_no_law_has_is_refused(shape: float, mean: float) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        negative_binomial_of_mean(shape=shape, mean=mean)


def test_laws_that_are_none_are_refused() -> None:
    for shape, gamma in [(-1.0, 0.5), (0.0, 0.0), (0.0, 1.0), (math.nan, 0.5), (0.0, math.nan)]:
        with pytest.raises(ValueError, match="Out of range"):
            NegativeBinomialTrials(shape=shape, halting_probability=gamma)
    for mean in (0.999, 0.0, -1.0, 1e7, math.nan):
        with pytest.raises(ValueError, match="mean="):
            PoissonTrials(mean=mean)


def test_curves_that_are_none_are_refused() -> None:
    for wrong in (np.full_like(ORDERS, -1.0), np.full_like(ORDERS, math.nan)):
        with pytest.raises(ValueError, match="rdp"):
            negative_binomial_selection_rdp(
                rdp=wrong, shape=1.0, halting_probability=0.1, orders=ORDERS
            )
        with pytest.raises(ValueError, match="rdp, d"):
            poisson_selection_rdp(rdp=wrong, deltas=0 * ORDERS, mean=2.0, orders=ORDERS)
    unknown = np.full_like(ORDERS, math.inf)
    for deltas_given in (0 * ORDERS, 0 * ORDERS + 1):
        found = poisson_selection_rdp(rdp=unknown, deltas=deltas_given, mean=2.0, orders=ORDERS)
        assert np.all(found == math.inf)
