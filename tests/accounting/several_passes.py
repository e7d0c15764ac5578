"""Several passes that leave records out, played exactly: what an adaptive adversary attains.

All records but one contribute alike, so that of an order only the record's place matters. With m
batches and k steps, R the law of all answers when no step holds the record, and l, l' the
likelihood ratios of a step for either neighbour, a pass multiplies the densities by

A = (m - k + sum l) / m,  B = (m - k + sum l') / m,

and the best play from the ratio r on is V(r) = max E_R[A V'(r B / A)], V' being that of one pass
less and at last max(0, 1 - r). Answers are told in cells whose masses are exact, and V, which is
convex, is continued from the lines beside: all that is left out makes it less.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import ndtr

from accounting.rounding import Array
from tests.accounting.batch_games import Action

Value = Callable[[Array], Array]
_BEYOND = 8.0  # deviations that the cells reach beyond all means
_REACH, _FINE = 12.0, 1e-3  # nats: where the grid of ratios ends, and its step about zero
_PAIRS = 2_000_000  # of a ratio and a cell, at once


def attained_in_passes(
    batches: float,
    *,
    cells: Sequence[int],
    noise: float,
    passes: int,
    actions: Sequence[Action],
    ratios: int = 400,
) -> Value:
    """The largest delta at each e^epsilon that an adversary reaches; lower.

    Args:
        batches: m, more than the steps of a pass.
        cells: of the answer of each step.
        noise: sigma.
        passes: how many there are.
        actions: means of an answer with the record, for either neighbour; zero without it.
        ratios: points at which a value is kept.
    """
    half = _FINE * np.sinh(np.linspace(0.0, math.asinh(_REACH / _FINE), ratios // 2 + 1))
    grid: Array = np.exp(np.concatenate([-half[:0:-1], half]))
    masses = [_masses(each, actions, noise) for each in cells]
    rows = max(1, _PAIRS // math.prod(cells))

    def last(ratio: Array) -> Array:
        return np.maximum(1 - ratio, 0.0)

    one = np.ones(1)
    start = one * (batches - len(cells))
    value: Value = last
    for _ in range(passes):
        parts = [
            _best(masses, (one, start, start), value, part[:, None])[:, 0] / batches
            for part in np.array_split(grid, -(-len(grid) // rows))
        ]
        value = _continued(grid, np.concatenate(parts))
    return value


def _masses(
    cells: int, actions: Sequence[Action], noise: float
) -> tuple[Array, list[tuple[Array, Array]]]:
    """Of each cell: without the record, and with it for either neighbour at each action."""
    means = [mean / noise for action in actions for mean in action]
    inner = np.linspace(min(means) - _BEYOND, max(means) + _BEYOND, cells - 1)
    edges = np.concatenate([[-np.inf], inner, [np.inf]])

    def mass(mean: float) -> Array:
        below, above = np.diff(ndtr(edges - mean)), -np.diff(ndtr(mean - edges))
        return np.asarray(np.where(edges[:-1] > mean, above, below), dtype=np.float64)

    return mass(0.0), [(mass(v / noise), mass(w / noise)) for v, w in actions]


def _best(
    masses: Sequence[tuple[Array, list[tuple[Array, Array]]]],
    past: tuple[Array, Array, Array],
    value: Value,
    ratio: Array,
) -> Array:
    """At each ratio and past: the most that the steps that are left make of it."""
    if not masses:
        _, first, second = past
        first = np.maximum(first, 1e-290)
        return np.asarray(first * value(ratio * (second / first)), dtype=np.float64)
    (without, actions), rest = masses[0], masses[1:]
    plain, first, second = past
    found = []
    for with_first, with_second in actions:
        then = (
            np.outer(plain, without).ravel(),
            (np.outer(first, without) + np.outer(plain, with_first)).ravel(),
            (np.outer(second, without) + np.outer(plain, with_second)).ravel(),
        )
        each = _best(rest, then, value, ratio)
        found.append(each.reshape(len(ratio), len(plain), len(without)).sum(axis=2))
    return np.asarray(np.max(found, axis=0), dtype=np.float64)


def _continued(grid: Array, values: Array) -> Value:
    """A convex function between points: what the lines on either side say, continued."""
    slopes = np.diff(values) / np.diff(grid)
    last = len(grid) - 3

    def value(ratio: Array) -> Array:
        place = np.clip(np.searchsorted(grid, ratio, side="right") - 1, 1, last)
        left = values[place] + slopes[place - 1] * (ratio - grid[place])
        right = values[place + 1] + slopes[place + 1] * (ratio - grid[place + 1])
        least = np.maximum(1 - ratio, 0.0)
        inside = np.where(ratio < grid[last], np.maximum(left, right), 0.0)
        return np.maximum(np.where(ratio > grid[1], inside, 0.0), least)

    return value
