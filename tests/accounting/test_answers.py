import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from accounting import THEOREMS
from accounting.accountants import best_first, many_noises, queries
from accounting.accountants.best_bound import best_bound, guarantee, with_lower_bound
from accounting.accountants.best_first import ACCOUNTANTS
from accounting.accountants.composed_bounds import gdp_bound, pld_bound, rdp_bound
from accounting.accountants.event_grouping import GroupedEvents
from accounting.accountants.queries import Query, epsilon_lower_bound
from accounting.bounds.lower_bounds import lower_bound_units
from accounting.event_counts import EventCounts
from accounting.events import (
    ApproximateDp,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    Mechanism,
    NeighboringRelation,
    Poisson,
    RandomizedResponse,
    Sampling,
    Unknown,
    Zcdp,
)
from accounting.guarantees import ACCEPTABLE, DEFAULT_ACCEPT, Bound, Guarantee, Status, weakest
from accounting.pld.certified_composition import epsilon_bracket, lower_epsilon
from accounting.pld.pairs import GaussianPair, Pair, SampledGaussianPair

ADD_OR_REMOVE_ONE, REPLACE_ONE, REPLACE_SPECIAL = NeighboringRelation
DELTA = 1e-5
BY_ID = {theorem.id: theorem for theorem in THEOREMS}
GAUSSIAN = Gaussian(noise_multiplier=2.0)
LAPLACE = Laplace(noise_multiplier=4.0)
RESPONSE = RandomizedResponse(probability_of_truth=0.6, categories=3)
DECLARED = ApproximateDp(epsilon=0.3, delta=1e-8)
ZCDP = Zcdp(rho=0.02)
POISSON = Poisson(sampling_probability=0.05)
MECHANISMS: list[Mechanism] = [GAUSSIAN, LAPLACE, RESPONSE, DECLARED, ZCDP]
SAMPLINGS: list[Sampling] = [
    Full(), Unknown(), POISSON, FixedSize(batch_size=5, dataset_size=100)
]  # fmt: skip


def spent(mechanism: Mechanism, sampling: Sampling, steps: int = 1) -> EventCounts:
    return EventCounts(steps={Event(mechanism=mechanism, sampling=sampling): steps})


def asked(
    *,
    relation: NeighboringRelation = ADD_OR_REMOVE_ONE,
    delta: float | None = DELTA,
    epsilon: float | None = None,
) -> Query:
    return Query(relation=relation, accept=DEFAULT_ACCEPT, delta=delta, epsilon=epsilon)


@pytest.mark.parametrize("relation", NeighboringRelation)
@pytest.mark.parametrize(("mechanism", "sampling"), list(product(MECHANISMS, SAMPLINGS)))
def test_a_lower_bound_never_exceeds_its_upper_one(
    mechanism: Mechanism, sampling: Sampling, relation: NeighboringRelation
) -> None:
    counts = spent(mechanism, sampling)
    for accept, ask in product((DEFAULT_ACCEPT, ACCEPTABLE), ("delta", "epsilon")):
        found = guarantee(
            counts,
            relation=relation,
            delta=DELTA if ask == "delta" else None,
            epsilon=0.1 if ask == "epsilon" else None,
            accept=accept,
        )
        if found.headline is None:
            assert found.epsilon_lower is None
            continue
        assert found.epsilon is not None
        assert found.epsilon == found.headline.epsilon
        assert found.epsilon_lower is None or 0 <= found.epsilon_lower <= found.epsilon
        # The headline is the best of what is accepted, and stands beside all else once.
        assert found.headline.status in accept
        assert found.headline not in found.alternatives
        assert len(set(found.alternatives)) == len(found.alternatives)
        for bound in found.alternatives:
            # Beside a declared theorem a derived one does not show in the status of the whole.
            if all(BY_ID[name].status in accept for name in bound.theorems):
                key = (bound.epsilon, bound.delta)
                assert (found.headline.epsilon, found.headline.delta) <= key
        best = best_bound(
            counts,
            relation=relation,
            delta=DELTA if ask == "delta" else None,
            epsilon=0.1 if ask == "epsilon" else None,
            accept=accept,
        )
        assert best == found.headline
        assert best is not None
        floored = with_lower_bound(best, counts, relation=relation)
        assert replace(floored, epsilon_lower=best.epsilon_lower) == best
        if floored.epsilon_lower is not None:
            assert (best.epsilon_lower or 0) <= floored.epsilon_lower <= best.epsilon


