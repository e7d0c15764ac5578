"""Lower ends where little is known, and where nothing is."""

import math
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from scipy import special

from accounting import Status, guarantee
from accounting.accountants import best_first
from accounting.accountants.best_bound import best_bound
from accounting.accountants.queries import Query
from accounting.bounds.dominating_pairs import pld_bounds
from accounting.bounds.event_bounds import NoBoundError
from accounting.bounds.gdp_bounds import gdp_bounds
from accounting.bounds.lower_bounds import _sampled, lower_bound_pair, lower_bound_units
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.event_counts import EventCounts, count_events
from accounting.events import (
    BallsAndBins,
    Cyclic,
    Event,
    FixedSize,
    Gaussian,
    Laplace,
    NeighboringRelation,
    NonUniform,
    Poisson,
    RandomAllocation,
    Reshuffle,
    Sampling,
    Shuffle,
    Span,
    TruncatedPoisson,
    WithReplacement,
)
from accounting.gaussian import gaussian_delta
from accounting.guarantees import ACCEPTABLE, Bound
from accounting.pld.certified_composition import (
    delta_bracket,
    epsilon_bracket,
    lower_delta,
    lower_epsilon,
)
from accounting.pld.convex_hull import _leave_in_turn, take_hull
from accounting.pld.pairs import DensePair, GaussianPair, ReplacedGaussianPair, SampledGaussianPair
from accounting.pld.replace_one import replaced_delta, replaced_epsilon
from accounting.privacy_profile import privacy_profile
from accounting.rounding import Array
from accounting.shuffling.partial import partial_shuffle_rdp
from accounting.subsampling.special import fixed_size_special_pair
from accounting.work_limit import TooMuchWorkError

ADD_OR_REMOVE_ONE, REPLACE_ONE, REPLACE_SPECIAL = NeighboringRelation


def event(sampling: Sampling, noise: float = 2.0) -> Event:
    return Event(mechanism=Gaussian(noise_multiplier=noise), sampling=sampling)


def taken(*spans: tuple[Sampling, int], noise: float = 2.0) -> EventCounts:
    return count_events([[Span(event=event(s, noise), steps=n) for s, n in spans]])


@pytest.mark.parametrize(
    ("sampling", "relation"),
    [
        (NonUniform(max_weight=0.1), ADD_OR_REMOVE_ONE),
        (FixedSize(batch_size=5, dataset_size=5), ADD_OR_REMOVE_ONE),
        (WithReplacement(batch_size=10**6, dataset_size=2), REPLACE_ONE),
        (
            TruncatedPoisson(sampling_probability=1e-12, max_batch_size=1, dataset_size=10**12),
            REPLACE_ONE,
        ),
    ],
)
def test_what_is_not_known_to_be_attained_is_left_out(
    sampling: Sampling, relation: NeighboringRelation
) -> None:
    found = lower_bound_pair(event(sampling), relation)
    if isinstance(sampling, TruncatedPoisson):
        assert isinstance(found, ReplacedGaussianPair)
        assert found.sampling_probability <= 1e-12
    else:
        assert found is None


def test_a_truncated_step_of_all_records_is_a_full_one() -> None:
    sampling = TruncatedPoisson(sampling_probability=1.0, max_batch_size=9, dataset_size=9)
    assert lower_bound_pair(event(sampling), REPLACE_SPECIAL) == GaussianPair(noise_multiplier=2.0)


def test_many_distinct_steps_are_bounded_below_by_what_is_quick() -> None:
    fixed = FixedSize(batch_size=5, dataset_size=50)
    assert isinstance(lower_bound_pair(event(fixed), REPLACE_SPECIAL), DensePair)
    quick = lower_bound_pair(event(fixed), REPLACE_SPECIAL, fine=False)
    assert isinstance(quick, SampledGaussianPair)
    assert quick.noise_multiplier == 2.0


def test_nothing_is_said_of_an_allocation_that_is_not_over() -> None:
    sampling = RandomAllocation(steps_per_pass=10, participations=3)
    assert lower_bound_units(taken((sampling, 7)), REPLACE_SPECIAL) == []
    ((pair, count),) = lower_bound_units(taken((sampling, 20)), REPLACE_SPECIAL)
    assert count == 2
    assert isinstance(pair, GaussianPair)
    assert pair.noise_multiplier == pytest.approx(2 * math.sqrt(10) / 3)


