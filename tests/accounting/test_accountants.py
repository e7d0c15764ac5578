import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import THEOREMS
from accounting.accountants.best_bound import guarantee
from accounting.accountants.best_first import ACCOUNTANTS
from accounting.accountants.composed_bounds import compose_gdp, compose_rdp
from accounting.bounds.event_bounds import (
    REASON_BATCHES_MOVE,
    REASON_NO_NOISE,
    REASON_NOT_GAUSSIAN_DP,
)
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.event_counts import EventCounts, count_events
from accounting.events import (
    BallsAndBins,
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Mechanism,
    NeighboringRelation,
    NoNoise,
    Poisson,
    Reshuffle,
    Sampling,
    Shuffle,
    Span,
    Unknown,
)
from accounting.guarantees import (
    ACCEPTABLE,
    DEFAULT_ACCEPT,
    Assumption,
    Guarantee,
    Status,
    Theorem,
    ValidFor,
    weakest,
)
from accounting.renyi.orders import ORDERS

ADD_OR_REMOVE_ONE, REPLACE_ONE, REPLACE_SPECIAL = NeighboringRelation
DERIVED = DEFAULT_ACCEPT | {Status.DERIVED}
DELTA = 1e-5
CYCLIC = Cyclic(batch_size=10, steps_per_pass=1000)
SHUFFLE = Shuffle(batch_size=10, steps_per_pass=1000, reshuffle=Reshuffle.EACH_PASS)
POISSON = Poisson(sampling_probability=0.01)
FIXED_SIZE = FixedSize(batch_size=10, dataset_size=1000)
SAMPLINGS: list[Sampling] = [Full(), Unknown(), POISSON, FIXED_SIZE, CYCLIC, SHUFFLE]
MECHANISMS: list[Mechanism] = [Gaussian(noise_multiplier=1.3), NoNoise()]
COMBINATIONS = list(product(MECHANISMS, SAMPLINGS, NeighboringRelation))
BY_ID: dict[str, Theorem[..., object]] = {theorem.id: theorem for theorem in THEOREMS}
PROPERTY = settings(deadline=None, max_examples=25)


def counts(sampling: Sampling, *, steps: int = 1, sigma: float = 1.0) -> EventCounts:
    event = Event(mechanism=Gaussian(noise_multiplier=sigma), sampling=sampling)
    return count_events([[Span(event=event, steps=steps)]])


def epsilon_of(answer: Guarantee) -> float:
    assert answer.epsilon is not None, answer.reason
    return answer.epsilon


def refused(mechanism: Mechanism, sampling: Sampling, relation: NeighboringRelation) -> str | None:
    """Why a combination has no bound: the whole table of refusals."""
    if isinstance(mechanism, NoNoise):
        return REASON_NO_NOISE
    if relation is ADD_OR_REMOVE_ONE and isinstance(sampling, Cyclic | Shuffle):
        return REASON_BATCHES_MOVE
    return None


@pytest.mark.parametrize("asked", ["delta", "epsilon"])
@pytest.mark.parametrize(("mechanism", "sampling", "relation"), COMBINATIONS)
def test_every_event_has_a_complete_bound_or_a_reason(
    mechanism: Mechanism, sampling: Sampling, relation: NeighboringRelation, asked: str
) -> None:
    spent = count_events([[Span(event=Event(mechanism=mechanism, sampling=sampling), steps=3)]])
    if asked == "delta":
        answer = guarantee(spent, relation=relation, delta=DELTA)
    else:
        answer = guarantee(spent, relation=relation, epsilon=8.0)
    assert answer.neighboring_relation is relation
    assert answer.reason == refused(mechanism, sampling, relation)
    if answer.reason is not None:
        assert answer.epsilon is None
        assert answer.headline is None
        assert answer.alternatives == ()
        return
    assert answer.headline is not None
    assert answer.epsilon == answer.headline.epsilon
    assert answer.delta == answer.headline.delta
    for bound in (answer.headline, *answer.alternatives):
        assert math.isfinite(bound.epsilon)
        assert 0 < bound.delta < 1
        assert bound.accountant in ACCOUNTANTS
        assert bound.valid_for is ValidFor.FIXED_SCHEDULE
        assert (bound.order is not None) == (bound.accountant == "rdp")
        used = [BY_ID[name] for name in bound.theorems]
        assert bound.status is weakest([theorem.status for theorem in used])
        through = relation is REPLACE_ONE and "through-null-record" in bound.theorems
        relations = {relation} | ({NeighboringRelation.REPLACE_SPECIAL} if through else set())
        assert all(relations.intersection(theorem.relations) for theorem in used)
        needed = {a for theorem in used for a in theorem.assumptions}
        assert needed - {Assumption.PARAMETERS_FIXED_IN_ADVANCE} <= set(bound.assumptions)
        assert Assumption.INDEPENDENT_GAUSSIAN_NOISE in bound.assumptions


