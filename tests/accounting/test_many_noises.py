"""Guarantees of ledgers of very many noises: interpolated where that is accepted, else rounded."""

import pytest

from accounting.accountants.best_bound import best_bound, guarantee
from accounting.accountants.event_grouping import group_events
from accounting.accountants.many_noises import interpolated_bound
from accounting.accountants.queries import Query
from accounting.event_counts import EventCounts
from accounting.events import Event, Gaussian, NeighboringRelation, Poisson
from accounting.guarantees import DEFAULT_ACCEPT, Status

DELTA = 1e-5


def ledger(size: int, low: float = 1.1, high: float = 2.2) -> EventCounts:
    return EventCounts(
        steps={
            Event(
                mechanism=Gaussian(noise_multiplier=low + (high - low) * n / size),
                sampling=Poisson(sampling_probability=0.01),
            ): 1
            for n in range(size)
        }
    )


EVERY = DEFAULT_ACCEPT | {Status.DERIVED}


@pytest.mark.parametrize("relation", NeighboringRelation)
def test_a_thousand_noises_have_a_narrow_guarantee(relation: NeighboringRelation) -> None:
    found = guarantee(ledger(1000), relation=relation, delta=DELTA, accept=EVERY).headline
    assert found
    assert found.epsilon_lower
    assert found.epsilon - found.epsilon_lower <= 1e-4 * found.epsilon
    assert "noise-interpolation" in found.theorems
    assert "outward-rounding" not in found.theorems
    assert found.status is Status.DERIVED
    back = guarantee(ledger(1000), relation=relation, epsilon=found.epsilon, accept=EVERY).headline
    assert back
    assert back.delta == pytest.approx(DELTA, rel=1e-3)


def test_published_theorems_alone_round_outward() -> None:
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    published, derived = (
        guarantee(ledger(1000), relation=relation, delta=DELTA, accept=accept).headline
        for accept in (DEFAULT_ACCEPT, EVERY)
    )
    assert published
    assert derived
    assert published.epsilon_lower
    assert published.status is Status.PUBLISHED
    assert "noise-interpolation" not in published.theorems
    assert published.epsilon > derived.epsilon
    assert published.epsilon_lower <= derived.epsilon
    assert "outward-rounding" in published.theorems


def test_noises_that_the_contour_cannot_serve_are_rounded() -> None:
    counts = EventCounts(
        steps={
            Event(
                mechanism=Gaussian(noise_multiplier=0.6 + n / 5000),
                sampling=Poisson(sampling_probability=1e-5),
            ): 1
            for n in range(500)
        }
    )
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    found = guarantee(counts, relation=relation, delta=1e-7, accept=EVERY).headline
    rounded = guarantee(counts, relation=relation, delta=1e-7, accept=DEFAULT_ACCEPT).headline
    assert found
    assert rounded
    assert found.epsilon <= rounded.epsilon
    assert "noise-interpolation" not in found.theorems
    question = Query(relation=relation, accept=EVERY, delta=1e-7, epsilon=None)
    assert interpolated_bound(group_events(counts), question) is None


def test_a_headline_alone_is_the_same_without_its_lower_end() -> None:
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    whole = guarantee(ledger(1000), relation=relation, delta=DELTA, accept=EVERY).headline
    alone = best_bound(ledger(1000), relation=relation, delta=DELTA, accept=EVERY, with_lower=False)
    assert whole
    assert alone
    assert "noise-interpolation" in alone.theorems
    assert (alone.epsilon, alone.epsilon_lower) == (whole.epsilon, None)


@pytest.mark.parametrize(
    ("size", "low", "high", "delta"),
    [
        (450, 0.5, 5.0, 1e-10),
        (500, 1.1, 2.2, 1e-5),
        (800, 0.6, 6.0, 1e-30),
        (1000, 0.4, 40.0, 1e-8),
    ],
)
def test_more_accepted_statuses_never_give_a_larger_epsilon(
    size: int, low: float, high: float, delta: float
) -> None:
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    published, every = (
        best_bound(ledger(size, low, high), relation=relation, delta=delta, accept=accept)
        for accept in (DEFAULT_ACCEPT, EVERY)
    )
    assert published
    assert every
    assert every.epsilon <= published.epsilon
