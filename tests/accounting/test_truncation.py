"""Truncated Poisson sampling read as Poisson sampling that is rarely cut."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import Status, count_events, guarantee
from accounting.accountants.best_bound import best_bound
from accounting.accountants.truncated_poisson import as_poisson
from accounting.event_counts import EventCounts
from accounting.events import (
    Event,
    Full,
    Gaussian,
    Laplace,
    NeighboringRelation,
    Poisson,
    Span,
    TruncatedPoisson,
    Zcdp,
)
from accounting.guarantees import DEFAULT_ACCEPT, Assumption
from accounting.privacy_profile import privacy_profile
from accounting.subsampling.truncated import exceeds_cap, truncated_delta
from tests.accounting.test_subsampling_exact import LOSSES, largest, truncated

ADD_OR_REMOVE_ONE = NeighboringRelation.ADD_OR_REMOVE_ONE
RATE, SIZE, STEPS = 256 / 60_000, 60_000, 14_040
PUBLISHED = frozenset({Status.PUBLISHED})


def truncated_event(cap: int, *, noise: float = 1.1) -> Event:
    sampling = TruncatedPoisson(sampling_probability=RATE, max_batch_size=cap, dataset_size=SIZE)
    return Event(mechanism=Gaussian(noise_multiplier=noise), sampling=sampling)


def poisson_event(*, noise: float = 1.1) -> Event:
    sampling = Poisson(sampling_probability=RATE)
    return Event(mechanism=Gaussian(noise_multiplier=noise), sampling=sampling)


def counts(*parts: tuple[Event, int]) -> EventCounts:
    return count_events([[Span(event=event, steps=steps) for event, steps in parts]])


@pytest.mark.parametrize("relation", NeighboringRelation)
@pytest.mark.parametrize(("cap", "others"), [(1, 3), (2, 3), (2, 4), (3, 4)])
@pytest.mark.parametrize("q", [0.1, 0.3])
def test_no_dataset_exceeds_the_bound(
    relation: NeighboringRelation, cap: int, others: int, q: float
) -> None:
    whole, sigma = others + 1, 1.0
    # The declared size is that of the smaller neighbour, which is the harder case.
    size = others if relation is ADD_OR_REMOVE_ONE else whole
    sampling = TruncatedPoisson(sampling_probability=q, max_batch_size=cap, dataset_size=size)
    failure = exceeds_cap(sampling, relation)
    cut = largest(truncated(q, cap), relation, others, sigma)
    uncut = largest(truncated(q, whole), relation, others, sigma)
    for found, poisson in zip(cut, uncut, strict=True):
        bound = [
            truncated_delta(float(delta), epsilon=float(epsilon), failure=failure)
            for delta, epsilon in zip(poisson, LOSSES, strict=True)
        ]
        assert np.all(found <= bound)


def test_the_chance_of_a_cut_batch_is_that_of_the_larger_neighbour() -> None:
    sampling = TruncatedPoisson(sampling_probability=0.5, max_batch_size=2, dataset_size=3)
    assert exceeds_cap(sampling, ADD_OR_REMOVE_ONE) == pytest.approx(5 / 16, rel=1e-8)
    assert exceeds_cap(sampling, NeighboringRelation.REPLACE_ONE) == pytest.approx(1 / 8, rel=1e-8)
    assert exceeds_cap(sampling, ADD_OR_REMOVE_ONE) >= 5 / 16


def test_a_cap_that_is_never_met_costs_what_poisson_sampling_costs() -> None:
    for relation in NeighboringRelation:
        cut = guarantee(
            counts((truncated_event(512), STEPS)), relation=relation, delta=1e-5, accept=PUBLISHED
        )
        whole = guarantee(
            counts((poisson_event(), STEPS)), relation=relation, delta=1e-5, accept=PUBLISHED
        )
        assert cut.epsilon == pytest.approx(whole.epsilon, rel=1e-9)
        assert cut.headline is not None
        assert cut.headline.bound == "truncated-poisson-as-poisson"
        assert cut.headline.status is Status.PUBLISHED
        assert Assumption.TRUNCATED_POISSON_SAMPLING in cut.headline.assumptions
        assert Assumption.POISSON_SAMPLING not in cut.headline.assumptions


def test_the_delta_of_cut_batches_is_paid_on_both_sides() -> None:
    cut = counts((truncated_event(384), STEPS))
    found = best_bound(cut, relation=ADD_OR_REMOVE_ONE, delta=1e-5, accept=PUBLISHED)
    assert found is not None
    read = as_poisson(cut, ADD_OR_REMOVE_ONE)
    whole = best_bound(read.counts, relation=ADD_OR_REMOVE_ONE, epsilon=found.epsilon)
    assert whole is not None
    paid = whole.delta + (1 + math.exp(found.epsilon)) * read.failure
    assert paid <= 1e-5
    assert paid == pytest.approx(1e-5, rel=1e-5)  # and hardly more is set aside


def test_batches_that_are_often_cut_have_no_such_bound() -> None:
    found = best_bound(
        counts((truncated_event(300), STEPS)),
        relation=ADD_OR_REMOVE_ONE,
        delta=1e-5,
        accept=PUBLISHED,
    )
    assert found is not None
    assert found.bound == "gaussian-dp"


def test_each_accountant_reads_cut_batches_so() -> None:
    cut = counts((truncated_event(400), STEPS))
    for accountant, least in (("pld", 2.3), ("rdp", 2.5)):
        found = best_bound(
            cut,
            relation=ADD_OR_REMOVE_ONE,
            delta=1e-5,
            accept=PUBLISHED,
            accountant=accountant,
        )
        assert found is not None
        assert least < found.epsilon < 2.7
        assert found.accountant == accountant


def test_delta_at_an_epsilon_and_the_curve_read_cut_batches_so() -> None:
    cut = counts((truncated_event(400), STEPS))
    found = best_bound(cut, relation=ADD_OR_REMOVE_ONE, epsilon=2.5, accept=PUBLISHED)
    assert found is not None
    assert found.delta < 1e-5
    profile = privacy_profile(
        cut, relation=ADD_OR_REMOVE_ONE, epsilons=np.array([0.0, 2.5]), accept=PUBLISHED
    )
    assert profile.upper[1] < 1e-5
    assert profile.upper[1] == pytest.approx(found.delta, rel=1e-3)


def test_cut_batches_beside_others_are_a_composition() -> None:
    mixed = counts((truncated_event(400), STEPS), (poisson_event(noise=2.0), 100))
    found = best_bound(mixed, relation=ADD_OR_REMOVE_ONE, delta=1e-5, accept=PUBLISHED)
    assert found is not None
    assert found.bound == "composition"
    assert found.epsilon < 2.5
    both = {Assumption.POISSON_SAMPLING, Assumption.TRUNCATED_POISSON_SAMPLING}
    assert both <= set(found.assumptions)


@given(
    cap=st.integers(260, 500),
    steps=st.integers(1, 20_000),
    relation=st.sampled_from(list(NeighboringRelation)),
)
def test_more_accepted_statuses_never_give_a_larger_bound(
    cap: int, steps: int, relation: NeighboringRelation
) -> None:
    cut = counts((truncated_event(cap), steps))
    given: dict[str, Any] = {"relation": relation, "delta": 1e-5}
    few = best_bound(cut, accept=DEFAULT_ACCEPT, **given)
    more = best_bound(cut, accept=DEFAULT_ACCEPT | {Status.DERIVED}, **given)
    assert few is not None
    assert more is not None
    assert more.epsilon <= few.epsilon


def laplace_event(cap: int) -> Event:
    sampling = TruncatedPoisson(sampling_probability=RATE, max_batch_size=cap, dataset_size=SIZE)
    return Event(mechanism=Laplace(noise_multiplier=3.0), sampling=sampling)


def test_steps_without_a_bound_of_their_own_are_read_as_poisson_steps_too() -> None:
    rare, often = counts((laplace_event(512), 100)), counts((laplace_event(256), 100))
    found = best_bound(rare, relation=ADD_OR_REMOVE_ONE, delta=1e-5)
    assert found is not None
    assert found.bound == "truncated-poisson-as-poisson"
    assert best_bound(often, relation=ADD_OR_REMOVE_ONE, delta=1e-5) is None


def test_a_delta_of_which_nothing_can_be_set_aside_leaves_the_release() -> None:
    found = best_bound(
        counts((truncated_event(SIZE, noise=1e6), 1)),
        relation=NeighboringRelation.REPLACE_SPECIAL,
        delta=5e-323,
        accountant="rdp",
    )
    assert found is not None
    assert found.bound == "gaussian-renyi"


def test_a_delta_that_cut_batches_take_nearly_whole_leaves_the_release() -> None:
    cut = counts((truncated_event(384), STEPS))
    whole = as_poisson(cut, ADD_OR_REMOVE_ONE)
    read: dict[str, Any] = {"relation": ADD_OR_REMOVE_ONE, "accountant": "rdp"}
    delta = 1e-5
    for _ in range(20):  # to where the chance of a cut batch takes all but a thousandth
        least = best_bound(whole.counts, delta=delta, **read)
        assert least is not None
        lost = truncated_delta(0.0, epsilon=least.epsilon, failure=whole.failure)
        delta = 1.001 * lost
    found = best_bound(cut, delta=delta, **read)
    assert found is not None
    assert found.bound == "gaussian-renyi"


def test_beyond_what_can_be_raised_to_a_power_nothing_is_said() -> None:
    assert truncated_delta(0.0, epsilon=701.0, failure=1e-300) == math.inf


def test_a_guarantee_names_the_least_bound_of_another_status_below_half() -> None:
    often = counts((truncated_event(256), STEPS))
    found = guarantee(often, relation=ADD_OR_REMOVE_ONE, delta=1e-5)
    smaller = found.smaller_bound
    assert smaller is not None
    assert found.epsilon is not None
    assert smaller.status is Status.DERIVED
    assert 2 * smaller.epsilon < found.epsilon
    accepted = DEFAULT_ACCEPT | {Status.DERIVED}
    own = guarantee(often, relation=ADD_OR_REMOVE_ONE, delta=1e-5, accept=accepted)
    assert own.epsilon == smaller.epsilon
    assert own.smaller_bound is None
    nothing = guarantee(
        often, relation=ADD_OR_REMOVE_ONE, delta=1e-5, accept=frozenset({Status.CONDITIONAL})
    )
    assert nothing.headline is None
    assert nothing.smaller_bound is not None


def test_a_guarantee_of_a_delta_names_a_delta_below_half() -> None:
    found = guarantee(counts((truncated_event(300), 1)), relation=ADD_OR_REMOVE_ONE, epsilon=1.0)
    assert found.smaller_bound is not None
    assert found.delta is not None
    assert 2 * found.smaller_bound.delta < found.delta


def test_whole_batches_beside_what_an_accountant_does_not_serve_say_nothing() -> None:
    declared = Event(mechanism=Zcdp(rho=0.1), sampling=Full())
    ledger = counts((truncated_event(512), STEPS), (declared, 1))
    given: dict[str, Any] = {"relation": ADD_OR_REMOVE_ONE, "delta": 1e-5}
    assert best_bound(ledger, accountant="pld", **given) is None
    found = best_bound(ledger, **given)
    assert found is not None
    assert found.accountant == "rdp"
    assert truncated_delta.id in found.theorems


def test_a_cap_that_fails_too_often_for_so_large_an_epsilon_is_not_left_out() -> None:
    """At noise .2 one step costs 20.4: e^20 times the chance of the cap is beyond delta."""
    one = counts((truncated_event(330, noise=0.2), 1))
    found = best_bound(
        one, relation=ADD_OR_REMOVE_ONE, delta=1e-5, accept=DEFAULT_ACCEPT | {Status.DERIVED}
    )
    assert found is not None
    assert found.bound == "truncated-poisson-gaussian"
    assert found.epsilon > 20
