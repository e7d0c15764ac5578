"""Single steps on tiny datasets, every batch enumerated: what is proved encloses what happens."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import combinations, product

import numpy as np
import pytest
from scipy import special

from accounting.bounds.dominating_pairs import pld_bounds
from accounting.bounds.lower_bounds import lower_bound_pair
from accounting.bounds.sampled_pairs import batch_bounds
from accounting.events import (
    Direction,
    Event,
    FixedSize,
    Gaussian,
    NeighboringRelation,
    NonUniform,
    Poisson,
    Sampling,
    TruncatedPoisson,
    WithReplacement,
)
from accounting.pld.pairs import Pair, SampledGaussianPair
from accounting.pld.profiles import profiles
from accounting.rounding import Array

ADD_OR_REMOVE_ONE, REPLACE_ONE, REPLACE_SPECIAL = NeighboringRelation
LOSSES = np.array([0.0, 0.02, 0.1, 0.3, 0.7, 1.5, 3.0, 5.0])
Data = tuple[float, ...]
Sums = dict[float, float]  # chance of each sum


def fixed_size(batch: int) -> Callable[[Data], Sums]:
    def law(data: Data) -> Sums:
        found: Sums = defaultdict(float)
        for chosen in combinations(data, batch):
            found[sum(chosen)] += 1 / math.comb(len(data), batch)
        return dict(found)

    return law


def with_replacement(batch: int) -> Callable[[Data], Sums]:
    def law(data: Data) -> Sums:
        found: Sums = defaultdict(float)
        for chosen in product(data, repeat=batch):
            found[sum(chosen)] += len(data) ** -batch
        return dict(found)

    return law


def truncated(q: float, cap: int) -> Callable[[Data], Sums]:
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


def weighted(weights: tuple[float, ...]) -> Callable[[Data], Sums]:
    def law(data: Data) -> Sums:
        found: Sums = defaultdict(float)
        for value, weight in zip(data, weights, strict=True):
            found[value] += weight
        return dict(found)

    return law


def hockey_sticks(first: Sums, second: Sums, sigma: float) -> Array:
    """The divergence at LOSSES: exact tails between the roots of the densities' difference."""
    x = np.linspace(-10.0123, 10.0457, 4001)  # no root is a point of it

    def density(sums: Sums) -> Array:
        terms = [w * np.exp(-0.5 * ((x - mean) / sigma) ** 2) for mean, w in sums.items()]
        return np.asarray(np.sum(terms, axis=0))

    def below(sums: Sums, at: Array) -> Array:
        terms = [w * special.ndtr((at - mean) / sigma) for mean, w in sums.items()]
        return np.asarray(np.sum(terms, axis=0))

    p, q, found = density(first), density(second), []
    for loss in LOSSES:
        gain = p - math.exp(loss) * q
        at = np.flatnonzero(gain[:-1] * gain[1:] < 0)
        # A root that is off by interpolation changes the answer in second order: below 1e-9.
        roots = x[at] - gain[at] * (x[1] - x[0]) / (gain[at + 1] - gain[at])
        cuts = np.concatenate(([-50.0], roots, [50.0]))
        parts = np.diff(below(first, cuts)) - math.exp(loss) * np.diff(below(second, cuts))
        found.append(float(np.sum(parts[parts > 0])))
    return np.array(found)


# What moves: the record against its absence, another record or a null record; the others are free.
OTHERS = (-1.0, 0.0, 1.0)


def neighbours(relation: NeighboringRelation, others: int) -> Iterator[tuple[Data, Data]]:
    for rest in product(OTHERS, repeat=others):
        if list(rest) != sorted(rest):
            continue
        for record in (1.0, 0.5):
            if relation is ADD_OR_REMOVE_ONE:
                yield (record, *rest), rest
            elif relation is REPLACE_SPECIAL:
                yield (record, *rest), (0.0, *rest)
            else:
                yield (record, *rest), (-1.0, *rest)
                yield (record, *rest), (-record, *rest)


def largest(
    law: Callable[[Data], Sums], relation: NeighboringRelation, others: int, sigma: float
) -> tuple[Array, Array]:
    """The largest divergences over the datasets, in both orders."""
    both = [
        (hockey_sticks(law(a), law(b), sigma), hockey_sticks(law(b), law(a), sigma))
        for a, b in neighbours(relation, others)
    ]
    return np.max([one for one, _ in both], axis=0), np.max([two for _, two in both], axis=0)


CASES: list[tuple[Sampling, Callable[[Data], Sums], int]] = [
    (Poisson(sampling_probability=0.3), truncated(0.3, 4), 4),
    (Poisson(sampling_probability=0.7), truncated(0.7, 3), 3),
    (FixedSize(batch_size=1, dataset_size=3), fixed_size(1), 3),
    (FixedSize(batch_size=2, dataset_size=4), fixed_size(2), 4),
    (FixedSize(batch_size=2, dataset_size=5), fixed_size(2), 5),
    (WithReplacement(batch_size=1, dataset_size=3), with_replacement(1), 3),
    (WithReplacement(batch_size=2, dataset_size=4), with_replacement(2), 4),
    (WithReplacement(batch_size=3, dataset_size=4), with_replacement(3), 4),
    (
        TruncatedPoisson(sampling_probability=0.3, max_batch_size=1, dataset_size=5),
        truncated(0.3, 1),
        5,
    ),
    (
        TruncatedPoisson(sampling_probability=0.5, max_batch_size=2, dataset_size=4),
        truncated(0.5, 2),
        4,
    ),
    (
        TruncatedPoisson(sampling_probability=0.2, max_batch_size=3, dataset_size=4),
        truncated(0.2, 3),
        4,
    ),
]