def test_full_and_poisson_steps_are_known_from_both_sides() -> None:
    events = [Event(mechanism=m, sampling=s) for m in MECHANISMS[:2] for s in (Full(), POISSON)]
    for event in events:
        found = guarantee(EventCounts(steps={event: 1}), relation=ADD_OR_REMOVE_ONE, delta=DELTA)
        assert found.epsilon is not None
        assert found.epsilon_lower is not None
        assert found.epsilon - found.epsilon_lower <= 1e-8 * found.epsilon


def test_zcdp_has_the_lower_bound_of_the_gaussian_that_satisfies_it() -> None:
    found = guarantee(spent(ZCDP, Full(), 5), relation=REPLACE_ONE, delta=DELTA)
    gaussian = guarantee(
        spent(Gaussian(noise_multiplier=5.0), Full(), 5), relation=ADD_OR_REMOVE_ONE, delta=DELTA
    )
    assert found.epsilon_lower is not None
    assert gaussian.epsilon is not None
    assert found.epsilon_lower == pytest.approx(gaussian.epsilon, rel=1e-9)
    assert found.epsilon_lower <= gaussian.epsilon


def test_steps_that_nothing_is_known_of_are_left_out_below() -> None:
    hidden = Event(mechanism=GAUSSIAN, sampling=Unknown())
    known = Event(mechanism=GAUSSIAN, sampling=POISSON)
    both = EventCounts(steps={hidden: 3, known: 40})
    question = asked()
    bound = pld_bound(both, question)
    pair = SampledGaussianPair(noise_multiplier=2.0, sampling_probability=0.05)
    assert bound.epsilon_lower == lower_epsilon([(pair, 40)], delta=DELTA)
    above: list[tuple[Pair, int]] = [(GaussianPair(noise_multiplier=2.0), 3), (pair, 40)]
    assert bound.epsilon == epsilon_bracket(above, delta=DELTA).upper
    assert pld_bound(EventCounts(steps={hidden: 3}), question).epsilon_lower is None
    assert epsilon_lower_bound(both, relation=ADD_OR_REMOVE_ONE, delta=DELTA) == bound.epsilon_lower
    nothing = EventCounts(steps={hidden: 3})
    assert epsilon_lower_bound(nothing, relation=ADD_OR_REMOVE_ONE, delta=DELTA) is None


def test_equal_pairs_of_different_events_are_counted_together() -> None:
    once = Event(mechanism=GAUSSIAN, sampling=Full())
    surely = Event(mechanism=GAUSSIAN, sampling=Poisson(sampling_probability=1))
    together = pld_bound(EventCounts(steps={once: 3, surely: 4}), asked())
    apart = pld_bound(EventCounts(steps={once: 7}), asked())
    assert (together.epsilon, together.epsilon_lower) == (apart.epsilon, apart.epsilon_lower)
    assert epsilon_lower_bound(
        EventCounts(steps={once: 3, surely: 4}), relation=ADD_OR_REMOVE_ONE, delta=DELTA
    ) == epsilon_lower_bound(EventCounts(steps={once: 7}), relation=ADD_OR_REMOVE_ONE, delta=DELTA)


def test_asked_for_delta_a_guarantee_still_says_what_is_lost_at_least() -> None:
    found = guarantee(spent(GAUSSIAN, POISSON, 300), relation=ADD_OR_REMOVE_ONE, epsilon=0.8)
    assert found.delta is not None
    assert found.epsilon_lower is not None
    assert 0.8 * (1 - 1e-6) <= found.epsilon_lower <= found.epsilon == 0.8  # type: ignore[operator]
    # A delta of zero, or of one, is one at which nothing is lost, or everything.
    nothing = pld_bound(EventCounts(), asked(delta=None, epsilon=0.5))
    assert (nothing.delta, nothing.epsilon_lower) == (0.0, None)
    none = pld_bound(
        spent(RESPONSE, Full(), 2), asked(relation=REPLACE_ONE, delta=None, epsilon=9.0)
    )
    assert (none.delta, none.epsilon_lower) == (0.0, None)
    hidden = pld_bound(spent(GAUSSIAN, Unknown()), asked(delta=None, epsilon=0.5))
    assert 0 < hidden.delta < 1
    assert hidden.epsilon_lower is None


def test_a_lower_bound_belongs_to_the_delta_of_the_headline() -> None:
    counts = spent(Gaussian(noise_multiplier=8.0), Poisson(sampling_probability=0.01), 300)
    found = guarantee(counts, relation=REPLACE_ONE, epsilon=1.0)
    assert found.delta is not None
    assert found.epsilon_lower is not None
    known = lower_epsilon(lower_bound_units(counts, REPLACE_ONE), delta=found.delta)
    assert found.epsilon_lower <= known


