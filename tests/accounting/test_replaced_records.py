"""Replaced records: pairs against exact laws of records in the plane, and their known numbers."""

import cmath
import math
from collections import defaultdict
from collections.abc import Callable
from itertools import combinations, product

import mpmath
import numpy as np
import pytest
from scipy import special

from accounting import Span, count_events, guarantee
from accounting.bounds.sampled_pairs import batch_bounds
from accounting.events import (
    Direction,
    Event,
    FixedSize,
    Gaussian,
    NeighboringRelation,
    Poisson,
    Sampling,
    TruncatedPoisson,
    WithReplacement,
)
from accounting.guarantees import ACCEPTABLE
from accounting.pld.pairs import GaussianPair, Pair, ReplacedGaussianPair
from accounting.pld.profiles import profiles
from accounting.rounding import Array
from accounting.subsampling.replaced_records import exchanged_for_null

_, REPLACE_ONE, REPLACE_SPECIAL = NeighboringRelation
LOSSES = np.array([0.0, 0.01, 0.05, 0.1, 0.3, 0.7, 1.2, 2.0, 4.0])
GRID_ERROR = 2e-6  # of the divergence as a sum over rows of the plane, relative
Data = tuple[complex, ...]  # what each record contributes, in the plane
Sums = dict[complex, float]  # chance of each sum


# The three means of a step, given what is told, lie in one plane: two dimensions are all there are.


def divergences(first: Sums, second: Sums, sigma: float) -> Array:
    """H_a at LOSSES of two mixtures of normal laws of the plane.

    A sum over rows, each row exact between the roots of its densities' difference, which are
    interpolated; the divergence is stationary in them.
    """
    means = np.array([*first, *second])
    weights = np.array([*first.values(), *(-chance for chance in second.values())])
    h = sigma / 12
    x, y = (
        np.arange(np.min(part) - 7 * sigma, np.max(part) + 7 * sigma, h)
        for part in (means.real, means.imag)
    )
    across = np.exp(-0.5 * (np.subtract.outer(x, means.real) / sigma) ** 2)
    rows = np.exp(-0.5 * (np.subtract.outer(y, means.imag) / sigma) ** 2)
    ours = weights > 0
    ratio = np.log((across * np.abs(weights) * ours) @ rows.T)
    ratio -= np.log((across * np.abs(weights) * ~ours) @ rows.T)
    rows *= h / (sigma * math.sqrt(2 * math.pi))
    found = []
    for loss in LOSSES:
        scaled = np.where(ours, weights, weights * math.exp(loss))
        above = ratio > loss
        cell, row = np.nonzero(above[1:] != above[:-1])
        low, high = ratio[cell, row] - loss, ratio[cell + 1, row] - loss
        roots = x[cell] - low * h / (high - low)
        below = special.ndtr(np.subtract.outer(roots, means.real) / sigma)
        parts = np.sum(scaled * rows[row] * below, axis=1)
        ends = np.sum(scaled * rows[above[-1]])
        found.append(float(ends - np.sum(np.where(above[cell + 1, row], parts, -parts))))
    return np.array(found)


def poisson(q: float) -> Callable[[Data], Sums]:
    return capped(q, 10**6)


def capped(q: float, cap: int) -> Callable[[Data], Sums]:
    def law(data: Data) -> Sums:
        found: Sums = defaultdict(float)
        for joined in product((0, 1), repeat=len(data)):
            members = [value for value, here in zip(data, joined, strict=True) if here]
            chance = q ** len(members) * (1 - q) ** (len(data) - len(members))
            kept = list(combinations(members, min(cap, len(members))))
            for batch in kept:
                found[sum(batch)] += chance / len(kept)
        return dict(found)

    return law


def of_size(batch: int) -> Callable[[Data], Sums]:
    def law(data: Data) -> Sums:
        found: Sums = defaultdict(float)
        for chosen in combinations(data, batch):
            found[sum(chosen)] += 1 / math.comb(len(data), batch)
        return dict(found)

    return law


def drawn(batch: int) -> Callable[[Data], Sums]:
    def law(data: Data) -> Sums:
        found: Sums = defaultdict(float)
        for chosen in product(data, repeat=batch):
            found[sum(chosen)] += len(data) ** -batch
        return dict(found)

    return law