def test_a_pass_of_which_a_part_is_known_counts_as_that_part() -> None:
    balls = BallsAndBins(steps_per_pass=10)
    whole, part = (lower_bound_units(taken((balls, n)), REPLACE_SPECIAL) for n in (10, 4))
    low, high = (lower_epsilon(units, delta=1e-5) for units in (part, whole))
    assert 0 < low < high
    # Two branches may have left a pass open each.
    open_ended = EventCounts(
        steps={event(balls): 12}, passes={event(balls): 3}, starts={event(balls): 2}
    )
    ((_, count),) = lower_bound_units(open_ended, REPLACE_SPECIAL)
    assert count == 1


def test_an_order_that_may_have_been_drawn_again_is_not_counted_on() -> None:
    once = Shuffle(batch_size=1, steps_per_pass=5, reshuffle=Reshuffle.ONCE, dataset_size=5)
    key = event(once)
    known = EventCounts(steps={key: 20}, passes={key: 4}, starts={key: 1})
    unknown = EventCounts(steps={key: 20}, passes={key: 4})
    floors = [
        lower_epsilon(lower_bound_units(one, REPLACE_ONE), delta=1e-5) for one in (known, unknown)
    ]
    assert floors[0] > floors[1] > 0


def test_a_size_that_is_not_known_leaves_a_shuffle_without_a_floor() -> None:
    unknown = Shuffle(batch_size=1, steps_per_pass=5, reshuffle=Reshuffle.EACH_PASS)
    assert lower_bound_units(taken((unknown, 10)), REPLACE_ONE) == []


# What other lines of the same kind need


def test_a_replaced_record_is_accounted_through_a_null_record_where_nothing_else_is_accepted() -> (
    None
):
    spans = taken(
        (FixedSize(batch_size=5, dataset_size=500), 3),
        (TruncatedPoisson(sampling_probability=0.01, max_batch_size=9, dataset_size=500), 3),
    )
    only = frozenset({Status.DERIVED})
    found = guarantee(spans, relation=REPLACE_ONE, delta=1e-5, accept=only, accountant="pld")
    # The theorem through a null record is published, those of its pairs are derived.
    assert found.headline is not None
    assert "through-null-record" in found.headline.theorems
    asked = guarantee(
        spans, relation=REPLACE_ONE, epsilon=found.headline.epsilon, accept=only, accountant="pld"
    )
    assert asked.delta is not None
    assert asked.delta <= 2e-5


def test_a_huge_epsilon_is_split_without_overflow() -> None:
    pair = GaussianPair(noise_multiplier=0.02)
    assert 0 <= replaced_delta([(pair, 1)], epsilon=3000.0) <= 1
    assert replaced_delta([(pair, 1)], epsilon=1e6) <= 1
    assert math.isinf(replaced_epsilon([(pair, 10**6)], delta=1e-5))


def test_a_floor_of_gaussian_releases_is_their_closed_form() -> None:
    units = [(GaussianPair(noise_multiplier=2.0), 4)]
    assert lower_delta(units, epsilon=1.0) == pytest.approx(gaussian_delta(1.0, mu=1.0), rel=1e-9)
    exact = epsilon_bracket(units, delta=1e-5)
    assert replaced_epsilon(units, delta=1e-5) >= 2 * exact.lower


def test_a_batch_of_all_records_against_a_null_record_is_full() -> None:
    pair = fixed_size_special_pair(noise_multiplier=2.0, rate=1.0)
    full = epsilon_bracket([(GaussianPair(noise_multiplier=2.0), 5)], delta=1e-5)
    found = epsilon_bracket([(pair, 5)], delta=1e-5)
    assert full.lower <= found.upper <= full.upper * (1 + 1e-3)


def test_the_last_point_of_a_hull_has_nothing_to_give_its_mass_to() -> None:
    losses = np.linspace(0.0, 1.0, 40)
    mass = np.full(40, -1.0)
    mass[0] = 3.0
    in_turn = mass.copy()
    take_hull(mass, losses=losses)
    assert np.all(mass >= 0)
    _leave_in_turn(in_turn, losses, np.arange(40))
    assert np.all(in_turn >= 0)


def test_a_pass_that_stops_early_has_its_own_curve_for_budgets() -> None:
    early = Shuffle(batch_size=2, steps_per_pass=5, reshuffle=Reshuffle.EACH_PASS, dataset_size=40)
    stopped, plain = renyi_bounds(event(early), REPLACE_ONE)
    assert stopped.theorem is partial_shuffle_rdp
    assert plain.theorem.id == "gaussian-per-pass"
    assert np.all(stopped.loss >= 0)