@pytest.mark.parametrize("relation", NeighboringRelation)
@pytest.mark.parametrize(("sampling", "law", "size"), CASES)
@pytest.mark.parametrize("sigma", [0.7, 1.5])
def test_no_dataset_loses_more_than_the_bound_or_less_than_the_lower_pair(
    sampling: Sampling,
    law: Callable[[Data], Sums],
    size: int,
    relation: NeighboringRelation,
    sigma: float,
) -> None:
    event = Event(mechanism=Gaussian(noise_multiplier=sigma), sampling=sampling)
    removed, added = largest(law, relation, size - 1, sigma)
    for bound in pld_bounds(event, relation):
        ((pair, _),) = bound.loss
        for direction, exact in ((Direction.REMOVE, removed), (Direction.ADD, added)):
            upper = profiles(pair, direction=direction, losses=LOSSES)[1]
            assert np.all(exact <= upper + 1e-8), (bound.theorem.id, direction)
    floor = lower_bound_pair(event, relation)
    assert floor is not None
    assert np.all(lower_of(floor) <= removed + 1e-8)


def lower_of(pair: Pair) -> Array:
    return profiles(pair, direction=Direction.REMOVE, losses=LOSSES)[0]


@pytest.mark.parametrize("relation", [REPLACE_ONE, REPLACE_SPECIAL])
@pytest.mark.parametrize("weights", [(0.5, 0.3, 0.2), (0.2, 0.4, 0.3, 0.1), (0.25,) * 4])
def test_no_weights_lose_more_than_the_largest_allows(
    weights: tuple[float, ...], relation: NeighboringRelation
) -> None:
    removed, added = largest(weighted(weights), relation, len(weights) - 1, 1.0)
    ((pair, _),) = batch_bounds(1.0, NonUniform(max_weight=max(weights)), relation)[0].loss
    assert np.all(removed <= profiles(pair, direction=Direction.REMOVE, losses=LOSSES)[1] + 1e-8)
    assert np.all(added <= profiles(pair, direction=Direction.ADD, losses=LOSSES)[1] + 1e-8)


def test_the_largest_weight_attains_its_lower_pair() -> None:
    event = Event(mechanism=Gaussian(noise_multiplier=1.0), sampling=NonUniform(max_weight=0.5))
    for relation in (REPLACE_ONE, REPLACE_SPECIAL):
        floor = lower_bound_pair(event, relation)
        assert floor is not None
        removed, _ = largest(weighted((0.5, 0.5)), relation, 1, 1.0)
        assert np.all(lower_of(floor) <= removed + 1e-8)
        assert np.all(lower_of(floor) >= removed - 1e-3)


def test_fixed_size_is_not_poisson_at_the_same_rate() -> None:
    # The others at -1 and the record at 1: Poisson accounting at sigma is exceeded.
    law = fixed_size(1)
    data, other = (1.0, -1.0, -1.0), (-1.0, -1.0)
    exact = hockey_sticks(law(data), law(other), 1.0)
    poisson = SampledGaussianPair(noise_multiplier=1.0, sampling_probability=1 / 3)
    assert np.any(exact > 1.6 * profiles(poisson, direction=Direction.REMOVE, losses=LOSSES)[1])


def test_the_branches_of_added_records_do_not_serve_a_null_record() -> None:
    # A null record fills its place: where the batch is full, it is the others that it displaces.
    sampling = TruncatedPoisson(sampling_probability=0.3, max_batch_size=1, dataset_size=5)
    law = truncated(0.3, 1)
    removed, _ = largest(law, REPLACE_SPECIAL, 4, 1.0)
    ((pair, _),) = batch_bounds(1.0, sampling, REPLACE_SPECIAL)[0].loss
    ((added_pair, _),) = batch_bounds(1.0, sampling, ADD_OR_REMOVE_ONE)[0].loss
    assert np.all(removed <= profiles(pair, direction=Direction.REMOVE, losses=LOSSES)[1] + 1e-8)
    # The order in which the null record comes first is the one that the other pair understates.
    _, added = largest(law, REPLACE_SPECIAL, 4, 1.0)
    understated = profiles(added_pair, direction=Direction.ADD, losses=LOSSES)[1]
    assert np.any(added > understated + 1e-6) or np.any(
        removed > profiles(added_pair, direction=Direction.REMOVE, losses=LOSSES)[1] + 1e-6
    )


def test_a_smaller_rate_would_be_exceeded() -> None:
    removed, _ = largest(fixed_size(2), REPLACE_ONE, 4, 1.0)
    pair = SampledGaussianPair(noise_multiplier=0.5, sampling_probability=0.36)
    assert np.any(removed > profiles(pair, direction=Direction.REMOVE, losses=LOSSES)[1] + 1e-6)


@pytest.mark.parametrize(("q", "cap", "size"), [(0.3, 1, 4), (0.5, 2, 4), (0.2, 2, 3)])
def test_a_cap_bounds_the_neighbour_that_has_a_record_more(q: float, cap: int, size: int) -> None:
    sampling = TruncatedPoisson(sampling_probability=q, max_batch_size=cap, dataset_size=size)
    ((pair, _),) = batch_bounds(0.4, sampling, ADD_OR_REMOVE_ONE)[0].loss
    for others in (size - 1, size):
        both = largest(truncated(q, cap), ADD_OR_REMOVE_ONE, others, 0.4)
        for direction, exact in zip(Direction, both, strict=True):
            upper = profiles(pair, direction=direction, losses=LOSSES)[1]
            assert np.all(exact <= upper + 1e-8), (others, direction)