@pytest.mark.no_cover
def test_renyi_curves_never_say_more_than_the_pairs_they_come_from() -> None:
    random = np.random.default_rng(7)
    for _ in range(50):
        steps = {}
        for _ in range(int(random.integers(1, 4))):
            noise = math.exp(random.uniform(math.log(0.6), math.log(8)))
            rate = math.exp(random.uniform(math.log(1e-3), math.log(0.3)))
            event = Event(
                mechanism=Gaussian(noise_multiplier=noise),
                sampling=Poisson(sampling_probability=rate),
            )
            steps[event] = int(random.integers(1, 2000))
        question = asked(delta=math.exp(random.uniform(math.log(1e-9), math.log(1e-3))))
        renyi, pairs = (
            rdp_bound(EventCounts(steps=steps), question),
            pld_bound(EventCounts(steps=steps), question),
        )
        assert pairs.epsilon_lower is not None
        assert pairs.epsilon_lower <= pairs.epsilon
        assert renyi.epsilon >= pairs.epsilon_lower


def test_a_lower_bound_above_the_headline_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = spent(ZCDP, Full())
    epsilon = guarantee(counts, relation=REPLACE_ONE, delta=DELTA).epsilon
    assert epsilon is not None
    for lower in (math.nextafter(epsilon, 9e9), math.nan):
        monkeypatch.setattr(queries, "epsilon_lower_bound", lambda *_, at=lower, **__: at)
        with pytest.raises(ArithmeticError, match="exceeds an upper one"):
            guarantee(counts, relation=REPLACE_ONE, delta=DELTA)
    monkeypatch.setattr(queries, "epsilon_lower_bound", lambda *_, **__: epsilon)
    assert guarantee(counts, relation=REPLACE_ONE, delta=DELTA).epsilon_lower == epsilon


def test_what_pairs_have_settled_is_not_asked_of_renyi_curves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: list[str] = []

    def spied(name: str) -> Callable[[EventCounts, Query], Bound]:
        def ask(counts: EventCounts, question: Query) -> Bound:
            names.append(name)
            return ACCOUNTANTS[name](counts, question)

        return ask

    spies = {name: spied(name) for name in ACCOUNTANTS}
    monkeypatch.setattr(best_first, "ACCOUNTANTS", spies)
    best_bound(spent(GAUSSIAN, POISSON), relation=ADD_OR_REMOVE_ONE, delta=DELTA)
    assert names == ["gdp", "pld"]
    names.clear()
    best_bound(spent(ZCDP, Full()), relation=ADD_OR_REMOVE_ONE, delta=DELTA)
    assert names == ["gdp", "pld", "rdp"]


@pytest.mark.parametrize("mechanism", [LAPLACE, DECLARED, ZCDP])
def test_unamplified_epsilon_is_that_of_full_batches_without_gaussian_noise(
    mechanism: Mechanism,
) -> None:
    ask = {"relation": ADD_OR_REMOVE_ONE, "delta": DELTA}
    sampled = guarantee(spent(mechanism, POISSON), **ask)  # type: ignore[arg-type]
    full = guarantee(spent(mechanism, Full()), **ask)  # type: ignore[arg-type]
    assert sampled.unamplified_epsilon == full.unamplified_epsilon == full.epsilon
    assert full.epsilon is not None
    # Beside Gaussian noise the whole is composed, and never said to be Gaussian alone.
    mixed = EventCounts(
        steps={
            Event(mechanism=mechanism, sampling=POISSON): 1,
            Event(mechanism=GAUSSIAN, sampling=POISSON): 1,
        }
    )
    answer = guarantee(mixed, **ask)  # type: ignore[arg-type]
    alone = guarantee(spent(GAUSSIAN, Full()), **ask)  # type: ignore[arg-type]
    assert answer.unamplified_epsilon is not None
    assert alone.epsilon is not None
    assert answer.unamplified_epsilon > max(full.epsilon, alone.epsilon)


def test_unamplified_epsilon_needs_a_delta_between_zero_and_one() -> None:
    sure = guarantee(spent(RESPONSE, Full(), 2), relation=REPLACE_ONE, epsilon=9.0)
    assert (sure.delta, sure.unamplified_epsilon, sure.epsilon_lower) == (0.0, None, None)


def test_too_many_steps_of_unknown_sampling_keep_their_closed_form_and_no_lower_end() -> None:
    events = [
        Event(mechanism=Gaussian(noise_multiplier=50.0 + i), sampling=Unknown()) for i in range(401)
    ]
    counts = EventCounts(steps=dict.fromkeys(events, 1))
    found = guarantee(counts, relation=ADD_OR_REMOVE_ONE, delta=DELTA, accountant="pld")
    pairs = [(GaussianPair(noise_multiplier=50.0 + i), 1) for i in range(401)]
    assert found.epsilon == pytest.approx(epsilon_bracket(pairs, delta=DELTA).upper, rel=1e-13)
    assert found.epsilon_lower is None


