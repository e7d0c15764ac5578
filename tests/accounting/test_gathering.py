"""A limit of work makes an answer a little wider, never useless; and mixed ledgers are not dear."""

import math
from typing import Any

import pytest

from accounting.accountants.best_bound import best_bound, guarantee
from accounting.accountants.composed_bounds import pld_bound
from accounting.accountants.event_grouping import dominate_from_below, dominating
from accounting.accountants.grouped_bounds import ROUGH_WIDTH, answers_of_fewer, bound_of_fewer
from accounting.accountants.queries import Query, epsilon_lower_bound
from accounting.event_counts import EventCounts, count_events
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
    Poisson,
    RandomAllocation,
    Reshuffle,
    Sampling,
    Shuffle,
    Span,
    TruncatedPoisson,
    WithReplacement,
    Zcdp,
)
from accounting.guarantees import ACCEPTABLE, DEFAULT_ACCEPT, Guarantee, Status
from accounting.pld.certified_composition import WIDTH
from accounting.work_limit import TooMuchWorkError, limit_work, spend

ADD_OR_REMOVE_ONE, REPLACE_ONE, REPLACE_SPECIAL = NeighboringRelation
DELTA = 1e-5
POISSON = Poisson(sampling_probability=256 / 60_000)
FIXED = FixedSize(batch_size=256, dataset_size=60_000)
DRAWN = WithReplacement(batch_size=256, dataset_size=60_000)
CYCLIC = Cyclic(batch_size=256, steps_per_pass=235)
EARLY = Shuffle(batch_size=10, steps_per_pass=9, dataset_size=95, reshuffle=Reshuffle.EACH_PASS)
SAMPLINGS: list[Sampling] = [
    Full(),
    Poisson(sampling_probability=0.02),
    TruncatedPoisson(sampling_probability=0.02, max_batch_size=30, dataset_size=1000),
    FixedSize(batch_size=20, dataset_size=1000),
    WithReplacement(batch_size=20, dataset_size=1000),
    Cyclic(batch_size=20, steps_per_pass=50),
    EARLY,
    BallsAndBins(steps_per_pass=50),
    RandomAllocation(steps_per_pass=50, participations=2),
]


def gaussian(noise: float, sampling: Sampling) -> Event:
    return Event(mechanism=Gaussian(noise_multiplier=noise), sampling=sampling)