@pytest.mark.parametrize("accountant", ["best", *ACCOUNTANTS])
@pytest.mark.parametrize(("mechanism", "sampling", "relation"), COMBINATIONS)
def test_the_best_accountant_is_no_worse_than_any(
    mechanism: Mechanism, sampling: Sampling, relation: NeighboringRelation, accountant: str
) -> None:
    spent = count_events([[Span(event=Event(mechanism=mechanism, sampling=sampling), steps=3)]])
    one = guarantee(spent, relation=relation, delta=DELTA, accountant=accountant)
    best = guarantee(spent, relation=relation, delta=DELTA)
    if one.epsilon is not None:
        assert epsilon_of(best) <= one.epsilon
        assert one.headline is not None
        assert accountant in ("best", one.headline.accountant)


def test_a_batch_of_fixed_size_is_no_gaussian_release_when_a_record_is_added() -> None:
    spent = counts(FIXED_SIZE)
    answer = guarantee(spent, relation=ADD_OR_REMOVE_ONE, delta=DELTA, accountant="gdp")
    assert answer.epsilon is None
    assert answer.reason == REASON_NOT_GAUSSIAN_DP


@pytest.mark.parametrize("relation", NeighboringRelation)
def test_unknown_sampling_costs_as_full_and_says_what_it_assumes(
    relation: NeighboringRelation,
) -> None:
    unknown = guarantee(counts(Unknown()), relation=relation, delta=DELTA)
    full = guarantee(counts(Full()), relation=relation, delta=DELTA)
    assert unknown.epsilon == full.epsilon
    assert unknown.headline is not None
    assert Assumption.OTHERS_UNAFFECTED in unknown.headline.assumptions


def test_replacing_under_poisson_sampling_uses_what_is_accepted() -> None:
    spent = counts(POISSON, steps=1000)
    cautious = guarantee(spent, relation=REPLACE_ONE, delta=DELTA)
    assert cautious.headline is not None
    assert cautious.headline.status is Status.PUBLISHED
    assert "through-null-record" in cautious.headline.theorems
    assert cautious.headline.bound == "poisson-gaussian"
    assert "gaussian-dp" in {bound.bound for bound in cautious.alternatives}
    # A single step is told apart better directly than through a null record.
    once = counts(Poisson(sampling_probability=0.3), steps=1)
    direct = guarantee(once, relation=REPLACE_ONE, delta=0.2, accept=DERIVED)
    assert direct.headline is not None
    assert direct.headline.bound == "poisson-replace-tight"
    assert direct.headline.status is Status.DERIVED
    default = guarantee(once, relation=REPLACE_ONE, delta=0.2)
    assert epsilon_of(default) >= direct.headline.epsilon


def test_a_refused_status_is_named_in_the_reason() -> None:
    answer = guarantee(
        counts(POISSON), relation=REPLACE_ONE, delta=DELTA, accept=frozenset({Status.DECLARED})
    )
    assert answer.epsilon is None
    assert answer.reason is not None
    assert "published" in answer.reason
    assert answer.alternatives  # what could be said is still said


@pytest.mark.parametrize("status", [Status.CONJECTURE, Status.ESTIMATE])
def test_conjectures_and_estimates_are_never_accepted(status: Status) -> None:
    assert status not in ACCEPTABLE
    with pytest.raises(ValueError, match="never accepted"):
        guarantee(
            counts(Full()),
            relation=REPLACE_ONE,
            delta=DELTA,
            accept=DEFAULT_ACCEPT | {status},
        )


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("relation", NeighboringRelation)
def test_unamplified_epsilon_is_that_of_full_batches(
    sampling: Sampling, relation: NeighboringRelation
) -> None:
    answer = guarantee(counts(sampling, steps=7), relation=relation, delta=DELTA)
    full = guarantee(counts(Full(), steps=7), relation=relation, delta=DELTA, accountant="gdp")
    assert answer.unamplified_epsilon == full.epsilon


