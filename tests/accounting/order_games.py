"""Passes over a few records, every order of them listed and all answers integrated.

Answers are integrated by the midpoint rule on a grid that reaches at least six deviations of the
noise beyond every mean. Halving the cells moves a divergence by less than 0.3 % of itself for two
steps and 0.5 % for three, so the bounds are held to that.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

import numpy as np

from accounting.events import NeighboringRelation
from accounting.rounding import Array

REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL
EPSILONS = (0.0, 0.2, 0.7, 1.5)
CELLS = {1: 400, 2: 200, 3: 64, 4: 40}  # along each axis, by how many axes there are
INTEGRATION = {2: 0.003, 3: 0.005, 4: 0.01}  # relative error by how many axes there are

Past = tuple[Array, ...]
# What a record contributes to a step, given all earlier answers: a number in [-1, 1] for each
# coordinate, or one for each cell of the grid of earlier answers.
Contribution = Callable[[int, Past], tuple[Array | float, ...]]


@dataclass(frozen=True)
class Play:
    """A dataset, an adaptive training and a neighbour; contributions in norm bounds."""

    records: int
    batch: int
    steps: int
    noise: float
    others: tuple[Contribution, ...]  # of all records but the first
    mine: Contribution
    instead: Contribution  # of the record that replaces it
    coordinates: int = 1


def density(play: Play, mine: Contribution, *, reach: float = 0.0, finer: int = 1) -> Array:
    """The density of all answers times the size of a cell, one axis for each coordinate."""
    axes = play.steps * play.coordinates
    edge = max(play.batch + 6.5 * play.noise, reach)
    cell = 2 * edge / (CELLS[axes] * finer)
    line: Array = (np.arange(CELLS[axes] * finer, dtype=np.float64) + 0.5) * cell - edge
    answers = [line.reshape([-1 if i == axis else 1 for i in range(axes)]) for axis in range(axes)]
    everyone = (mine, *play.others)

    def means(batches: tuple[frozenset[int], ...]) -> list[Array]:
        found: list[Array] = []
        for step, batch in enumerate(batches):
            past = tuple(answers[: step * play.coordinates])
            given = [everyone[record](step, past) for record in batch]
            found.extend(np.asarray(sum(one), dtype=np.float64) for one in zip(*given, strict=True))
        return found

    # Orders with the same means are added up before anything is integrated.
    weights = Counter[tuple[bytes, ...]]()
    shown: dict[tuple[bytes, ...], list[Array]] = {}
    for batches, count in orders_of(play.records, play.batch, play.steps).items():
        centres = means(batches)
        key = tuple(bytes(str(centre.shape), "ascii") + centre.tobytes() for centre in centres)
        weights[key] += count
        shown[key] = centres
    total = np.zeros((len(line),) * axes)
    for key, count in weights.items():
        joint: Array = np.full((1,) * axes, count / math.factorial(play.records))
        for answer, centre in zip(answers, shown[key], strict=True):
            scaled = (answer - centre) / play.noise
            joint = joint * np.exp(-0.5 * scaled * scaled)
        total += joint
    size = (cell / (play.noise * math.sqrt(2 * math.pi))) ** axes
    return np.asarray(total * size, dtype=np.float64)


@lru_cache
def orders_of(records: int, batch: int, steps: int) -> Counter[tuple[frozenset[int], ...]]:
    """The batches of a pass and in how many of all orders they come."""
    return Counter(
        tuple(frozenset(order[step * batch : (step + 1) * batch]) for step in range(steps))
        for order in permutations(range(records))
    )


def hockey_stick(play: Play, *, finer: int = 1) -> Array:
    """The larger of both orders at each of EPSILONS."""
    one, other = density(play, play.mine, finer=finer), density(play, play.instead, finer=finer)
    return np.array(
        [
            max(
                float(np.sum(np.maximum(one - math.exp(epsilon) * other, 0.0))),
                float(np.sum(np.maximum(other - math.exp(epsilon) * one, 0.0))),
            )
            for epsilon in EPSILONS
        ]
    )


def by_last_answer(table: Array, threshold: float) -> Contribution:
    """table[step, side]: the side says whether the answer before was above a threshold."""

    def contribution(step: int, past: Past) -> tuple[Array | float, ...]:
        if step == 0:
            return (float(table[0, 0]),)
        return (np.where(past[-1] > threshold, table[step, 1], table[step, 0]),)

    return contribution


def by_all_answers(table: Array, threshold: float) -> Contribution:
    """As by_last_answer, with the sum of all earlier answers, and a gentle slope between."""

    def contribution(step: int, past: Past) -> tuple[Array | float, ...]:
        if step == 0:
            return (float(table[0, 0]),)
        share = 0.5 + 0.5 * np.tanh(sum(past) - threshold)
        return (table[step, 0] + share * (table[step, 1] - table[step, 0]),)

    return contribution


def random_play(
    rng: np.random.Generator,
    *,
    sizes: tuple[int, int, int],
    noise: float,
    relation: NeighboringRelation,
) -> Play:
    """An adaptive training of records at the ends of their range, mostly set against the first."""
    records, batch, steps = sizes
    play = by_last_answer if rng.random() < 0.7 else by_all_answers
    threshold = float(rng.choice([-0.5, 0.0, 0.5]))

    def signs() -> Array:
        return rng.choice(np.array([-1.0, 1.0]), size=(steps, 2))

    alike = signs()
    others = [alike if rng.random() < 0.85 else signs() for _ in range(records - 1)]
    mine = -alike if rng.random() < 0.6 else signs()
    instead = -mine if rng.random() < 0.7 else signs()
    if relation is REPLACE_SPECIAL:
        instead = np.zeros_like(mine)
    return Play(
        records=records,
        batch=batch,
        steps=steps,
        noise=noise,
        others=tuple(play(table, threshold) for table in others),
        mine=play(mine, threshold),
        instead=play(instead, threshold),
    )


def star(records: int, batch: int, steps: int, noise: float) -> Play:
    """All others at one end; the record at the other end, or at theirs."""
    low, high = np.full((steps, 2), -1.0), np.full((steps, 2), 1.0)
    return Play(
        records=records,
        batch=batch,
        steps=steps,
        noise=noise,
        others=(by_last_answer(low, 0.0),) * (records - 1),
        mine=by_last_answer(high, 0.0),
        instead=by_last_answer(low, 0.0),
    )
