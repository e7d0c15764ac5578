"""Exact games against what is charged for passes whose noise follows their answers."""

import math

import numpy as np
import pytest

from accounting.events import NeighboringRelation
from accounting.guarantees import DEFAULT_ACCEPT
from accounting.rounding import Array
from tests.accounting.pass_games import (
    SPECIAL,
    TRUSTING,
    Bins,
    Turns,
    at_the_least_noise,
    charge_of,
    largest,
    largest_of_turns,
    largest_of_two,
    largest_of_two_turns,
)

EXACT = 1e-9  # of the integrals


def test_a_fixed_schedules_curve_does_not_hold_where_noise_follows_the_answers() -> None:
    for noises, order, attained in (((2.253, 1.352), 8, 1.137), ((4.0, 2.8), 32, 1.323)):
        game = Bins(steps=2, order=order, noises=noises)
        assert largest(game, at_the_least_noise(game.sampling, order)) == pytest.approx(
            attained, abs=5e-4
        )
        for accept in (TRUSTING, DEFAULT_ACCEPT):
            charge = charge_of(game.sampling, order, accept=accept)
            assert 0.999 < largest(game, charge) <= 1 + EXACT


@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize(("order", "noises"), [(3, (3.0, 2.0, 0.7)), (8, (1.0, 0.9, 0.5, 2.0))])
def test_no_trainer_gains_by_what_it_does_with_the_noise_of_a_pass(
    order: int, noises: tuple[float, ...], removed: bool
) -> None:
    game = Bins(steps=2, order=order, noises=noises, norms=(0.0, 0.5, 1.0), removed=removed)
    assert largest(game, charge_of(game.sampling, order)) <= 1 + EXACT
    three = Bins(steps=3, order=order, noises=noises[:2], norms=(0.5, 1.0), removed=removed)
    assert largest(three, charge_of(three.sampling, order)) <= 1 + EXACT


@pytest.mark.parametrize("removed", [True, False])
def test_no_trainer_gains_where_a_record_is_in_two_steps_of_three(removed: bool) -> None:
    given = {"norms": (0.5, 1.0), "removed": removed, "twice": True}
    game = Bins(steps=3, order=4, noises=(2.0, 1.0), **given)  # type: ignore[arg-type]
    assert largest(game, charge_of(game.sampling, 4)) <= 1 + EXACT
    steady = Bins(steps=3, order=4, noises=(2.0,), **given)  # type: ignore[arg-type]
    assert largest(steady, charge_of(steady.sampling, 4)) <= 1 + EXACT


def test_no_trainer_gains_with_two_passes_open_at_once() -> None:
    game = Bins(steps=2, order=8, noises=(2.253, 1.352))
    assert largest_of_two(game, at_the_least_noise(game.sampling, 8)) > 1.14
    for accept in (TRUSTING, DEFAULT_ACCEPT):
        charge = charge_of(game.sampling, 8, accept=accept)
        assert 0.999 < largest_of_two(game, charge) <= 1 + EXACT


@pytest.mark.parametrize("exchanged", [True, False])
@pytest.mark.parametrize(("other", "relation"), [(0.0, SPECIAL), (-1.0, "replace_one")])
def test_no_trainer_gains_by_the_noise_of_a_loader_that_stops_early(
    other: float, relation: str, exchanged: bool
) -> None:
    worst = 0.0
    for size, order, noises in ((3, 2.0, (3.0, 1.0)), (3, 8.0, (3.0, 2.5)), (10, 4.0, (2.0, 1.0))):
        game = Turns(size=size, order=order, noises=noises, other=other, exchanged=exchanged)
        charge = charge_of(game.sampling, order, relation=NeighboringRelation(relation))
        worst = max(worst, largest_of_turns(game, charge))
    game = Turns(size=3, order=2.0, noises=(3.0, 1.0), other=other, exchanged=exchanged)
    charge = charge_of(game.sampling, 2.0, relation=NeighboringRelation(relation))
    worst = max(worst, largest_of_two_turns(game, charge))
    assert 0.5 < worst <= 1 + EXACT


def test_what_is_left_of_a_pass_in_turn_may_be_two_norm_bounds_away() -> None:
    """Once the record was seen to be null, what stands against it is another record."""
    y = np.linspace(-12, 12, 4001)

    def law(mean: float) -> Array:
        return np.asarray(np.exp(-0.5 * (y - mean) ** 2) / math.sqrt(2 * math.pi))

    def seen(mean: float) -> float:
        return math.exp(-0.5 * (5.0 - mean) ** 2)

    weights = []
    for there in (-1.0, 0.0):  # what the record is in the first step, in either dataset
        gone, left = seen(there), 2 * seen(-1.0)
        weights.append(left / (gone + left))
    p_left, q_left = weights
    p = (1 - p_left) * law(-1.0) + p_left * (0.5 * law(1.0) + 0.5 * law(-1.0))
    q = (1 - q_left) * law(-1.0) + q_left * (0.5 * law(0.0) + 0.5 * law(-1.0))
    divergence = math.log(float(np.sum(p * p / q) * (y[1] - y[0])))
    assert divergence == pytest.approx(1.796, abs=5e-5)  # of docs/theory/filters.md
    assert divergence > 1.0  # that of one release


# The lemma itself


@pytest.mark.parametrize("power", [2.5, 8.0, -1.5, -7.0])
def test_moments_of_a_posterior_grow_no_faster_than_those_of_a_release(power: float) -> None:
    """d/ds log E[R^e] <= k alpha (alpha-1)/2 for R a sum over k-sets of products of lognormals."""
    order = power if power > 1 else 1 - power
    z = np.linspace(-9.0, 9.0, 181)
    one, other = np.meshgrid(z, z)
    density = np.exp(-0.5 * (one**2 + other**2))
    random, step, worst = np.random.default_rng(1), 1e-4, 0.0
    for _ in range(40):
        none, first, second, both = random.dirichlet(np.full(4, 0.4))

        def moment(s: float, w: tuple[float, ...]) -> float:
            y = [np.exp(math.sqrt(s) * v - s / 2) for v in (one, other)]
            ratio = w[0] + w[1] * y[0] + w[2] * y[1] + w[3] * y[0] * y[1]
            return math.log(float(np.sum(density * ratio**power)))

        s = float(random.uniform(0.02, 0.3))
        w = (none, first, second, both)
        slope = (moment(s + step, w) - moment(s, w)) / step
        taken = 2 if both > 1e-3 else 1
        worst = max(worst, slope / (taken * order * (order - 1) / 2))
    assert 0.2 < worst <= 1 + 1e-3