def test_unamplified_epsilon_counts_events_of_equal_noise_together() -> None:
    mixed = count_events(
        [
            [Span(event=Event(mechanism=MECHANISMS[0], sampling=s), steps=2)]
            for s in (POISSON, Full(), FIXED_SIZE)
        ]
    )
    answer = guarantee(mixed, relation=ADD_OR_REMOVE_ONE, delta=DELTA)
    whole = counts(Full(), steps=6, sigma=1.3)
    full = guarantee(whole, relation=ADD_OR_REMOVE_ONE, delta=DELTA, accountant="gdp")
    assert answer.unamplified_epsilon == full.epsilon
    assert answer.headline is not None
    assert answer.headline.bound == "composition"


@pytest.mark.parametrize(("passes", "epsilon"), [(1, 4.377178095681225), (10, 17.856586830107624)])
def test_shuffled_passes_cost_one_gaussian_each(passes: int, epsilon: float) -> None:
    spent = counts(SHUFFLE, steps=passes * SHUFFLE.steps_per_pass)
    answer = guarantee(spent, relation=REPLACE_SPECIAL, delta=DELTA)
    assert epsilon <= epsilon_of(answer) * (1 + 1e-12)
    assert answer.epsilon == pytest.approx(epsilon, rel=1e-9)
    assert answer.headline is not None
    assert answer.headline.bound == "gaussian-per-pass"


@pytest.mark.parametrize("sampling", [CYCLIC, SHUFFLE, Full()])
def test_replacing_costs_as_zeroing_out_at_half_the_noise(sampling: Sampling) -> None:
    replaced = guarantee(counts(sampling, sigma=2.0), relation=REPLACE_ONE, delta=DELTA)
    zeroed = guarantee(counts(sampling, sigma=1.0), relation=REPLACE_SPECIAL, delta=DELTA)
    assert replaced.epsilon == zeroed.epsilon


@pytest.mark.parametrize("relation", NeighboringRelation)
def test_an_empty_balance_costs_nothing(relation: NeighboringRelation) -> None:
    answer = guarantee(EventCounts(), relation=relation, delta=DELTA)
    assert answer.epsilon == 0
    assert answer.unamplified_epsilon == 0
    nothing = guarantee(EventCounts(), relation=relation, epsilon=0.0)
    assert nothing.delta is not None
    assert nothing.delta < 1e-299


@pytest.mark.no_cover
@PROPERTY
@given(
    sampling=st.sampled_from(SAMPLINGS[:4]),
    first=st.integers(1, 5000),
    second=st.integers(1, 5000),
    accountant=st.sampled_from(list(ACCOUNTANTS)),
)
def test_steps_add(sampling: Sampling, first: int, second: int, accountant: str) -> None:
    event = Event(mechanism=MECHANISMS[0], sampling=sampling)
    parts = count_events([[Span(event=event, steps=first)], [Span(event=event, steps=second)]])
    whole = count_events([[Span(event=event, steps=first + second)]])
    ask = {"relation": REPLACE_SPECIAL, "delta": DELTA, "accountant": accountant}
    assert guarantee(parts, **ask) == guarantee(whole, **ask)  # type: ignore[arg-type]
    less = guarantee(count_events([[Span(event=event, steps=first)]]), **ask)  # type: ignore[arg-type]
    assert epsilon_of(less) <= epsilon_of(guarantee(whole, **ask))  # type: ignore[arg-type]


def test_a_remembered_curve_cannot_be_written_to() -> None:
    for sampling, relation in product(SAMPLINGS[:4], NeighboringRelation):
        event = Event(mechanism=MECHANISMS[0], sampling=sampling)
        assert not any(b.loss.flags.writeable for b in renyi_bounds(event, relation))
        assert renyi_bounds(event, relation) is renyi_bounds(event, relation)


LOSSES = st.lists(st.tuples(st.floats(1e-9, 1e3), st.integers(1, 10**7)), max_size=8)


@settings(deadline=None)
@given(losses=LOSSES)
def test_added_curves_are_the_exact_sum_from_above(losses: list[tuple[float, int]]) -> None:
    curves = [np.full_like(ORDERS, loss) for loss, _ in losses]
    rdp = compose_rdp(curves=curves, counts=[count for _, count in losses])
    exact = sum((count * Fraction(loss) for loss, count in losses), Fraction(0))
    assert np.all(rdp == rdp[0])
    assert exact <= Fraction(float(rdp[0])) <= exact * (1 + Fraction(1, 10**14))


@settings(deadline=None)
@given(losses=LOSSES)
def test_added_squares_of_mu_are_the_exact_sum_from_above(losses: list[tuple[float, int]]) -> None:
    mu = compose_gdp(mus=[mu for mu, _ in losses], counts=[count for _, count in losses])
    exact = sum((count * Fraction(mu) ** 2 for mu, count in losses), Fraction(0))
    assert exact <= Fraction(mu) ** 2 <= exact * (1 + Fraction(1, 10**14)) + Fraction(1e-300)


