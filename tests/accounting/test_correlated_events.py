"""Passes of correlated noise as events: what they cost, how they are counted, and what has none."""

import math
from dataclasses import replace
from itertools import product

import pytest

from accounting.accountants.best_bound import best_bound
from accounting.bounds.dominating_pairs import pld_bounds
from accounting.bounds.event_bounds import NoBoundError
from accounting.bounds.gdp_bounds import gdp_bounds, sampler_of
from accounting.bounds.lower_bounds import lower_bound_pair, lower_bound_units
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.correlated_noise import (
    BandedRows,
    BufferedToeplitz,
    Identity,
    Participation,
    Strategy,
    Toeplitz,
    Tree,
    column_norm_of,
    sensitivity_of,
)
from accounting.correlated_noise.amplified import cyclic_poisson_step
from accounting.event_counts import (
    EventCounts,
    count_events,
)
from accounting.events import (
    Event,
    Full,
    Gaussian,
    MatrixGaussian,
    Mechanism,
    NeighboringRelation,
    NoNoise,
    Placement,
    Poisson,
    Sampling,
    Span,
)
from accounting.filters.covers import covers
from accounting.guarantees import ACCEPTABLE
from accounting.initial_guesses import estimated_mu, on_lattice
from accounting.renyi.orders import ORDERS
from tests.accounting.correlated_events import ADD, ONE, SPECIAL, a_pass, in_turns, square_root


def epsilon(
    event: Event, steps: int, *, delta: float, relation: NeighboringRelation = ADD
) -> float:
    counts = count_events([[Span(event=event, steps=steps)]])
    found = best_bound(counts, relation=relation, delta=delta, accept=ACCEPTABLE)
    assert found is not None
    return found.epsilon


PASSES = [
    (64, 8, 8, 50.15585143397344, 9.499816013276556),
    (64, 8, 3, 12.936953309984117, 4.331813352752875),
    (1000, 100, 10, 83.79650325012167, 12.958170554048339),
    (2048, 128, 16, 196.78954352464535, 22.190439375848367),
    (2048, 2048, 1, 3.4932286006780044, 2.092622774426979),
]


@pytest.mark.parametrize(("n", "b", "k", "squared", "value"), PASSES)
def test_a_pass_costs_what_others_say(n: int, b: int, k: int, squared: float, value: float) -> None:
    schema = Participation(steps=n, min_separation=b, participations=k)
    found = sensitivity_of(Toeplitz(coefficients=square_root(n)), schema).squared
    assert found == pytest.approx(squared, rel=1e-12)
    event = a_pass(n, b, k, squared=found)
    assert epsilon(event, n, delta=1e-6) == pytest.approx(value, abs=1e-6)
    assert epsilon(event, 1, delta=1e-6) == pytest.approx(value, abs=1e-6)


TURNS = [
    (1.0, 1000, 10, 0.1, 7.0466),
    (2.0, 2000, 16, 0.16, 4.4158),
    (0.8, 5000, 50, 0.25, 27.4957),
    (1.0, 1000, 1, 0.01, 1.82824),
]


