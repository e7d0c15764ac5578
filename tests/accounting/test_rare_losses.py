"""Very many steps of almost nothing: both ends, and what each of their terms is for."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest

from accounting.accountants.best_bound import guarantee
from accounting.event_counts import count_events
from accounting.events import Direction, Event, Gaussian, NeighboringRelation, Poisson, Span
from accounting.pld import rare_losses
from accounting.pld.certified_composition import delta_bracket, epsilon_bracket
from accounting.pld.pairs import GaussianPair, SampledGaussianPair, Units
from accounting.pld.rare_losses import (
    are_rare,
    rare_bracket,
    rare_delta,
    rare_epsilon,
    told_by_cell,
)

REMOVE, ADD = Direction.REMOVE, Direction.ADD


def sampled(q: float, sigma: float) -> SampledGaussianPair:
    return SampledGaussianPair(noise_multiplier=sigma, sampling_probability=q)


def counted(q: float, sigma: float, steps: int) -> Units:
    return [(sampled(q, sigma), steps)]


# Before, the upper ends were .0590 (that of the Renyi curve), .174, .336 and .00155.
@pytest.mark.parametrize(
    ("q", "sigma", "lower", "upper"),
    [
        (1e-8, 1.0, 0.0, 8.3e-4),
        (1e-7, 1.0, 9.6e-3, 0.0118),
        (1e-6, 1.0, 0.129, 0.1456),
        (1e-7, 10.0, 4.65e-4, 5.91e-4),
    ],
)
def test_a_billion_steps_of_almost_nothing_cost_almost_nothing(
    q: float, sigma: float, lower: float, upper: float
) -> None:
    event = Event(
        mechanism=Gaussian(noise_multiplier=sigma), sampling=Poisson(sampling_probability=q)
    )
    counts = count_events([[Span(event=event, steps=10**9)]])
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    found = guarantee(counts, relation=relation, delta=1e-5)
    assert found.epsilon is not None
    assert found.epsilon_lower is not None
    assert lower <= found.epsilon_lower <= found.epsilon <= upper
    back = guarantee(counts, relation=relation, epsilon=found.epsilon)
    assert back.delta is not None
    assert back.delta <= 1e-5 * (1 + 1e-6)


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.01, 1.0, 500), (1e-3, 2.0, 10**5)])
def test_what_other_engines_bracket_lies_between(
    q: float, sigma: float, steps: int, direction: Direction
) -> None:
    units = counted(q, sigma, steps)
    for delta in (1e-3, 1e-6, 1e-12):
        known = epsilon_bracket(units, delta=delta)
        above = max(rare_epsilon(units, each, delta=delta) for each in Direction)
        assert known.lower <= above
        assert rare_bracket(units, direction, delta=delta)[0] <= known.upper
        lost = max(rare_delta(units, each, epsilon=known.upper) for each in Direction)
        assert delta_bracket(units, epsilon=known.upper).lower <= lost
    assert rare_bracket(units, ADD, delta=1e-6)[0] == 0.0
    told = epsilon_bracket(told_by_cell(units), delta=1e-6)
    assert 0 < told.lower <= epsilon_bracket(units, delta=1e-6).upper


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize(("q", "sigma"), [(1e-7, 1.0), (1e-3, 0.7), (0.3, 3.0)])
def test_moments_are_a_little_above_the_integral(
    q: float, sigma: float, direction: Direction
) -> None:
    cut = 6.0 + 1 / sigma
    found = rare_losses._excess_moment(sampled(q, sigma), direction, cut)
    for place in (0, 10, 20):
        order = float(rare_losses._ORDERS[place])
        power = 1 + order if direction is REMOVE else -order

        def bent(z: float, power: float = power) -> Any:
            s = 1 + q * mpmath.expm1(z / sigma - 0.5 / sigma**2)
            return mpmath.npdf(z) * (s**power - 1 - power * (s - 1))

        with mpmath.workdps(40):
            exact = mpmath.quad(bent, [-12, -3, 0, 1 / sigma, 3, cut])
        assert exact <= found[place] <= exact * 1.1 + 1e-25


def test_losses_that_are_left_out_must_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    units = counted(1e-3, 0.3, 1000)
    truth = delta_bracket(units, epsilon=2.0).lower
    assert rare_delta(units, REMOVE, epsilon=2.0) >= truth
    monkeypatch.setattr(rare_losses, "_cut", lambda *_: (1.0, 0.0))
    assert rare_delta(units, REMOVE, epsilon=2.0) < truth


def test_where_nothing_can_be_said_epsilon_is_infinite() -> None:
    assert rare_epsilon(counted(0.5, 1.0, 10**9), REMOVE, delta=1e-320) == math.inf
    assert rare_epsilon(counted(0.5, 1e-3, 10**9), REMOVE, delta=1e-5) == math.inf
    assert rare_delta(counted(0.5, 1e-3, 10**9), REMOVE, epsilon=1.0) == 1.0
    assert rare_bracket(counted(1e-9, 1.0, 10**9), REMOVE, delta=1e-5)[0] == 0.0


def test_which_steps_are_rare() -> None:
    assert are_rare(counted(1e-6, 1.0, 10**7))
    assert not are_rare(counted(1e-6, 1.0, 10**7 - 1))
    assert not are_rare(counted(0.6, 1.0, 10**7))
    assert not are_rare([(GaussianPair(noise_multiplier=1.0), 10**7)])
    assert not are_rare([(sampled(1e-6, 1.0 + i), 10**7) for i in range(9)])
    assert np.all(np.diff(rare_losses._ORDERS) > 0)
