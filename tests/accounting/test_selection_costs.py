"""What a private selection costs: values of others, what is refused, and filters."""

from typing import Any

import numpy as np
import pytest

from accounting import Guarantee, Status, choose, count_events, guarantee
from accounting.accountants.best_bound import as_if_unsampled
from accounting.bounds.event_bounds import NoBoundError
from accounting.bounds.gdp_bounds import gdp_bounds
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.bounds.selection_bounds import as_recorded_trials
from accounting.event_counts import EventCounts
from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Event,
    FixedSize,
    Full,
    Gaussian,
    MatrixGaussian,
    Mechanism,
    MinSeparation,
    NegativeBinomialTrials,
    NeighboringRelation,
    NoNoise,
    Placement,
    Poisson,
    PoissonTrials,
    PrivateSelection,
    RandomizedResponse,
    Reshuffle,
    Sampling,
    Shuffle,
    Span,
    Trials,
    WithReplacement,
    Zcdp,
)
from accounting.filters.odometers import odometer_epsilon
from accounting.guarantees import DEFAULT_ACCEPT
from accounting.renyi.conversion import rdp_epsilon
from accounting.renyi.orders import ORDERS
from accounting.renyi.selection import (
    negative_binomial_of_mean,
)

ADD, ONE, NULL = NeighboringRelation
RESPONSE = RandomizedResponse(probability_of_truth=0.7, categories=2)
STEP = Event(mechanism=Gaussian(noise_multiplier=1.0), sampling=Poisson(sampling_probability=0.01))


def selection(
    mechanism: Mechanism,
    sampling: Sampling | None = None,
    steps: int = 1,
    trials: Trials | None = None,
    outer: Sampling | None = None,
) -> Event:
    chosen = PrivateSelection(
        repetitions=trials or NegativeBinomialTrials(shape=1.0, halting_probability=0.1),
        base=Event(mechanism=mechanism, sampling=sampling or Full()),
        steps=steps,
    )
    return Event(mechanism=chosen, sampling=outer or Full())


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (selection(ApproximateDp(epsilon=1.0, delta=1e-9)), "may fail"),
        (
            selection(
                Gaussian(noise_multiplier=1.0), WithReplacement(batch_size=2, dataset_size=99)
            ),
            "may fail",
        ),
        (selection(NoNoise()), "without noise"),
        (
            selection(
                Gaussian(noise_multiplier=1.0),
                Shuffle(batch_size=2, steps_per_pass=5, reshuffle=Reshuffle.ONCE),
            ),
            "drawn once",
        ),
        (
            selection(
                MatrixGaussian(noise_multiplier=1.0, strategy="s", sensitivity_squared=1.0),
                MinSeparation(
                    steps_per_pass=5,
                    min_separation=5,
                    participations=1,
                    placement=Placement.BY_RECORD,
                    noise_restarts_each_pass=False,
                ),
            ),
            "correlated noise",
        ),
        (
            selection(Gaussian(noise_multiplier=1.0), outer=Poisson(sampling_probability=0.5)),
            "sampling is full",
        ),
        (
            selection(Gaussian(noise_multiplier=1.0), FixedSize(batch_size=5, dataset_size=5)),
            None,
        ),
        (selection(RESPONSE), None),
    ],
)
def test_what_is_proved_of_no_selection_is_refused_by_name(
    event: Event, reason: str | None
) -> None:
    if reason is None:
        assert len(renyi_bounds(event, ONE))
        return
    with pytest.raises(NoBoundError, match=reason):
        renyi_bounds(event, ADD)


def test_no_mu_is_told_of_a_selection() -> None:
    with pytest.raises(NoBoundError, match="only a Renyi curve"):
        gdp_bounds(selection(Gaussian(noise_multiplier=1.0)), ADD)