@pytest.mark.parametrize(("noise", "n", "b", "q", "value"), TURNS)
def test_a_pass_in_turns_costs_what_others_say(
    noise: float, n: int, b: int, q: float, value: float
) -> None:
    found = epsilon(in_turns(q, b, n, noise=noise), n, delta=1e-5)
    assert found == pytest.approx(value, rel=2e-4)
    alike = count_events(
        [
            [
                Span(
                    event=Event(
                        mechanism=Gaussian(noise_multiplier=noise),
                        sampling=Poisson(sampling_probability=q),
                    ),
                    steps=-(-n // b),
                )
            ]
        ]
    )
    steps = best_bound(alike, relation=ADD, delta=1e-5, accept=ACCEPTABLE)
    assert steps is not None
    assert found == pytest.approx(steps.epsilon, rel=1e-6)


@pytest.mark.parametrize(
    ("noise", "steps", "value"), [(4.0, 255, 3.30760), (4.0, 256, 3.53248), (10.0, 1000, 1.36757)]
)
def test_a_tree_costs_what_others_say(noise: float, steps: int, value: float) -> None:
    schema = Participation(steps=steps, min_separation=steps, participations=1)
    squared = sensitivity_of(Tree(), schema).squared
    event = a_pass(steps, steps, 1, noise=noise, squared=squared)
    assert epsilon(event, steps, delta=1e-6) == pytest.approx(value, abs=1e-5)


def test_trees_that_a_record_is_in_each_of_add_up() -> None:
    event = a_pass(255, 255, 1, noise=10.0, squared=8.0, restarts=True)
    assert epsilon(event, 5 * 255, delta=1e-6) == pytest.approx(2.92160, abs=1e-5)


@pytest.mark.parametrize("placement", Placement)
@pytest.mark.parametrize("relation", NeighboringRelation)
def test_what_each_relation_has(placement: Placement, relation: NeighboringRelation) -> None:
    event = a_pass(placement=placement)
    turns = in_turns(0.1, 8, 64, placement=placement)
    by_record = placement is Placement.BY_RECORD
    if relation is ADD and not by_record:
        for bounds in (gdp_bounds, renyi_bounds, pld_bounds):
            for one in (event, turns):
                with pytest.raises(NoBoundError, match="by_slot"):
                    bounds(one, relation)
        return
    (release,) = gdp_bounds(event, relation)
    reach = 2 if relation is ONE else 1
    assert release.loss == pytest.approx(reach * math.sqrt(50.15585143397344) / 4, rel=1e-15)
    assert release.loss >= reach * math.sqrt(50.15585143397344) / 4
    if relation is ONE and by_record:
        for bounds in (gdp_bounds, renyi_bounds, pld_bounds):
            with pytest.raises(NoBoundError, match="groups"):
                bounds(turns, relation)
        return
    (told,) = gdp_bounds(turns, relation)
    assert told.loss == pytest.approx(reach * math.sqrt(8))
    assert pld_bounds(turns, relation)[0].loss[0][1] == 8


@pytest.mark.parametrize(
    ("mechanism", "sampling"),
    [
        (a_pass().mechanism, Full()),
        (Gaussian(noise_multiplier=1.0), a_pass().sampling),
        (Gaussian(noise_multiplier=1.0), in_turns(0.1, 2, 4).sampling),
    ],
)
def test_correlated_noise_without_its_sampling_has_no_bound(
    mechanism: Mechanism, sampling: Sampling
) -> None:
    event = Event(mechanism=mechanism, sampling=sampling)
    for bounds in (gdp_bounds, renyi_bounds, pld_bounds):
        with pytest.raises(NoBoundError, match="Correlated noise"):
            bounds(event, SPECIAL)
    counts = EventCounts(steps={event: 1}, passes={event: 1})
    assert lower_bound_units(counts, SPECIAL) == []
    assert lower_bound_pair(event, SPECIAL) is None
    if sampling != Full():
        with pytest.raises(NoBoundError, match="Correlated noise"):
            sampler_of(sampling)


def test_noise_that_is_used_again_has_a_reason_of_its_own() -> None:
    event = Event(mechanism=NoNoise(), sampling=a_pass().sampling)
    for bounds in (gdp_bounds, renyi_bounds, pld_bounds):
        with pytest.raises(NoBoundError, match="used again"):
            bounds(event, SPECIAL)


# What covers what, and where a search begins


def test_an_item_covers_the_same_strategy_at_more_noise() -> None:
    item = a_pass(noise=2.0)
    assert covers(item, a_pass(noise=4.0))
    assert not covers(a_pass(noise=4.0), item)
    assert not covers(item, a_pass(noise=4.0, strategy="b"))
    assert not covers(item, a_pass(noise=4.0, squared=60.0))
    assert not covers(item, a_pass(noise=4.0, restarts=True))


def test_a_search_begins_near_what_passes_cost() -> None:
    event = a_pass(squared=4.0, noise=2.0)
    counts = EventCounts(steps={event: 64}, passes={event: 1})
    assert estimated_mu(counts, SPECIAL) == pytest.approx(1.0)
    assert not on_lattice(event, SPECIAL)
    turns = in_turns(0.1, 8, 64)
    counts = EventCounts(steps={turns: 64}, passes={turns: 1})
    assert 0.1 < estimated_mu(counts, SPECIAL) < 1.0
    assert on_lattice(turns, ONE)
    assert not on_lattice(turns, SPECIAL)


# Groups that take turns


@pytest.mark.parametrize(
    ("strategy", "norm"),
    [
        (Identity(), 1.0),
        (Toeplitz(coefficients=(1.0, 0.5, 0.0, 0.0)), 1.25),
        (Toeplitz(coefficients=(1.0, 0.5), column_normalized=True), 1.0),
        (BandedRows(rows=((1.0,), (0.5, 2.0), (1.0, 1.0), (1.0, 1.0))), 5.0),
    ],
)
def test_what_may_take_turns(strategy: Strategy, norm: float) -> None:
    bands = 1 if isinstance(strategy, Identity) else 2
    assert column_norm_of(strategy, steps=4, cycle_length=bands) == norm
    if bands > 1:
        with pytest.raises(ValueError, match="at least 2 groups"):
            column_norm_of(strategy, steps=4, cycle_length=1)


def test_what_has_too_many_bands_to_take_turns() -> None:
    buffers = BufferedToeplitz(buffer_decay=(0.9,), output_scale=(0.1,))
    assert column_norm_of(buffers, steps=4, cycle_length=4) > 1
    with pytest.raises(ValueError, match="at least 4 groups"):
        column_norm_of(buffers, steps=4, cycle_length=3)
    with pytest.raises(ValueError, match="not the tree"):
        column_norm_of(Tree(), steps=4, cycle_length=4)


def second_moment(columns: list[list[float]], q: float, noise: float) -> float:
    """E of the squared likelihood ratio, record against none: exactly, over all coins."""

    def shift(coins: tuple[int, ...]) -> list[float]:
        return [sum(c * one[row] for c, one in zip(coins, columns, strict=True))
                for row in range(len(columns[0]))]  # fmt: skip

    found = 0.0
    every = list(product((0, 1), repeat=len(columns)))
    for first, second in product(every, every):
        joined = sum(first) + sum(second)
        weight = q**joined * (1 - q) ** (2 * len(columns) - joined)
        inner = sum(a * b for a, b in zip(shift(first), shift(second), strict=True))
        found += weight * math.exp(inner / noise**2)
    return found


def test_blocks_have_the_moments_of_poisson_steps() -> None:
    # Columns 0, 2 and 4 of six steps with two bands: those of one group of two.
    columns = [[0.0] * 6 for _ in range(3)]
    for place, column in enumerate(columns):
        column[2 * place], column[2 * place + 1] = 1.0, 0.5
    exact = second_moment(columns, 0.3, 0.9)
    step = 1 + 0.3**2 * math.expm1(1.25 / 0.81)
    assert exact == pytest.approx(step**3, rel=1e-12)
    (curve,) = renyi_bounds(
        replace(in_turns(0.3, 2, 6), mechanism=MatrixGaussian(
            noise_multiplier=0.9, strategy="a", sensitivity_squared=1.25)),
        ADD,
    )  # fmt: skip
    at = list(ORDERS).index(2.0)
    assert math.log(exact) <= curve.loss[at] <= math.log(exact) * (1 + 1e-9)


def test_columns_that_meet_exceed_poisson_steps() -> None:
    columns = [[1.0, 0.5, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]]
    step = 1 + 0.3**2 * math.expm1(1.25 / 0.81)
    assert second_moment(columns, 0.3, 0.9) > 1.05 * step**3


def test_a_step_of_a_block_has_the_noise_of_the_longest_column() -> None:
    noise, blocks = cyclic_poisson_step(
        noise_multiplier=3.0, column_norm_squared=4.0, steps_per_pass=10, cycle_length=4
    )
    assert noise <= 1.5
    assert noise == pytest.approx(1.5, rel=1e-15)
    assert blocks == 3


@pytest.mark.parametrize(
    "strategy",
    [
        Toeplitz(coefficients=(1.0, 0.5, 0.375, 0.3125), column_normalized=True),
        BufferedToeplitz(buffer_decay=(0.9,), output_scale=(0.1,), column_normalized=True),
    ],
)
def test_normalized_columns_count_one_each_where_they_do_not_meet(strategy: Strategy) -> None:
    def of(b: int, k: int) -> float:
        return sensitivity_of(
            strategy, Participation(steps=64, min_separation=b, participations=k)
        ).squared

    assert of(1, 1) == 1.0
    assert of(64, 1) == 1.0
    if isinstance(strategy, Toeplitz):
        assert of(8, 8) == 8.0
        assert of(4, 16) == 16.0
    with pytest.raises(ValueError, match="column-normalized strategy of"):
        of(3, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: a_pass(64, 65, 1),
        lambda: a_pass(64, 8, 9),
        lambda: a_pass(64, 8, 0),
        lambda: a_pass(noise=0.0),
        lambda: a_pass(squared=0.0),
        lambda: in_turns(0.0, 8, 64),
        lambda: in_turns(0.1, 65, 64),
    ],
)
def test_what_is_out_of_range_is_no_event(make: object) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        make()  # type: ignore[operator]


def test_a_stream_is_its_sampling_and_its_strategy() -> None:
    event = a_pass()
    assert event.stream == a_pass(noise=9.0).stream
    assert event.stream != a_pass(strategy="b").stream
    assert event.stream != replace(event, sampling=a_pass(64, 4, 8).sampling).stream
