"""Renyi moments of single steps on tiny datasets, every batch enumerated, against their curves."""

from collections.abc import Callable

import numpy as np
import pytest

from accounting.bounds.event_bounds import NoBoundError
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.events import (
    Event,
    Gaussian,
    Laplace,
    NeighboringRelation,
    NonUniform,
    Poisson,
    Sampling,
)
from accounting.renyi.orders import ORDERS
from accounting.rounding import Array
from tests.accounting.test_subsampling_exact import (
    CASES,
    REPLACE_ONE,
    Data,
    Sums,
    neighbours,
    truncated,
    weighted,
)

pytestmark = pytest.mark.no_cover  # of values; other tests reach the lines, and untraced it is fast

SIGMA = 1.5
GRID = np.linspace(-40.0, 40.0, 16_001)
CHECKED = np.flatnonzero(np.isin(ORDERS, [1.5, 2.0, 4.0, 8.0, 16.0]))
POISSON = [(Poisson(sampling_probability=q), truncated(q, 9), 4) for q in (0.1, 0.5)]
WEIGHTS = (0.4, 0.3, 0.2, 0.1)
WEIGHED = (NonUniform(max_weight=0.4), weighted(WEIGHTS), 4)


def normal(sums: Sums) -> Array:
    """The logarithm of the density of a sum and Gaussian noise, up to a constant."""
    terms = [np.log(w) - 0.5 * ((GRID - mean) / SIGMA) ** 2 for mean, w in sums.items() if w]
    return np.asarray(np.logaddexp.reduce(terms, axis=0))


def double_exponential(sums: Sums) -> Array:
    """The same with Laplace noise."""
    terms = [np.log(w) - np.abs(GRID - mean) / SIGMA for mean, w in sums.items() if w]
    return np.asarray(np.logaddexp.reduce(terms, axis=0))


def largest_rdp(
    law: Callable[[Data], Sums],
    log_density: Callable[[Sums], Array],
    relation: NeighboringRelation,
    size: int,
) -> Array:
    """The largest divergence over datasets and both orders, at the checked orders."""
    found = []
    for one, other in neighbours(relation, size - 1):
        first, second = log_density(law(one)), log_density(law(other))
        for p, q in ((first, second), (second, first)):
            p, q = p - np.logaddexp.reduce(p), q - np.logaddexp.reduce(q)
            found.append(
                [
                    np.logaddexp.reduce(alpha * p + (1 - alpha) * q) / (alpha - 1)
                    for alpha in ORDERS[CHECKED]
                ]
            )
    return np.asarray(np.max(found, axis=0))


@pytest.mark.parametrize("relation", NeighboringRelation)
@pytest.mark.parametrize(("sampling", "law", "size"), [*CASES, *POISSON, WEIGHED])
def test_no_dataset_has_larger_moments_than_the_curves(
    sampling: Sampling,
    law: Callable[[Data], Sums],
    size: int,
    relation: NeighboringRelation,
) -> None:
    event = Event(mechanism=Gaussian(noise_multiplier=SIGMA), sampling=sampling)
    try:
        bounds = renyi_bounds(event, relation)
    except NoBoundError:
        assert isinstance(sampling, NonUniform)
        return
    exact = largest_rdp(law, normal, relation, size)
    for bound in bounds:
        assert np.all(exact <= bound.loss[CHECKED] + 1e-9), bound.theorem.id


@pytest.mark.parametrize("q", [0.1, 0.5])
def test_telling_who_was_sampled_bounds_any_mechanism(q: float) -> None:
    exact = largest_rdp(truncated(q, 9), double_exponential, REPLACE_ONE, 4)

    def curve(rate: float) -> Array:
        event = Event(
            mechanism=Laplace(noise_multiplier=SIGMA), sampling=Poisson(sampling_probability=rate)
        )
        bounds = {bound.theorem.id: bound.loss for bound in renyi_bounds(event, REPLACE_ONE)}
        return np.asarray(bounds["revealed-poisson-sampling"][CHECKED])

    assert np.all(exact <= curve(q) + 1e-9)
    assert np.any(exact > curve(q / 25))  # the experiment can fail
