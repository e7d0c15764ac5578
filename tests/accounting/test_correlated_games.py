"""A pass of correlated noise against the best adversary: Theorem 1 of correlated_noise.md."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import norm

from accounting.correlated_noise import BandedRows, Participation, sensitivity_of
from accounting.correlated_noise.sensitivity import correlated_gaussian_mu
from accounting.gaussian import log_gaussian_delta
from tests.accounting.test_correlated_noise import banded_rows, by_enumeration, schema

Floats = npt.NDArray[np.float64]


def profile(shift: Floats, noise: float, a: Floats) -> Floats:
    """H_a of N(shift, noise^2) from N(0, noise^2), elementwise."""
    mu = np.abs(shift) / noise
    with np.errstate(divide="ignore", invalid="ignore"):
        log_a = np.log(a)
        value = norm.cdf(mu / 2 - log_a / mu) - a * norm.cdf(-mu / 2 - log_a / mu)
    return np.where(mu > 0, np.where(a > 0, value, 1.0), np.maximum(1 - a, 0.0))


def best_pass(
    rows: Sequence[Sequence[float]],
    noise: float,
    allowed: Callable[[tuple[float, ...]], bool],
    epsilon: float,
    cells: int,
) -> float:
    """The delta of the best adversary, who chooses each contribution after earlier answers."""
    size = len(rows)

    def value(given: tuple[float, ...], a: Floats) -> Floats:
        step = len(given)
        found = np.zeros_like(a)
        for own in (-1.0, 0.0, 1.0):
            chosen = (*given, own)
            if not allowed(chosen):
                continue
            shift = float(np.dot(rows[step][: step + 1], chosen))
            if step == size - 1:
                found = np.maximum(found, profile(np.full_like(a, shift), noise, a))
                continue
            if shift == 0:
                found = np.maximum(found, value(chosen, a))
                continue
            # Answers by their place under the first law; the last step is exact.
            z, width = np.linspace(-8.0, 8.0, cells, retstep=True)
            mass = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) * width
            ratio = np.exp(-(shift * z / noise) - 0.5 * (shift / noise) ** 2)
            after = value(chosen, np.outer(a, ratio).ravel()).reshape(len(a), -1)
            found = np.maximum(found, after @ mass)
        return found

    return float(value((), np.array([math.exp(epsilon)]))[0])


def keeps_to(one: Participation) -> Callable[[tuple[float, ...]], bool]:
    def allowed(chosen: tuple[float, ...]) -> bool:
        at = [i for i, own in enumerate(chosen) if own]
        apart = all(b - a >= one.min_separation for a, b in pairwise(at))
        return apart and len(at) <= one.participations

    return allowed


GAMES = [
    (((1.0,), (-0.9, 1.0)), schema(2, 1, 2), 401),
    (((1.0,), (0.5, 1.0)), schema(2, 1, 2), 401),
    (((1.0,), (0.5, 1.3)), schema(2, 2, 1), 401),
    (((1.0,), (0.5, 1.0), (0.375, 0.5, 1.0)), schema(3, 2, 2), 161),
    (((1.0,), (-0.7, 1.0), (0.4, 0.6, 0.8)), schema(3, 1, 2), 161),
]


@pytest.mark.parametrize(("rows", "one", "cells"), GAMES)
@pytest.mark.parametrize("noise", [1.0, 2.5])
def test_the_best_adversary_stays_within_a_pass_and_comes_close(
    rows: tuple[tuple[float, ...], ...], one: Participation, cells: int, noise: float
) -> None:
    squared = sensitivity_of(BandedRows(rows=rows), one).squared
    exact = float(by_enumeration(banded_rows(rows), one))
    mu = correlated_gaussian_mu(sensitivity_squared=squared, noise_multiplier=noise)
    for epsilon in (0.1, 0.5, 1.5):
        claimed = math.exp(log_gaussian_delta(epsilon, mu=mu)[0])
        found = best_pass(rows, noise, keeps_to(one), epsilon, cells)
        print(f"{found / claimed:.5f}")  # noqa: T201
        assert found <= claimed * (1 + 1e-6)
        if squared <= exact * (1 + 1e-9):
            assert found >= 0.99 * claimed


def test_rows_of_two_strategies_are_two_passes() -> None:
    """A pass that goes on with another strategy exceeds the larger of the two."""
    first = ((1.0,), (0.9, 1.0))
    second = ((1.0,), (-0.9, 1.5))
    one, noise, epsilon = schema(2, 1, 1), 1.0, 0.5
    most = max(sensitivity_of(BandedRows(rows=rows), one).squared for rows in (first, second))
    spliced = ((1.5,), (0.9, 1.0))  # its first row is the second strategy's last
    mu = correlated_gaussian_mu(sensitivity_squared=1.81, noise_multiplier=noise)
    assert most == pytest.approx(2.25)
    found = best_pass(spliced, noise, keeps_to(one), epsilon, 401)
    claimed = correlated_gaussian_mu(sensitivity_squared=most, noise_multiplier=noise)
    assert found > math.exp(log_gaussian_delta(epsilon, mu=claimed)[0]) * 1.1
    both = correlated_gaussian_mu(sensitivity_squared=most + 1.81, noise_multiplier=noise)
    assert found <= math.exp(log_gaussian_delta(epsilon, mu=both)[0])
    assert mu > 1
