"""Branches whose order is not fresh: what is counted covers every place where passes may begin."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.accountants.best_bound import guarantee
from accounting.event_counts import UNPLACED, OpenPass, Place, advance, count_events, reveal_order
from accounting.events import (
    BallsAndBins,
    Cyclic,
    Event,
    Full,
    Gaussian,
    NeighboringRelation,
    NoNoise,
    RandomAllocation,
    Reshuffle,
    Sampling,
    Shuffle,
    Span,
)
from accounting.filters import RenyiFilter
from accounting.guarantees import DEFAULT_ACCEPT, Status
from accounting.renyi.allocation import allocation_rdp
from service.schemas.event_codec import Lines, Taken

NULL = NeighboringRelation.REPLACE_SPECIAL
DERIVED = DEFAULT_ACCEPT | {Status.DERIVED}
EARLY = Shuffle(batch_size=2, steps_per_pass=4, reshuffle=Reshuffle.EACH_PASS, dataset_size=10)
SINGLE = Shuffle(batch_size=1, steps_per_pass=4, reshuffle=Reshuffle.EACH_PASS, dataset_size=4)
BALLS = BallsAndBins(steps_per_pass=4)
SAMPLINGS: list[Sampling] = [
    Cyclic(batch_size=2, steps_per_pass=3),
    EARLY,
    BALLS,
    RandomAllocation(steps_per_pass=4, participations=2),
]
NOISES = st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0]), st.integers(1, 9)), min_size=1)


def event(sampling: Sampling, sigma: float = 1.0) -> Event:
    return Event(mechanism=Gaussian(noise_multiplier=sigma), sampling=sampling)


def noise(one: Event) -> float:
    assert isinstance(one.mechanism, Gaussian)
    return one.mechanism.noise_multiplier


def touched(noises: Sequence[float], length: int, left: int) -> Iterator[float]:
    """The least noise of each pass, of which the first has so many steps left."""
    first = min(left, len(noises))
    if first:
        yield min(noises[:first])
    for begin in range(first, len(noises), length):
        yield min(noises[begin : begin + length])


@settings(deadline=None)
@given(parts=NOISES, sampling=st.sampled_from(SAMPLINGS))
def test_wherever_passes_begin_as_many_of_no_more_noise_are_counted(
    parts: list[tuple[float, int]], sampling: Sampling
) -> None:
    length = sampling.steps_per_pass  # type: ignore[union-attr]
    counted = count_events(
        [[Span(event=event(sampling, sigma), steps=steps) for sigma, steps in parts]],
        places=[UNPLACED],
    ).passes
    noises = [sigma for sigma, steps in parts for _ in range(steps)]
    for left in range(length + 1):
        passes = list(touched(noises, length, left))
        for level in (1.0, 2.0, 3.0):
            there = sum(count for one, count in counted.items() if noise(one) <= level)
            assert there >= sum(least <= level for least in passes)
    # The rest of a pass that began before costs a release: there is one of no more noise.
    rest = min(noises[:length])
    assert any(noise(one) <= rest for one in counted if one.sampling == reveal_order(one).sampling)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("steps", [1, 3, 4, 5, 12])
def test_one_pass_more_is_counted_where_the_noise_does_not_fall(
    sampling: Sampling, steps: int
) -> None:
    span = Span(event=event(sampling), steps=steps)
    fresh, other = count_events([[span]]), count_events([[span]], places=[UNPLACED])
    assert sum(other.passes.values()) == sum(fresh.passes.values()) + 1
    assert set(other.passes) == {reveal_order(event(sampling))}  # nothing secret is left of any
    assert not other.begun
    rising = Span(event=event(sampling, 2.0), steps=steps)
    more = count_events([[span, rising]], places=[UNPLACED])
    assert sum(more.passes.values()) == sum(count_events([[span, rising]]).passes.values()) + 1


@settings(deadline=None)
@given(parts=NOISES, sampling=st.sampled_from(SAMPLINGS), data=st.data())
def test_splitting_spans_changes_nothing(
    parts: list[tuple[float, int]], sampling: Sampling, data: st.DataObject
) -> None:
    whole = [Span(event=event(sampling, sigma), steps=steps) for sigma, steps in parts]
    pieces = []
    for one in whole:
        cut = data.draw(st.integers(0, one.steps))
        pieces += [Span(event=one.event, steps=n) for n in (cut, one.steps - cut) if n]
    assert count_events([pieces], places=[UNPLACED]) == count_events([whole], places=[UNPLACED])


def test_steps_of_another_kind_do_not_make_coins_new() -> None:
    balls, full, other = event(BALLS), event(Full()), event(BallsAndBins(steps_per_pass=7))
    told = reveal_order(balls)
    place: Place = UNPLACED
    _, place = advance(place, Span(event=full, steps=2))
    assert place == UNPLACED
    passes, place = advance(place, Span(event=balls, steps=5))
    assert passes == {told: 3}
    assert advance(place, Span(event=other, steps=8))[0] == {told: 3}
    _, place = advance(place, Span(event=full, steps=2))
    assert advance(place, Span(event=balls, steps=5))[0] == {told: 3}
    _, place = advance(None, Span(event=full, steps=2))
    assert place is None
    assert advance(place, Span(event=balls, steps=5))[0] == {balls: 2}


def test_a_pass_in_an_order_that_was_used_is_a_release() -> None:
    orders = np.array([2.0, 8.0])
    for sampling, joined in ((BALLS, 1), (RandomAllocation(steps_per_pass=9, participations=3), 3)):
        told = RenyiFilter(order=8.0, epsilon=1.0, delta=1e-5).cost(
            reveal_order(event(sampling, 2.0)), relation=NULL
        )
        full = RenyiFilter(order=8.0, epsilon=1.0, delta=1e-5).cost(
            event(Full(), 2.0), relation=NULL
        )
        assert told[2] >= joined * full[2] * (1 - 1e-12)
    assert allocation_rdp(noise_multiplier=2.0, steps_per_pass=1, orders=orders) == pytest.approx(
        orders / 8, rel=1e-9
    )
    assert reveal_order(event(SINGLE)).mechanism == NoNoise()
    known = Shuffle(batch_size=2, steps_per_pass=5, reshuffle=Reshuffle.EACH_PASS, dataset_size=10)
    assert reveal_order(event(known)) == event(known)
    assert reveal_order(event(EARLY)) == event(Cyclic(batch_size=2, steps_per_pass=4))


@pytest.mark.parametrize("order", [2, 3, 8])
@pytest.mark.parametrize(("first", "again"), [(1.0, 1.0), (2.0, 2.0), (3.0, 1.0), (1.0, 4.0)])
def test_steps_done_again_in_the_same_bins_cost_at_most_a_pass_and_a_release(
    order: int, first: float, again: float
) -> None:
    """Two bins; the second is done again, in exact moments of lognormal numbers."""
    s, t = 1 / first**2, 1 / again**2

    def moment(k: int, power: float) -> float:
        return math.exp(power * k * (k - 1) / 2)

    def cost(twice: float) -> float:
        total = sum(
            math.comb(order, k) * moment(k, s) * moment(order - k, s + twice)
            for k in range(order + 1)
        )
        return math.log(total / 2**order) / (order - 1)

    pass_, release = cost(0.0), order * t / 2
    assert pass_ == pytest.approx(
        float(allocation_rdp(noise_multiplier=first, steps_per_pass=2,
                             orders=np.array([float(order)]))[0]), rel=1e-6
    )  # fmt: skip
    assert cost(t) <= pass_ + release
    if order == 8 and first == again == 1.0:
        assert cost(t) > 2 * pass_  # what two fresh passes would be charged


@pytest.mark.parametrize(("first", "again"), [(1.0, 1.0), (2.0, 1.5), (1.5, 3.0)])
@pytest.mark.parametrize("power", [2, 4, -1, -3])
def test_no_rule_that_does_bins_again_after_a_look_gains(
    first: float, again: float, power: int
) -> None:
    """Power alpha, or 1 - alpha for the other order: which bins are done again is chosen freely."""
    order = power if power > 0 else 1 - power
    s, t = 1 / first**2, 1 / again**2
    z, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    ratio = np.exp(math.sqrt(s) * z - s / 2)
    fresh = np.exp(math.sqrt(t) * z - t / 2)
    release = math.exp(-(order - 1) * order * t / 2)
    start = stop_value = 0.0
    for (i, a), (j, b) in product(enumerate(ratio), enumerate(ratio)):
        chance = weights[i] * weights[j]
        here = (0.5 * (a + b)) ** power
        one = float(weights @ (0.5 * (a * fresh + b)) ** power) * release
        two = float(weights @ (0.5 * (a + b * fresh)) ** power) * release
        stop_value += chance * here
        start += chance * max(here, one, two)
    assert start <= stop_value * (1 + 1e-9)


def test_an_early_stopping_shuffle_done_again_is_counted_as_known_or_not_at_all() -> None:
    spans = [Span(event=event(EARLY, 5.0), steps=8)]
    fresh = count_events([spans, spans])
    again = count_events([spans, spans], places=[None, UNPLACED])
    budget = RenyiFilter(order=8.0, epsilon=3.0, delta=1e-5)
    assert budget.total(fresh, relation=NULL, accept=DERIVED)[0] == 0
    assert budget.total(again, relation=NULL, accept=DERIVED)[0] > 0
    told = budget.total(again, relation=NULL, accept=DEFAULT_ACCEPT)
    (whole,) = set(count_events([spans]).passes.values())
    assert told[:2] == (0, 0)
    release = budget.cost(event(Full(), 5.0), relation=NULL)[2]
    assert told[2] >= (2 * whole + 1) * release * (1 - 1e-12)


@pytest.mark.parametrize("accept", [DEFAULT_ACCEPT, DERIVED])
def test_a_schedule_with_an_order_that_was_used_again_is_read_as_known(
    accept: frozenset[Status],
) -> None:
    """Of an odometer, whose schedule may be chosen after a look, nothing is proved."""
    spans = [Span(event=event(EARLY, 5.0), steps=8)]
    again = count_events([spans, spans], places=[None, UNPLACED])
    known = [Span(event=event(Cyclic(batch_size=2, steps_per_pass=4), 5.0), steps=20)]
    read = {"relation": NULL, "delta": 1e-5, "accept": accept}
    found = guarantee(again, **read)  # type: ignore[arg-type]
    assert found.epsilon >= guarantee(count_events([known]), **read).epsilon  # type: ignore
    odometer = guarantee(again, accountant="odometer", **read)  # type: ignore[arg-type]
    assert odometer.epsilon is None


@pytest.mark.parametrize("kind", [Reshuffle.EACH_PASS, Reshuffle.ONCE, None])
@pytest.mark.parametrize("steps", [1, 3, 4, 6, 20])
def test_a_pass_that_is_counted_for_safety_is_in_no_lower_end(
    kind: Reshuffle | None, steps: int
) -> None:
    sampling: Sampling = Cyclic(batch_size=2, steps_per_pass=3)
    if kind is not None:
        sampling = Shuffle(batch_size=2, steps_per_pass=3, reshuffle=kind, dataset_size=6)
    main = [Span(event=event(sampling, 5.0), steps=3)]
    branch = [Span(event=event(sampling, 5.0), steps=steps)]
    said = guarantee(
        count_events([main, branch], places=[None, UNPLACED]), relation=NULL, delta=1e-5
    )
    fresh = guarantee(count_events([main, branch]), relation=NULL, delta=1e-5)
    assert fresh.epsilon is not None
    assert (said.epsilon_lower or 0.0) <= fresh.epsilon
    assert said.epsilon_lower is not None or steps < 20  # of few steps no pass is surely whole


def test_where_orders_may_be_used_again_no_pass_is_in_a_lower_end() -> None:
    """Of ten lines of a step and one of nine passes' steps, ten passes are not whole."""
    one = [Span(event=event(BALLS, 5.0), steps=1)]
    many = [Span(event=event(BALLS, 5.0), steps=36)]
    counts = count_events([*([one] * 10), many], places=[*([None] * 10), UNPLACED])
    assert counts.steps[event(BALLS, 5.0)] >= 4 * counts.passes[event(BALLS, 5.0)]
    assert guarantee(counts, relation=NULL, delta=1e-5).epsilon_lower in (None, 0.0)


