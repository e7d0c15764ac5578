"""The share of a budget's capacity: additive, monotone, 0 where nothing ran, 1 where it is full."""

import math
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.events import Event, Full, Gaussian, NeighboringRelation, NoNoise, Poisson
from accounting.filters import KINDS, ApproximateDpFilter, Filter, choose, plus, times
from accounting.filters.integer_totals import fraction_of

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
EACH = pytest.mark.parametrize("kind", KINDS)
SAMPLED = Event(
    mechanism=Gaussian(noise_multiplier=2.0), sampling=Poisson(sampling_probability=0.01)
)
UNITS = st.integers(1, 1 << 79)
WHOLE = st.integers(0, 1 << 200)


def held(kind: str, *, epsilon: float = 3.0) -> Filter:
    return choose(kind, epsilon=epsilon, delta=1e-5)


def total_of(held_by: Filter, losses: list[int]) -> tuple[int, ...]:
    """A total without uncovered units or failures, whose losses repeat the ones given."""
    zero = held_by.zero()
    first = 1 if len(zero) == 2 else 2
    count = len(zero) - first
    return (*zero[:first], *(losses[at % len(losses)] for at in range(count)))


@given(used=WHOLE, limit=st.integers(1, 1 << 145))
def test_a_fraction_is_the_least_double_that_is_not_below_the_exact_one(
    used: int, limit: int
) -> None:
    found, exact = fraction_of(used, limit), Fraction(used, limit)
    assert Fraction(found) >= exact
    assert not used or Fraction(math.nextafter(found, 0.0)) < exact
    assert (found <= 1) == (used <= limit)


def test_any_use_of_a_limit_that_holds_nothing_is_infinite() -> None:
    assert fraction_of(0, -1) == fraction_of(0, 0) == 0.0
    assert fraction_of(1, 0) == fraction_of(1, -1) == math.inf
    assert fraction_of((1 << 80) - 1, 1 << 80) == 1.0  # rounded up: less than a rounding is left
    assert fraction_of((1 << 80) + 1, 1 << 80) > 1.0


@EACH
def test_nothing_ran_is_zero_and_what_no_bound_covers_is_infinite(kind: str) -> None:
    held_by = held(kind)
    zero = held_by.zero()
    assert held_by.share(zero) == 0.0
    assert held_by.parts([zero, zero]) == (0.0, 0.0)
    unknown = held_by.cost(Event(mechanism=NoNoise(), sampling=Full()), relation=ADD)
    assert unknown[0] == 1
    assert held_by.share(unknown) == math.inf
    assert held_by.share((0, *(-1 for _ in zero[1:]))) == math.inf  # no ledger adds up to it


@EACH
def test_a_full_budget_uses_its_whole_capacity_and_a_step_more_exceeds_it(kind: str) -> None:
    held_by: Any = held(kind)
    unit = total_of(held_by, [(1 << 70) + 1])
    count = held_by.admissible(held_by.zero(), unit)
    assert count > 100
    assert 1 - 2 / count < held_by.share(times(unit, count)) <= 1.0
    assert held_by.share(times(unit, count + 1)) > 1.0
    if kind != "union_of_orders":
        assert held_by.share(held_by.limits[:1] + (0,) * (len(unit) - 2) + held_by.limits[-1:]) == 1


@EACH
@given(losses=st.lists(UNITS, min_size=1, max_size=11), times_over=st.integers(1, 60))
def test_a_share_is_at_most_one_exactly_where_the_total_is_admitted(
    kind: str, losses: list[int], times_over: int
) -> None:
    held_by = held(kind)
    total = times(total_of(held_by, losses), times_over)
    assert (held_by.share(total) <= 1) == held_by.admits(total)


@EACH
@given(st.lists(st.lists(UNITS, min_size=11, max_size=11), min_size=1, max_size=6))
def test_parts_add_up_and_none_falls_back(kind: str, each: list[list[int]]) -> None:
    held_by = held(kind)
    totals = [total_of(held_by, losses) for losses in each]
    sums = list(accumulate(totals, plus))
    parts, share = held_by.parts(totals), held_by.share(sums[-1])
    assert math.fsum(parts) == pytest.approx(share, rel=1e-14)
    assert math.fsum(parts) >= share * (1 - 1e-15)
    shares = [held_by.share(one) for one in sums]
    assert shares == sorted(shares)
    for part, own in zip(parts, totals, strict=True):
        assert part >= held_by.share(own)  # read at what binds the whole
    over_time = held_by.parts(sums, whole=sums[-1])
    assert over_time[-1] == share
    assert all(a <= b for a, b in pairwise(over_time))
    assert all(own <= read for own, read in zip(shares, over_time, strict=True))


def test_tiny_runs_use_as_much_as_they_cost_and_no_conversion() -> None:
    held_by = held("union_of_orders", epsilon=50.0)
    cost = held_by.cost(SAMPLED, relation=ADD)
    one, many = held_by.share(cost), held_by.share(times(cost, 625))
    assert many == pytest.approx(625 * one, rel=1e-2)
    assert many < 0.005
    assert held_by.spent(cost) / 50 > 100 * one  # nearly all of it is the cost of a conversion


def test_failures_count_where_they_bind() -> None:
    for kind in ("fixed_order_renyi", "union_of_orders"):
        held_by: Any = held(kind)
        limit = next(iter(held_by._each(held_by.zero())))[0].limits[1] if kind[0] == "u" else 0
        limit = limit or held_by.limits[1]
        zero = held_by.zero()
        full = (0, limit, *zero[2:])
        assert held_by.share(full) == 1.0
        assert held_by.share((0, limit + 1, *zero[2:])) > 1.0
        assert not held_by.admits((0, limit + 1, *zero[2:]))
        halves = [(0, limit // 2, *zero[2:]), (0, limit - limit // 2, *zero[2:])]
        assert math.fsum(held_by.parts(halves)) == pytest.approx(1.0)


def test_black_boxes_are_read_at_the_component_that_binds_the_whole() -> None:
    held_by = ApproximateDpFilter(epsilon=3.0, delta=1e-5)
    _, deltas, squares = held_by.limits
    assert held_by.share((0, deltas // 2, squares // 4)) == pytest.approx(0.5)
    assert held_by.share((0, deltas // 4, squares // 2)) == pytest.approx(0.5)
    first, second = (0, deltas // 2, 0), (0, 0, squares // 4)
    assert held_by.parts([first, second]) == pytest.approx((0.5, 0.0))
    assert held_by.parts([first, second], whole=(0, 0, squares)) == pytest.approx((0.0, 0.25))


@EACH
def test_only_parts_without_a_bound_are_infinite(kind: str) -> None:
    held_by = held(kind)
    covered = total_of(held_by, [1 << 70])
    unknown = (1, *held_by.zero()[1:])
    one, other = held_by.parts([covered, unknown])
    assert 0 < one < 1
    assert other == math.inf == held_by.share(plus(covered, unknown))
