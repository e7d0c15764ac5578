"""Mixed ledgers: what their kinds cost one by one, where that is less than all together."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from accounting.accountants.best_bound import best_bound
from accounting.accountants.mixed_kinds import parts_of, split_bound
from accounting.accountants.queries import Query
from accounting.event_counts import EventCounts, count_events
from accounting.events import (
    Cyclic,
    Event,
    Full,
    Laplace,
    Poisson,
    Sampling,
    Span,
    TruncatedPoisson,
)
from accounting.guarantees import ACCEPTABLE, DEFAULT_ACCEPT, Bound, Status
from accounting.work_limit import spend
from tests.accounting.test_gathering import (
    CYCLIC,
    DELTA,
    DRAWN,
    EARLY,
    FIXED,
    POISSON,
    REPLACE_ONE,
    REPLACE_SPECIAL,
    SAMPLINGS,
    gaussian,
    told,
)


def test_mixed_runs_are_answered_kind_by_kind_where_that_is_less() -> None:
    spans = []
    kinds: list[Sampling] = [POISSON, FIXED, CYCLIC]
    for i in range(36):  # of 24 noises all pairs together say less
        event = gaussian(2 + i / 30, kinds[i % 3])
        spans.append([Span(event=event, steps=470)])
    found = told(count_events(spans), REPLACE_ONE)
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
            told(count_events([part]), REPLACE_SPECIAL, accept=accept).epsilon or math.inf
            for part in (passes, steps)
        ]
        both = told(count_events([passes, steps]), REPLACE_SPECIAL, accept=accept)
        assert alone[0] == pytest.approx(54.38, abs=0.01)
        assert both.epsilon is not None
        assert both.epsilon < sum(alone)


def mixed(seed: int) -> EventCounts:
    random = np.random.default_rng(seed)
    kinds = random.choice(len(SAMPLINGS), size=int(random.integers(2, 4)), replace=False)
    spans = []
    for kind in kinds:
        noise = float(np.exp(random.uniform(np.log(0.8), np.log(6))))
        event = gaussian(round(noise, 3), SAMPLINGS[int(kind)])
        spans.append([Span(event=event, steps=int(random.integers(1, 8)) * 50)])
    return count_events(spans)


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(8))
def test_a_mixed_ledger_costs_no_more_than_its_parts_at_any_split(seed: int) -> None:
    counts = mixed(seed)
    parts = parts_of(counts)
    accept = (DEFAULT_ACCEPT, ACCEPTABLE)[seed % 2]
    for relation in (REPLACE_ONE, REPLACE_SPECIAL):
        given: dict[str, Any] = {"relation": relation, "accept": accept, "with_lower": False}
        whole = best_bound(counts, delta=DELTA, **given)
        for weights in product((1.0, 8.0), repeat=len(parts)):
            alone = [
                best_bound(part, delta=DELTA * weight / sum(weights), **given)
                for part, weight in zip(parts, weights, strict=True)
            ]
            if all(alone):
                total = sum(bound.epsilon for bound in alone if bound is not None)
                assert whole is not None
                assert whole.epsilon <= total * (1 + 5e-3)


def test_a_sum_over_kinds_rests_on_what_every_kind_rests_on() -> None:
    cut = TruncatedPoisson(sampling_probability=0.02, max_batch_size=30, dataset_size=1000)
    turns = Cyclic(batch_size=20, steps_per_pass=50)
    spans = [
        [Span(event=gaussian(3 + i / 9, one), steps=50)] for one in (cut, turns) for i in (0, 1)
    ]
    counts = count_events(spans)
    question = Query(relation=REPLACE_ONE, accept=ACCEPTABLE, delta=DELTA, epsilon=None)

    def ask(part: EventCounts, asked: Query) -> list[Bound]:
        found = best_bound(part, relation=REPLACE_ONE, delta=asked.delta, accept=ACCEPTABLE)
        return [] if found is None else [found]

    found = split_bound(counts, question, [], ask, math.inf)
    assert found is not None
    assert found.status is Status.DERIVED
    assert found.delta == DELTA
    parts = [ask(part, question)[0] for part in parts_of(counts)]
    assert {part.status for part in parts} == {Status.DERIVED, Status.PUBLISHED}
    for part in parts:
        assert set(part.assumptions) <= set(found.assumptions)
        assert part.bound in found.theorems
    # As dear as the whole, it says nothing new; a part without a bound leaves none.
    assert split_bound(counts, question, [found], ask, math.inf) is None
    assert split_bound(counts, question, [], lambda *_: [], math.inf) is None
    # Nor are answers at a larger delta than what was asked at.
    late = replace(found, epsilon=1.0, delta=0.9 * DELTA)
    assert split_bound(counts, question, [], lambda *_: [late], math.inf) is None
    cheap = replace(found, epsilon=found.epsilon / 10)
    assert split_bound(counts, question, [cheap], ask, math.inf) is None


def test_kinds_are_not_added_up_for_an_accountant_that_was_asked_for_by_name() -> None:
    spans = [
        [Span(event=gaussian(2 + i / 12, (POISSON, FIXED, CYCLIC)[i % 3]), steps=470)]
        for i in range(24)
    ]
    found = told(count_events(spans), REPLACE_ONE, accountant="pld")
    bounds = [one for one in (found.headline, *found.alternatives) if one is not None]
    assert all(bound.bound != "basic-composition" for bound in bounds)


def test_steps_that_may_share_a_pass_are_of_one_kind() -> None:
    shared = Event(mechanism=Laplace(noise_multiplier=2.0), sampling=EARLY)
    spans = [
        [Span(event=gaussian(1.0, EARLY), steps=5), Span(event=shared, steps=4)],
        [Span(event=gaussian(1.0, Full()), steps=1)],
        [Span(event=Event(mechanism=Laplace(noise_multiplier=2.0), sampling=Full()), steps=1)],
    ]
    parts = parts_of(count_events(spans))
    assert len(parts) == 3
    assert sorted(len(part.steps) for part in parts) == [1, 1, 2]


def test_orders_that_were_used_again_are_known_to_each_kind() -> None:
    early = Span(event=gaussian(1.0, EARLY), steps=18)
    again = Cyclic(batch_size=10, steps_per_pass=9)
    counts = count_events([[early], [Span(event=gaussian(1.0, again), steps=9)]])
    assert counts.used_again
    whole = counts.with_known_orders()
    units = [unit for part in parts_of(whole) for unit in part.units()]
    assert sorted(units, key=repr) == sorted(whole.units(), key=repr)
    assert all(isinstance(event.sampling, Cyclic) for event, _ in units)
    beside = replace(counts, steps={**counts.steps, gaussian(3.0, Full()): 1})
    known = best_bound(whole, relation=REPLACE_SPECIAL, delta=DELTA)
    assert known is not None
    asked: list[EventCounts] = []

    def ask(part: EventCounts, _: Query) -> list[Bound]:
        asked.append(part)
        return [known]

    question = Query(relation=REPLACE_SPECIAL, accept=ACCEPTABLE, delta=DELTA, epsilon=None)
    split_bound(beside, question, [], ask, math.inf)
    assert {type(event.sampling) for part in asked for event in part.steps} == {Cyclic, Full}
    found = told(counts, REPLACE_SPECIAL, accept=ACCEPTABLE)
    direct = told(
        EventCounts(steps=whole.steps, passes=whole.passes), REPLACE_SPECIAL, accept=ACCEPTABLE
    )
    assert found.epsilon == direct.epsilon


@pytest.mark.parametrize("points", [math.inf, 61e6])
def test_a_kind_whose_finer_events_have_no_answer_keeps_that_of_one_class(points: float) -> None:
    counts = EventCounts(
        steps={gaussian(noise, kind): 9 for noise in (2.0, 2.5) for kind in (FIXED, DRAWN)}
    )
    known = best_bound(counts, relation=REPLACE_ONE, delta=DELTA)
    assert known is not None
    asked: list[int] = []

    def ask(part: EventCounts, question: Query) -> list[Bound]:
        spend(10_000_000)
        asked.append(len(part.steps))
        assert question.delta is not None
        if len(part.steps) > 1:
            return []
        return [replace(known, epsilon=1.0, delta=question.delta)]

    question = Query(relation=REPLACE_ONE, accept=DEFAULT_ACCEPT, delta=DELTA, epsilon=None)
    found = split_bound(counts, question, [], ask, points)
    assert found is not None
    assert found.epsilon == pytest.approx(2.0)
    # Where one class of each is dear it is asked about once only.
    assert asked == ([1, 1] if points < math.inf else [1, 1, 1, 1]) + [2, 1, 2, 1]


def test_a_kind_without_any_answer_in_the_end_leaves_no_split() -> None:
    counts = EventCounts(
        steps={gaussian(noise, kind): 9 for noise in (2.0, 2.5) for kind in (FIXED, DRAWN)}
    )
    known = best_bound(counts, relation=REPLACE_ONE, delta=DELTA)
    assert known is not None
    asked: list[int] = []

    def ask(part: EventCounts, question: Query) -> list[Bound]:
        asked.append(len(part.steps))
        assert question.delta is not None
        return [] if len(asked) > 4 else [replace(known, epsilon=1.0, delta=question.delta)]

    question = Query(relation=REPLACE_ONE, accept=DEFAULT_ACCEPT, delta=DELTA, epsilon=None)
    assert split_bound(counts, question, [], ask, math.inf) is None
    assert asked == [1, 1, 1, 1, 2, 1]
    # Nor does one that is far above what all kinds cost together.
    cheap = replace(known, epsilon=0.1, accountant="rdp")
    asked.clear()
    assert split_bound(counts, question, [cheap], ask, math.inf) is None
    assert asked == [1, 1]