def test_a_trial_counts_as_whole_passes() -> None:
    one = BallsAndBins(steps_per_pass=10)
    noise = Gaussian(noise_multiplier=2.0)
    for trials in (
        PoissonTrials(mean=3),
        NegativeBinomialTrials(shape=0.0, halting_probability=0.5),
    ):
        begun = renyi_bounds(selection(noise, one, 11, trials), ADD)
        whole = renyi_bounds(selection(noise, one, 20, trials), ADD)
        for less, more in zip(begun, whole, strict=True):
            assert np.array_equal(less.loss, more.loss)


def test_a_poisson_number_takes_delta_from_the_pairs_of_a_trial() -> None:
    step = Gaussian(noise_multiplier=1.0)
    sampled = Poisson(sampling_probability=0.01)
    plain, paired = renyi_bounds(selection(step, sampled, 1000, PoissonTrials(mean=10)), ADD)
    assert float(np.min(paired.loss - plain.loss)) < -0.1
    assert np.all(paired.loss <= plain.loss)
    (only,) = renyi_bounds(selection(Zcdp(rho=0.01), trials=PoissonTrials(mean=10)), ADD)
    assert np.all(only.loss > 0)


def test_a_trial_that_is_a_selection_is_refused() -> None:
    inner = selection(Gaussian(noise_multiplier=1.0))
    with pytest.raises(ValueError, match="no trial of another"):
        PrivateSelection(repetitions=PoissonTrials(mean=2), base=inner, steps=1)
    with pytest.raises(ValueError, match="steps=0"):
        PrivateSelection(repetitions=PoissonTrials(mean=2), base=STEP, steps=0)


# At delta 1e-5 under add_or_remove_one: values of a public accountant, at its orders.
GOLDEN = {
    (5.0, 0.0): 3.24336, (5.0, 0.5): 3.48273, (5.0, 1.0): 3.68580, (10.0, 0.0): 3.52263,
    (10.0, 0.5): 3.83060, (10.0, 1.0): 4.10327, (100.0, 0.0): 4.30117, (100.0, 0.5): 4.79086,
    (100.0, 1.0): 5.27002,
}  # fmt: skip
FULL_GOLDEN = {
    (10.0, 0.0): 1.41801, (10.0, 1.0): 1.71833, (100.0, 0.0): 1.69488, (100.0, 1.0): 2.16920
}  # fmt: skip
PROVED = frozenset({Status.PUBLISHED, Status.DERIVED})


def epsilon_of(event: Event, steps: int = 1, **asked: Any) -> Guarantee:
    counts = count_events([[Span(event=event, steps=steps)]])
    return guarantee(counts, relation=ADD, delta=1e-5, **{"accept": PROVED, **asked})


@pytest.mark.parametrize(("mean", "shape"), GOLDEN)
def test_sampled_sweeps_cost_what_others_say(mean: float, shape: float) -> None:
    law = negative_binomial_of_mean(shape=shape, mean=mean)
    found = epsilon_of(selection(STEP.mechanism, STEP.sampling, 1000, law))
    assert found.epsilon == pytest.approx(GOLDEN[mean, shape], abs=2e-5)
    assert found.headline is not None
    assert found.headline.accountant == "rdp"
    assert found.headline.status is Status.DERIVED
    assert "trial_count_secret" in found.headline.assumptions
    assert found.epsilon_lower is None


@pytest.mark.parametrize(("mean", "shape"), FULL_GOLDEN)
def test_full_sweeps_cost_what_others_say(mean: float, shape: float) -> None:
    law = negative_binomial_of_mean(shape=shape, mean=mean)
    found = epsilon_of(selection(Gaussian(noise_multiplier=5.0), trials=law))
    assert found.epsilon == pytest.approx(FULL_GOLDEN[mean, shape], abs=6e-6)