def contribution(rng: np.random.Generator) -> complex:
    """A vector of the disc, half of the time on its rim, often on one line or at 60 degrees."""
    size = 1.0 if rng.random() < 0.5 else math.sqrt(rng.random())
    angles = (0.0, math.pi, math.pi / 3, rng.uniform(0, 2 * math.pi))
    angle = angles[rng.integers(len(angles))] + (rng.random() < 0.3) * rng.normal(0, 0.1)
    return cmath.rect(size, angle)


def claimed(sampling: Sampling, sigma: float, relation: NeighboringRelation) -> Pair:
    if isinstance(sampling, Poisson):
        rate = sampling.sampling_probability
        return ReplacedGaussianPair(noise_multiplier=sigma, sampling_probability=rate)
    assert isinstance(sampling, FixedSize | TruncatedPoisson | WithReplacement)
    ((pair, _),) = batch_bounds(sigma, sampling, relation)[0].loss
    return pair


def largest_ratio(
    law: Callable[[Data], Sums],
    pair: Pair,
    data: Data,
    others: tuple[complex, complex],
    sigma: float,
) -> float:
    """Of the divergence of two datasets over what is claimed, in both orders."""
    p, q = ({**law((*data, one))} for one in others)
    ratios = []
    for direction, both in ((Direction.REMOVE, (p, q)), (Direction.ADD, (q, p))):
        bound = profiles(pair, direction=direction, losses=LOSSES)[1]
        kept = bound > 1e-6
        ratios.append(float(np.max(divergences(*both, sigma)[kept] / bound[kept])))
    return max(ratios)


def attack(
    sampling: Sampling,
    law: Callable[[Data], Sums],
    relation: NeighboringRelation,
    games: int,
    others: int,
) -> float:
    """The largest ratio over random datasets of `others` and one more record."""
    rng = np.random.default_rng(7)
    worst = 0.0
    for _ in range(games):
        sigma = float(rng.uniform(0.4, 2.5))
        data = tuple(contribution(rng) for _ in range(others))
        record = contribution(rng)
        against = 0j if relation is REPLACE_SPECIAL else contribution(rng)
        if relation is REPLACE_ONE and rng.random() < 0.4:
            against = -record
        pair = claimed(sampling, sigma, relation)
        worst = max(worst, largest_ratio(law, pair, data, (record, against), sigma))
    print(f"{sampling} {relation.value}: largest ratio {worst:.7f}")  # noqa: T201
    return worst


@pytest.mark.parametrize("q", [0.01, 0.2, 0.5, 0.9, 0.99])
def test_no_records_in_the_plane_lose_more_than_the_pair_says(q: float) -> None:
    # Others' coins are told, so that one step without others is all that there is; and with others.
    sampling = Poisson(sampling_probability=q)
    assert attack(sampling, poisson(q), REPLACE_ONE, 40, 0) <= 1 + GRID_ERROR
    assert attack(sampling, poisson(q), REPLACE_ONE, 6, 3) <= 1 + GRID_ERROR


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("q", [0.05, 0.6])
def test_opposite_records_attain_the_pair(q: float, sigma: float) -> None:
    pair = ReplacedGaussianPair(noise_multiplier=sigma, sampling_probability=q)
    ratio = largest_ratio(poisson(q), pair, (), (1 + 0j, -1 + 0j), sigma)
    assert 1 - GRID_ERROR <= ratio <= 1 + GRID_ERROR


@pytest.mark.parametrize(("batch", "size"), [(1, 2), (1, 4), (2, 4), (3, 4)])
def test_no_records_in_the_plane_lose_more_than_a_batch_of_fixed_size_says(
    batch: int, size: int
) -> None:
    sampling = FixedSize(batch_size=batch, dataset_size=size)
    worst = attack(sampling, of_size(batch), REPLACE_SPECIAL, 25, size - 1)
    assert worst <= 1 + GRID_ERROR


@pytest.mark.parametrize("relation", [REPLACE_ONE, REPLACE_SPECIAL])
@pytest.mark.parametrize(("q", "cap", "size"), [(0.3, 1, 4), (0.6, 2, 4), (0.5, 2, 3)])
def test_no_records_in_the_plane_lose_more_than_a_cap_says(
    q: float, cap: int, size: int, relation: NeighboringRelation
) -> None:
    sampling = TruncatedPoisson(sampling_probability=q, max_batch_size=cap, dataset_size=size)
    assert attack(sampling, capped(q, cap), relation, 12, size - 1) <= 1 + GRID_ERROR