def test_no_sum_is_left_to_the_mercy_of_its_rounding() -> None:
    # Plain arithmetic falls below the exact sum of some of these.
    for mu in np.linspace(0.01, 1, 200).tolist():
        for count in (3, 7, 11):
            assert Fraction(compose_gdp(mus=[mu], counts=[count])) ** 2 >= count * Fraction(mu) ** 2
            (rdp, *_) = compose_rdp(curves=[np.full_like(ORDERS, mu)] * 2, counts=[count, 1])
            assert Fraction(float(rdp)) >= (count + 1) * Fraction(mu)


@pytest.mark.parametrize("accountant", list(ACCOUNTANTS))
@pytest.mark.parametrize("sampling", [Full(), POISSON])
def test_asking_for_delta_undoes_asking_for_epsilon(sampling: Sampling, accountant: str) -> None:
    spent = counts(sampling, steps=100, sigma=5.0)
    epsilon = epsilon_of(
        guarantee(spent, relation=ADD_OR_REMOVE_ONE, delta=DELTA, accountant=accountant)
    )
    back = guarantee(spent, relation=ADD_OR_REMOVE_ONE, epsilon=epsilon, accountant=accountant)
    assert back.delta is not None
    assert back.delta <= DELTA * (1 + 1e-8)
    assert back.delta == pytest.approx(DELTA, rel=1e-2 if accountant == "pld" else 1e-8)
    assert back.epsilon == epsilon


def test_a_few_events_have_a_bound_in_each_of_many_parts_of_an_answer() -> None:
    steps = {
        Event(mechanism=Gaussian(noise_multiplier=9.0 + 1.5 * one), sampling=sampling): 5
        for one in range(4)
        for sampling in (BallsAndBins(steps_per_pass=length) for length in (2, 3, 50))
    }
    found = guarantee(
        EventCounts(steps=steps, passes=steps),
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        delta=1e-5,
        accept=ACCEPTABLE,
        share=0.01,
    )
    assert found.headline is not None
    assert found.headline.accountant == "rdp"


def test_a_bound_that_says_nothing_is_no_bound() -> None:
    event = Event(mechanism=Gaussian(noise_multiplier=1e-100), sampling=Full())
    spent = EventCounts(steps={event: 10**102})  # mu above 1e150
    for relation in NeighboringRelation:
        infinite = guarantee(spent, relation=relation, delta=DELTA, accountant="gdp")
        assert infinite.epsilon is None
        assert infinite.unamplified_epsilon is None
        assert infinite.reason == "The bound says nothing: epsilon is infinite or delta is one."
    certain = guarantee(
        counts(Full(), sigma=1e-9), relation=REPLACE_ONE, epsilon=1.0, accountant="rdp"
    )
    assert certain.epsilon is None
    assert certain.delta is None


@pytest.mark.parametrize("epsilon", [float("inf"), float("nan"), -1.0])
def test_delta_is_asked_for_at_a_finite_epsilon(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        guarantee(counts(Full()), relation=REPLACE_ONE, epsilon=epsilon)


def test_one_step_without_noise_spoils_every_sum() -> None:
    spent = count_events(
        [
            [Span(event=Event(mechanism=mechanism, sampling=Full()), steps=1)]
            for mechanism in MECHANISMS
        ]
    )
    answer = guarantee(spent, relation=REPLACE_ONE, delta=DELTA)
    assert answer.epsilon is None
    assert answer.reason == REASON_NO_NOISE
    assert answer.unamplified_epsilon is None


@pytest.mark.parametrize("ask", [{}, {"delta": 1e-5, "epsilon": 1.0}])
def test_exactly_one_of_epsilon_and_delta_is_asked_for(ask: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="not both"):
        guarantee(
            EventCounts(), relation=REPLACE_ONE, delta=ask.get("delta"), epsilon=ask.get("epsilon")
        )


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_a_delta_out_of_range_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta lies in"):
        guarantee(counts(Full()), relation=REPLACE_ONE, delta=delta)


@pytest.mark.parametrize("epsilon", [-1.0, math.nan])
def test_an_epsilon_out_of_range_is_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match="not negative"):
        guarantee(counts(Full()), relation=REPLACE_ONE, epsilon=epsilon)


def test_an_unknown_accountant_is_refused() -> None:
    with pytest.raises(ValueError, match="best, gdp, pld, rdp"):
        guarantee(EventCounts(), relation=REPLACE_ONE, delta=DELTA, accountant="clt")
