"""The odometer as an accountant, and guarantees that hold for either account of the facts."""

import math
from dataclasses import replace

import pytest

from accounting.accountants.best_bound import best_bound, guarantee, with_odometer
from accounting.accountants.best_first import ACCOUNTANTS, ODOMETER
from accounting.event_counts import EventCounts
from accounting.events import (
    ApproximateDp,
    Event,
    Full,
    Gaussian,
    NeighboringRelation,
    NoNoise,
    Poisson,
    Zcdp,
)
from accounting.filters import odometer_epsilon
from accounting.guarantees import (
    ACCEPTABLE,
    DEFAULT_ACCEPT,
    Assumption,
    Bound,
    Guarantee,
    Status,
    ValidFor,
    covering,
)

RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE
DERIVED = DEFAULT_ACCEPT | {Status.DERIVED}


def gaussian(noise: float = 1.0, rate: float = 0.01) -> Event:
    return Event(
        mechanism=Gaussian(noise_multiplier=noise), sampling=Poisson(sampling_probability=rate)
    )


def counts(event: Event | None = None, steps: int = 1000) -> EventCounts:
    return EventCounts(steps={event or gaussian(): steps})


def odometer(of: EventCounts, **given: object) -> Guarantee:
    asked: dict[str, object] = {"delta": 1e-5, "accept": DERIVED, "accountant": ODOMETER} | given
    return guarantee(of, relation=RELATION, **asked)  # type: ignore[arg-type]


def test_the_odometer_answers_what_it_reads_and_for_any_schedule() -> None:
    found = odometer(counts())
    read = odometer_epsilon(counts(), relation=RELATION, delta=1e-5)
    assert found.epsilon == read == pytest.approx(2.8809, abs=1e-4)
    headline = found.headline
    assert headline is not None
    assert (headline.valid_for, headline.status) == (ValidFor.ADAPTIVE, Status.DERIVED)
    assert headline.bound == "renyi-odometer"
    assert headline.theorems[-1] == "renyi-odometer"
    assert Assumption.PARAMETERS_FIXED_IN_ADVANCE not in headline.assumptions
    assert Assumption.POISSON_SAMPLING in headline.assumptions
    assert found.epsilon_lower is not None
    assert found.epsilon_lower <= found.epsilon


def test_the_odometer_is_never_the_best_nor_below_it() -> None:
    best = guarantee(counts(), relation=RELATION, delta=1e-5, accept=DERIVED)
    assert best.headline is not None
    assert best.headline.accountant != ODOMETER
    assert all(bound.accountant != ODOMETER for bound in best.alternatives)
    assert best.epsilon is not None
    assert odometer(counts()).epsilon > best.epsilon  # type: ignore[operator]


def test_an_odometer_that_is_not_accepted_stands_beside_and_says_why() -> None:
    found = odometer(counts(), accept=DEFAULT_ACCEPT)
    assert found.epsilon is None
    assert found.reason is not None
    assert "derived, which is not accepted" in found.reason
    assert [bound.accountant for bound in found.alternatives] == [ODOMETER]


def test_an_odometer_has_no_delta_of_an_epsilon() -> None:
    found = odometer(counts(), delta=None, epsilon=3.0)
    assert (found.epsilon, found.delta) == (None, None)
    assert found.reason == "An odometer is read at a delta: it has no delta of an epsilon."


def test_an_odometer_of_what_may_fail_too_often_or_has_no_bound_reads_nothing() -> None:
    fails = Event(mechanism=ApproximateDp(epsilon=0.1, delta=1e-9), sampling=Full())
    found = odometer(counts(fails, 1))
    assert found.epsilon is None
    assert found.reason == "What may fail takes more of delta than an odometer keeps for it."
    assert odometer(counts(Event(mechanism=NoNoise(), sampling=Full()), 1)).epsilon is None
    rarely = Event(mechanism=ApproximateDp(epsilon=0.1, delta=1e-12), sampling=Full())
    assert odometer(counts(rarely, 1)).epsilon is not None


def test_a_reading_is_no_better_established_than_what_it_adds_up() -> None:
    declared = Event(mechanism=Zcdp(rho=0.01), sampling=Full())
    headline = odometer(counts(declared, 3)).headline
    assert headline is not None
    assert headline.status is Status.DECLARED


@pytest.mark.no_cover
def test_of_very_many_events_the_odometer_reads_an_upper_balance() -> None:
    many = EventCounts(steps={gaussian(1 + i / 1000): 3 for i in range(500)})
    coarse = odometer(many).epsilon
    exact = odometer_epsilon(many, relation=RELATION, delta=1e-5)
    assert coarse is not None
    assert exact <= coarse <= 1.01 * exact
    assert "outward-rounding" in odometer(many).headline.theorems  # type: ignore[union-attr]


def test_the_odometer_is_put_beside_the_best_alone() -> None:
    plain = guarantee(counts(), relation=RELATION, delta=1e-5)
    beside = with_odometer(plain, counts(), delta=1e-5)
    *others, last = beside.alternatives
    assert tuple(others) == plain.alternatives
    assert last.accountant == ODOMETER
    assert replace(beside, alternatives=plain.alternatives) == plain
    assert with_odometer(plain, counts(), delta=None) is plain
    assert with_odometer(plain, counts(), delta=1e-5, accountant="rdp") is plain
    unbounded = counts(Event(mechanism=NoNoise(), sampling=Full()))
    none = guarantee(unbounded, relation=RELATION, delta=1e-5)
    assert with_odometer(none, unbounded, delta=1e-5) is none