def test_a_line_goes_on_with_who_takes_its_pass() -> None:
    lines = Lines([Taken(by="b", of="main", step=5), Taken(by="c", of="b", step=5),
                   Taken(by="d", of="main", step=9)])  # fmt: skip
    assert lines.at("main", 4) == lines.at("c", 5) == lines.at("c", 70) == ("main", 0)
    assert lines.at("b", 5) == ("b", 1)
    assert lines.at("main", 5) == lines.at("main", 8) == lines.at("d", 9) == ("main", 1)
    assert lines.at("main", 9) == ("main", 2)
    assert lines.at("other", 3) == ("other", 0)
    assert lines.cuts("main") == [5, 9]


def test_the_place_among_passes_goes_on_with_the_branch() -> None:
    one = event(Cyclic(batch_size=2, steps_per_pass=3))
    passes, place = advance(UNPLACED, Span(event=one, steps=4))
    assert passes == {one: 3}
    assert place == OpenPass(event=one, position=1, placed=False)
    less = event(Cyclic(batch_size=2, steps_per_pass=3), 0.5)
    passes, place = advance(place, Span(event=less, steps=1))
    assert passes == {one: -1, less: 2}
    assert place == OpenPass(event=less, position=2, placed=False)


@pytest.mark.parametrize("accept", [DEFAULT_ACCEPT, DERIVED])
def test_an_order_that_is_drawn_once_may_be_that_of_an_earlier_pass(
    accept: frozenset[Status],
) -> None:
    """A training that goes on with repeated seeds goes again through orders of its first passes."""
    spans = [Span(event=event(EARLY, 5.0), steps=8)]
    once = replace(EARLY, reshuffle=Reshuffle.ONCE)
    repeated = [Span(event=event(once, 5.0), steps=8)]
    both = count_events([spans, repeated])
    assert both.used_again == {EARLY}
    read = {"relation": NULL, "delta": 1e-5, "accept": accept}
    known = count_events([[Span(event=event(once, 5.0), steps=16)]])
    assert guarantee(both, **read).epsilon == guarantee(known, **read).epsilon  # type: ignore
    total = RenyiFilter(order=8.0, epsilon=3.0, delta=1e-5).total(
        both, relation=NULL, accept=accept
    )
    assert (total[0] > 0) == (Status.DERIVED in accept)
    larger = replace(once, dataset_size=11)  # a loader of other records repeats nothing
    assert not count_events([spans, [Span(event=event(larger, 5.0), steps=8)]]).used_again