@pytest.mark.parametrize(
    ("sampling", "assumption"),
    [
        (NonUniform(max_weight=0.1), "data_independent_weights"),
        (Poisson(sampling_probability=0.1), "poisson_sampling"),
        (BallsAndBins(steps_per_pass=4), "balls_and_bins_sampling"),
        (RandomAllocation(steps_per_pass=4, participations=2), "random_allocation_sampling"),
        (FixedSize(batch_size=1, dataset_size=9), "fixed_size_sampling"),
        (WithReplacement(batch_size=1, dataset_size=9), "with_replacement_sampling"),
        (
            TruncatedPoisson(sampling_probability=0.1, max_batch_size=1, dataset_size=9),
            "truncated_poisson_sampling",
        ),
    ],
)
def test_every_bound_names_its_sampler_even_where_the_sampling_is_told(
    sampling: Sampling, assumption: str
) -> None:
    for bound in pld_bounds(event(sampling), REPLACE_SPECIAL):
        assert assumption in bound.assumptions


def test_a_chance_that_underflows_attains_nothing() -> None:
    assert _sampled(1.0, 0.0, REPLACE_ONE) is None


def test_one_secret_order_for_all_passes_is_another_assumption_than_fresh_ones() -> None:
    for reshuffle, named in (
        (Reshuffle.ONCE, "secret_order"),
        (Reshuffle.EACH_PASS, "fresh_secret_order"),
    ):
        shuffle = Shuffle(batch_size=4, steps_per_pass=3, reshuffle=reshuffle, dataset_size=10)
        bound = gdp_bounds(event(shuffle), ADD_OR_REMOVE_ONE)[0]
        assert named in bound.assumptions
        found = guarantee(
            taken((shuffle, 6)), relation=ADD_OR_REMOVE_ONE, delta=1e-5, accept=ACCEPTABLE
        )
        assert found.epsilon is not None
        assert found.epsilon_lower is not None
        assert 0 < found.epsilon_lower < found.epsilon


def test_passes_of_other_noise_are_not_counted_from_below() -> None:
    sampling = Cyclic(batch_size=1, steps_per_pass=9)
    event = Event(mechanism=Laplace(noise_multiplier=2.0), sampling=sampling)
    counts = count_events([[Span(event=event, steps=9)]])
    assert counts.passes
    assert lower_bound_units(counts, REPLACE_ONE) == []


def test_passes_of_several_noises_are_not_counted_from_below() -> None:
    balls = BallsAndBins(steps_per_pass=4)
    spans = [Span(event=event(balls, noise), steps=2) for noise in (2.0, 1.0)]
    assert lower_bound_units(count_events([spans]), REPLACE_SPECIAL) == []


def test_an_order_that_is_used_again_is_not_amplified_where_passes_stop_early() -> None:
    kept, fresh = (
        Shuffle(batch_size=2, steps_per_pass=5, reshuffle=reshuffle, dataset_size=40)
        for reshuffle in (Reshuffle.ONCE, Reshuffle.EACH_PASS)
    )
    assert fresh.stops_early
    assert not kept.stops_early
    assert [bound.theorem.id for bound in pld_bounds(event(kept), REPLACE_ONE)] == [
        "gaussian-per-pass"
    ]
    assert len(renyi_bounds(event(kept), REPLACE_ONE)) == 1


FRESH = Shuffle(batch_size=2, steps_per_pass=5, reshuffle=Reshuffle.EACH_PASS, dataset_size=40)
KEPT = replace(FRESH, reshuffle=Reshuffle.ONCE)


@pytest.mark.parametrize("other", [KEPT, Cyclic(batch_size=2, steps_per_pass=5)])
def test_a_curve_counts_orders_that_may_be_used_again_as_known(other: Sampling) -> None:
    counts = taken((FRESH, 100), (other, 5))
    epsilons = np.array([0.2, 2.0])
    found = privacy_profile(counts, relation=REPLACE_ONE, epsilons=epsilons, accept=ACCEPTABLE)
    mu = math.sqrt(21)  # twenty passes and one, each a release at sensitivity 2 and noise 2
    exact = [gaussian_delta(epsilon, mu=mu) for epsilon in epsilons.tolist()]
    np.testing.assert_allclose(found.upper, exact, rtol=1e-6)
    assert np.all(found.upper >= np.array(exact) * (1 - 1e-12))
    alone = privacy_profile(
        taken((FRESH, 100)), relation=REPLACE_ONE, epsilons=epsilons, accept=ACCEPTABLE
    )
    assert np.all(alone.upper < 0.5 * found.upper)


