"""Shuffled passes against their own laws: every order of a few records, densities on a grid.

The gradients of a record may depend on the step and on the sign of the answer before it.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from accounting.events import NeighboringRelation
from accounting.gaussian import gaussian_delta
from accounting.pld.certified_composition import lower_epsilon
from accounting.rounding import Array
from accounting.shuffling.full import (
    largest_pair,
    noise_of_average,
    shuffle_add_remove_mu,
)
from tests.accounting.shuffle_floors import shuffle_lower_delta

SPECIAL, ONE, SIZE = (
    NeighboringRelation.REPLACE_SPECIAL,
    NeighboringRelation.REPLACE_ONE,
    NeighboringRelation.ADD_OR_REMOVE_ONE,
)
EPSILONS = (0.0, 0.4, 1.0, 2.0)
GRID = 6e-3  # what the grid is off by, relative; where two numbers may be equal it shows
POINTS = {1: 2000, 2: 240, 3: 80, 4: 44}
Orders = list[tuple[frozenset[int], ...]]


def _orders(records: int, batch_size: int, steps: int) -> Orders:
    """Batches of the released steps of every order, all equally likely."""

    def after(left: frozenset[int], steps: int) -> Orders:
        if steps == 0:
            return [()]
        firsts = itertools.combinations(sorted(left), min(batch_size, len(left)))
        return [
            (frozenset(first), *rest)
            for first in firsts
            for rest in after(left - set(first), steps - 1)
        ]

    return after(frozenset(range(records)), steps)


def _law(gradients: Array, orders: Orders, *, sigma: float, axis: Array) -> Array:
    """Density of the answers, shape (points,) * steps; gradients are by record, step and sign."""
    steps = len(orders[0])
    total = np.zeros((len(axis),) * steps)
    for batches in orders:
        part: Array = np.full((), 1 / len(orders))
        for step, batch in enumerate(batches):
            low, high = gradients[sorted(batch), step].sum(axis=0)
            means = np.where(axis > 0, high, low) if step else np.full(1, low)
            scaled = (axis[None, :] - means[:, None]) / sigma
            density = np.exp(-0.5 * scaled**2) / (sigma * math.sqrt(2 * math.pi))
            part = part[..., None] * density if step else part * density[0]
        total += part
    return total


def _deltas(first: Array, second: Array, axis: Array) -> list[float]:
    """The larger delta of both orders, at EPSILONS."""
    cell = float(axis[1] - axis[0]) ** first.ndim
    return [
        cell
        * max(
            float(np.maximum(one - math.exp(epsilon) * other, 0).sum())
            for one, other in ((first, second), (second, first))
        )
        for epsilon in EPSILONS
    ]


def _axis(batch_size: int, sigma: float, steps: int) -> Array:
    reach = batch_size + 5.5 * sigma
    edges = np.linspace(-reach, reach, POINTS[steps] + 1)  # zero is an edge: the sign is exact
    return 0.5 * (edges[1:] + edges[:-1])


def _exact(
    neighbours: tuple[Array, Array], *, batch_size: int, steps: int, sigma: float
) -> list[float]:
    """Deltas of one pass over two datasets, which are gradients by record, step and sign."""
    axis = _axis(batch_size, sigma, steps)
    first, second = (
        _law(one, _orders(len(one), batch_size, steps), sigma=sigma, axis=axis)
        for one in neighbours
    )
    return _deltas(first, second, axis)


def _neighbours(gradients: Array, relation: NeighboringRelation) -> tuple[Array, Array]:
    """Gradients of n + 1 records: the neighbours differ in what becomes of the last two."""
    if relation is SIZE:
        return gradients[:-1], gradients[:-2]
    other = gradients[:-1].copy()
    other[-1] = 0.0 if relation is SPECIAL else gradients[-1]
    return gradients[:-1], other


def _star(records: int, steps: int) -> Array:
    gradients = np.full((records + 1, steps, 2), -1.0)
    gradients[-2] = 1.0
    return gradients


def _games(records: int, steps: int, count: int) -> Iterator[Array]:
    """Random games: gradients of size one half of the time, of any size the other half."""
    for seed in range(count):
        generator = np.random.default_rng(seed)
        gradients = generator.uniform(-1, 1, (records + 1, steps, 2))
        yield np.sign(gradients) if seed % 2 else gradients


CASES = [(3, 1, 3, 0.8), (4, 2, 2, 1.0), (5, 2, 3, 1.2), (4, 1, 2, 0.7), (5, 2, 1, 1.0)]
SENSITIVITY = {SPECIAL: 1.0, ONE: 2.0}


def _batches(records: int, batch_size: int) -> int:
    return -(-records // batch_size)


@pytest.mark.parametrize("relation", [SPECIAL, ONE])
@pytest.mark.parametrize(("records", "batch_size", "steps", "sigma"), CASES)
def test_the_floor_is_below_what_some_records_lose_and_that_below_one_gaussian(
    records: int, batch_size: int, steps: int, sigma: float, relation: NeighboringRelation
) -> None:
    exact = _exact(
        _neighbours(_star(records, steps), relation),
        batch_size=batch_size,
        steps=steps,
        sigma=sigma,
    )
    for epsilon, delta in zip(EPSILONS, exact, strict=True):
        floor = shuffle_lower_delta(
            epsilon,
            noise_multiplier=sigma,
            batches=_batches(records, batch_size),
            steps=steps,
            relation=relation,
        )
        assert 0.1 * delta < floor <= delta * (1 + GRID)
        assert delta <= gaussian_delta(epsilon, mu=SENSITIVITY[relation] / sigma) * (1 + GRID)


@pytest.mark.parametrize("relation", [SPECIAL, ONE])
@pytest.mark.parametrize(("records", "batch_size", "steps", "sigma"), CASES)
def test_no_adaptive_gradients_lose_more_in_a_pass_than_one_gaussian(
    records: int, batch_size: int, steps: int, sigma: float, relation: NeighboringRelation
) -> None:
    for game in _games(records, steps, 4):
        exact = _exact(_neighbours(game, relation), batch_size=batch_size, steps=steps, sigma=sigma)
        for epsilon, delta in zip(EPSILONS, exact, strict=True):
            assert delta <= gaussian_delta(epsilon, mu=SENSITIVITY[relation] / sigma) * (1 + GRID)


# Declared size, batch size, steps of a pass; with the last batch, without it, and before it.
SIZES = [(5, 3, 2), (6, 4, 2), (7, 3, 2), (6, 4, 1), (5, 2, 1), (4, 1, 2), (5, 1, 3)]


@pytest.mark.parametrize("declared", SIZES)
def test_adding_or_removing_a_record_stays_below_its_gaussian_and_above_its_floor(
    declared: tuple[int, int, int],
) -> None:
    size, batch_size, steps = declared
    sigma = 1.1
    mu = shuffle_add_remove_mu(
        noise_multiplier=sigma,
        batch_size=batch_size,
        dataset_size=size,
        steps_per_pass=steps,
    )
    for records in (size, size + 1):  # the larger of the two neighbours
        games = [_star(records, steps), *_games(records, steps, 4)]
        found = [
            _exact(_neighbours(game, SIZE), batch_size=batch_size, steps=steps, sigma=sigma)
            for game in games
        ]
        for place, epsilon in enumerate(EPSILONS):
            floor = shuffle_lower_delta(
                epsilon,
                noise_multiplier=sigma,
                batches=_batches(records, batch_size),
                steps=steps,
                relation=SIZE,
            )
            assert floor <= found[0][place] * (1 + GRID)
            for deltas in found:
                assert deltas[place] <= gaussian_delta(epsilon, mu=mu) * (1 + GRID)


def test_a_gaussian_of_one_norm_bound_is_too_little_where_a_record_is_missing() -> None:
    sigma, epsilon = 0.5, 2.0
    gradients = np.full((6, 2, 2), -1.0)
    gradients[4] = 1.0
    axis = _axis(3, sigma, 2)
    first, second = (
        _law(one, _orders(len(one), 3, 2), sigma=sigma, axis=axis)
        for one in (gradients[:5], gradients[:4])
    )
    cell = float(axis[1] - axis[0]) ** 2
    delta = cell * float(np.maximum(first - math.exp(epsilon) * second, 0).sum())
    assert delta > gaussian_delta(epsilon, mu=1 / sigma) > 0


def test_in_a_fixed_order_a_missing_record_moves_every_batch() -> None:
    records = np.array([-1.0, -1.0, 1.0, -1.0, -1.0, -1.0])

    def sums(values: Array) -> Array:
        return np.array([values[k : k + 2].sum() for k in (0, 2, 4)])

    assert np.linalg.norm(sums(records) - sums(records[1:])) == 3.0 == math.sqrt(4 * (3 - 1) + 1)


# Two passes over two records, one a step: four answers.


def _two_passes(once: bool) -> Orders:
    pairs = ((frozenset({0}), frozenset({1})), (frozenset({1}), frozenset({0})))
    return [
        one + other for one, other in itertools.product(pairs, repeat=2) if not once or one == other
    ]


def _exact_two_passes(neighbours: Sequence[Array], *, once: bool, sigma: float) -> list[float]:
    axis = _axis(1, sigma, 4)
    first, second = (_law(one, _two_passes(once), sigma=sigma, axis=axis) for one in neighbours)
    return _deltas(first, second, axis)


@pytest.mark.parametrize("relation", [SPECIAL, ONE])
def test_two_passes_in_one_order_are_one_pass_with_less_noise(
    relation: NeighboringRelation,
) -> None:
    sigma = 1.5
    star = _star(2, 4)
    exact = _exact_two_passes(_neighbours(star, relation), once=True, sigma=sigma)
    merged = noise_of_average(noise_multiplier=sigma, passes=2)
    one = _exact(_neighbours(star, relation), batch_size=1, steps=2, sigma=merged)
    assert exact == pytest.approx(one, rel=0.02)
    for epsilon, delta in zip(EPSILONS, exact, strict=True):
        floor = shuffle_lower_delta(
            epsilon, noise_multiplier=merged, batches=2, steps=2, relation=relation
        )
        assert floor <= delta * 1.02


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("relation", [SPECIAL, ONE])
def test_two_adaptive_passes_lose_no_more_than_two_gaussians(
    relation: NeighboringRelation, once: bool
) -> None:
    sigma = 1.5
    mu = SENSITIVITY[relation] * math.sqrt(2) / sigma
    for game in [_star(2, 4), *_games(2, 4, 2)]:
        exact = _exact_two_passes(_neighbours(game, relation), once=once, sigma=sigma)
        for epsilon, delta in zip(EPSILONS, exact, strict=True):
            assert delta <= gaussian_delta(epsilon, mu=mu) * 1.02


def _composed(first: Array, second: Array, epsilon: float, cell: float) -> float:
    """Delta of two draws: for each outcome of the one, the profile of the other further on."""
    p, q = first.ravel() * cell, second.ravel() * cell
    ratios = np.log(p) - np.log(q)
    order = np.argsort(ratios)
    ratios, p, q = ratios[order], p[order], q[order]
    above_p, above_q = (np.append(np.cumsum(one[::-1])[::-1], 0.0) for one in (p, q))
    left = epsilon - ratios
    place = np.searchsorted(ratios, left, side="right")
    return float(np.sum(p * above_p[place] - math.exp(epsilon) * q * above_q[place]))


@pytest.mark.parametrize("relation", [SPECIAL, ONE])
def test_the_floor_of_composed_passes_is_below_what_some_records_lose(
    relation: NeighboringRelation,
) -> None:
    sigma = 1.0
    pair = largest_pair(noise_multiplier=sigma, batches=2, steps=2, relation=relation)
    axis = _axis(1, sigma, 2)
    first, second = (
        _law(one, _orders(2, 1, 2), sigma=sigma, axis=axis)
        for one in _neighbours(_star(2, 2), relation)
    )
    cell = float(axis[1] - axis[0]) ** 2
    for delta in (0.2, 0.02):
        floor = lower_epsilon([(pair, 2)], delta=delta)
        assert _composed(first, second, floor, cell) >= delta * (1 - GRID)
        assert _composed(first, second, 1.3 * floor, cell) < delta
