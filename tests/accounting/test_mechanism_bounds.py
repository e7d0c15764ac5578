"""Which mechanism has which bound, and what a guarantee makes of a step that may fail."""

import csv
import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.accountants.best_bound import guarantee
from accounting.bounds.event_bounds import (
    REASON_FULL_OR_POISSON,
    REASON_MISSING_ANSWER,
    REASON_NO_NOISE,
    REASON_NOT_GAUSSIAN,
    NoBoundError,
    failure,
    total_failure,
)
from accounting.bounds.gdp_bounds import gdp_bounds
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.event_counts import EventCounts, count_events
from accounting.events import (
    ApproximateDp,
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
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
from accounting.filters import RenyiFilter, best_order
from accounting.filters.integer_totals import loss_of
from accounting.guarantees import ACCEPTABLE, Assumption, Guarantee, Status
from accounting.renyi.orders import ORDERS
from accounting.renyi.pure import pure_dp_rdp

ADD_OR_REMOVE_ONE, REPLACE_ONE, REPLACE_SPECIAL = NeighboringRelation
GOLDEN = Path(__file__).parents[1] / "golden" / "mechanisms.csv"
POISSON = Poisson(sampling_probability=0.01)
LAPLACE = Laplace(noise_multiplier=3.0)
RESPONSE = RandomizedResponse(probability_of_truth=0.6, categories=3)
DECLARED = ApproximateDp(epsilon=0.2, delta=1e-9)
ZCDP = Zcdp(rho=0.01)
MECHANISMS: list[Mechanism] = [LAPLACE, RESPONSE, DECLARED, ZCDP]
BY_PASS: list[Sampling] = [
    FixedSize(batch_size=1, dataset_size=10),
    Cyclic(batch_size=1, steps_per_pass=3),
    Shuffle(batch_size=1, steps_per_pass=3, reshuffle=Reshuffle.ONCE),
]


def event(mechanism: Mechanism, sampling: Sampling | None = None) -> Event:
    return Event(mechanism=mechanism, sampling=sampling or Full())


def counts(
    mechanism: Mechanism, sampling: Sampling | None = None, *, steps: int = 1
) -> EventCounts:
    return count_events([[Span(event=event(mechanism, sampling), steps=steps)]])


def epsilon_of(answer: Guarantee) -> float:
    assert answer.epsilon is not None, answer.reason
    return answer.epsilon


def parsed(unit: str) -> tuple[Event, int]:
    """Such as `3 gaussian 4`: how often, what, and its parameters."""
    count, kind, *values = unit.split()
    mechanism: Mechanism
    if kind == "randomized_response":
        mechanism = RandomizedResponse(
            probability_of_truth=float(values[0]), categories=int(values[1])
        )
    elif kind == "zcdp":
        mechanism = Zcdp(rho=float(values[0]))
    elif kind == "laplace":
        mechanism = Laplace(noise_multiplier=float(values[0]))
    else:
        mechanism = Gaussian(noise_multiplier=float(values[0]))
    return event(mechanism), int(count)


@pytest.mark.parametrize(
    "row", list(csv.DictReader(GOLDEN.read_text().splitlines())), ids=lambda row: row["units"]
)
def test_epsilon_agrees_with_the_peer(row: dict[str, str]) -> None:
    answer = guarantee(
        EventCounts(steps=dict(parsed(unit) for unit in row["units"].split(" + "))),
        relation=NeighboringRelation(row["neighboring_relation"]),
        delta=float(row["delta"]),
        accountant="rdp",
    )
    assert answer.epsilon == pytest.approx(float(row["epsilon_dp_accounting"]), rel=1e-9)


BOUNDS = {  # the table of theorems, first the least
    (LAPLACE, ADD_OR_REMOVE_ONE): ["poisson-laplace"],
    (LAPLACE, REPLACE_SPECIAL): ["poisson-laplace"],
    (LAPLACE, REPLACE_ONE): ["revealed-poisson-sampling", "laplace-renyi"],
    (RESPONSE, REPLACE_SPECIAL): ["revealed-poisson-sampling", "randomized-response-null-renyi"],
    (RESPONSE, REPLACE_ONE): ["revealed-poisson-sampling", "randomized-response-renyi"],
    (DECLARED, ADD_OR_REMOVE_ONE): ["declared-approximate-dp"],
    (DECLARED, REPLACE_SPECIAL): ["revealed-poisson-sampling", "declared-approximate-dp"],
    (DECLARED, REPLACE_ONE): ["revealed-poisson-sampling", "declared-approximate-dp"],
    (ZCDP, ADD_OR_REMOVE_ONE): ["revealed-poisson-sampling", "declared-zcdp"],
    (ZCDP, REPLACE_SPECIAL): ["revealed-poisson-sampling", "declared-zcdp"],
    (ZCDP, REPLACE_ONE): ["revealed-poisson-sampling", "declared-zcdp"],
}


@pytest.mark.parametrize(("case", "ids"), BOUNDS.items(), ids=str)
def test_each_sampled_mechanism_has_its_theorems(
    case: tuple[Mechanism, NeighboringRelation], ids: list[str]
) -> None:
    mechanism, relation = case
    sampled = renyi_bounds(event(mechanism, POISSON), relation)
    (full,) = renyi_bounds(event(mechanism), relation)
    assert [bound.theorem.id for bound in sampled] == ids
    assert Assumption.POISSON_SAMPLING in sampled[0].assumptions
    assert set(full.assumptions) <= set(sampled[0].assumptions)
    for bound in sampled:
        assert not bound.loss.flags.writeable
        assert all(relation in one.relations for one in bound.theorems)
        assert np.all(bound.loss <= full.loss)
        assert bound.delta <= full.delta
    (certain,) = renyi_bounds(event(mechanism, Poisson(sampling_probability=1.0)), relation)
    (unknown,) = renyi_bounds(event(mechanism, Unknown()), relation)
    for same in (certain, unknown):
        np.testing.assert_array_equal(same.loss, full.loss)
        assert (same.theorems, same.delta) == (full.theorems, full.delta)
    assert unknown.assumptions == (*full.assumptions, Assumption.OTHERS_UNAFFECTED)


@pytest.mark.parametrize("relation", NeighboringRelation)
@pytest.mark.parametrize("sampling", BY_PASS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("mechanism", [LAPLACE, DECLARED, ZCDP])
def test_other_samplings_are_recorded_and_have_a_reason_instead_of_a_bound(
    mechanism: Mechanism, sampling: Sampling, relation: NeighboringRelation
) -> None:
    with pytest.raises(NoBoundError) as caught:
        renyi_bounds(event(mechanism, sampling), relation)
    assert str(caught.value) == REASON_FULL_OR_POISSON
    answer = guarantee(counts(mechanism, sampling, steps=7), relation=relation, delta=1e-5)
    assert (answer.epsilon, answer.reason) == (None, REASON_FULL_OR_POISSON)


@pytest.mark.parametrize("sampling", [Full(), Unknown(), POISSON, *BY_PASS])
def test_a_missing_answer_can_be_seen(sampling: Sampling) -> None:
    answer = guarantee(counts(RESPONSE, sampling), relation=ADD_OR_REMOVE_ONE, delta=1e-5)
    assert (answer.epsilon, answer.reason) == (None, REASON_MISSING_ANSWER)


@pytest.mark.parametrize("relation", NeighboringRelation)
@pytest.mark.parametrize("mechanism", [*MECHANISMS, NoNoise()])
def test_what_is_not_gaussian_is_no_gaussian_release(
    mechanism: Mechanism, relation: NeighboringRelation
) -> None:
    expected = REASON_NO_NOISE if mechanism == NoNoise() else REASON_NOT_GAUSSIAN
    with pytest.raises(NoBoundError, match=expected):
        gdp_bounds(event(mechanism), relation)


def test_a_null_record_answers_uniformly_by_assumption() -> None:
    answer = guarantee(counts(RESPONSE), relation=REPLACE_SPECIAL, delta=1e-5)
    assert answer.headline is not None
    assert Assumption.UNIFORM_NULL_ANSWER in answer.headline.assumptions
    assert answer.headline.status is Status.PUBLISHED


def test_a_declared_step_makes_a_declared_guarantee() -> None:
    for mechanism in (DECLARED, ZCDP):
        answer = guarantee(counts(mechanism), relation=REPLACE_ONE, delta=1e-5)
        assert answer.headline is not None
        assert answer.headline.status is Status.DECLARED
        assert Assumption.DECLARED_GUARANTEE in answer.headline.assumptions


@pytest.mark.parametrize(
    ("accept", "bound"),
    [
        ({Status.DECLARED}, "declared-zcdp"),
        ({Status.DECLARED, Status.DERIVED}, "revealed-poisson-sampling"),
        ({Status.DERIVED}, None),  # the derivation rests on a declaration
        ({Status.PUBLISHED}, None),
    ],
)
def test_a_bound_is_accepted_with_all_that_it_rests_on(
    accept: set[Status], bound: str | None
) -> None:
    spent = counts(ZCDP, POISSON, steps=10)
    answer = guarantee(spent, relation=REPLACE_ONE, delta=1e-5, accept=frozenset(accept))
    assert (answer.headline.bound if answer.headline else None) == bound
    if bound is None:
        assert answer.reason is not None
        assert "declared, derived" in answer.reason
    if bound == "revealed-poisson-sampling":
        assert answer.headline is not None
        assert answer.headline.status is Status.DECLARED
        assert {"declared-zcdp", "revealed-poisson-sampling"} <= set(answer.headline.theorems)


def test_amplification_of_a_declared_step_is_named() -> None:
    answer = guarantee(counts(DECLARED, POISSON), relation=ADD_OR_REMOVE_ONE, delta=1e-5)
    assert answer.headline is not None
    assert answer.headline.bound == "declared-approximate-dp"
    assert "poisson-amplification" in answer.headline.theorems
    assert Assumption.POISSON_SAMPLING in answer.headline.assumptions


@pytest.mark.parametrize("steps", [1, 100, 9_999])
def test_failures_are_taken_from_delta(steps: int) -> None:
    fails = guarantee(
        counts(DECLARED, steps=steps), relation=REPLACE_ONE, delta=1e-5, accountant="rdp"
    )
    pure = counts(ApproximateDp(epsilon=0.2, delta=0.0), steps=steps)
    left = guarantee(pure, relation=REPLACE_ONE, delta=1e-5 - steps * 1e-9, accountant="rdp")
    assert epsilon_of(fails) >= epsilon_of(left)
    assert fails.epsilon == pytest.approx(epsilon_of(left), rel=1e-9)
    assert fails.delta == 1e-5


@pytest.mark.parametrize("steps", [10_000, 10_001, 10**9])
def test_failures_that_take_all_of_delta_leave_no_bound(steps: int) -> None:
    answer = guarantee(
        counts(DECLARED, steps=steps), relation=REPLACE_ONE, delta=1e-5, accountant="rdp"
    )
    assert answer.epsilon is None
    assert answer.reason == "The bound says nothing: epsilon is infinite or delta is one."


def test_failures_are_added_to_the_delta_that_is_asked_for() -> None:
    pure = counts(ApproximateDp(epsilon=0.2, delta=0.0), steps=100)
    before = guarantee(pure, relation=REPLACE_ONE, epsilon=8.0, accountant="rdp").delta
    after = guarantee(
        counts(DECLARED, steps=100), relation=REPLACE_ONE, epsilon=8.0, accountant="rdp"
    ).delta
    assert before is not None
    assert after is not None
    assert before + 1e-7 <= after <= (before + 1e-7) * (1 + 1e-12)
    certain = counts(ApproximateDp(epsilon=0.2, delta=0.5), steps=2)
    assert guarantee(certain, relation=REPLACE_ONE, epsilon=8.0, accountant="rdp").epsilon is None


def test_a_step_that_is_declared_to_tell_nothing_costs_its_failures() -> None:
    spent = counts(ApproximateDp(epsilon=0.0, delta=1e-7), steps=3)
    answer = guarantee(spent, relation=REPLACE_ONE, delta=1e-5)
    assert epsilon_of(answer) < 0.01  # what the conversion leaves at its largest order
    assert guarantee(spent, relation=REPLACE_ONE, epsilon=1.0).delta == pytest.approx(3e-7)


@settings(deadline=None, max_examples=50)
@given(epsilon=st.floats(0.01, 3), delta=st.floats(0, 0.3), steps=st.integers(1, 4))
def test_a_composed_failing_response_is_nowhere_understated(
    epsilon: float, delta: float, steps: int
) -> None:
    # Each step fails openly with probability delta, and is randomized response otherwise.
    truth = 1 / (1 + math.exp(-epsilon))
    first = [delta, 0.0, (1 - delta) * truth, (1 - delta) * (1 - truth)]
    second = [0.0, delta, (1 - delta) * (1 - truth), (1 - delta) * truth]
    for asked in (0.1, 1.0, 2.5):
        bound = guarantee(
            counts(ApproximateDp(epsilon=epsilon, delta=delta), steps=steps),
            relation=REPLACE_ONE,
            epsilon=asked,
        ).delta
        exact = sum(
            max(0.0, math.prod(first[i] for i in outcome)
                - math.exp(asked) * math.prod(second[i] for i in outcome))
            for outcome in product(range(4), repeat=steps)
        )  # fmt: skip
        assert bound is None or bound >= exact * (1 - 1e-12)


def test_sampling_divides_failures() -> None:
    for relation, accept in product(NeighboringRelation, [ACCEPTABLE]):
        bounds = renyi_bounds(event(DECLARED, POISSON), relation)
        assert bounds[0].delta == pytest.approx(1e-11, rel=1e-12)
        assert bounds[0].delta >= 1e-11
        spent = counts(DECLARED, POISSON, steps=20_000)  # too many for the failures of full steps
        answer = guarantee(spent, relation=relation, delta=1e-5, accept=accept)
        assert epsilon_of(answer) > 0
    cautious = guarantee(spent, relation=REPLACE_ONE, delta=1e-5)
    assert cautious.epsilon is None
    assert cautious.alternatives[0].bound == "revealed-poisson-sampling"


def test_the_failure_that_counts_is_that_of_a_bound_that_is_used() -> None:
    revealed, full = renyi_bounds(event(DECLARED, POISSON), REPLACE_ONE)
    assert failure((revealed, full)) == revealed.delta
    assert failure((full,)) == DECLARED.delta
    # Where each bound is the lesser one at some order, either failure may be the one that counts.
    crossing = replace(full, loss=revealed.loss[::-1])
    for pair in ((revealed, crossing), (crossing, revealed)):
        assert failure(pair) == full.delta
    assert total_failure([]) == 0
    assert total_failure([(renyi_bounds(event(LAPLACE), REPLACE_ONE), 10**9)]) == 0
    assert total_failure([((full,), 3), ((revealed, full), 5)]) >= 3e-9 + 5e-11


def test_a_filter_admits_no_step_that_may_fail() -> None:
    order = best_order(epsilon=3.0, delta=1e-5)
    budget = RenyiFilter(order=order, epsilon=3.0, delta=1e-5)
    index = int(np.flatnonzero(order == ORDERS)[0])
    fails = budget.total(counts(DECLARED), relation=REPLACE_ONE)
    assert budget.spent(fails) == math.inf
    assert not budget.admits(fails)
    pure = budget.total(counts(ApproximateDp(epsilon=0.2, delta=0.0)), relation=REPLACE_ONE)
    assert budget.admits(pure)
    assert loss_of(pure[2]) >= pure_dp_rdp(epsilon=0.2, orders=ORDERS)[index]
    for mechanism in (LAPLACE, RESPONSE, ZCDP):
        assert budget.admits(budget.total(counts(mechanism), relation=REPLACE_ONE))


@pytest.mark.parametrize("relation", [REPLACE_ONE, REPLACE_SPECIAL])
def test_mechanisms_add_up_with_gaussians(relation: NeighboringRelation) -> None:
    units = [event(Gaussian(noise_multiplier=5.0), POISSON), *(event(one) for one in MECHANISMS)]
    together = guarantee(
        EventCounts(steps=dict.fromkeys(units, 2)), relation=relation, delta=1e-5, accept=ACCEPTABLE
    )
    alone = [
        epsilon_of(guarantee(EventCounts(steps={unit: 2}), relation=relation, delta=1e-5))
        for unit in units
    ]
    assert max(alone) < epsilon_of(together) < sum(alone)
    assert together.headline is not None
    assert together.headline.bound == "composition"