@pytest.mark.parametrize(("mean", "theirs"), [(5, 3.28418), (10, 4.32950), (100, 16.3968)])
def test_a_poisson_number_costs_less_than_others_say(mean: float, theirs: float) -> None:
    # Theirs takes delta from the Renyi curve; ours from the pair, which says less.
    law = PoissonTrials(mean=mean)
    found = epsilon_of(selection(STEP.mechanism, STEP.sampling, 1000, law)).epsilon
    assert found is not None
    assert found < theirs
    assert theirs - found > 0.3
    (plain, _) = renyi_bounds(selection(STEP.mechanism, STEP.sampling, 1000, law), ADD)
    same, _ = rdp_epsilon(rdp=plain.loss, orders=ORDERS, delta=1e-5)
    assert same == pytest.approx(theirs, rel=5e-3)


def test_a_selection_is_accepted_with_the_status_of_its_proof() -> None:
    event = selection(STEP.mechanism, STEP.sampling, 1000)
    found = epsilon_of(event, accept=DEFAULT_ACCEPT)
    assert found.epsilon is None
    assert found.reason is not None
    assert "derived" in found.reason
    assert found.smaller_bound is not None


@pytest.mark.parametrize("accountant", ["pld", "gdp"])
def test_other_accountants_name_why_they_refuse(accountant: str) -> None:
    found = epsilon_of(selection(STEP.mechanism, STEP.sampling, 1000), accountant=accountant)
    assert found.epsilon is None
    assert found.reason is not None
    assert "only a Renyi curve is proved" in found.reason


def test_filters_that_need_a_pair_refuse_and_renyi_filters_admit() -> None:
    event = selection(STEP.mechanism, STEP.sampling, 1000)
    counts = count_events([[Span(event=event, steps=1)]])
    for kind, orders in [("fixed_order_renyi", (6.0,)), ("union_of_orders", (4.0, 6.0, 8.0))]:
        held = choose(kind, epsilon=8.0, delta=1e-5, orders=orders)
        total = held.total(counts, relation=ADD, accept=PROVED)
        assert held.admits(total)
        assert held.admissible(held.zero(), held.cost(event, relation=ADD, accept=PROVED)) == 2
        assert not held.admits(held.total(counts, relation=ADD))  # derived is not accepted
    for kind in ("gaussian_dp", "approximate_dp"):
        held = choose(kind, epsilon=8.0, delta=1e-5)
        assert not held.admits(held.total(counts, relation=ADD, accept=PROVED))
    assert odometer_epsilon(counts, relation=ADD, delta=1e-5, accept=PROVED) < 8


def test_a_selection_adds_up_with_other_steps() -> None:
    event = selection(STEP.mechanism, STEP.sampling, 1000)
    spans = [Span(event=event, steps=1), Span(event=STEP, steps=1000)]
    found = guarantee(count_events([spans]), relation=ADD, delta=1e-5, accept=PROVED).epsilon
    alone = epsilon_of(event).epsilon
    assert found is not None
    assert alone is not None
    assert alone < found < alone + 1.83


def test_all_records_taking_part_in_each_trial_costs_more() -> None:
    event = selection(STEP.mechanism, STEP.sampling, 10)
    (whole,) = as_if_unsampled(count_events([[Span(event=event, steps=1)]])).steps
    assert whole == selection(STEP.mechanism, Full(), 10)


def test_trials_that_are_recorded_one_by_one_are_so_many_steps() -> None:
    law = negative_binomial_of_mean(shape=0.0, mean=10.0)
    drawn = selection(STEP.mechanism, STEP.sampling, 1000, law)
    counts = count_events([[Span(event=drawn, steps=2), Span(event=STEP, steps=5)]])
    assert as_recorded_trials(counts) == (20, EventCounts(steps={STEP: 20_005}))
    noise, passes = Gaussian(noise_multiplier=2.0), BallsAndBins(steps_per_pass=10)
    begun = count_events(
        [[Span(event=selection(noise, passes, 11, PoissonTrials(mean=3)), steps=1)]]
    )
    one = Event(mechanism=noise, sampling=passes)
    found = as_recorded_trials(begun)
    assert found == (3, EventCounts(steps={one: 33}, passes={one: 6}, begun={one: 6}))
    assert as_recorded_trials(EventCounts(steps={STEP: 5})) is None
