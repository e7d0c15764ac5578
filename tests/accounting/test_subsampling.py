"""Caps, copies and weights: the chances behind the pairs, and the curves beside them."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from accounting.accountants.best_bound import guarantee
from accounting.bounds.dominating_pairs import pld_bounds
from accounting.bounds.event_bounds import failure
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.event_counts import count_events
from accounting.events import (
    Direction,
    Event,
    Full,
    Gaussian,
    NeighboringRelation,
    NonUniform,
    Poisson,
    Sampling,
    Span,
    TruncatedPoisson,
    WithReplacement,
)
from accounting.filters import RenyiFilter, best_order, times
from accounting.guarantees import ACCEPTABLE
from accounting.pld.certified_composition import epsilon_bracket
from accounting.pld.pairs import SampledGaussianPair
from accounting.pld.profiles import profiles
from accounting.renyi.conversion import rdp_epsilon
from accounting.renyi.orders import ORDERS
from accounting.renyi.poisson import gaussian_rdp
from accounting.subsampling import replacement
from accounting.subsampling.curves import likely_copies, with_replacement_rdp
from accounting.subsampling.replacement import TooManyCopiesError, copies, with_replacement_pair
from accounting.subsampling.truncated import BINOMIAL_TAIL, branches

ADD_OR_REMOVE_ONE, REPLACE_ONE, REPLACE_SPECIAL = NeighboringRelation
RELATIONS = pytest.mark.parametrize("relation", NeighboringRelation)


def exactly(q: Fraction, cap: int, size: int) -> tuple[Fraction, Fraction]:
    """(chance that the others fill the batch, chance that they do and the record is kept)."""

    def pmf(n: int, k: int) -> Fraction:
        return math.comb(n, k) * q**k * (1 - q) ** (n - k)

    full = sum((pmf(size - 1, m) for m in range(cap, size)), Fraction(0))
    kept = sum((pmf(size - 1, m) * q * Fraction(cap, m + 1) for m in range(cap, size)), Fraction(0))
    return full, kept


@pytest.mark.parametrize(("size", "cap"), [(5, 1), (20, 3), (60, 12), (60, 59), (200, 20)])
@pytest.mark.parametrize("q", [Fraction(1, 64), Fraction(1, 8), Fraction(3, 4)])
def test_branches_are_the_chances_they_claim(size: int, cap: int, q: Fraction) -> None:
    sampling = TruncatedPoisson(
        sampling_probability=float(q), max_batch_size=cap, dataset_size=size
    )
    found = branches(sampling, dataset_size=size)
    full, kept = exactly(q, cap, size)
    assert (
        full
        <= Fraction(found.full_chance)
        <= full * Fraction(1 + 3 * BINOMIAL_TAIL) + Fraction(1e-280)
    )
    assert 1 - full <= Fraction(found.open_chance)
    assert kept / full <= Fraction(found.kept_rate) * Fraction(1 + 1e-15)
    assert found.kept_rate <= float(kept / full) * (1 + 5 * BINOMIAL_TAIL)
    taken = q * (1 - full) + kept
    assert Fraction(found.taken_rate) <= taken
    assert found.taken_rate >= float(taken) * (1 - 1e-8)


@pytest.mark.parametrize(("size", "cap", "q"), [(10**6, 260, 256e-6), (60_000, 512, 256 / 6e4)])
def test_binomial_tails_are_known_far_better_than_is_claimed(size: int, cap: int, q: float) -> None:
    sampling = TruncatedPoisson(sampling_probability=q, max_batch_size=cap, dataset_size=size)
    found = branches(sampling, dataset_size=size)
    with mpmath.workdps(40):
        exact = mpmath.betainc(cap, size - cap, 0, mpmath.mpf(q), regularized=True)
        nearest = found.full_chance / (1 + BINOMIAL_TAIL)
        assert abs(nearest / exact - 1) < 1e-11


def test_a_cap_that_holds_everybody_is_no_cap() -> None:
    sampling = TruncatedPoisson(sampling_probability=0.3, max_batch_size=7, dataset_size=7)
    found = branches(sampling, dataset_size=7)
    assert (found.full_chance, found.open_chance, found.taken_rate) == (0.0, 1.0, 0.3)
    always = TruncatedPoisson(sampling_probability=1.0, max_batch_size=3, dataset_size=7)
    assert branches(always, dataset_size=7).kept_rate == pytest.approx(3 / 7, rel=1e-8)
    # So improbable that the chance is no double: the record is kept at most as often as it joins.
    never = TruncatedPoisson(sampling_probability=1e-6, max_batch_size=900, dataset_size=1000)
    assert branches(never, dataset_size=1000).kept_rate == pytest.approx(1e-6, rel=1e-12)


@pytest.mark.parametrize(("batch", "size"), [(1, 2), (3, 5), (256, 60_000), (4096, 50_000)])
def test_copies_are_binomial_and_nothing_is_left_out(batch: int, size: int) -> None:
    chances, rest = copies(batch_size=batch, dataset_size=size)
    with mpmath.workdps(40):
        q = mpmath.mpf(1) / size
        exact = [
            mpmath.binomial(batch, k) * q**k * (1 - q) ** (batch - k) for k in range(len(chances))
        ]
        for found, chance in zip(chances.tolist(), exact, strict=True):
            assert abs(found / chance - 1) < replacement.CHANCE_ERROR
        beyond = mpmath.betainc(
            len(chances), max(batch - len(chances) + 1, 1), 0, q, regularized=True
        )
        assert rest == 0 if len(chances) == batch + 1 else beyond <= rest


@pytest.mark.parametrize(("batch", "size"), [(1, 1), (590, 2), (10**6, 2)])
def test_too_many_copies_leave_the_plain_release(batch: int, size: int) -> None:
    with pytest.raises(TooManyCopiesError):
        copies(batch_size=batch, dataset_size=size)
    sampling = WithReplacement(batch_size=batch, dataset_size=size)
    event = Event(mechanism=Gaussian(noise_multiplier=3.0), sampling=sampling)
    for relation in NeighboringRelation:
        assert [bound.theorem.id for bound in pld_bounds(event, relation)] == ["gaussian-dp"]
        assert [bound.theorem.id for bound in renyi_bounds(event, relation)] == ["gaussian-renyi"]


def test_one_draw_with_replacement_is_one_without() -> None:
    with_it = with_replacement_pair(noise_multiplier=1.0, batch_size=1, dataset_size=50)
    without = Event(mechanism=Gaussian(noise_multiplier=1.0), sampling=NonUniform(max_weight=0.02))
    ((pair, _),) = pld_bounds(without, REPLACE_ONE)[0].loss
    one, two = (epsilon_bracket([(p, 100)], delta=1e-5) for p in (with_it, pair))
    assert one.upper == pytest.approx(two.upper, rel=1e-3)


def test_a_batch_that_misses_nobody_has_a_curve_too() -> None:
    orders = np.array([1.5, 2.0, 8.0])
    size = {"batch_size": 60, "dataset_size": 2}  # some copy is there, but for 2^-60
    for relation in NeighboringRelation:
        curve = with_replacement_rdp(noise_multiplier=1.1, relation=relation, orders=orders, **size)
        all_copies = gaussian_rdp(noise_multiplier=1.1, sensitivity=120.0, orders=orders)
        assert np.all((curve > 0) & (curve <= all_copies * (1 + 1e-9)))


CURVES: list[Sampling] = [
    TruncatedPoisson(sampling_probability=0.02, max_batch_size=25, dataset_size=1000),
    TruncatedPoisson(sampling_probability=0.02, max_batch_size=2000, dataset_size=1000),
    TruncatedPoisson(sampling_probability=1.0, max_batch_size=25, dataset_size=1000),
    WithReplacement(batch_size=20, dataset_size=1000),
    NonUniform(max_weight=0.02),
    NonUniform(max_weight=1.0),
]


@RELATIONS
@pytest.mark.parametrize("sampling", CURVES)
def test_a_curve_never_says_less_than_the_pair_it_stands_for(
    sampling: Sampling, relation: NeighboringRelation
) -> None:
    if isinstance(sampling, NonUniform) and relation is ADD_OR_REMOVE_ONE:
        return
    event = Event(mechanism=Gaussian(noise_multiplier=4.0), sampling=sampling)
    bound = renyi_bounds(event, relation)[0]
    assert np.all(bound.loss >= 0)
    pairs = pld_bounds(event, relation)[0].loss
    upper = epsilon_bracket([(pair, 50 * count) for pair, count in pairs], delta=1e-5).upper
    converted, _ = rdp_epsilon(rdp=50 * bound.loss, orders=ORDERS, delta=1e-5)
    assert upper <= converted * (1 + 1e-3)
    # With copies, moments are mostly those of batches that hold a record several times.
    assert converted <= (20 if isinstance(sampling, WithReplacement) else 3) * upper + 1


def test_copies_that_a_curve_leaves_out_are_a_failure_that_a_budget_provides_for() -> None:
    sampling = WithReplacement(batch_size=20, dataset_size=1000)
    _, beyond = likely_copies(batch_size=20, dataset_size=1000)
    assert 0 < beyond < 1e-17
    event = Event(mechanism=Gaussian(noise_multiplier=4.0), sampling=sampling)
    bounds = renyi_bounds(event, REPLACE_ONE)
    assert failure(bounds[:1]) == beyond
    budget = RenyiFilter(order=best_order(epsilon=3.0, delta=1e-5), epsilon=3.0, delta=1e-5)
    cost = budget.cost(event, relation=REPLACE_ONE, accept=ACCEPTABLE)
    assert 0 < budget.spent(times(cost, 100)) < math.inf
    # More steps than the failures' share of delta allows are not admitted.
    many = math.ceil(2e-11 / beyond)
    assert math.isinf(budget.spent(times(cost, many)))


# The general theorem for samples of fixed size, against values from elsewhere


def test_weights_that_depend_on_the_data_are_no_small_weights() -> None:
    # Two groups of weights that change places tell the neighbours apart, however small they are.
    size, other = 1000, 2.0
    heavy, light = 2 / (3 * size) * 1.5, 1 / (3 * size) * 1.5
    half = size // 2
    first = {-other: heavy * half, other: light * half}
    second = {-other: light * half, other: heavy * half}
    assert max(heavy, light) <= 1.5e-3
    # One answer without noise has the total variation of the groups, not of one weight.
    apart = 0.5 * sum(abs(first[value] - second[value]) for value in first)
    assert apart > 100 * max(heavy, light)


@pytest.mark.parametrize(("q", "cap"), [(1e-3, 126), (0.02, 190)])
def test_a_tail_that_is_hardly_a_double_is_not_divided_by(q: float, cap: int) -> None:
    sampling = TruncatedPoisson(sampling_probability=q, max_batch_size=cap, dataset_size=200)
    assert branches(sampling, dataset_size=200).kept_rate == pytest.approx(q, rel=1e-12)


def test_a_step_whose_losses_no_lattice_holds_is_left_to_other_accountants() -> None:
    mechanism = Gaussian(noise_multiplier=0.01)
    spans = [
        Span(event=Event(mechanism=mechanism, sampling=Full()), steps=1),
        Span(
            event=Event(
                mechanism=Gaussian(noise_multiplier=1.0),
                sampling=Poisson(sampling_probability=0.1),
            ),
            steps=10,
        ),
    ]
    found = guarantee(count_events([spans]), relation=REPLACE_ONE, delta=1e-3)
    assert found.epsilon is not None
    assert found.epsilon > 1e4


def test_the_bound_of_a_cap_is_that_of_the_larger_neighbour_too() -> None:
    sampling = TruncatedPoisson(sampling_probability=0.3, max_batch_size=2, dataset_size=5)
    event = Event(mechanism=Gaussian(noise_multiplier=1.0), sampling=sampling)
    ((pair, _),) = pld_bounds(event, ADD_OR_REMOVE_ONE)[0].loss
    losses = np.array([0.0, 0.1, 0.5, 1.0, 2.0])
    for size in (5, 6):
        found = branches(sampling, dataset_size=size)
        for direction in Direction:
            upper = profiles(pair, direction=direction, losses=losses)[1]
            parts = [
                (
                    found.open_chance,
                    SampledGaussianPair(noise_multiplier=1.0, sampling_probability=0.3),
                ),
                (
                    found.full_chance,
                    SampledGaussianPair(noise_multiplier=0.5, sampling_probability=found.kept_rate),
                ),
            ]
            least = sum(
                chance * profiles(part, direction=direction, losses=losses)[0]
                for chance, part in parts
            )
            assert np.all(upper >= least * (1 - 1e-7)), size
