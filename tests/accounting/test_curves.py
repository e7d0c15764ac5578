"""Curves: each point is on its side of the truth, and a test cannot do better than they say."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.accountants import profile_sources
from accounting.accountants.best_bound import guarantee
from accounting.accountants.event_grouping import DISTINCT_MAX
from accounting.accountants.profile_sources import source_of_events
from accounting.event_counts import EventCounts, count_events
from accounting.events import (
    Event,
    Full,
    Gaussian,
    Mechanism,
    NeighboringRelation,
    NoNoise,
    Poisson,
    RandomizedResponse,
    Reshuffle,
    Sampling,
    Shuffle,
    Span,
    Unknown,
    Zcdp,
)
from accounting.gaussian import gaussian_delta, gaussian_trade_off
from accounting.guarantees import DEFAULT_ACCEPT, Assumption, Status
from accounting.privacy_profile import (
    epsilon_grid,
    membership_advantage,
    privacy_profile,
    rate_grid,
    spread,
    trade_off_of_profile,
)
from accounting.rounding import Array
from accounting.work_limit import TooMuchWorkError, limit_work

RELATION = NeighboringRelation.REPLACE_SPECIAL
RATES = np.array([0.0, 1e-9, 1e-3, 0.1, 0.5, 0.9, 1.0])
POISSON = Poisson(sampling_probability=0.01)
MNIST = Shuffle(
    batch_size=4096, steps_per_pass=14, reshuffle=Reshuffle.EACH_PASS, dataset_size=60_000
)


def counts(mechanism: Mechanism, sampling: Sampling, *, steps: int = 1) -> EventCounts:
    return EventCounts(steps={Event(mechanism=mechanism, sampling=sampling): steps})


def gaussian(noise: float, sampling: Sampling, *, steps: int = 1) -> EventCounts:
    return counts(Gaussian(noise_multiplier=noise), sampling, steps=steps)


def grid(found: EventCounts, points: int = 20) -> Array:
    return epsilon_grid(found, relation=RELATION, points=points)


@pytest.mark.parametrize("steps", [1, 300, 5000])
def test_a_profile_encloses_what_the_accountant_says(steps: int) -> None:
    spent = gaussian(1.1, POISSON, steps=steps)
    profile = privacy_profile(spent, relation=RELATION, epsilons=grid(spent))
    assert np.all(profile.lower <= profile.upper)
    assert np.all(np.diff(profile.upper) <= 0)
    assert np.all(np.diff(profile.lower) <= 0)
    for epsilon, lower, upper in zip(profile.epsilons, profile.lower, profile.upper, strict=True):
        delta = guarantee(spent, relation=RELATION, epsilon=float(epsilon)).delta
        assert delta is not None
        assert lower <= delta <= upper * (1 + 1e-3)
        assert delta >= lower >= 0.99 * upper
    assert profile.status is Status.PUBLISHED
    assert Assumption.POISSON_SAMPLING in profile.assumptions


def test_full_batches_have_the_exact_profile_and_trade_off() -> None:
    spent = gaussian(10.0, Full(), steps=100)  # mu is one
    profile = privacy_profile(spent, relation=RELATION, epsilons=grid(spent))
    for epsilon, lower, upper in zip(profile.epsilons, profile.lower, profile.upper, strict=True):
        exact = gaussian_delta(float(epsilon), mu=1.0)
        assert lower <= exact * (1 + 1e-9)
        assert upper == pytest.approx(exact, rel=1e-9)
    for rate, missed in zip(RATES, profile.trade_off(RATES), strict=True):
        exact = gaussian_trade_off(float(rate), mu=1.0)
        assert exact * (1 - 2e-9) <= missed <= exact
    assert profile.advantage() == pytest.approx(math.erf(0.5 / math.sqrt(2)), rel=1e-9)


def test_what_is_known_from_above_alone_has_no_lower_side() -> None:
    spent = gaussian(1.0, Unknown())
    profile = privacy_profile(spent, relation=RELATION, epsilons=grid(spent))
    assert np.all(profile.lower == 0)
    assert np.all(profile.upper > 0)


def test_replacing_is_enclosed_by_different_pairs() -> None:
    spent, accept = gaussian(1.0, POISSON, steps=1), frozenset({Status.PUBLISHED, Status.DERIVED})
    replace_one = NeighboringRelation.REPLACE_ONE
    profile = privacy_profile(
        spent, relation=replace_one, epsilons=np.array([0.0, 0.5]), accept=accept
    )
    assert np.all((profile.lower > 0) & (profile.lower <= profile.upper))
    assert profile.status is Status.DERIVED


def test_what_has_no_pair_is_read_from_its_renyi_curve() -> None:
    spent = counts(Zcdp(rho=0.01), Full(), steps=10)
    profile = privacy_profile(spent, relation=RELATION, epsilons=grid(spent))
    assert np.all(profile.lower == 0)
    for epsilon, upper in zip(profile.epsilons, profile.upper, strict=True):
        found = guarantee(spent, relation=RELATION, epsilon=float(epsilon))
        assert upper <= (1.0 if found.delta is None else found.delta)
    assert profile.upper[-1] < 1e-3
    assert profile.status is not None


def test_many_distinct_steps_are_enclosed() -> None:
    events = {
        Event(mechanism=Gaussian(noise_multiplier=1 + 1e-3 * i), sampling=POISSON): 1
        for i in range(450)
    }
    profile = privacy_profile(
        EventCounts(steps=events), relation=RELATION, epsilons=np.array([0.0, 0.5])
    )
    assert np.all((profile.lower > 0) & (profile.lower <= profile.upper))
    assert np.all(profile.upper <= 1.1 * profile.lower)


def test_shuffled_passes_that_leave_a_record_out_have_the_smaller_profile() -> None:
    spent = count_events(
        [[Span(event=Event(mechanism=Gaussian(noise_multiplier=8.0), sampling=MNIST), steps=840)]]
    )
    relation, accept = NeighboringRelation.REPLACE_ONE, DEFAULT_ACCEPT | {Status.DERIVED}
    ends = epsilon_grid(spent, relation=relation, points=4, accept=accept)
    assert ends[-1] < 8.0  # one release a pass has 19.2 there
    found = privacy_profile(spent, relation=relation, epsilons=ends, accept=accept)
    plain = privacy_profile(spent, relation=relation, epsilons=ends)
    assert found.status is Status.DERIVED
    assert Assumption.FRESH_SECRET_ORDER in found.assumptions
    assert Assumption.FRESH_SECRET_ORDER not in plain.assumptions
    assert np.all(found.upper < 0.5 * plain.upper)
    assert np.all(found.lower <= found.upper)
    for epsilon, upper in zip(ends.tolist(), found.upper.tolist(), strict=True):
        best = guarantee(spent, relation=relation, epsilon=epsilon, accept=accept)
        assert best.delta is not None
        assert upper <= 1.05 * best.delta  # what is set aside is one of a few numbers
        if epsilon < 3:
            assert upper >= 0.5 * best.delta
    # What is set aside is part of delta, at every epsilon.
    far = privacy_profile(spent, relation=relation, epsilons=np.array([60.0]), accept=accept)
    assert 0 < far.upper[0] <= plain.upper[-1]


@pytest.mark.parametrize(("sigma", "passes"), [(2.0, 6), (1.97, 2), (3.0, 2)])
def test_where_two_choices_are_close_a_profile_is_no_larger_than_the_guarantee(
    sigma: float, passes: int
) -> None:
    event = Event(mechanism=Gaussian(noise_multiplier=sigma), sampling=MNIST)
    spent = count_events([[Span(event=event, steps=14 * passes)]])
    relation, accept = NeighboringRelation.REPLACE_ONE, DEFAULT_ACCEPT | {Status.DERIVED}
    for delta in (1e-3, 1e-5, 1e-7):
        told = guarantee(spent, relation=relation, delta=delta, accept=accept)
        assert told.epsilon is not None
        at = np.array([told.epsilon])
        found = privacy_profile(spent, relation=relation, epsilons=at, accept=accept)
        assert found.upper[0] <= delta * (1 + 1e-12)
        back = guarantee(spent, relation=relation, epsilon=told.epsilon, accept=accept)
        assert back.delta is not None
        assert found.upper[0] <= 1.01 * back.delta
        assert told.headline is not None
        assert set(told.headline.assumptions) <= set(found.assumptions)


def test_a_profile_names_what_was_used_alone() -> None:
    event = Event(mechanism=Gaussian(noise_multiplier=2.0), sampling=MNIST)
    spent = count_events([[Span(event=event, steps=84)]])
    relation, accept = NeighboringRelation.REPLACE_ONE, DEFAULT_ACCEPT | {Status.DERIVED}
    far, both = (
        privacy_profile(spent, relation=relation, accept=accept, epsilons=np.array(epsilons))
        for epsilons in ([20.0], [10.0, 20.0])
    )
    assert far.status is Status.PUBLISHED
    assert Assumption.FRESH_SECRET_ORDER not in far.assumptions
    assert both.status is Status.DERIVED
    assert Assumption.FRESH_SECRET_ORDER in both.assumptions


@pytest.mark.parametrize("part", ["guess_aside", "least_of_choices"])
def test_where_too_little_work_is_left_shuffled_passes_have_the_profile_of_a_release(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = Event(mechanism=Gaussian(noise_multiplier=8.0), sampling=MNIST)
    spent = count_events([[Span(event=event, steps=14)]])
    relation, accept = NeighboringRelation.REPLACE_ONE, DEFAULT_ACCEPT | {Status.DERIVED}
    release = source_of_events(spent, relation, DEFAULT_ACCEPT).read(1.0)
    least = source_of_events(spent, relation, accept).read(1.0)
    assert least.status is Status.DERIVED
    assert least.upper < 0.5 * release.upper

    def refused(*_: object, **__: object) -> None:
        raise TooMuchWorkError

    monkeypatch.setattr(profile_sources, part, refused)
    assert source_of_events(spent, relation, accept).read(1.0) == release


def test_shuffled_passes_of_very_many_noises_have_the_profile_of_the_least() -> None:
    noises = (30.0 + place / 100 for place in range(DISTINCT_MAX + 1))
    events = [Event(mechanism=Gaussian(noise_multiplier=one), sampling=MNIST) for one in noises]
    spent = count_events([[Span(event=event, steps=14) for event in events]])
    one = count_events([[Span(event=events[0], steps=14 * len(events))]])
    given = {"relation": NeighboringRelation.REPLACE_ONE, "epsilons": np.array([1.0, 3.0])}
    accept = DEFAULT_ACCEPT | {Status.DERIVED}
    many = privacy_profile(spent, accept=accept, **given)  # type: ignore[arg-type]
    least = privacy_profile(one, accept=accept, **given)  # type: ignore[arg-type]
    plain = privacy_profile(spent, **given)  # type: ignore[arg-type]
    assert np.all(many.upper < 0.1 * plain.upper)
    assert np.all(many.upper <= least.upper * (1 + 1e-9))


def test_nothing_spent_tells_nothing() -> None:
    found = grid(EventCounts())
    assert found.tolist() == [0.0]
    profile = privacy_profile(EventCounts(), relation=RELATION, epsilons=found)
    assert profile.upper.tolist() == [0.0]
    assert profile.advantage() == 0
    assert profile.trade_off(RATES) == pytest.approx(1 - RATES)


def test_without_a_bound_everything_may_be_told() -> None:
    spent = counts(NoNoise(), Full())
    found = grid(spent)
    assert len(found) == 0
    profile = privacy_profile(spent, relation=RELATION, epsilons=found)
    assert (profile.status, profile.assumptions, profile.mu) == (None, (), None)
    assert profile.advantage() == 1
    assert np.all(profile.trade_off(RATES) == 0)
    assert np.all(profile.true_positive_rates(RATES) == 1)
    beyond = privacy_profile(spent, relation=RELATION, epsilons=np.array([1.0]))
    assert beyond.upper.tolist() == [1.0]


def test_a_profile_may_be_cut_short_and_is_then_spread_out() -> None:
    spent = gaussian(1.0, Poisson(sampling_probability=0.01))
    grid = np.linspace(0, 8, 9)
    with limit_work(math.inf) as meter:
        whole = privacy_profile(spent, relation=RELATION, epsilons=grid)
    assert whole.epsilons.tolist() == grid.tolist()
    profile = privacy_profile(spent, relation=RELATION, epsilons=grid, points=0.7 * meter.spent)
    reached = profile.epsilons.tolist()
    assert {0.0, 8.0} <= set(reached)
    assert 2 < len(reached) < 9
    assert reached == sorted(reached)
    assert all(profile.upper >= whole.upper[[grid.tolist().index(one) for one in reached]])


def test_where_a_profile_takes_too_much_work_a_renyi_curve_stands_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spent = gaussian(1.0, Poisson(sampling_probability=0.01))
    grid = np.linspace(0, 8, 9)
    exact = privacy_profile(spent, relation=RELATION, epsilons=grid)
    rough = privacy_profile(spent, relation=RELATION, epsilons=grid, points=0)
    assert rough.epsilons.tolist() == grid.tolist()
    assert rough.status is exact.status
    assert np.all(rough.upper >= exact.upper)
    assert np.all(rough.lower == 0)
    events = [
        Event(mechanism=Gaussian(noise_multiplier=1 + i / 1000), sampling=POISSON)
        for i in range(DISTINCT_MAX + 1)
    ]
    many = EventCounts(steps=dict.fromkeys(events, 1))  # of which an upper balance has a curve
    upper = privacy_profile(many, relation=RELATION, epsilons=grid[:2], points=0).upper
    assert np.all(upper >= privacy_profile(many, relation=RELATION, epsilons=grid[:2]).lower)
    assert np.all(upper < 1)
    monkeypatch.setattr("accounting.work_budgets.RENYI_CURVE_OF_PROFILE", 0)
    nothing = privacy_profile(spent, relation=RELATION, epsilons=grid, points=0)
    assert (len(nothing.epsilons), nothing.status, nothing.advantage()) == (0, None, 1.0)


@given(st.integers(0, 300))
def test_spread_visits_everything_once_and_the_last_first(count: int) -> None:
    order = spread(count)
    assert sorted(order) == list(range(count))
    assert order[:1] == ([count - 1] if count else [])


@pytest.mark.parametrize("points", [2, 3, 50, 200])
def test_rates_run_from_zero_to_one(points: int) -> None:
    rates = rate_grid(points)
    assert (rates[0], rates[-1]) == (0, 1)
    assert np.all(np.diff(rates) > 0)


# The theorems, against tests that attain them


@given(epsilon=st.floats(0, 50), delta=st.floats(0, 1), rate=st.floats(0, 1))
def test_a_point_bounds_the_best_test_of_its_own_mechanism(
    epsilon: float, delta: float, rate: float
) -> None:
    # With chance delta the answer tells all, else it is a randomized response of epsilon.
    truth, lie = 1 / (1 + math.exp(-epsilon)), math.exp(-epsilon) / (1 + math.exp(-epsilon))
    found = trade_off_of_profile(
        epsilons=np.array([epsilon]),
        deltas=np.array([delta]),
        false_positive_rates=np.array([rate]),
    )[0]
    # Told all, one is sure; a true response comes next, and a lie last.
    known = (1 - delta) * lie  # false positives of rejecting at every true response
    first = min(1.0, rate / known) if known > 0 else 1.0
    rest = max(0.0, rate - known)
    second = min(1.0, rest / ((1 - delta) * truth)) if delta < 1 else 1.0
    missed = (1 - delta) * (truth * (1 - first) + lie * (1 - second))
    assert 0 <= found <= max(0.0, missed) + 1e-12
    assert found == pytest.approx(max(0.0, missed), abs=1e-9)


@settings(max_examples=50)
@given(mu=st.floats(0.1, 4), rate=st.floats(1e-6, 1))
def test_many_points_come_close_to_the_truth_and_never_pass_it(mu: float, rate: float) -> None:
    epsilons = np.linspace(0, mu * (mu + 8), 400)
    deltas = np.array([gaussian_delta(float(epsilon), mu=mu) for epsilon in epsilons])
    given_rate = np.array([rate])
    found = trade_off_of_profile(epsilons=epsilons, deltas=deltas, false_positive_rates=given_rate)
    exact = gaussian_trade_off(rate, mu=mu)
    assert found[0] <= exact * (1 + 1e-9)
    assert found[0] >= exact - 0.02


def test_fewer_points_never_promise_more() -> None:
    epsilons = np.linspace(0, 5, 40)
    deltas = np.array([gaussian_delta(float(epsilon), mu=1.0) for epsilon in epsilons])
    few, many = (
        trade_off_of_profile(
            epsilons=epsilons[::stride], deltas=deltas[::stride], false_positive_rates=RATES
        )
        for stride in (7, 1)
    )
    assert np.all(few <= many)
    assert membership_advantage(epsilons=epsilons[1:], deltas=deltas[1:]) >= membership_advantage(
        epsilons=epsilons, deltas=deltas
    )


def test_the_advantage_of_pure_privacy_is_that_of_randomized_response() -> None:
    for epsilon in (0.0, 1e-9, 1.0, 30.0, 1e6):
        found = membership_advantage(epsilons=np.array([epsilon]), deltas=np.zeros(1))
        exact = math.tanh(epsilon / 2)
        assert exact <= found <= min(1.0, exact * (1 + 1e-12))


def test_the_advantage_is_what_the_trade_off_leaves() -> None:
    epsilons, deltas = np.array([0.3, 1.0]), np.array([0.2, 0.01])
    rates = np.linspace(0, 1, 20001)
    missed = trade_off_of_profile(epsilons=epsilons, deltas=deltas, false_positive_rates=rates)
    most = float(np.max(1 - missed - rates))
    found = membership_advantage(epsilons=epsilons, deltas=deltas)
    assert most <= found
    assert most == pytest.approx(found, abs=0.05)


def test_epsilons_beyond_the_range_of_an_exponential_are_harmless() -> None:
    found = trade_off_of_profile(
        epsilons=np.array([800.0, 1e5]), deltas=np.array([0.1, 0.0]), false_positive_rates=RATES
    )
    assert np.all((found >= 0) & (found <= 1))
    assert found[0] == pytest.approx(1.0)
    assert np.all(found[1:] == 0)


@pytest.mark.parametrize(("epsilon", "rate"), [(-1.0, 0.1), (1.0, -0.1), (1.0, 1.1)])
def test_arguments_out_of_range_are_refused(epsilon: float, rate: float) -> None:
    with pytest.raises(ValueError, match="not negative"):
        trade_off_of_profile(
            epsilons=np.array([epsilon]),
            deltas=np.zeros(1),
            false_positive_rates=np.array([rate]),
        )


def test_an_epsilon_below_zero_has_no_advantage() -> None:
    with pytest.raises(ValueError, match="not negative"):
        membership_advantage(epsilons=np.array([-1.0]), deltas=np.zeros(1))


def test_randomized_response_has_its_own_total_variation() -> None:
    spent = counts(RandomizedResponse(probability_of_truth=0.75, categories=2), Full())
    replace_one = NeighboringRelation.REPLACE_ONE
    profile = privacy_profile(spent, relation=replace_one, epsilons=np.array([0.0, 1.0]))
    assert profile.advantage() == pytest.approx(0.5, rel=1e-9)