def rounded(*noises: float) -> GroupedEvents:
    """Sides of these noises: upper, lower, and both rougher; of the upper's own steps."""
    sides = (spent(Gaussian(noise_multiplier=noise), POISSON, 50) for noise in (*noises, noises[0]))
    return GroupedEvents(*sides)


def test_sides_far_apart_are_composed_more_roughly_and_the_better_ends_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked_of: list[float] = []
    real = lower_epsilon

    def spied(units: list[tuple[SampledGaussianPair, int]], **given: Any) -> float:
        asked_of.append(units[0][0].noise_multiplier)
        return real(units, **given)

    for module in (many_noises, queries):
        monkeypatch.setattr(module, "lower_epsilon", spied)
    near = many_noises.rounded_epsilon(rounded(2.0, 2.001, 1.8, 2.2), asked(), DELTA)
    assert asked_of == [2.001]
    far = many_noises.rounded_epsilon(rounded(1.6, 2.4, 1.8, 2.2), asked(), DELTA)
    assert asked_of == [2.001, 2.4, 2.2]
    ends = {
        noise: epsilon_bracket(
            [(SampledGaussianPair(noise_multiplier=noise, sampling_probability=0.05), 50)],
            delta=DELTA,
        )
        for noise in (1.8, 2.0, 2.2)
    }
    assert near[0] == pytest.approx(ends[2.0].upper, rel=1e-4)
    assert far[0] == pytest.approx(ends[1.8].upper, rel=1e-4)
    assert far[1] == pytest.approx(ends[2.2].lower, rel=1e-4)
    worse = many_noises.rounded_epsilon(rounded(1.8, 2.2, 1.6, 2.4), asked(), DELTA)
    assert worse == pytest.approx(far, rel=1e-4)


def test_a_side_that_is_infinite_is_composed_more_roughly(monkeypatch: pytest.MonkeyPatch) -> None:
    real = epsilon_bracket

    def gives_up(units: list[tuple[SampledGaussianPair, int]], **given: Any) -> object:
        found = real(units, **given)
        return replace(found, upper=math.inf) if units[0][0].noise_multiplier == 2.0 else found

    monkeypatch.setattr(many_noises, "epsilon_bracket", gives_up)
    upper, _ = many_noises.rounded_epsilon(rounded(2.0, 2.001, 1.8, 2.2), asked(), DELTA)
    assert upper < math.inf


def test_failures_that_take_all_of_delta_leave_no_bound() -> None:
    counts = spent(ApproximateDp(epsilon=0.1, delta=1e-5), Full(), 2)
    for accountant in ("rdp", "pld"):
        none = guarantee(counts, relation=REPLACE_ONE, delta=DELTA, accountant=accountant)
        assert none.epsilon is None
        assert none.reason == "The bound says nothing: epsilon is infinite or delta is one."
        some = guarantee(counts, relation=REPLACE_ONE, delta=3e-5, accountant=accountant)
        assert some.epsilon is not None
        at = guarantee(counts, relation=REPLACE_ONE, epsilon=1.0, accountant=accountant)
        assert at.delta is not None
        assert at.delta >= 2e-5 * (1 - 1e-5)


def test_a_guarantee_without_alternatives_has_none() -> None:
    bound = Bound(
        epsilon=1.0,
        delta=DELTA,
        accountant="pld", bound="b", theorems=("b",), status=Status.PUBLISHED, assumptions=(),
    )  # fmt: skip
    assert (bound.order, bound.epsilon_lower) == (None, None)
    whole = Guarantee(
        epsilon=1.0, epsilon_lower=None, delta=DELTA, neighboring_relation=REPLACE_ONE,
        headline=bound, reason=None, unamplified_epsilon=None,
    )  # fmt: skip
    assert whole.alternatives == ()
    assert weakest([]) is Status.PUBLISHED
    assert weakest([Status.DERIVED, Status.PUBLISHED, Status.CONDITIONAL]) is Status.CONDITIONAL


def test_gaussian_releases_alone_are_exact_in_every_accountant_but_renyi() -> None:
    counts = spent(GAUSSIAN, Full(), 12)
    gdp, pld, rdp = (ask(counts, asked()) for ask in (gdp_bound, pld_bound, rdp_bound))
    assert gdp.epsilon == pytest.approx(pld.epsilon, rel=1e-12)
    assert rdp.epsilon > gdp.epsilon
    assert pld.epsilon_lower is not None
    assert pld.epsilon_lower <= gdp.epsilon