def falling(count: int, sampling: Sampling, steps: int = 14_100) -> EventCounts:
    """So many steps in all, split over noises 1.1, 1.11 and so on."""
    shares = [steps // count + (i < steps % count) for i in range(count)]
    return EventCounts(steps={gaussian(1.1 + i / 100, sampling): n for i, n in enumerate(shares)})


def told(counts: EventCounts, relation: NeighboringRelation, **given: Any) -> Guarantee:
    return guarantee(counts, relation=relation, delta=DELTA, **given)


@pytest.mark.parametrize("count", [8, 12, 13, 20, 50, 100])
@pytest.mark.parametrize("accept", [DEFAULT_ACCEPT, ACCEPTABLE], ids=["default", "all"])
def test_more_noises_never_cost_more_than_one(count: int, accept: frozenset[Any]) -> None:
    one, found = (told(falling(n, POISSON), REPLACE_ONE, accept=accept) for n in (1, count))
    assert one.epsilon is not None
    assert found.epsilon is not None
    assert found.epsilon_lower is not None
    assert found.epsilon < one.epsilon
    assert found.epsilon < 2.2 * found.epsilon_lower
    if count == 20:
        assert found.epsilon < 4.6


@pytest.mark.parametrize(("sampling", "count", "most"), [(DRAWN, 3, 26.3), (FIXED, 20, 14.8)])
def test_dear_pairs_are_gathered_before_they_are_given_up(
    sampling: Sampling, count: int, most: float
) -> None:
    found = told(falling(count, sampling), REPLACE_ONE)
    assert found.epsilon is not None
    assert found.epsilon_lower is not None
    assert found.epsilon < most
    assert found.epsilon < 2 * found.epsilon_lower


def test_many_dear_passes_are_told_by_whichever_accountant_says_more() -> None:
    passes = BallsAndBins(steps_per_pass=235)
    spans = [[Span(event=gaussian(1.1 + i / 100, passes), steps=235)] for i in range(100)]
    found = told(count_events(spans), ADD_OR_REMOVE_ONE)
    assert found.headline is not None
    assert found.headline.epsilon < 2.2  # of pairs of one class it would be 3.1
    assert any(bound.accountant == "rdp" for bound in found.alternatives)


@pytest.mark.parametrize(("relation", "most"), [(ADD_OR_REMOVE_ONE, 2.42), (REPLACE_ONE, 5.17)])
def test_a_headline_far_above_its_lower_end_stands_beside_what_else_is_proved(
    relation: NeighboringRelation, most: float
) -> None:
    cut = TruncatedPoisson(
        sampling_probability=256 / 60_000, max_batch_size=320, dataset_size=60_000
    )
    found = told(falling(1, cut), relation)
    assert found.epsilon is not None
    assert found.epsilon > 20_000
    best = found.smaller_bound
    assert best is not None
    assert best.status is Status.DERIVED
    assert best.epsilon < most
    assert found.epsilon_lower is not None
    assert found.epsilon_lower > 2.38


def test_a_decay_of_many_noises_costs_no_more_than_one_of_more() -> None:
    def decay(count: int) -> EventCounts:
        return EventCounts(
            steps={
                gaussian(4.0 ** (1 - i / count), Poisson(sampling_probability=0.001)): 2000 // count
                for i in range(count)
            }
        )

    few, many = (told(decay(count), ADD_OR_REMOVE_ONE).epsilon for count in (1000, 2000))
    assert few is not None
    assert many is not None
    assert few == pytest.approx(many, rel=0.03)


@pytest.mark.no_cover
@pytest.mark.parametrize("relation", NeighboringRelation)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda sampling: type(sampling).__name__)
@pytest.mark.parametrize("count", [1, 5])
def test_accepting_more_loses_no_end(
    sampling: Sampling, relation: NeighboringRelation, count: int
) -> None:
    spans = [[Span(event=gaussian(1.5 + i / 9, sampling), steps=100)] for i in range(count)]
    less, more = (
        told(count_events(spans), relation, accept=accept)
        for accept in (DEFAULT_ACCEPT, ACCEPTABLE)
    )
    if less.epsilon_lower is not None:
        assert more.epsilon_lower is not None
        assert more.epsilon_lower >= less.epsilon_lower * (1 - 1e-9)
    if less.epsilon is not None:
        assert more.epsilon is not None
        gathered = more.headline is not None and "outward-rounding" in more.headline.theorems
        # Of pairs that are more work to compare fewer classes may be paid for.
        assert more.epsilon <= less.epsilon * (1.1 if gathered else 1 + 1e-9)


def test_what_stands_for_events_lies_on_its_side_of_them() -> None:
    for sampling in (POISSON, FIXED):
        counts = falling(60, sampling)
        for noises in (1, 4, 16):
            upper, lower = dominating(counts, noises), dominate_from_below(counts, noises)
            sides = [
                sorted(noise for event, n in one.steps.items() for noise in [noise_of(event)] * n)
                for one in (upper, counts, lower)
            ]
            assert all(a <= b <= c for a, b, c in zip(*sides, strict=True))
            assert sum(lower.steps.values()) == 14_100


def noise_of(event: Event) -> float:
    assert isinstance(event.mechanism, Gaussian)
    return event.mechanism.noise_multiplier


def test_classes_are_shortest_where_steps_cost_most() -> None:
    noises = [1.0, *(10 + i / 10 for i in range(40))]
    steps = {gaussian(noise, FIXED): 5 for noise in noises}
    gathered = dominating(EventCounts(steps=steps), 4)
    assert len(gathered.steps) <= 4
    assert gathered.steps[gaussian(1.0, FIXED)] == 5
    for kind in (Laplace(noise_multiplier=2.0), Zcdp(rho=0.1), ApproximateDp(epsilon=1, delta=0)):
        same = {Event(mechanism=kind, sampling=Full()): 3}
        assert dominating(EventCounts(steps=same), 4).steps == same


