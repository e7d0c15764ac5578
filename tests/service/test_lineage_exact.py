"""Steps on tiny datasets that were made from another, worked out exactly for the other's record.

Every batch is enumerated and every divergence integrated, for all rows that a record may have, none
included. docs/theory/lineage.md states what these cases attack.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import combinations, product

import numpy as np
import pytest

from accounting.bounds.event_bounds import NoBoundError
from accounting.bounds.gdp_bounds import gdp_bounds
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    Mechanism,
    NeighboringRelation,
    NonUniform,
    Poisson,
    RandomAllocation,
    RandomizedResponse,
    Reshuffle,
    Sampling,
    Shuffle,
    TruncatedPoisson,
    Unknown,
    WithReplacement,
    Zcdp,
)
from accounting.renyi.orders import ORDERS
from accounting.rounding import Array
from service.ledger.budgets.accumulator import BudgetDelta
from service.ledger.budgets.lineage import (
    ITSELF,
    UNBOUNDED,
    RowsPerParent,
    as_seen_by_ancestor,
    view_event,
)
from service.ledger.budgets.steps_and_passes import StepsAndPasses

ADD_OR_REMOVE_ONE, REPLACE_ONE, REPLACE_SPECIAL = NeighboringRelation
ROWS = (None, -1.0, 0.0, 1.0)  # what a record may have in the dataset; none where it was left out
GRID = np.linspace(-60.0, 60.0, 24001)
AT_MOST_ONE = RowsPerParent(exactly_one=False)
CHECKED = (2.0, 4.0, 8.0)  # orders
SIGMAS = (0.8, 2.0)
Data = tuple[float, ...]
Sums = dict[float, float]  # chance of each sum
Law = Callable[[Data], Sums]


def full(data: Data) -> Sums:
    return {sum(data): 1.0}


def poisson(q: float) -> Law:
    def law(data: Data) -> Sums:
        found: Sums = defaultdict(float)
        for joined in product((0, 1), repeat=len(data)):
            count = sum(joined)
            chance = q**count * (1 - q) ** (len(data) - count)
            found[sum(x for x, j in zip(data, joined, strict=True) if j)] += chance
        return dict(found)

    return law


def fixed_size(batch: int) -> Law:
    def law(data: Data) -> Sums:
        found: Sums = defaultdict(float)
        for chosen in combinations(data, batch):
            found[sum(chosen)] += 1 / math.comb(len(data), batch)
        return dict(found)

    return law


def density(law: Sums, sigma: float, mechanism: type[Mechanism]) -> Array:
    """Log density of the noisy sum on the grid."""
    logs = []
    for mean, chance in law.items():
        z = (GRID - mean) / sigma
        laplace = mechanism is Laplace
        shape = -np.abs(z) - math.log(2) if laplace else -z * z / 2 - math.log(2 * math.pi) / 2
        logs.append(math.log(chance) - math.log(sigma) + shape)
    return np.asarray(np.logaddexp.reduce(np.array(logs), axis=0))


def divergence(p: Array, q: Array, order: float) -> float:
    """Renyi divergence of two log densities on the grid, in nats."""
    logs = order * p + (1 - order) * q
    top = float(np.max(logs))
    step = float(GRID[1] - GRID[0])
    return (top + math.log(float(np.sum(np.exp(logs - top))) * step)) / (order - 1)


def neighbours(relation: NeighboringRelation) -> Iterator[tuple[Data, Data]]:
    """Datasets that were made from neighbouring ones by what looks at each record alone."""
    others = [(1.0, 1.0, 1.0), (-1.0, -1.0, -1.0), (1.0, -1.0, 0.0)]
    then = {ADD_OR_REMOVE_ONE: (None,), REPLACE_ONE: ROWS, REPLACE_SPECIAL: (None, 0.0)}
    for rest, here, there in product(others, ROWS, then[relation]):
        yield tuple(rest if row is None else (*rest, row) for row in (here, there))  # type: ignore[misc]


def worst(
    law: Law, relation: NeighboringRelation, sigma: float, mechanism: type[Mechanism] = Gaussian
) -> Array:
    """The largest divergence at each order checked, over all neighbours."""
    found = np.zeros(len(CHECKED))
    for one, other in neighbours(relation):
        p, q = (density(law(data), sigma, mechanism) for data in (one, other))
        for pair in ((p, q), (q, p)):
            found = np.maximum(found, [divergence(*pair, order) for order in CHECKED])
    return found


def proved(event: Event, relation: NeighboringRelation) -> Array:
    """The least curve that is proved of an event, at the orders checked."""
    at = [int(np.flatnonzero(order == ORDERS)[0]) for order in CHECKED]
    curves = [bound.loss[at] for bound in renyi_bounds(event, relation)]
    return np.asarray(np.min(curves, axis=0))


def seen(event: Event, relation: NeighboringRelation) -> Event:
    return view_event(event, relation=relation, rows=AT_MOST_ONE)


KEPT: list[tuple[Sampling, Law]] = [
    (Full(), full),
    (Poisson(sampling_probability=0.3), poisson(0.3)),
]


@pytest.mark.parametrize("relation", list(NeighboringRelation))
@pytest.mark.parametrize(("sampling", "law"), KEPT, ids=["full", "poisson"])
@pytest.mark.parametrize("sigma", SIGMAS)
def test_a_missing_row_is_a_row_of_zeros_to_a_sum(
    relation: NeighboringRelation, sampling: Sampling, law: Law, sigma: float
) -> None:
    for mechanism, error in ((Gaussian, 1e-8), (Laplace, 3e-5)):  # of the grid, at its corners
        event = Event(mechanism=mechanism(noise_multiplier=sigma), sampling=sampling)
        assert seen(event, relation) == event
        found = worst(law, relation, sigma, mechanism)
        assert np.all(found <= proved(event, relation) + error)
        assert np.all(found > 0)


FIXED = FixedSize(batch_size=2, dataset_size=4)


@pytest.mark.parametrize("relation", list(NeighboringRelation))
@pytest.mark.parametrize("sigma", SIGMAS)
def test_another_record_stands_in_for_one_that_is_missing_from_a_batch(
    relation: NeighboringRelation, sigma: float
) -> None:
    event = Event(mechanism=Gaussian(noise_multiplier=sigma), sampling=FIXED)
    found = worst(fixed_size(2), relation, sigma)
    assert np.all(found <= proved(seen(event, relation), relation) * (1 + 1e-8))


def test_a_batch_without_the_record_is_further_away_than_one_with_a_null_record() -> None:
    """Left unchanged, or released at one norm bound, such a step would be understated."""
    sigma = 0.8
    event = Event(mechanism=Gaussian(noise_multiplier=sigma), sampling=FIXED)
    release = Event(mechanism=event.mechanism, sampling=Full())
    found = worst(fixed_size(2), REPLACE_SPECIAL, sigma)
    assert np.any(found > 1.2 * proved(event, REPLACE_SPECIAL))
    assert np.any(found > 1.2 * proved(release, REPLACE_SPECIAL))


def test_of_an_order_every_later_batch_moves_up_where_a_record_is_missing() -> None:
    before, after = np.array([-1.0, 1.0, -1.0, 1.0]), np.array([1.0, -1.0, 1.0, 0.0])
    event = Event(
        mechanism=Gaussian(noise_multiplier=1.0), sampling=Cyclic(batch_size=1, steps_per_pass=4)
    )
    (release,) = gdp_bounds(event, REPLACE_ONE)
    assert float(np.linalg.norm(before - after)) > 1.5 * release.loss
    assert seen(event, REPLACE_ONE) == UNBOUNDED


NOISY = Gaussian(noise_multiplier=1.0)
SAMPLINGS: list[Sampling] = [
    Unknown(),
    TruncatedPoisson(sampling_probability=0.1, max_batch_size=2, dataset_size=9),
    WithReplacement(batch_size=2, dataset_size=9),
    Cyclic(batch_size=2, steps_per_pass=5),
    Shuffle(batch_size=2, steps_per_pass=5, reshuffle=Reshuffle.EACH_PASS, dataset_size=9),
    BallsAndBins(steps_per_pass=5),
    RandomAllocation(steps_per_pass=5, participations=2),
    NonUniform(max_weight=0.1),
    FixedSize(batch_size=9, dataset_size=9),
]
BOXES: list[Mechanism] = [
    ApproximateDp(epsilon=0.1, delta=0.0),
    Zcdp(rho=0.1),
    RandomizedResponse(probability_of_truth=0.6, categories=2),
]


@pytest.mark.parametrize("relation", [REPLACE_ONE, REPLACE_SPECIAL])
def test_whatever_else_may_tell_that_a_row_is_missing_has_no_bound(
    relation: NeighboringRelation,
) -> None:
    """A box that tells how many rows there are is (0, 0) where rows are only replaced."""
    events = [Event(mechanism=NOISY, sampling=sampling) for sampling in SAMPLINGS]
    taken: list[Sampling] = [Full(), Poisson(sampling_probability=0.1), FIXED]
    events += [Event(mechanism=box, sampling=sampling) for box, sampling in product(BOXES, taken)]
    events.append(Event(mechanism=Laplace(noise_multiplier=1.0), sampling=FIXED))
    tiny = Gaussian(noise_multiplier=1e-100)
    if relation is REPLACE_SPECIAL:
        events.append(Event(mechanism=tiny, sampling=FIXED))
    for event in events:
        assert seen(event, relation) == UNBOUNDED
        with pytest.raises(NoBoundError):
            renyi_bounds(seen(event, relation), relation)


def test_nothing_changes_where_every_record_has_its_row_or_rows_may_be_missing_anyway() -> None:
    for sampling in SAMPLINGS:
        event = Event(mechanism=NOISY, sampling=sampling)
        for relation in NeighboringRelation:
            assert view_event(event, relation=relation, rows=ITSELF) == event
        assert seen(event, ADD_OR_REMOVE_ONE) == event


@pytest.mark.parametrize("relation", [REPLACE_ONE, REPLACE_SPECIAL])
def test_a_move_is_restated_event_by_event_and_what_becomes_equal_adds_up(
    relation: NeighboringRelation,
) -> None:
    kept = Event(mechanism=NOISY, sampling=Poisson(sampling_probability=0.1))
    fixed = Event(mechanism=NOISY, sampling=FIXED)
    passes = [Event(mechanism=NOISY, sampling=SAMPLINGS[index]) for index in (3, 5)]
    recorded = {kept: StepsAndPasses(steps=3), fixed: StepsAndPasses(steps=2)}
    recorded |= {event: StepsAndPasses(steps=4, passes=1) for event in passes}
    reserved = {event: StepsAndPasses(steps=-4, passes=-1) for event in passes}
    move = BudgetDelta(recorded=recorded, reserved=reserved)
    found = as_seen_by_ancestor(move, relation=relation, rows=AT_MOST_ONE)
    assert found.recorded == {
        kept: StepsAndPasses(steps=3),
        seen(fixed, relation): StepsAndPasses(steps=2),
        UNBOUNDED: StepsAndPasses(steps=8),
    }
    assert found.reserved == {UNBOUNDED: StepsAndPasses(steps=-8)}
    assert as_seen_by_ancestor(move, relation=relation, rows=ITSELF) is move
