"""Trainers that choose the noise inside a pass by the answers of that pass, played exactly.

A ledger's charge C holds at an order where E[M] is at most one, M = e^((alpha-1) (L - C)) at the
end, L the loss and the expectation under either neighbour, whatever rule the trainer follows. The
games here have few steps: sums over what a rule may do next, and integrals over the answers before.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from accounting.event_counts import count_events
from accounting.events import (
    BallsAndBins,
    Event,
    Gaussian,
    NeighboringRelation,
    RandomAllocation,
    Reshuffle,
    Sampling,
    Shuffle,
    Span,
)
from accounting.filters import RenyiFilter
from accounting.filters.integer_totals import LOSS_BITS
from accounting.guarantees import DEFAULT_ACCEPT, Status
from accounting.rounding import Array

TRUSTING = DEFAULT_ACCEPT | {Status.DERIVED}
SPECIAL = NeighboringRelation.REPLACE_SPECIAL
Charge = Callable[[Sequence[Sequence[float]]], float]  # of the noises of each pass, step by step


def event(noise: float, sampling: Sampling) -> Event:
    return Event(mechanism=Gaussian(noise_multiplier=noise), sampling=sampling)


def charge_of(
    sampling: Sampling,
    order: float,
    *,
    relation: NeighboringRelation = SPECIAL,
    accept: frozenset[Status] = TRUSTING,
) -> Charge:
    """What a filter charges for passes that are open at once: each is on a branch of its own."""
    held = RenyiFilter(order=order, epsilon=3.0, delta=1e-5)

    @lru_cache(maxsize=4096)
    def known(passes: tuple[tuple[float, ...], ...]) -> float:
        spans = [[Span(event=event(s, sampling), steps=1) for s in one] for one in passes]
        uncovered, _, rdp = held.total(count_events(spans), relation=relation, accept=accept)
        assert not uncovered
        return math.ldexp(rdp, -LOSS_BITS)

    return lambda passes: known(tuple(tuple(one) for one in passes))


def at_the_least_noise(sampling: Sampling, order: float) -> Charge:
    """The rule of a fixed schedule: every pass at the least noise of all, amplified."""
    charged = charge_of(sampling, order)

    def charge(passes: Sequence[Sequence[float]]) -> float:
        least = min(min(one) for one in passes)
        return charged([[least] * len(one) for one in passes])

    return charge


# ---- balls and bins: the loss is that of a mean of lognormal variables


@dataclass(frozen=True)
class Bins:
    """Passes of balls and bins, the record's contributions full or less."""

    steps: int  # two or three
    order: int
    noises: tuple[float, ...]
    norms: tuple[float, ...] = (1.0,)  # of contributions, chosen at each step
    removed: bool = True  # whether the record is in the first dataset
    twice: bool = False  # whether it is in two of three steps

    @property
    def sampling(self) -> Sampling:
        if self.twice:
            return RandomAllocation(steps_per_pass=3, participations=2)
        return BallsAndBins(steps_per_pass=self.steps)

    @property
    def power(self) -> int:
        """The ratio's, under the law without the record."""
        return self.order if self.removed else 1 - self.order


def _grid(top: float, points: int) -> tuple[Array, Array]:
    """Standard normal points and weights; wide enough for variables raised to the order."""
    z = np.linspace(-10.0 - top, 10.0 + top, points)
    return z, np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) * (z[1] - z[0])


def _factor(z: Array, noise: float, norm: float) -> Array:
    s = (norm / noise) ** 2
    return np.asarray(np.exp(math.sqrt(s) * z - s / 2), dtype=np.float64)


def _last(gone: Array, game: Bins, noise: float, norm: float, left: Array | float = 1.0) -> Array:
    """E[((gone + left Y)/T)^e] over the last answer, for all that may have come before."""
    if game.power > 0:  # a binomial sum: E[Y^j] = e^(j (j-1) s/2)
        s, power = (norm / noise) ** 2, game.power
        total = np.zeros_like(gone)
        for j in range(power + 1):
            more = math.comb(power, j) * math.exp(j * (j - 1) * s / 2)
            total += more * gone ** (power - j) * np.power(left, j)
        return np.asarray(total / game.steps**power, dtype=np.float64)
    z, weights = _grid(0.0, 241)
    y = _factor(z, noise, norm)
    shape = (*gone.shape, 1)
    share = np.broadcast_to(left, gone.shape).reshape(shape)
    means: Array = (gone.reshape(shape) + share * y) / game.steps
    powers: Array = np.power(means, game.power)
    return np.asarray(powers @ weights, dtype=np.float64)


def largest(game: Bins, charge: Charge) -> float:
    """The largest E[M] of one pass over all rules that choose noise and contributions."""
    width = game.order / min(game.noises)
    points = 241 if game.removed else 121
    z, weights = _grid(width, 801 if game.steps == 2 else points)
    actions = [*product(game.noises, game.norms)]
    scale = game.order - 1.0

    def ended(gone: Array, so_far: tuple[float, ...], left: Array | float = 1.0) -> Array:
        values = [
            _last(gone, game, *action, left) * math.exp(-scale * charge([(*so_far, action[0])]))
            for action in actions
        ]
        return np.asarray(np.max(values, axis=0), dtype=np.float64)

    best = 0.0
    for noise, norm in actions:
        one = _factor(z, noise, norm)
        if game.steps == 2:
            value = ended(one, (noise,))
        else:
            both = []
            for then in actions:
                other = _factor(z, *then)[None, :]
                gone, left = one[:, None] + other, np.ones(1)
                if game.twice:  # pairs of the three factors
                    gone, left = one[:, None] * other, gone
                both.append(ended(gone, (noise, then[0]), left) @ weights)
            value = np.max(both, axis=0)
        best = max(best, float(value @ weights))
    return best


