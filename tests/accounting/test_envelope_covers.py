"""Proposition 2 of docs/theory/envelopes.md attacked: no covered event tells more than its item."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from scipy import special

from accounting.accountants.envelope_bound import _certified_item
from accounting.bounds.dominating_pairs import pld_bounds
from accounting.bounds.event_bounds import NoBoundError, Pairs
from accounting.events import Direction, Event, FixedSize, Gaussian, NeighboringRelation
from accounting.filters.covers import covers
from accounting.pld.certified_composition import delta_in_order
from tests.accounting.envelope_events import EVENTS, gaussian
from tests.accounting.envelope_games import Array, delta_of

RELATIONS = pytest.mark.parametrize("relation", NeighboringRelation)
NOTHING = 1e-300  # where the least doubles are all that is left
EPSILONS = (0.0, 0.05, 0.3, 1.0, 2.0, 5.0)


@cache
def pairs_of(event: Event, relation: NeighboringRelation) -> tuple[Pairs, ...]:
    try:
        return tuple(bound.loss for bound in pld_bounds(_certified_item(event), relation))
    except NoBoundError:
        return ()


@cache
def profile(pairs: Pairs, direction: Direction) -> tuple[float, ...]:
    return tuple(delta_in_order(pairs, direction, epsilon=e, width=1e-10) for e in EPSILONS)


def attained(event: Event, direction: Direction) -> list[float] | None:
    """What batches of a fixed size lose at least, the null record being the other; else None.

    All others contribute -1. The pair that is printed is above that by what its grid adds, which
    may be more than an item that is barely larger: the event is compared by what it loses.
    """
    mechanism, sampling = event.mechanism, event.sampling
    if not (isinstance(mechanism, Gaussian) and isinstance(sampling, FixedSize)):
        return None
    edges = np.linspace(-8.0, 10.0, 3601) / mechanism.noise_multiplier
    rate = sampling.batch_size / sampling.dataset_size

    def masses(mean: float) -> Array:
        return np.diff(special.ndtr(edges - mean / mechanism.noise_multiplier))

    with_it, null = ((1 - rate) * masses(0.0) + rate * masses(at) for at in (2.0, 1.0))
    pair = (with_it, null) if direction is Direction.REMOVE else (null, with_it)
    return [delta_of(pair, epsilon) for epsilon in EPSILONS]


def excesses(item: Event, event: Event, relation: NeighboringRelation) -> Iterator[float]:
    """By how much the event's tightest pair exceeds any that the item may be certified with."""
    own = pairs_of(event, relation)
    for direction in Direction:
        least = [min(at) for at in zip(*(profile(one, direction) for one in own), strict=True)]
        if relation is NeighboringRelation.REPLACE_SPECIAL:
            least = attained(event, direction) or least
        for bound in pairs_of(item, relation):
            for mine, its in zip(least, profile(bound, direction), strict=True):
                yield mine / its - 1 if mine > max(its, NOTHING) else 0.0


@RELATIONS
def test_a_covered_event_tells_no_more_than_the_item_it_is_charged_to(
    relation: NeighboringRelation,
) -> None:
    found = {
        (item, event): max(excesses(item, event, relation))
        for item in EVENTS
        for event in EVENTS
        if item != event and covers(item, event) and pairs_of(item, relation)
    }
    print(relation, len(found), max(found.values()))  # noqa: T201
    assert len(found) > 300
    assert max(found.values()) <= 1e-9


def test_the_pair_of_a_smaller_batch_is_below_that_of_a_larger() -> None:
    relation = NeighboringRelation.REPLACE_SPECIAL
    for direction in Direction:
        small, large = (
            profile(
                pairs_of(gaussian(0.7, FixedSize(batch_size=b, dataset_size=10)), relation)[0],
                direction,
            )
            for b in (3, 9)
        )
        assert all(x < y for x, y in zip(small, large, strict=True))


@pytest.mark.parametrize("event", EVENTS)
def test_a_replaced_record_has_pairs_that_are_their_own_mirror_image(event: Event) -> None:
    for pairs in pairs_of(event, NeighboringRelation.REPLACE_ONE):
        forth, back = (profile(pairs, direction) for direction in Direction)
        assert forth == pytest.approx(back, rel=1e-12)