def test_a_secret_order_that_is_used_three_times_costs_more_than_a_secret_and_two_known_ones() -> (
    None
):
    """Exact, of 100 records with two steps: why no curve of the secret order is left."""
    size, sigma, alpha, width = 100, 2.0, 8.0, 0.15
    noise_of_three = sigma / math.sqrt(3)
    line = np.arange(-20.0, 20.0, width)
    grid = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1)
    # The record is in no step, in the first, or in the second; elsewhere are 1, then -1.
    weights = [1 - 2 / size, 1 / size, 1 / size]

    def log_density(means: Sequence[tuple[int, int]]) -> np.ndarray:
        parts = [
            math.log(weight) - 0.5 * (((grid - mean) / noise_of_three) ** 2).sum(axis=-1)
            for weight, mean in zip(weights, means, strict=True)
        ]
        found: np.ndarray = np.logaddexp.reduce(parts)
        return found - math.log(2 * math.pi * noise_of_three**2)

    with_record = log_density([(1, -1), (-1, -1), (1, 1)])
    with_null = log_density([(1, -1), (0, -1), (1, 0)])
    divergence = max(
        math.log(float(np.exp(alpha * p + (1 - alpha) * q).sum()) * width**2) / (alpha - 1)
        for p, q in ((with_record, with_null), (with_null, with_record))
    )
    secret = Shuffle(
        batch_size=1, steps_per_pass=2, reshuffle=Reshuffle.EACH_PASS, dataset_size=size
    )
    budget = RenyiFilter(order=alpha, epsilon=30.0, delta=1e-5)
    once = replace(secret, reshuffle=Reshuffle.ONCE)
    parts = [budget.cost(event(one, sigma), relation=NULL, accept=DERIVED)[2] for one in
             (secret, once, once)]  # fmt: skip
    charged_apart = float(sum(parts)) / 2**80
    assert divergence == pytest.approx(2.2939, abs=2e-4)
    assert divergence > charged_apart == pytest.approx(2.0030, abs=2e-4)
    counts = count_events([
        [Span(event=event(secret, sigma), steps=2)],
        [Span(event=event(once, sigma), steps=4)],
    ])  # fmt: skip
    assert budget.total(counts, relation=NULL, accept=DERIVED)[0] > 0
    told = budget.total(counts, relation=NULL, accept=DEFAULT_ACCEPT)
    assert told[2] / 2**80 >= divergence