def largest_of_two(game: Bins, charge: Charge) -> float:
    """The same of two passes of two steps each, both begun before either goes on."""
    z, weights = _grid(game.order / min(game.noises), 401)
    scale = game.order - 1.0
    best = 0.0
    for first in game.noises:
        after = np.zeros(len(z))  # the value once the first answer is there, the rest at its best
        for second in game.noises:
            values = [
                _last(_factor(z, first, 1.0), game, third, 1.0)[:, None]
                * _last(_factor(z, second, 1.0), game, fourth, 1.0)[None, :]
                * math.exp(-scale * charge([(first, third), (second, fourth)]))
                for third, fourth in product(game.noises, repeat=2)
            ]
            after = np.maximum(after, np.max(values, axis=0) @ weights)
        best = max(best, float(after @ weights))
    return best


# ---- a loader in turn that stops after two of its batches of one record


@dataclass(frozen=True)
class Turns:
    """Passes of single records in a fresh secret order, of which two steps are shown."""

    size: int
    order: float
    noises: tuple[float, ...]
    other: float  # what the record is in the other dataset, times what it is: 0 for null, or -1
    exchanged: bool = False  # which of the two neighbours comes first

    @property
    def sampling(self) -> Shuffle:
        return Shuffle(
            batch_size=1,
            steps_per_pass=2,
            reshuffle=Reshuffle.EACH_PASS,
            dataset_size=self.size,
        )


def _normal(y: Array, mean: float, noise: float) -> Array:
    return np.asarray(np.exp(-0.5 * ((y - mean) / noise) ** 2) / (noise * math.sqrt(2 * math.pi)))


def _laws(game: Turns, y: Array, crowd: float, noise: float) -> list[tuple[Array, Array, Array]]:
    """Densities of an answer: of another record, and of this one in either dataset; by its sign."""
    others = _normal(y, crowd, noise)
    return [(others, _normal(y, x, noise), _normal(y, game.other * x, noise)) for x in (1.0, -1.0)]


def _value(first: tuple[Array, Array, Array], game: Turns, noise: float) -> Array:
    """The largest E[ratio^alpha] over the rest of a pass, given the first answer's densities.

    Densities are of the record being elsewhere, of its being there in one dataset, and in the
    other; what is returned still counts the first answer's own part.
    """
    n, reach = game.size, 10 * noise + 2 + 2 * game.order / 1.0
    y = np.linspace(-reach, reach, 401)
    width = y[1] - y[0]
    found = []
    elsewhere, here, here_other = first
    for crowd in (-1.0, 1.0):
        for others, mine, mine_other in _laws(game, y, crowd, noise):
            p = (here[:, None] * others + elsewhere[:, None] * (mine + (n - 2) * others)) / n
            q = (
                here_other[:, None] * others + elsewhere[:, None] * (mine_other + (n - 2) * others)
            ) / n
            if game.exchanged:
                p, q = q, p
            power = game.order * np.log(p + 1e-300) + (1 - game.order) * np.log(q + 1e-300)
            found.append(np.sum(np.exp(power), axis=1) * width)
    return np.asarray(np.max(found, axis=0))


def largest_of_turns(game: Turns, charge: Charge) -> float:
    """The largest E[M] of one pass whose noise follows its first answer."""
    scale = game.order - 1.0
    best = 0.0
    for noise in game.noises:
        y, step = _answers(game, noise)
        for crowd in (-1.0, 1.0):
            for first in _laws(game, y, crowd, noise):
                values = [
                    _value(first, game, then) * math.exp(-scale * charge([(noise, then)]))
                    for then in game.noises
                ]
                best = max(best, float(np.sum(np.max(values, axis=0)) * step))
    return best


def largest_of_two_turns(game: Turns, charge: Charge) -> float:
    """The same of two passes, both begun at the first noise before either goes on."""
    scale, noise = game.order - 1.0, game.noises[0]
    y, step = _answers(game, noise)
    rests = [
        [_value(first, game, then) for then in game.noises]
        for crowd in (-1.0, 1.0)
        for first in _laws(game, y, crowd, noise)
    ]
    best = 0.0
    for one in rests:
        for other in rests:
            values = [
                one[i][:, None]
                * other[j][None, :]
                * math.exp(-scale * charge([(noise, third), (noise, fourth)]))
                for (i, third), (j, fourth) in product(enumerate(game.noises), repeat=2)
            ]
            best = max(best, float(np.sum(np.max(values, axis=0)) * step * step))
    return best


def _answers(game: Turns, noise: float) -> tuple[Array, float]:
    reach = 10 * noise + 2 + 2 * game.order
    y = np.linspace(-reach, reach, 401)
    return y, float(y[1] - y[0])