@pytest.mark.parametrize(("batch", "size"), [(1, 3), (2, 3), (3, 2)])
def test_no_records_in_the_plane_lose_more_than_draws_with_replacement_say(
    batch: int, size: int
) -> None:
    sampling = WithReplacement(batch_size=batch, dataset_size=size)
    worst = attack(sampling, drawn(batch), REPLACE_SPECIAL, 15, size - 1)
    assert worst <= 1 + GRID_ERROR


# Broken rules are caught


def test_shifts_in_the_wrong_places_would_be_exceeded() -> None:
    # Absence at two and replacement at one, as in a batch of fixed size: (r, t) exchanged.
    q, sigma = 0.3, 1.0
    exact = divergences(poisson(q)((1 + 0j,)), poisson(q)((-1 + 0j,)), sigma)
    wrong = q * exchanged_for_null(noise_multiplier=sigma, rate=q, copies=1, losses=LOSSES)
    assert float(np.max(exact / wrong)) > 1.2
    # And the other way round: absence at one and replacement at two, for a batch of fixed size.
    data, law = (-1 + 0j, -1 + 0j), of_size(1)
    exact = divergences(law((*data, 1 + 0j)), law((*data, 0j)), sigma)
    pair = ReplacedGaussianPair(noise_multiplier=sigma, sampling_probability=1 / 3)
    wrong = profiles(pair, direction=Direction.REMOVE, losses=LOSSES)[1]
    assert float(np.max(exact / wrong)) > 1.2


def test_the_pair_of_the_first_order_does_not_serve_the_second() -> None:
    # A null record first, the others and the record at 1: both are on one side of it.
    law, sigma, g = of_size(1), 1.0, 1 / 3
    data = (1 + 0j, 1 + 0j)
    exact = divergences(law((*data, 0j)), law((*data, 1 + 0j)), sigma)
    # The second order of ((1-g) N(0) + g N(2), (1-g) N(0) + g N(1)) in the same place.
    mixtures = divergences({0j: 1 - g, 1 + 0j: g}, {0j: 1 - g, 2 + 0j: g}, sigma)
    assert float(np.max(exact[:4] / mixtures[:4])) > 1.05
    pair = claimed(FixedSize(batch_size=1, dataset_size=3), sigma, REPLACE_SPECIAL)
    bound = profiles(pair, direction=Direction.ADD, losses=LOSSES)[1]
    assert np.all(exact <= bound * (1 + GRID_ERROR))


# The formulas