def test_an_unknown_accountant_is_told_all_there_are() -> None:
    with pytest.raises(ValueError, match="best, gdp, pld, rdp, odometer"):
        best_bound(counts(), relation=RELATION, delta=1e-5, accountant="other")
    assert ODOMETER not in ACCOUNTANTS


# Two accounts of the facts


def both(first: EventCounts, second: EventCounts) -> tuple[Guarantee, Guarantee]:
    found = [
        with_odometer(
            guarantee(one, relation=RELATION, delta=1e-5, accept=ACCEPTABLE), one, delta=1e-5
        )
        for one in (first, second)
    ]
    return found[0], found[1]


def test_what_covers_two_accounts_is_above_both_and_its_floor_below_both() -> None:
    less, more = both(counts(gaussian(1.2)), counts(gaussian(0.9)))
    for found in (covering(less, more), covering(more, less)):
        assert found.epsilon == more.epsilon
        assert found.headline == more.headline
        assert found.epsilon_lower == less.epsilon_lower
        assert found.unamplified_epsilon == more.unamplified_epsilon
        for bound in found.alternatives:
            for one in (less, more):
                own = [b for b in (one.headline, *one.alternatives) if b is not None]
                floor = min(b.epsilon for b in own if b.accountant == bound.accountant)
                assert bound.epsilon >= floor


def made(epsilon: float, accountant: str = "pld", *, lower: float | None = None) -> Bound:
    return Bound(
        epsilon=epsilon,
        delta=1e-5,
        accountant=accountant,
        bound="some",
        theorems=("some",),
        status=Status.PUBLISHED,
        assumptions=(),
        epsilon_lower=lower,
    )


def told(headline: Bound | None, *others: Bound, lower: float | None = None) -> Guarantee:
    return Guarantee(
        epsilon=headline.epsilon if headline else None,
        epsilon_lower=lower,
        delta=1e-5,
        neighboring_relation=RELATION,
        headline=headline,
        reason=None if headline else "why",
        unamplified_epsilon=None if headline is None else headline.epsilon,
        alternatives=others,
    )


def test_each_accountant_beside_holds_for_both_accounts_or_is_left_out() -> None:
    first = told(made(2.0), made(3.0, "rdp", lower=0.5), made(9.0, "gdp"), lower=1.0)
    second = told(made(1.0), made(3.5, "rdp", lower=0.6), lower=0.8)
    found = covering(first, second)
    assert found == covering(second, first)
    assert (found.epsilon, found.epsilon_lower) == (2.0, 0.8)
    assert [(b.accountant, b.epsilon, b.epsilon_lower) for b in found.alternatives] == [
        ("rdp", 3.5, 0.5)
    ]


def test_what_covers_two_accounts_rests_on_the_theorems_of_both() -> None:
    proved = replace(
        made(1.0),
        theorems=("proved",),
        status=Status.DERIVED,
        assumptions=(Assumption.SECRET_ORDER,),
    )
    larger = replace(
        made(2.0), assumptions=(Assumption.POISSON_SAMPLING,), valid_for=ValidFor.ADAPTIVE
    )
    rest = replace(proved, accountant="rdp", epsilon=3.0), replace(larger, accountant="rdp")
    less, more = told(proved, rest[0]), told(larger, rest[1])
    for found in (covering(less, more), covering(more, less)):
        assert found.headline is not None
        for bound, epsilon in ((found.headline, 2.0), (found.alternatives[0], 3.0)):
            assert (bound.epsilon, bound.status) == (epsilon, Status.DERIVED)
            assert set(bound.theorems) == {"some", "proved"}
            assert bound.assumptions == (Assumption.POISSON_SAMPLING, Assumption.SECRET_ORDER)
            assert bound.valid_for is ValidFor.FIXED_SCHEDULE


def test_an_account_without_a_finite_bound_has_the_last_word() -> None:
    finite, infinite = told(made(2.0), lower=1.0), told(None, made(5.0, "pld"))
    for found in (covering(finite, infinite), covering(infinite, finite)):
        assert (found.epsilon, found.reason, found.epsilon_lower) == (None, "why", None)
        assert found.unamplified_epsilon is None
        assert [bound.epsilon for bound in found.alternatives] == [5.0]


def test_of_two_deltas_at_one_epsilon_the_larger_is_told() -> None:
    of = [guarantee(counts(gaussian(n)), relation=RELATION, epsilon=1.0) for n in (1.2, 0.9)]
    found = covering(of[0], of[1])
    assert found.delta == max(one.delta or math.nan for one in of)
    assert found.epsilon == 1.0
    # What the account with less is known to lose, it loses at its own delta.
    assert {one.epsilon_lower is None for one in of} == {False}
    assert found.epsilon_lower is None
    assert [bound.epsilon_lower for bound in found.alternatives if bound.epsilon_lower] == []
    same = covering(of[0], of[0])
    assert same.epsilon_lower == of[0].epsilon_lower
