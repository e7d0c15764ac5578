"""Bounds held against exact laws of projected chains in one dimension.

After each step the iterate is rounded to a grid with both ends of the domain in it: what is shown
is then a function of what the theorem speaks of, so the laws are exact and nothing is excused.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from accounting.literature.contraction.contraction import (
    Lipschitz,
    ProjectedNoisySgd,
    random_stop_delta,
    record_delta,
    shuffled_delta,
)
from accounting.literature.contraction.kernels import Noise, log_mean_power, step_kernel
from accounting.literature.contraction.passes import pass_pair
from accounting.literature.contraction.refined import refined_contraction_delta
from accounting.pld.certified_composition import delta_bracket
from accounting.rounding import Array

CELLS = 121
STEPS = 5
EPSILONS = (0.0, 0.1, 0.3, 1.0, 2.0)
NEAR = 1 + 1e-9


@dataclass(frozen=True)
class Chain:
    """A loss with curvature between rho and beta on [0, D], a record adding to its slope."""

    beta: float
    rho: float
    eta: float
    diameter: float
    scale: float
    noise: Noise
    reach: float  # a record is a slope in [-reach, reach]

    def slope(self, w: Array, record: float) -> Array:
        """The gradient: rho and beta are attained, at the ends and in the middle."""
        off = w - self.diameter / 2
        bend = self.diameter / 6
        return self.rho * off + (self.beta - self.rho) * bend * np.tanh(off / bend) + record

    @property
    def grid(self) -> Array:
        return np.linspace(0, self.diameter, CELLS)

    def step(self, record: float) -> Array:
        """The kernel of a step, by its rows: exact masses of the grid's cells."""
        edges = 0.5 * (self.grid[1:] + self.grid[:-1])
        means = self.grid - self.eta * self.slope(self.grid, record)
        z = (edges[None, :] - means[:, None]) / (self.eta * self.scale)
        if self.noise is Noise.GAUSSIAN:
            below, above = special.ndtr(z), special.ndtr(-z)
        else:
            tail = 0.5 * np.exp(-np.abs(z))
            below, above = np.where(z < 0, tail, 1 - tail), np.where(z < 0, 1 - tail, tail)
        ends = np.zeros((CELLS, 1))
        rising = np.diff(np.hstack((ends, below, ends + 1)))
        falling = -np.diff(np.hstack((ends + 1, above, ends)))
        # Of two equal differences that of the smaller tails has all its digits.
        return np.asarray(np.minimum(np.abs(rising), np.abs(falling)))

    def declared(self, lipschitz: Lipschitz) -> ProjectedNoisySgd:
        slopes = np.abs(self.slope(np.array([0.0, self.diameter]), 0.0))
        return ProjectedNoisySgd(
            learning_rate=self.eta,
            smoothness=self.beta,
            convexity=self.rho,
            gradient_bound=max(float(slopes.max()) + self.reach, 0.5 * self.rho * self.diameter),
            diameter=self.diameter,
            dimension=1,
            clip_can_be_active=False,
            noise=self.noise,
            noise_scale=self.scale,
            batch_size=1,
            lipschitz=lipschitz,
        )


def case(index: int) -> Chain:
    """A chain drawn by number; every third without curvature, where the first step is tight."""
    rng = np.random.default_rng(index)
    beta = 0.0 if index % 3 == 0 else float(rng.uniform(0.1, 2))
    rho = beta * float(rng.choice([0.0, 0.3, 1.0]))
    eta = float(rng.uniform(0.2, 1)) * (2 / (beta + rho) if beta else 1.0)
    diameter = float(rng.uniform(0.5, 6)) * eta
    return Chain(
        beta=beta,
        rho=rho,
        eta=eta,
        diameter=diameter,
        scale=float(rng.uniform(0.4, 3)),
        noise=Noise.LAPLACE if index % 4 == 1 else Noise.GAUSSIAN,
        reach=float(rng.uniform(0.2, 2)),
    )


CASES = pytest.mark.parametrize("index", range(16))


