"""Filters without orders: of Gaussian releases, and of black boxes."""

import math
from fractions import Fraction
from typing import Any

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.event_counts import count_events
from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    NeighboringRelation,
    NoNoise,
    Poisson,
    RandomizedResponse,
    Reshuffle,
    Shuffle,
    Span,
    Unknown,
    WithReplacement,
    Zcdp,
)
from accounting.filters import (
    KINDS,
    ApproximateDpFilter,
    Filter,
    choose,
    times,
)
from accounting.filters.approximate_dp import epsilon_delta
from accounting.filters.theorems import (
    approximate_dp_filter_epsilon,
    gaussian_filter_limit,
    squares_limit,
)
from accounting.gaussian import gaussian_delta
from accounting.guarantees import ACCEPTABLE, Status

ADD, ONE, NULL = NeighboringRelation
TENTH = Event(mechanism=Gaussian(noise_multiplier=10.0), sampling=Full())
BOX = Event(mechanism=ApproximateDp(epsilon=0.1, delta=1e-12), sampling=Full())
PURE = Event(mechanism=Laplace(noise_multiplier=8.0), sampling=Unknown())


def held(kind: str, *, epsilon: float = 3.0, delta: float = 1e-5) -> Filter:
    return choose(kind, epsilon=epsilon, delta=delta)


# Gaussian DP


def test_a_gaussian_filter_holds_what_gives_its_epsilon() -> None:
    squares = gaussian_filter_limit(epsilon=3.0, delta=1e-5)
    assert 0.51 <= squares < 0.52
    assert gaussian_delta(3.0, mu=math.sqrt(squares)) <= 1e-5
    assert gaussian_delta(3.0, mu=math.sqrt(squares) * (1 + 1e-9)) > 1e-5


def test_a_gaussian_filter_takes_what_is_a_gaussian_release_and_nothing_else() -> None:
    budget = held("gaussian_dp")
    with_noise = Gaussian(noise_multiplier=4.0)
    unit = 1 << 80
    for sampling, relation, mu in (
        (Full(), ADD, 0.25),
        (Full(), ONE, 0.5),
        (Poisson(sampling_probability=0.01), ADD, 0.25),  # no amplification
        (BallsAndBins(steps_per_pass=10), NULL, 0.25),
        (WithReplacement(batch_size=3, dataset_size=100), NULL, 0.75),
    ):
        cost = budget.cost(Event(mechanism=with_noise, sampling=sampling), relation=relation)
        assert cost[0] == 0
        assert mu * mu <= Fraction(cost[1], unit) <= mu * mu * (1 + 1e-14)
    for event, relation in (
        (Event(mechanism=with_noise, sampling=FixedSize(batch_size=1, dataset_size=9)), ADD),
        (BOX, NULL),
        (PURE, NULL),
        (Event(mechanism=Zcdp(rho=0.1), sampling=Full()), NULL),
    ):
        assert budget.cost(event, relation=relation) == (1, 0)
    shuffle = Shuffle(
        batch_size=3, steps_per_pass=4, dataset_size=11, reshuffle=Reshuffle.EACH_PASS
    )
    shuffled = Event(mechanism=with_noise, sampling=shuffle)
    assert budget.cost(shuffled, relation=ADD) == (1, 0)  # derived, which is not accepted
    assert budget.cost(shuffled, relation=ADD, accept=ACCEPTABLE)[0] == 0


def test_a_pass_is_one_release_at_its_least_noise() -> None:
    budget = held("gaussian_dp")
    sampling = Cyclic(batch_size=1, steps_per_pass=4)
    spans = [
        Span(event=Event(mechanism=Gaussian(noise_multiplier=s), sampling=sampling), steps=n)
        for s, n in ((4.0, 6), (2.0, 1))
    ]
    total = budget.total(count_events([spans]), relation=NULL)
    assert total[1] / (1 << 80) == pytest.approx(1 / 16 + 1 / 4, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS[2:])
def test_a_limit_that_is_not_proved_to_be_revisable_is_not_revised(kind: str) -> None:
    with pytest.raises(ValueError, match="cannot be revised once answers were seen"):
        held(kind).at(epsilon=4.0, delta=1e-6)


# Black boxes


def test_a_thousand_small_black_boxes_cost_what_the_paper_says() -> None:
    epsilon = approximate_dp_filter_epsilon(squares=1000 * 0.01**2, delta_slack=1e-6)
    assert epsilon == pytest.approx(1.712258, abs=5e-7)
    for i in range(1, 60):
        squares = i / 7
        with mp.workdps(40):
            exact = mp.sqrt(-2 * mp.log(mp.mpf(1e-6)) * squares) + mp.mpf(squares) / 2
        found = approximate_dp_filter_epsilon(squares=squares, delta_slack=1e-6)
        assert exact <= found <= exact * (1 + mp.mpf("1e-14"))
    for squares, slack in ((-1.0, 0.1), (math.nan, 0.1), (1.0, 0.0), (1.0, 1.0)):
        with pytest.raises(ValueError, match="squares >= 0"):
            approximate_dp_filter_epsilon(squares=squares, delta_slack=slack)


