"""Small games against a filter, exactly: all outcomes are listed, nothing is sampled.

A game has two steps of three outcomes each; the second step is chosen after the outcome of the
first. A policy is a row of numbers: free ones, from which steps are made that cost no more than the
filter still admits. Many policies play at once, the best are kept and varied.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import special

Array = npt.NDArray[np.float64]
Cost = Callable[[Array, Array], Array]  # of pairs of laws, over the last axis
Game = Callable[[Array], Array]  # policies, shape (n, GENES), to what each attains

OUTCOMES = 3
# For each of the four steps: two numbers an outcome, and two of its own.
GENES = 4 * (2 * OUTCOMES + 2)


def renyi_cost(order: float | Array) -> Cost:
    """Renyi divergence, the greater of both directions, nats."""

    def cost(p: Array, q: Array) -> Array:
        alpha = np.asarray(order)
        power = np.expand_dims(alpha, -1)
        log_p, log_q = np.log(p), np.log(q)
        there = np.sum(np.exp(power * log_p + (1 - power) * log_q), axis=-1)
        back = np.sum(np.exp(power * log_q + (1 - power) * log_p), axis=-1)
        return np.asarray(np.log(np.maximum(there, back)) / (alpha - 1))

    return cost


def gaussian_cost(p: Array, q: Array) -> Array:
    """mu^2 of the least Gaussian DP: a trade-off curve of few outcomes is worst at its corners."""
    rank = np.argsort(np.log(q) - np.log(p), axis=-1)
    mu = _scores(np.take_along_axis(p, rank, -1)) - _scores(np.take_along_axis(q, rank, -1))
    return np.asarray(np.maximum(np.max(mu, axis=-1), 0.0) ** 2)


def _scores(law: Array) -> Array:
    """Normal scores of the cumulative chances, from whichever end is nearer."""
    below = np.cumsum(law, axis=-1)[..., :-1]
    above = np.cumsum(law[..., ::-1], axis=-1)[..., -2::-1]
    scores = np.where(below < 0.5, special.ndtri(below), -special.ndtri(above))
    return np.asarray(scores)


def squared_epsilon(p: Array, q: Array) -> Array:
    """The square of the largest loss."""
    return np.asarray(np.max(np.abs(np.log(p) - np.log(q)), axis=-1) ** 2)


def fitted(shape: Array, allowance: Array, cost: Cost) -> tuple[Array, Array]:
    """A step for each row of free numbers, tilted until it costs what is allowed, never more."""
    weights, slopes = shape[..., :OUTCOMES], shape[..., OUTCOMES : 2 * OUTCOMES]
    p = special.softmax(3 * weights, axis=-1)

    def tilted(by: Array) -> Array:
        q: Array = special.softmax(np.log(p) - by[..., None] * slopes, axis=-1)
        return q

    low, high = np.zeros(allowance.shape), np.full(allowance.shape, 30.0)
    with np.errstate(all="ignore"):
        for _ in range(40):
            middle = 0.5 * (low + high)
            fits = cost(p, tilted(middle)) <= allowance
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return p, tilted(low)


def steps_of(policies: Array) -> tuple[Array, Array, Array, Array]:
    """(first step, its two numbers, second steps by outcome, their two numbers)."""
    genes = policies.reshape(len(policies), 4, 2 * OUTCOMES + 2)
    own = special.expit(genes[..., 2 * OUTCOMES :])
    return genes[:, 0], own[:, 0], genes[:, 1:], own[:, 1:]


def excess(
    first: tuple[Array, Array], second: tuple[Array, Array], epsilon: float | Array
) -> Array:
    """E[(1 - e^(epsilon - loss))+] over all outcomes, the greater of both directions."""
    p, q = (one[..., None] * two for one, two in zip(first, second, strict=True))
    weight = np.exp(np.asarray(epsilon))
    there = np.sum(np.maximum(0.0, p - weight * q), axis=(-2, -1))
    back = np.sum(np.maximum(0.0, q - weight * p), axis=(-2, -1))
    return np.asarray(np.maximum(there, back))


def best(game: Game, *, players: int = 100, rounds: int = 20, enough: float = math.inf) -> float:
    """The most that any policy found attains: random ones, then variations of the best."""
    rng = np.random.default_rng(0)
    policies = rng.normal(size=(4 * players, GENES)) * rng.choice([1.0, 3.0], size=(4 * players, 1))
    most = 0.0
    for turn in range(rounds):
        scores = game(policies)
        rank = np.argsort(scores)[::-1][: players // 10]
        most = max(most, float(scores[rank[0]]))
        if most > enough:
            break
        parents = policies[rng.choice(rank, size=players)]
        moved = rng.normal(size=parents.shape) * (rng.random(parents.shape) < 0.3)
        size = rng.choice([1.0, 0.3, 0.1, 0.02], size=(players, 1)) * 0.98**turn
        policies = np.concatenate((policies[rank], parents + size * moved))
    return most