def laws(chain: Chain, records: tuple[float, ...]) -> list[Array]:
    """The laws of the iterate after each step, from the point in the middle."""
    steps = {one: chain.step(one) for one in set(records)}
    law = np.zeros(CELLS)
    law[CELLS // 2] = 1.0
    found = []
    for one in records:
        law = law @ steps[one]
        found.append(law)
    return found


def divergence(p: Array, q: Array, epsilon: float) -> float:
    """The larger of the two orders."""
    g = math.exp(epsilon)
    return max(float(np.maximum(p - g * q, 0).sum()), float(np.maximum(q - g * p, 0).sum()))


def neighbours(chain: Chain, place: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    others = [0.3 * chain.reach] * STEPS
    first, second = list(others), list(others)
    first[place - 1], second[place - 1] = chain.reach, -chain.reach
    return tuple(first), tuple(second)


def held(name: str, index: int, ratios: list[float]) -> None:
    """Fail where a ratio of the exact divergence to its bound is above one; tell the largest."""
    assert ratios
    print(f"{name} {index}: exact/bound at most {max(ratios):.4f}")  # noqa: T201
    assert max(ratios) <= NEAR


def ratio(exact: float, bound: float) -> float:
    """Divergences below 1e-14 are what rounding leaves of the sums of masses."""
    return exact / bound if exact > 1e-14 else 0.0


@CASES
def test_a_record_in_a_fixed_order_is_within_both_chains(index: int) -> None:
    chain, ratios, refined = case(index), [], []
    run = chain.declared(Lipschitz.TIGHT)
    for place in range(1, STEPS + 1):
        first, second = (laws(chain, records)[-1] for records in neighbours(chain, place))
        for epsilon in EPSILONS:
            exact = divergence(first, second, epsilon)
            bound = record_delta(run, epsilon=epsilon, steps=STEPS, record=place).delta
            fine = refined_contraction_delta(run, epsilon=epsilon, steps=STEPS, record=place).delta
            ratios.append(ratio(exact, bound))
            if place < STEPS:  # in the last place both are A
                refined.append(ratio(exact, fine))
    held("record", index, ratios)
    held("refined, not in the last place", index, refined)


@CASES
def test_a_record_under_a_random_stop_is_within_its_bound(index: int) -> None:
    chain, ratios = case(index), []
    run = chain.declared(Lipschitz.DOCUMENT)
    for place in range(1, STEPS + 1):
        first, second = (
            np.mean(laws(chain, records), axis=0) for records in neighbours(chain, place)
        )
        for epsilon in EPSILONS:
            bound = random_stop_delta(run, epsilon=epsilon, steps=STEPS, record=place).delta
            ratios.append(ratio(divergence(first, second, epsilon), bound))
    held("random stop", index, ratios)


def shuffled_law(chain: Chain, records: tuple[float, ...]) -> Array:
    orders = list(itertools.permutations(records))
    return np.asarray(np.mean([laws(chain, order)[-1] for order in orders], axis=0))


@CASES
def test_a_record_in_a_secret_order_is_within_its_bound(index: int) -> None:
    chain, ratios = case(index), []
    run = chain.declared(Lipschitz.TIGHT)
    reach = chain.reach
    for others in ((0.0, 0.0, 0.0), (reach, -reach, 0.5 * reach), (-reach, -reach, -reach)):
        first, second = (shuffled_law(chain, (*others, one)) for one in (reach, -reach))
        for epsilon in EPSILONS:
            bound = shuffled_delta(run, epsilon=epsilon, steps=len(others) + 1).delta
            ratios.append(ratio(divergence(first, second, epsilon), bound))
    held("shuffled", index, ratios)


@pytest.mark.parametrize("index", [0, 2, 3, 6])
def test_two_passes_in_fresh_orders_are_within_the_composed_pair(index: int) -> None:
    chain = case(index)
    pair = pass_pair(chain.declared(Lipschitz.TIGHT), steps=3)
    joint = []
    for record in (chain.reach, -chain.reach):
        orders = set(itertools.permutations((0.0, 0.0, record)))
        kernel = np.mean(
            [np.linalg.multi_dot([chain.step(one) for one in order]) for order in orders], axis=0
        )
        joint.append((kernel[CELLS // 2][:, None] * kernel).ravel())
    ratios = [
        ratio(
            divergence(joint[0], joint[1], epsilon),
            delta_bracket([(pair, 2)], epsilon=epsilon).upper,
        )
        for epsilon in EPSILONS
    ]
    held("two passes", index, ratios)


# The step of the proof most likely to be wrong: contraction at a level above the one asked for


@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 10**6), epsilon=st.floats(0, 3), sharp=st.floats(0.1, 30))
def test_any_kernel_contracts_at_the_level_that_the_refined_chain_takes(
    seed: int, epsilon: float, sharp: float
) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 6))
    kernel = rng.dirichlet(np.full(size, 1 / sharp), size)
    mu, nu = rng.dirichlet(np.full(size, 0.5), 2)
    g = math.exp(epsilon)
    before = float(np.maximum(mu - g * nu, 0).sum())
    after = float(np.maximum(mu @ kernel - g * (nu @ kernel), 0).sum())

    def largest(level: float) -> float:
        apart = kernel[:, None, :] - level * kernel[None, :, :]
        return float(np.maximum(apart, 0).sum(axis=2).max())

    assert after <= before * largest(g) + 1e-12
    if before > 1e-6:
        assert after <= before * largest(1 + (g - 1) / before) + 1e-12


# What the declared facts are for


def test_a_learning_rate_above_its_limit_breaks_the_constant() -> None:
    # eta = 1 > 2/(beta + rho): a step stretches distances by 2, where the document's M is 0.9.
    beta, rho, eta, scale, diameter, reach = 3.0, 0.1, 1.0, 1.0, 1.0, 6.0
    chain = Chain(beta, rho, eta, diameter, scale, Noise.GAUSSIAN, reach)
    quadratic = np.linspace(0, diameter, CELLS) - eta * beta * (chain.grid - diameter / 2)
    start = np.zeros(CELLS)
    start[CELLS // 2] = 1.0
    # All losses quadratic with curvature beta: replace the slope by that of the quadratic.
    second = _gaussian_rows(chain, quadratic)
    laws_ = [
        start @ _gaussian_rows(chain, quadratic - eta * one) @ second for one in (reach, -reach)
    ]
    exact = divergence(laws_[0], laws_[1], 0.0)
    m = math.sqrt(1 - 2 * eta * beta * rho / (beta + rho))
    bound = step_kernel(Noise.GAUSSIAN, 0.0, shift=m * diameter / (eta * scale)).log_kept
    assert exact > 1.7 * math.exp(bound)  # A is at most one
    with pytest.raises(ValueError, match="learning_rate is at most"):
        chain.declared(Lipschitz.DOCUMENT)


def _gaussian_rows(chain: Chain, means: Array) -> Array:
    edges = 0.5 * (chain.grid[1:] + chain.grid[:-1])
    z = (edges[None, :] - means[:, None]) / (chain.eta * chain.scale)
    ends = np.zeros((CELLS, 1))
    return np.asarray(np.diff(np.hstack((ends, special.ndtr(z), ends + 1))))


def test_a_start_outside_the_domain_needs_a_bound_of_its_gradients_too() -> None:
    # Losses x h(w), x = 1 or -1, with h' = 0.1 on K = [0, 1] and 4.1 at the start, w = 5.
    edges = np.linspace(0, 1, CELLS)[1:]
    first, second = (
        np.diff(np.concatenate(([0.0], special.ndtr(edges - (5 - one * 4.1)), [1.0])))
        for one in (1, -1)
    )
    on_k = step_kernel(Noise.GAUSSIAN, 0.0, shift=2 * 0.1)
    assert divergence(first, second, 0.0) > 5 * math.exp(on_k.log_kept)


def test_a_record_at_the_end_has_what_one_step_gives() -> None:
    """The first step is tight: no curvature, a domain that hardly cuts, the last place."""
    chain = Chain(0.0, 0.0, 1.0, 60.0, 2.0, Noise.GAUSSIAN, 1.0)
    first, second = (laws(chain, (one,))[-1] for one in (1.0, -1.0))
    run = chain.declared(Lipschitz.DOCUMENT)
    for epsilon in EPSILONS[:-1]:
        bound = record_delta(run, epsilon=epsilon, steps=1, record=1).delta
        assert 0.97 * bound <= divergence(first, second, epsilon) <= bound * NEAR
    mean = math.exp(log_mean_power(step_kernel(Noise.GAUSSIAN, 0.0, shift=30.0).log_lost, 3))
    assert mean == pytest.approx(1.0, rel=1e-9)