@settings(deadline=None)
@given(epsilon=st.floats(1e-3, 100), slack=st.floats(1e-12, 0.5))
def test_the_limit_on_squares_is_the_inverse_from_below(epsilon: float, slack: float) -> None:
    squares = squares_limit(epsilon=epsilon, delta_slack=slack)
    exact = math.sqrt(-2 * math.log(slack) * squares) + 0.5 * squares
    assert exact <= epsilon
    assert exact >= epsilon * (1 - 1e-12)


def test_declared_failures_have_their_own_half_of_delta() -> None:
    budget = held("approximate_dp")
    assert isinstance(budget, ApproximateDpFilter)
    assert budget.delta_slack <= 5e-6
    unit = Event(mechanism=ApproximateDp(epsilon=0.0, delta=1e-9), sampling=Full())
    cost = budget.cost(unit, relation=ADD)
    assert budget.spent(cost) == 0
    assert budget.admissible(budget.zero(), cost) == 4999  # 1e-9 is rounded up, 5e-6 down
    assert budget.spent(times(cost, 5001)) == math.inf
    assert budget.record()["weights"] == [0.5, 0.5]


def test_a_black_box_filter_takes_declared_and_pure_steps_and_nothing_else() -> None:
    budget = held("approximate_dp")

    def epsilon(
        mechanism: Any,
        relation: NeighboringRelation,
        sampling: Any = None,
        accept: frozenset[Status] = ACCEPTABLE,
    ) -> float:
        event = Event(mechanism=mechanism, sampling=sampling or Full())
        uncovered, _, squares = budget.cost(event, relation=relation, accept=accept)
        return math.inf if uncovered else math.sqrt(squares / (1 << 80))

    laplace, box = Laplace(noise_multiplier=10.0), ApproximateDp(epsilon=0.2, delta=1e-9)
    rare = Poisson(sampling_probability=0.1)
    sampled = math.log1p(0.1 * math.expm1(0.1))
    boxed = math.log1p(0.1 * math.expm1(0.2))
    declared, published = frozenset({Status.DECLARED}), frozenset({Status.PUBLISHED})
    assert epsilon(laplace, ADD) == pytest.approx(0.1)
    assert epsilon(laplace, ONE) == pytest.approx(0.2)
    assert epsilon(laplace, NULL, Unknown()) == pytest.approx(0.1)
    assert epsilon(laplace, ADD, rare) == pytest.approx(sampled)
    assert epsilon(laplace, NULL, rare) == pytest.approx(sampled)
    assert epsilon(laplace, ONE, rare) == pytest.approx(0.2)
    assert epsilon(laplace, ADD, FixedSize(batch_size=1, dataset_size=9)) == math.inf
    assert epsilon(laplace, ADD, None, declared) == math.inf
    assert epsilon(box, ADD) == pytest.approx(0.2)
    assert epsilon(box, ADD, rare) == pytest.approx(boxed)
    assert epsilon(box, NULL, rare) == pytest.approx(0.2)
    assert epsilon(box, ADD, rare, declared) == pytest.approx(0.2)  # amplification is published
    assert epsilon(box, ADD, None, published) == math.inf
    answer = RandomizedResponse(probability_of_truth=0.75, categories=4)
    assert epsilon(answer, ONE) == pytest.approx(math.log(9))
    assert epsilon(answer, NULL) == pytest.approx(math.log(3))
    lie = RandomizedResponse(probability_of_truth=0.1, categories=2)
    assert epsilon(lie, NULL) == pytest.approx(math.log(5))
    assert epsilon(lie, ONE) == pytest.approx(math.log(9))
    assert epsilon(answer, ADD) == math.inf
    for other in (Gaussian(noise_multiplier=9.0), Zcdp(rho=0.1), NoNoise()):
        assert epsilon(other, NULL) == math.inf


def test_pure_steps_are_rounded_up() -> None:
    for i in range(1, 100):
        noise = i / 7
        event = Event(mechanism=Laplace(noise_multiplier=noise), sampling=Full())
        assert Fraction(epsilon_delta(event, ADD, ACCEPTABLE)[0]) * Fraction(noise) >= 1
        q = i / 101
        rare = Event(mechanism=BOX.mechanism, sampling=Poisson(sampling_probability=q))
        failed = epsilon_delta(rare, ADD, ACCEPTABLE)[1]
        assert Fraction(failed) >= Fraction(q) * Fraction(1e-12)


def test_a_sampled_black_box_fails_less_often() -> None:
    budget = held("approximate_dp")
    box = ApproximateDp(epsilon=0.2, delta=1e-9)
    full = budget.cost(Event(mechanism=box, sampling=Full()), relation=ADD)
    rare = budget.cost(
        Event(mechanism=box, sampling=Poisson(sampling_probability=0.1)), relation=ADD
    )
    assert rare[1] / full[1] == pytest.approx(0.1, rel=1e-12)
    assert rare[1] >= Fraction(0.1) * Fraction(1e-9) * (1 << 200)