def test_beside_many_noises_orders_that_may_be_used_again_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = [(9 + place / 1000, Poisson(sampling_probability=1e-4)) for place in range(401)]
    spans = [[Span(event=event(sampling), steps=5)] for sampling in (FRESH, KEPT)]
    spans += [[Span(event=event(sampling, noise), steps=1)] for noise, sampling in many]
    asked: list[tuple[EventCounts, Query]] = []

    def noted(counts: EventCounts, question: Query) -> Bound:
        asked.append((counts, question))
        raise TooMuchWorkError

    monkeypatch.setattr(best_first, "_accountant", lambda _name, _counts: noted)
    monkeypatch.setattr(best_first, "is_hopeless", lambda *_: False)
    with suppress(NoBoundError):
        best_bound(count_events(spans), relation=REPLACE_ONE, delta=1e-5, accountant="pld")
    rounded = [question.rounded for _, question in asked if question.rounded]
    assert rounded
    for each in rounded:
        for side in (each.upper, each.lower, each.rough_upper, each.rough_lower, each.whole):
            assert event(FRESH) not in side.passes
            assert side.passes[event(KEPT)] == 2


def test_a_secret_order_that_is_used_twice_costs_more_than_a_secret_and_a_known_one() -> None:
    # Exact, of 1,000 records with one step: others contribute 1, the record -1 or, as null, 0.
    records, noise, epsilon = 1000, 1 / math.sqrt(2), 8.0  # of the mean of both answers
    edges = np.linspace(-12.0, 4.0, 100_001)

    def cells(mean: float) -> Array:
        below = np.diff(special.ndtr((edges - 1) / noise)) * (1 - 1 / records)
        return np.asarray(below + np.diff(special.ndtr((edges - mean) / noise)) / records)

    exact = float(np.sum(np.maximum(cells(-1.0) - math.exp(epsilon) * cells(0.0), 0.0)))
    assert exact == pytest.approx(6.88e-11, rel=1e-2)
    fresh = Shuffle(
        batch_size=1, steps_per_pass=1, reshuffle=Reshuffle.EACH_PASS, dataset_size=records
    )
    kept = replace(fresh, reshuffle=Reshuffle.ONCE)
    apart = [
        unit
        for sampling in (fresh, kept)
        for unit in pld_bounds(event(sampling, 1.0), REPLACE_SPECIAL)[0].loss
    ]
    assert delta_bracket(apart, epsilon=epsilon, width=1e-3).upper < 0.1 * exact
    found = privacy_profile(
        taken((fresh, 1), (kept, 1), noise=1.0),
        relation=REPLACE_SPECIAL,
        epsilons=np.array([epsilon]),
        accept=ACCEPTABLE,
    )
    assert exact < found.upper[0]


def test_a_single_pass_of_an_order_that_is_kept_is_not_counted_as_many_from_below() -> None:
    # Twenty orders of their own and one that is kept: no order is known to have been used twice.
    counts = taken((FRESH, 100), (KEPT, 5))
    below = lower_bound_units(counts.with_known_orders(), REPLACE_ONE)
    assert lower_epsilon(below, delta=1e-2) <= lower_epsilon(
        lower_bound_units(taken((KEPT, 5)), REPLACE_ONE), delta=1e-2
    )
    found = guarantee(counts, relation=REPLACE_ONE, delta=1e-2)
    assert found.epsilon_lower is not None
    # Were all orders secret, as they are declared, this would be an upper end.
    fresh = guarantee(taken((FRESH, 100)), relation=REPLACE_ONE, delta=5e-3, accept=ACCEPTABLE)
    once = guarantee(taken((KEPT, 5)), relation=REPLACE_ONE, delta=5e-3)
    assert fresh.epsilon is not None
    assert once.epsilon is not None
    assert found.epsilon_lower <= fresh.epsilon + once.epsilon


@pytest.mark.no_cover
@pytest.mark.parametrize("relation", NeighboringRelation)
def test_a_batch_many_times_its_dataset_attains_no_more_than_is_proved(
    relation: NeighboringRelation,
) -> None:
    sampling = WithReplacement(batch_size=40, dataset_size=2)
    event = Event(mechanism=Gaussian(noise_multiplier=1.1), sampling=sampling)
    found = guarantee(EventCounts(steps={event: 3}), relation=relation, delta=1e-5)
    assert found.epsilon is not None
    assert found.epsilon_lower is not None
    assert 0 < found.epsilon_lower <= found.epsilon