@pytest.mark.parametrize("sigma", [0.05, 0.7, 3.0, 200.0])
@pytest.mark.parametrize("rate", [1e-9, 0.01, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("copies", [1, 2, 7])
def test_the_first_order_against_a_null_record_is_its_definition(
    sigma: float, rate: float, copies: int
) -> None:
    losses = np.array([0.0, 1e-12, 1e-3, 0.1, 1.0, 5.0, 50.0, 300.0])
    found = exchanged_for_null(noise_multiplier=sigma, rate=rate, copies=copies, losses=losses)
    with mpmath.workdps(60):
        s, g, k = mpmath.mpf(sigma), mpmath.mpf(rate), copies
        for loss, upper in zip(losses, found, strict=True):
            a = mpmath.exp(mpmath.mpf(float(loss)))
            odds = (a - 1) * (1 - g) / g
            first, second = odds * mpmath.exp(-2 * k * k / s**2), a * mpmath.exp(-k * k / s**2 / 2)
            x = s**2 * mpmath.log(2 / (second + mpmath.sqrt(second**2 + 4 * first))) / k
            parts = (mpmath.ncdf((x - m) / s) for m in (0, 2 * k, k))
            exact = next(parts) - odds * next(parts) - a * next(parts)
            assert exact <= upper
            assert upper <= exact * (1 + 1e-5) + 1e-30


def test_a_record_that_is_always_in_the_batch_is_a_gaussian_release() -> None:
    losses = np.array([0.0, 0.3, 2.0])
    found = exchanged_for_null(noise_multiplier=1.3, rate=1.0, copies=2, losses=losses)
    released = GaussianPair(noise_multiplier=0.65)
    exact = profiles(released, direction=Direction.REMOVE, losses=losses)[1]
    assert found == pytest.approx(exact, rel=1e-10)
    far = exchanged_for_null(noise_multiplier=1e-9, rate=0.5, copies=1, losses=losses)
    assert np.all(far <= 1)
    assert far[0] == pytest.approx(1.0)


# Known numbers


def ends(
    sampling: Sampling, sigma: float, steps: int, relation: NeighboringRelation, delta: float
) -> tuple[float, float]:
    event = Event(mechanism=Gaussian(noise_multiplier=sigma), sampling=sampling)
    counts = count_events([[Span(event=event, steps=steps)]])
    found = guarantee(counts, relation=relation, delta=delta, accept=ACCEPTABLE)
    assert found.epsilon is not None
    assert found.epsilon_lower is not None
    return found.epsilon_lower, found.epsilon


RATE = 256 / 60_000
REFERENCES = [  # q, sigma, steps, delta, epsilon of a public library for this pair
    (RATE, 1.1, 14_040, 1e-5, 4.217504762871279),
    (0.01, 1.0, 1000, 1e-5, 2.8434458133464213),
    (0.01, 0.7, 200, 1e-5, 3.0384130446224287),
    (0.001, 0.6, 5000, 1e-6, 2.90013304948208),
    (0.1, 2.0, 100, 1e-5, 4.368096821761274),
    (0.5, 4.0, 50, 1e-5, 8.515550358422363),
    (0.05, 1.0, 1, 1e-5, 1.083657904436373),
]


@pytest.mark.parametrize(("q", "sigma", "steps", "delta", "reference"), REFERENCES)
def test_replacing_under_poisson_sampling_is_the_reference(
    q: float, sigma: float, steps: int, delta: float, reference: float
) -> None:
    sampling = Poisson(sampling_probability=q)
    lower, upper = ends(sampling, sigma, steps, REPLACE_ONE, delta)
    assert lower <= reference * (1 + 1e-4)
    assert reference * (1 - 1e-4) <= upper <= reference * (1 + 1e-3)
    assert upper - lower <= 1e-7 * upper


def capped_at(cap: int) -> TruncatedPoisson:
    return TruncatedPoisson(sampling_probability=RATE, max_batch_size=cap, dataset_size=60_000)


WHOLE = FixedSize(batch_size=256, dataset_size=60_000)
TABLE: list[tuple[Sampling, float, NeighboringRelation, float, float]] = [
    (capped_at(256), 1.1, REPLACE_ONE, 4.0, 12.581),
    (capped_at(304), 1.1, REPLACE_ONE, 4.22, 4.4094),
    (capped_at(352), 1.1, REPLACE_ONE, 4.2277, 4.2286),
    (WHOLE, 1.1, REPLACE_SPECIAL, 11.81, 12.078),
    (WHOLE, 4.0, REPLACE_SPECIAL, 0.5183, 0.57897),
]


@pytest.mark.parametrize(("sampling", "sigma", "relation", "lower", "upper"), TABLE)
def test_sixty_passes_have_their_known_ends(
    sampling: Sampling, sigma: float, relation: NeighboringRelation, lower: float, upper: float
) -> None:
    found = ends(sampling, sigma, 14_100, relation, 1e-5)
    assert lower <= found[0] <= found[1] <= upper


def test_a_batch_of_nearly_all_records_is_tighter_than_a_release() -> None:
    sampling = FixedSize(batch_size=99, dataset_size=100)
    lower, upper = ends(sampling, 1.0, 1, REPLACE_SPECIAL, 1e-5)
    assert 4.3747 <= lower <= upper <= 4.37489


def test_a_cap_on_batches_of_all_records_exchanges_at_distance_two() -> None:
    sampling = TruncatedPoisson(sampling_probability=1.0, max_batch_size=2, dataset_size=3)
    lower, upper = ends(sampling, 1.0, 1, REPLACE_ONE, 1e-5)
    release = ends(FixedSize(batch_size=2, dataset_size=3), 1.0, 1, REPLACE_ONE, 1e-5)
    assert upper == pytest.approx(release[1], rel=1e-3)
    assert lower <= release[1]


def test_many_noises_cost_no_more_than_what_they_attain() -> None:
    events = [
        Event(
            mechanism=Gaussian(noise_multiplier=1.1 + 0.01 * i),
            sampling=Poisson(sampling_probability=RATE),
        )
        for i in range(200)
    ]
    counts = count_events([[Span(event=event, steps=70) for event in events]])
    found = guarantee(counts, relation=REPLACE_ONE, delta=1e-5, accept=ACCEPTABLE)
    assert found.epsilon is not None
    assert found.epsilon_lower is not None
    assert found.epsilon - found.epsilon_lower <= 1e-6 * found.epsilon
