"""A limit of work makes an answer a little wider, never useless; and mixed ledgers are not dear."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from accounting.accountants import best_bound, guarantee
from accounting.answers import Question, attained_epsilon, pld_bound
from accounting.balances import Balance, balance_of
from accounting.coarsening import dominated, dominating
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
from accounting.gathering import answers_of_fewer, bound_of_fewer
from accounting.guarantees import ACCEPTABLE, DEFAULT_ACCEPT, Bound, Guarantee, Status
from accounting.splits import parts_of, split_bound
from accounting.work import TooMuchWorkError, limited, spend

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


def falling(count: int, sampling: Sampling, steps: int = 14_100) -> Balance:
    """So many steps in all, split over noises 1.1, 1.11 and so on."""
    shares = [steps // count + (i < steps % count) for i in range(count)]
    return Balance(steps={gaussian(1.1 + i / 100, sampling): n for i, n in enumerate(shares)})


def told(balance: Balance, relation: NeighboringRelation, **given: Any) -> Guarantee:
    return guarantee(balance, relation=relation, delta=DELTA, **given)


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
    found = told(balance_of(spans), ADD_OR_REMOVE_ONE)
    assert found.headline is not None
    assert found.headline.accountant == "rdp"
    assert found.headline.epsilon < 2.3  # of pairs of one class it would be 3.1
    assert any(bound.accountant == "pld" for bound in found.alternatives)


@pytest.mark.parametrize(("relation", "most"), [(ADD_OR_REMOVE_ONE, 2.42), (REPLACE_ONE, 5.16)])
def test_a_headline_far_above_its_lower_end_stands_beside_what_else_is_proved(
    relation: NeighboringRelation, most: float
) -> None:
    cut = TruncatedPoisson(
        sampling_probability=256 / 60_000, max_batch_size=320, dataset_size=60_000
    )
    found = told(falling(1, cut), relation)
    assert found.epsilon is not None
    assert found.epsilon > 20_000
    (best,) = [bound for bound in found.alternatives if bound.epsilon < found.epsilon]
    assert best.status is Status.DERIVED
    assert best.epsilon < most
    assert found.epsilon_lower is not None
    assert found.epsilon_lower > 2.38


def test_a_decay_of_many_noises_costs_no_more_than_one_of_more() -> None:
    def decay(count: int) -> Balance:
        return Balance(
            steps={
                gaussian(4.0 ** (1 - i / count), Poisson(sampling_probability=0.001)): 2000 // count
                for i in range(count)
            }
        )

    few, many = (told(decay(count), ADD_OR_REMOVE_ONE).epsilon for count in (1000, 2000))
    assert few is not None
    assert many is not None
    assert few == pytest.approx(many, rel=0.03)


def test_mixed_runs_are_answered_kind_by_kind_where_that_is_less() -> None:
    spans = []
    kinds: list[Sampling] = [POISSON, FIXED, CYCLIC]
    for i in range(24):
        event = gaussian(2 + i / 12, kinds[i % 3])
        spans.append([Span(event=event, steps=470)])
    found = told(balance_of(spans), REPLACE_ONE)
    assert found.headline is not None
    assert found.epsilon is not None
    assert found.epsilon < 100  # of pairs alone it would be thousands
    assert found.headline.bound == "basic-composition"
    assert found.headline.delta == DELTA


def test_a_dear_pair_beside_other_steps_is_not_the_one_that_is_composed() -> None:
    passes = [Span(event=gaussian(1.0, EARLY), steps=450)]
    steps = [Span(event=gaussian(2.0, Poisson(sampling_probability=0.003)), steps=100)]
    for accept in (DEFAULT_ACCEPT, ACCEPTABLE):
        alone = [
            told(balance_of([part]), REPLACE_SPECIAL, accept=accept).epsilon or math.inf
            for part in (passes, steps)
        ]
        both = told(balance_of([passes, steps]), REPLACE_SPECIAL, accept=accept)
        assert alone[0] == pytest.approx(54.38, abs=0.01)
        assert both.epsilon is not None
        assert both.epsilon < sum(alone)


def mixed(seed: int) -> Balance:
    random = np.random.default_rng(seed)
    kinds = random.choice(len(SAMPLINGS), size=int(random.integers(2, 4)), replace=False)
    spans = []
    for kind in kinds:
        noise = float(np.exp(random.uniform(np.log(0.8), np.log(6))))
        event = gaussian(round(noise, 3), SAMPLINGS[int(kind)])
        spans.append([Span(event=event, steps=int(random.integers(1, 8)) * 50)])
    return balance_of(spans)


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(8))
def test_a_mixed_ledger_costs_no_more_than_its_parts_at_any_split(seed: int) -> None:
    balance = mixed(seed)
    parts = parts_of(balance)
    accept = (DEFAULT_ACCEPT, ACCEPTABLE)[seed % 2]
    for relation in (REPLACE_ONE, REPLACE_SPECIAL):
        given: dict[str, Any] = {"relation": relation, "accept": accept, "floor": False}
        whole = best_bound(balance, delta=DELTA, **given)
        for weights in product((1.0, 8.0), repeat=len(parts)):
            alone = [
                best_bound(part, delta=DELTA * weight / sum(weights), **given)
                for part, weight in zip(parts, weights, strict=True)
            ]
            if all(alone):
                total = sum(bound.epsilon for bound in alone if bound is not None)
                assert whole is not None
                assert whole.epsilon <= total * (1 + 5e-3)


@pytest.mark.no_cover
@pytest.mark.parametrize("relation", NeighboringRelation)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda sampling: type(sampling).__name__)
@pytest.mark.parametrize("count", [1, 5])
def test_accepting_more_loses_no_end(
    sampling: Sampling, relation: NeighboringRelation, count: int
) -> None:
    spans = [[Span(event=gaussian(1.5 + i / 9, sampling), steps=100)] for i in range(count)]
    less, more = (
        told(balance_of(spans), relation, accept=accept) for accept in (DEFAULT_ACCEPT, ACCEPTABLE)
    )
    if less.epsilon_lower is not None:
        assert more.epsilon_lower is not None
        assert more.epsilon_lower >= less.epsilon_lower * (1 - 1e-9)
    if less.epsilon is not None:
        assert more.epsilon is not None
        gathered = more.headline is not None and "outward-rounding" in more.headline.theorems
        # Of pairs that are more work to compare fewer classes may be paid for.
        assert more.epsilon <= less.epsilon * (1.1 if gathered else 1 + 1e-9)


DEAREST = (17, 56, 92, 128)  # of 200 random schedules the four that are hardest to gather


def schedule(seed: int) -> tuple[Balance, NeighboringRelation]:
    random = np.random.default_rng(seed)
    samplings: list[Sampling] = [POISSON, Poisson(sampling_probability=0.02), FIXED]
    sampling = samplings[seed % 3]
    relation = [ADD_OR_REMOVE_ONE, REPLACE_ONE, REPLACE_SPECIAL][int(random.integers(3))]
    low = float(random.uniform(0.8, 3))
    count = int(random.integers(2, 40))
    noises = low * np.exp(np.sort(random.uniform(0, float(random.uniform(0.02, 0.7)), count)))
    steps = {gaussian(float(noise), sampling): int(random.integers(10, 200)) for noise in noises}
    return Balance(steps=steps), relation


@pytest.mark.no_cover
@pytest.mark.parametrize("first", range(4))
def test_random_schedules_cost_more_with_more_steps_and_as_much_as_merged(first: int) -> None:
    for seed in [*range(first, 16, 4), DEAREST[first]]:
        balance, relation = schedule(seed)
        given: dict[str, Any] = {"relation": relation, "delta": DELTA, "floor": False}
        found = best_bound(balance, **given)
        merged = best_bound(dominating(balance, 8), **given)
        longer = best_bound(
            Balance(steps={event: 2 * n for event, n in balance.steps.items()}), **given
        )
        assert found is not None
        assert merged is not None
        assert longer is not None
        assert found.epsilon <= longer.epsilon
        assert found.epsilon <= 1.05 * merged.epsilon


def test_what_stands_for_events_lies_on_its_side_of_them() -> None:
    for sampling in (POISSON, FIXED):
        balance = falling(60, sampling)
        for noises in (1, 4, 16):
            upper, lower = dominating(balance, noises), dominated(balance, noises)
            sides = [
                sorted(noise for event, n in one.steps.items() for noise in [noise_of(event)] * n)
                for one in (upper, balance, lower)
            ]
            assert all(a <= b <= c for a, b, c in zip(*sides, strict=True))
            assert sum(lower.steps.values()) == 14_100


def noise_of(event: Event) -> float:
    assert isinstance(event.mechanism, Gaussian)
    return event.mechanism.noise_multiplier


def test_classes_are_shortest_where_steps_cost_most() -> None:
    noises = [1.0, *(10 + i / 10 for i in range(40))]
    steps = {gaussian(noise, FIXED): 5 for noise in noises}
    gathered = dominating(Balance(steps=steps), 4)
    assert len(gathered.steps) <= 4
    assert gathered.steps[gaussian(1.0, FIXED)] == 5
    for kind in (Laplace(noise_multiplier=2.0), Zcdp(rho=0.1), ApproximateDp(epsilon=1, delta=0)):
        same = {Event(mechanism=kind, sampling=Full()): 3}
        assert dominating(Balance(steps=same), 4).steps == same


def test_the_lower_end_of_gathered_events_is_one_of_the_events_themselves() -> None:
    found = told(falling(3, DRAWN), REPLACE_ONE)  # of noises 1.1, 1.11 and 1.12

    def attained(noise: float) -> float:
        steps = {gaussian(noise, DRAWN): 14_100}
        known = attained_epsilon(Balance(steps=steps), relation=REPLACE_ONE, delta=DELTA)
        assert known is not None
        return known

    assert found.epsilon_lower is not None
    assert 0.99 * attained(1.12) < found.epsilon_lower < attained(1.11)


def test_what_is_counted_by_pass_stays_as_it_is_below() -> None:
    spans = [
        [Span(event=gaussian(1 + i / 9, BallsAndBins(steps_per_pass=5)), steps=5)] for i in (0, 1)
    ]
    balance = balance_of(spans)
    assert dominated(balance, 1) == balance


def test_where_the_limit_is_that_of_another_answer_it_is_refused() -> None:
    balance = falling(20, FIXED)
    with limited(148_000_000), pytest.raises(TooMuchWorkError):
        best_bound(balance, relation=REPLACE_ONE, delta=DELTA, accountant="pld")


def test_a_sum_over_kinds_rests_on_what_every_kind_rests_on() -> None:
    cut = TruncatedPoisson(sampling_probability=0.02, max_batch_size=30, dataset_size=1000)
    turns = Cyclic(batch_size=20, steps_per_pass=50)
    spans = [
        [Span(event=gaussian(3 + i / 9, one), steps=50)] for one in (cut, turns) for i in (0, 1)
    ]
    balance = balance_of(spans)
    question = Question(relation=REPLACE_ONE, accept=ACCEPTABLE, delta=DELTA, epsilon=None)

    def ask(part: Balance, asked: Question) -> list[Bound]:
        found = best_bound(part, relation=REPLACE_ONE, delta=asked.delta, accept=ACCEPTABLE)
        return [] if found is None else [found]

    found = split_bound(balance, question, [], ask)
    assert found is not None
    assert found.status is Status.DERIVED
    assert found.delta == DELTA
    parts = [ask(part, question)[0] for part in parts_of(balance)]
    assert {part.status for part in parts} == {Status.DERIVED, Status.PUBLISHED}
    for part in parts:
        assert set(part.assumptions) <= set(found.assumptions)
        assert part.bound in found.theorems
    # As dear as the whole, it says nothing new; a part without a bound leaves none.
    assert split_bound(balance, question, [found], ask) is None
    assert split_bound(balance, question, [], lambda *_: []) is None
    # Nor are answers at a larger delta than what was asked at.
    late = replace(found, epsilon=1.0, delta=0.9 * DELTA)
    assert split_bound(balance, question, [], lambda *_: [late]) is None
    cheap = replace(found, epsilon=found.epsilon / 10)
    assert split_bound(balance, question, [cheap], ask) is None


def test_kinds_are_not_added_up_for_an_accountant_that_was_asked_for_by_name() -> None:
    spans = [
        [Span(event=gaussian(2 + i / 12, (POISSON, FIXED, CYCLIC)[i % 3]), steps=470)]
        for i in range(24)
    ]
    found = told(balance_of(spans), REPLACE_ONE, accountant="pld")
    bounds = [one for one in (found.headline, *found.alternatives) if one is not None]
    assert all(bound.bound != "basic-composition" for bound in bounds)


def test_declared_bounds_are_rounded_to_less_below() -> None:
    steps = {Event(mechanism=Zcdp(rho=rho), sampling=Full()): 2 for rho in (0.1, 0.2, 0.4)}
    (event,) = dominated(Balance(steps=steps), 1).steps
    assert event.mechanism == Zcdp(rho=0.1)
    boxes = [ApproximateDp(epsilon=1.0, delta=1e-7), ApproximateDp(epsilon=2.0, delta=1e-8)]
    steps = {Event(mechanism=box, sampling=Full()): 2 for box in boxes}
    (event,) = dominated(Balance(steps=steps), 1).steps
    assert event.mechanism == ApproximateDp(epsilon=1.0, delta=1e-8)
    (event,) = dominating(Balance(steps=steps), 1).steps
    assert event.mechanism == ApproximateDp(epsilon=2.0, delta=1e-7)


def test_answers_climb_as_far_as_the_work_pays_for() -> None:
    balance = falling(64, FIXED)

    def compute(events: Balance) -> int:
        spend(500_000 * len(events.steps))
        return len(events.steps)

    with limited(math.inf):
        found = answers_of_fewer(balance, compute, points=9e7)
        assert found[0] == 1
        assert found[-1] == 64
        assert found == sorted(found)
        some = answers_of_fewer(balance, compute, points=6e6)
        assert 1 < some[-1] < 64
    with limited(math.inf) as meter:
        assert answers_of_fewer(balance, compute, points=400_000) == []
        assert meter.spent <= 1_000_000


def test_what_was_asked_before_changes_no_answer() -> None:
    balance = falling(20, FIXED)
    given: dict[str, Any] = {"relation": REPLACE_ONE, "delta": DELTA}
    alone = best_bound(balance, **given)
    with limited(math.inf):
        for classes in (1, 4):
            best_bound(dominating(balance, classes), **given)
        assert best_bound(balance, **given) == alone
    turned = Balance(steps=dict(reversed(list(balance.steps.items()))))
    assert best_bound(turned, **given) == alone


def test_answers_stay_within_what_is_left_outside() -> None:
    question = Question(relation=REPLACE_ONE, accept=DEFAULT_ACCEPT, delta=DELTA, epsilon=None)
    with limited(60_000_000) as meter:
        found = bound_of_fewer(pld_bound, falling(3, DRAWN), question, whole=10_000_000)
        assert found is not None
        bound, few = found
        assert few
        assert "outward-rounding" in bound.theorems
        assert bound.epsilon_lower is None
        assert meter.spent <= 60_000_000


def test_steps_that_may_share_a_pass_are_of_one_kind() -> None:
    shared = Event(mechanism=Laplace(noise_multiplier=2.0), sampling=EARLY)
    spans = [
        [Span(event=gaussian(1.0, EARLY), steps=5), Span(event=shared, steps=4)],
        [Span(event=gaussian(1.0, Full()), steps=1)],
        [Span(event=Event(mechanism=Laplace(noise_multiplier=2.0), sampling=Full()), steps=1)],
    ]
    parts = parts_of(balance_of(spans))
    assert len(parts) == 3
    assert sorted(len(part.steps) for part in parts) == [1, 1, 2]


def test_orders_that_were_used_again_are_known_to_each_kind() -> None:
    early = Span(event=gaussian(1.0, EARLY), steps=18)
    again = Cyclic(batch_size=10, steps_per_pass=9)
    balance = balance_of([[early], [Span(event=gaussian(1.0, again), steps=9)]])
    assert balance.used_again
    whole = balance.told()
    units = [unit for part in parts_of(whole) for unit in part.units()]
    assert sorted(units, key=repr) == sorted(whole.units(), key=repr)
    assert all(isinstance(event.sampling, Cyclic) for event, _ in units)
    beside = replace(balance, steps={**balance.steps, gaussian(3.0, Full()): 1})
    known = best_bound(whole, relation=REPLACE_SPECIAL, delta=DELTA)
    assert known is not None
    asked: list[Balance] = []

    def ask(part: Balance, _: Question) -> list[Bound]:
        asked.append(part)
        return [known]

    question = Question(relation=REPLACE_SPECIAL, accept=ACCEPTABLE, delta=DELTA, epsilon=None)
    split_bound(beside, question, [], ask)
    assert {type(event.sampling) for part in asked for event in part.steps} == {Cyclic, Full}
    found = told(balance, REPLACE_SPECIAL, accept=ACCEPTABLE)
    direct = told(
        Balance(steps=whole.steps, passes=whole.passes), REPLACE_SPECIAL, accept=ACCEPTABLE
    )
    assert found.epsilon == direct.epsilon