def test_the_lower_end_of_gathered_events_is_one_of_the_events_themselves() -> None:
    found = told(falling(3, DRAWN), REPLACE_ONE)  # of noises 1.1, 1.11 and 1.12

    def attained(noise: float) -> float:
        steps = {gaussian(noise, DRAWN): 14_100}
        known = epsilon_lower_bound(EventCounts(steps=steps), relation=REPLACE_ONE, delta=DELTA)
        assert known is not None
        return known

    assert found.epsilon_lower is not None
    assert 0.99 * attained(1.12) < found.epsilon_lower < attained(1.11)


def test_what_is_counted_by_pass_stays_as_it_is_below() -> None:
    spans = [
        [Span(event=gaussian(1 + i / 9, BallsAndBins(steps_per_pass=5)), steps=5)] for i in (0, 1)
    ]
    counts = count_events(spans)
    assert dominate_from_below(counts, 1) == counts


def test_where_the_limit_is_that_of_another_answer_it_is_refused() -> None:
    counts = falling(20, FIXED)
    with limit_work(148_000_000), pytest.raises(TooMuchWorkError):
        best_bound(counts, relation=REPLACE_ONE, delta=DELTA, accountant="pld")


def test_declared_bounds_are_rounded_to_less_below() -> None:
    steps = {Event(mechanism=Zcdp(rho=rho), sampling=Full()): 2 for rho in (0.1, 0.2, 0.4)}
    (event,) = dominate_from_below(EventCounts(steps=steps), 1).steps
    assert event.mechanism == Zcdp(rho=0.1)
    boxes = [ApproximateDp(epsilon=1.0, delta=1e-7), ApproximateDp(epsilon=2.0, delta=1e-8)]
    steps = {Event(mechanism=box, sampling=Full()): 2 for box in boxes}
    (event,) = dominate_from_below(EventCounts(steps=steps), 1).steps
    assert event.mechanism == ApproximateDp(epsilon=1.0, delta=1e-8)
    (event,) = dominating(EventCounts(steps=steps), 1).steps
    assert event.mechanism == ApproximateDp(epsilon=2.0, delta=1e-7)


def test_answers_climb_as_far_as_the_work_pays_for() -> None:
    counts = falling(64, FIXED)

    def compute(events: EventCounts) -> int:
        spend(500_000 * len(events.steps))
        return len(events.steps)

    with limit_work(math.inf):
        found = answers_of_fewer(counts, compute, points=2e8)
        assert found[0] == 1
        assert found[-1] == 64
        assert found == sorted(found)
        some = answers_of_fewer(counts, compute, points=6e6)
        assert 1 < some[-1] < 64
    with limit_work(math.inf) as meter:
        assert answers_of_fewer(counts, compute, points=400_000) == []
        assert meter.spent <= 1_000_000


def test_what_was_asked_before_changes_no_answer() -> None:
    counts = falling(20, FIXED)
    given: dict[str, Any] = {"relation": REPLACE_ONE, "delta": DELTA}
    alone = best_bound(counts, **given)
    with limit_work(math.inf):
        for classes in (1, 4):
            best_bound(dominating(counts, classes), **given)
        assert best_bound(counts, **given) == alone
    turned = EventCounts(steps=dict(reversed(list(counts.steps.items()))))
    assert best_bound(turned, **given) == alone


def test_answers_stay_within_what_is_left_outside() -> None:
    question = Query(relation=REPLACE_ONE, accept=DEFAULT_ACCEPT, delta=DELTA, epsilon=None)
    with limit_work(60_000_000) as meter:
        found = bound_of_fewer(pld_bound, falling(3, DRAWN), question, spared=10_000_000)
        assert found is not None
        bound, few = found
        assert few
        assert "outward-rounding" in bound.theorems
        assert bound.epsilon_lower is None
        assert meter.spent <= 60_000_000


def test_where_not_even_one_class_is_paid_for_outside_the_answer_is_refused() -> None:
    for width in (WIDTH, ROUGH_WIDTH):
        question = Query(
            relation=REPLACE_ONE, accept=DEFAULT_ACCEPT, delta=DELTA, epsilon=None, width=width
        )
        with limit_work(300_000), pytest.raises(TooMuchWorkError):
            bound_of_fewer(pld_bound, falling(3, DRAWN), question)
