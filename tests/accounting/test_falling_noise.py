"""Noise that falls inside a pass: what it costs, and that no trainer makes it cost more."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.accountants.best_bound import guarantee
from accounting.accountants.event_grouping import dominating
from accounting.event_counts import EventCounts, count_events, passes_by_sampling
from accounting.events import (
    BallsAndBins,
    Cyclic,
    Event,
    Laplace,
    NeighboringRelation,
    NoNoise,
    Poisson,
    RandomAllocation,
    Reshuffle,
    Sampling,
    Shuffle,
    Span,
)
from accounting.filters import (
    EnvelopeFilter,
    EnvelopeItem,
    Filter,
    RenyiFilter,
    Total,
    choose,
    odometer_epsilon,
    pass_rule,
    plus,
)
from accounting.filters.falling_noise import falling_noise_units
from accounting.filters.integer_totals import LOSS_BITS, limit_units, loss_units
from accounting.guarantees import DEFAULT_ACCEPT
from accounting.renyi.allocation import allocation_rdp
from accounting.shuffling.partial import partial_shuffle_rdp
from tests.accounting.pass_games import (
    SPECIAL,
    TRUSTING,
    event,
)

BOTH = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL)
BINS = BallsAndBins(steps_per_pass=2)
STOPPED = Shuffle(batch_size=1, steps_per_pass=4, reshuffle=Reshuffle.EACH_PASS, dataset_size=1000)
WHOLE = Shuffle(batch_size=10, steps_per_pass=4, reshuffle=Reshuffle.EACH_PASS)
EXACT = 1e-9  # of the integrals


def spans(*parts: tuple[float, int], sampling: Sampling = BINS) -> list[Span]:
    return [Span(event=event(noise, sampling), steps=steps) for noise, steps in parts]


def spent(*branches: list[Span], order: float = 8.0, **given: object) -> float:
    held = RenyiFilter(order=order, epsilon=3.0, delta=1e-5)
    asked: dict[str, object] = {"relation": SPECIAL, "accept": TRUSTING} | given
    uncovered, _, rdp = held.total(count_events(branches), **asked)  # type: ignore[arg-type]
    assert not uncovered
    return math.ldexp(rdp, -LOSS_BITS)


def kept(noise: float, order: float = 8.0, steps: int = 2) -> float:
    (found,) = allocation_rdp(
        noise_multiplier=noise, steps_per_pass=steps, orders=np.array([order])
    )
    return float(found)


def release(noise: float, order: float = 8.0) -> float:
    return 0.5 * order / noise**2


# What is charged


def test_a_fall_costs_what_a_release_costs_more_at_less_noise() -> None:
    fallen = spent(spans((1.5, 1), (1.45, 1)))
    assert fallen == pytest.approx(kept(1.5) + release(1.45) - release(1.5), rel=1e-11)
    assert fallen == pytest.approx(1.2757, abs=5e-5)
    # Noise that rises again keeps what the fall cost, and a pass of one noise costs its own curve.
    assert spent(spans((1.5, 1), (1.45, 1), (1.5, 2))) == pytest.approx(fallen + kept(1.5))
    assert spent(spans((1.45, 1), (1.5, 1))) == pytest.approx(kept(1.45))
    both = spent(spans((1.5, 2), (1.45, 2)))
    assert both == pytest.approx(kept(1.5) + kept(1.45))
    assert both < fallen + kept(1.45)


def test_each_pass_that_is_open_pays_for_its_own_fall() -> None:
    one, other = spans((2.253, 1), (1.352, 1)), spans((2.253, 1), (1.8, 1))
    together = spent(one, other, one)
    assert together == pytest.approx(2 * spent(one) + spent(other))
    assert spent(one, spans((1.1, 20))) == pytest.approx(spent(one) + 10 * kept(1.1))


def test_a_fall_in_several_parts_costs_what_it_costs_at_once() -> None:
    sampling = BallsAndBins(steps_per_pass=4)
    slowly = spans((2.0, 1), (1.9, 1), (1.6, 1), (1.5, 1), sampling=sampling)
    assert spent(slowly) == pytest.approx(
        kept(2.0, steps=4) + release(1.5) - release(2.0), rel=1e-11
    )


def test_a_record_in_several_steps_pays_for_each() -> None:
    sampling = RandomAllocation(steps_per_pass=6, participations=3)
    high, low = (spans((noise, 6), sampling=sampling) for noise in (2.0, 1.9))
    fallen = spent(spans((2.0, 3), (1.9, 3), sampling=sampling))
    assert fallen - spent(high) == pytest.approx(3 * (release(1.9) - release(2.0)), rel=1e-9)
    assert spent(low) < fallen


def test_where_our_own_proof_is_not_accepted_the_rest_of_a_pass_is_a_release() -> None:
    fallen = spent(spans((1.5, 1), (1.45, 1)), accept=DEFAULT_ACCEPT)
    assert fallen == pytest.approx(kept(1.45) + release(1.45), rel=1e-11)
    again = spent(spans((1.5, 1), (1.45, 1), (1.2, 2)), accept=DEFAULT_ACCEPT)
    assert again == pytest.approx(fallen + kept(1.2), rel=1e-11)


def test_a_pass_that_is_a_release_from_its_start_costs_one_at_its_least_noise() -> None:
    replaced = NeighboringRelation.REPLACE_ONE
    fallen = spans((2.0, 1), (1.0, 1))
    assert spent(fallen, relation=replaced) == pytest.approx(4 * release(1.0))
    for sampling in (WHOLE, Cyclic(batch_size=1, steps_per_pass=2)):
        assert spent(spans((2.0, 1), (1.0, 1), sampling=sampling)) == pytest.approx(release(1.0))
    # So little noise that no sampling hides anything: either theorem says so.
    for accept in (TRUSTING, DEFAULT_ACCEPT):
        low = spent(spans((0.2, 1), (0.1, 1)), order=64.0, accept=accept)
        assert low == pytest.approx(release(0.1, order=64.0), rel=1e-11)


def curve(noise: float, order: float) -> float:
    (found,) = partial_shuffle_rdp(
        noise_multiplier=noise,
        batch_size=1,
        dataset_size=1000,
        steps_per_pass=4,
        orders=np.array([order]),
    )
    return float(found)


def test_a_loader_that_stops_early_keeps_the_bound_that_it_chose_when_the_pass_began() -> None:
    def fell(high: float, low: float, order: float) -> float:
        return spent(spans((high, 2), (low, 2), sampling=STOPPED), order=order)

    # The curve is less at both noises: then it is the curve at the less noise.
    assert curve(3.0, 4.0) < release(3.0, 4.0)
    assert curve(2.5, 4.0) < release(2.5, 4.0)
    assert fell(3.0, 2.5, 4.0) == pytest.approx(curve(2.5, 4.0), rel=1e-11)
    # It was less when the pass began and no longer is: it stays, and no release takes its place.
    assert curve(3.0, 8.0) < release(3.0, 8.0)
    assert curve(1.0, 8.0) > release(1.0, 8.0)
    assert fell(3.0, 1.0, 8.0) == pytest.approx(curve(1.0, 8.0), rel=1e-11)
    assert fell(1.0, 0.9, 8.0) == pytest.approx(release(0.9), rel=1e-11)
    # A pass of one noise takes the lesser, whatever others do.
    assert spent(spans((1.0, 4), sampling=STOPPED), spans((3.0, 4), sampling=STOPPED)) == (
        pytest.approx(release(1.0) + curve(3.0, 8.0), rel=1e-9)
    )


def test_of_passes_that_began_at_either_kind_of_noise_the_larger_bound_counts() -> None:
    parts = [
        spans((3.0, 2), (0.9, 2), sampling=STOPPED),
        spans((1.0, 2), (0.9, 2), sampling=STOPPED),
    ]
    assert spent(*parts) == pytest.approx(2 * curve(0.9, 8.0), rel=1e-9)
    unknown = EventCounts(
        steps={event(3.0, STOPPED): 4, event(2.5, STOPPED): 4}, passes={event(2.5, STOPPED): 2}
    )
    held = RenyiFilter(order=4.0, epsilon=3.0, delta=1e-5)
    *_, rdp = held.total(unknown, relation=SPECIAL, accept=TRUSTING)
    assert math.ldexp(rdp, -LOSS_BITS) == pytest.approx(2 * release(2.5, 4.0), rel=1e-9)


def test_what_has_no_bound_has_none_after_a_fall_either() -> None:
    held = RenyiFilter(order=8.0, epsilon=3.0, delta=1e-5)
    silent = Event(mechanism=NoNoise(), sampling=BINS)
    laplace = Event(mechanism=Laplace(noise_multiplier=1.0), sampling=BINS)
    for worse in (silent, laplace):
        steps = [Span(event=event(2.0, BINS), steps=1), Span(event=worse, steps=1)]
        assert held.total(count_events([steps]), relation=SPECIAL)[0] == 1
    cyclic = spans((2.0, 1), (1.0, 1), sampling=Cyclic(batch_size=1, steps_per_pass=2))
    absent = NeighboringRelation.ADD_OR_REMOVE_ONE
    assert held.total(count_events([cyclic]), relation=absent)[0] == 1
    refused = held.total(
        count_events([spans((2.0, 1), (1.0, 1))]), relation=SPECIAL, accept=frozenset()
    )
    assert refused[0] == 1
    stopped = count_events([spans((2.0, 1), (1.0, 1), sampling=STOPPED)])
    assert held.total(stopped, relation=SPECIAL, accept=frozenset())[0] == 1


# Where passes began


def test_passes_of_unknown_beginning_began_at_the_greatest_noise_there_is() -> None:
    high, low = event(2.0, BINS), event(1.0, BINS)
    held = RenyiFilter(order=8.0, epsilon=3.0, delta=1e-5)
    steps = {high: 2, low: 6}

    def total(begun: dict[Event, int]) -> float:
        counts = EventCounts(steps=steps, passes={high: 1, low: 3}, begun=begun)
        *_, rdp = held.total(counts, relation=SPECIAL, accept=TRUSTING)
        return math.ldexp(rdp, -LOSS_BITS)

    fall = release(1.0) - release(2.0)
    assert total({high: 1, low: 3}) == pytest.approx(kept(2.0) + 3 * kept(1.0))
    assert total({high: 1, low: 2}) == pytest.approx(2 * kept(2.0) + 2 * kept(1.0) + fall)
    unknown = total({})
    assert unknown == pytest.approx(4 * kept(2.0) + 3 * fall)
    # Counts that no passes have say nothing.
    for impossible in ({low: 4}, {high: 1, low: 7}, {high: -1, low: 5}, {high: 0, low: 4}):
        assert total(impossible) == pytest.approx(unknown)


@settings(deadline=None)
@given(
    parts=st.lists(
        st.tuples(st.sampled_from([1.0, 1.5, 2.0, 3.0]), st.integers(1, 9)), min_size=1, max_size=9
    ),
    data=st.data(),
)
def test_where_passes_began_does_not_depend_on_how_steps_are_sent(
    parts: list[tuple[float, int]], data: st.DataObject
) -> None:
    cut = []
    for noise, steps in parts:
        first = data.draw(st.integers(1, steps))
        cut += [(noise, first), (noise, steps - first)] if first < steps else [(noise, steps)]
    sampling = BallsAndBins(steps_per_pass=4)
    whole = count_events([spans(*parts, sampling=sampling)])
    assert whole == count_events([spans(*cut, sampling=sampling)])
    total = sum(steps for _, steps in parts)
    assert sum(whole.begun.values()) == sum(whole.passes.values()) == -(-total // 4)
    (each,) = passes_by_sampling(whole).values()
    noises = [noise for noise, steps in parts for _ in range(steps)]
    passes = [noises[i : i + 4] for i in range(0, total, 4)]
    for one in each:
        noise = one.event.mechanism.noise_multiplier  # type: ignore[union-attr]
        assert one.known
        assert one.begun == sum(steps[0] == noise for steps in passes)
        assert one.passes == sum(min(steps) == noise for steps in passes)


ENVELOPE = EnvelopeItem(event=event(2.0, BINS), steps=4)
HELD: dict[str, Filter] = {
    "one order": choose("fixed_order_renyi", epsilon=3.0, delta=1e-5),
    "several orders": choose("union_of_orders", epsilon=3.0, delta=1e-5),
    "Gaussian": choose("gaussian_dp", epsilon=3.0, delta=1e-5),
    "approximate": choose("approximate_dp", epsilon=3.0, delta=1e-5),
    "envelope": EnvelopeFilter(items=(ENVELOPE,), epsilon=9.0, delta=1e-5, certified=8.0),
}


@pytest.mark.parametrize("sampling", [BINS, STOPPED, Cyclic(batch_size=10, steps_per_pass=2)])
@pytest.mark.parametrize("name", HELD)
def test_a_filter_adds_up_passes_from_the_greatest_noise_to_the_least(
    name: str, sampling: Sampling
) -> None:
    held = HELD[name]

    def unit(one: Event) -> Total:
        return held.cost(one, relation=SPECIAL, accept=TRUSTING)

    counts = count_events([spans((3.0, 3), (2.0, 6), (1.5, 1), (1.2, 3), sampling=sampling)])
    rule = pass_rule(held, sampling, relation=SPECIAL, accept=TRUSTING, unit=unit)
    if rule is None:
        assert name == "envelope"
        return
    total, falling, seen = rule.none, 0, rule.start
    (each,) = passes_by_sampling(counts).values()
    assert any(one.begun != one.passes for one in each)
    for one in each:
        more, seen = rule.add(one, falling, seen)
        total, falling = plus(total, more), falling + one.begun - one.passes
    assert rule.total(total) == held.total(counts, relation=SPECIAL, accept=TRUSTING)


# Odometers, and ledgers of fewer events

LADDER = [round(4 - 0.05 * i, 2) for i in range(13)]


def reading(counts: EventCounts) -> float | None:
    found = guarantee(counts, relation=SPECIAL, delta=1e-5, accept=TRUSTING, accountant="odometer")
    return found.epsilon


def ladder(inside: int) -> EventCounts:
    """Three passes of 1,000 steps at each noise, the last of which goes on at the next noise."""
    long = BallsAndBins(steps_per_pass=1000)
    first, *middle, last = LADDER
    parts = [(first, 3000 - inside), *((noise, 3000) for noise in middle), (last, 3000 + inside)]
    return count_events([spans(*parts, sampling=long)])


def test_thirteen_falling_noises_are_read_as_they_fell() -> None:
    falling, steady = ladder(500), ladder(0)
    assert reading(falling) == pytest.approx(0.8805, abs=5e-5)
    assert odometer_epsilon(falling, relation=SPECIAL, delta=1e-5, accept=TRUSTING) == (
        reading(falling)
    )
    # Where no pass has two noises each costs its own curve.
    assert reading(steady) == pytest.approx(0.3177, abs=5e-5)
    assert reading(EventCounts(steps=steady.steps, passes=steady.passes)) == pytest.approx(
        3.7306, abs=5e-5
    )


def test_thirteen_samplings_are_read_as_their_noise_fell() -> None:
    def played(inside: int) -> EventCounts:
        each = [
            spans((1.0, n - inside), (0.99, n + inside), sampling=BallsAndBins(steps_per_pass=n))
            for n in range(1000, 1013)
        ]
        return count_events(each)

    assert reading(played(500)) == pytest.approx(3.122, abs=5e-4)
    assert reading(played(0)) == pytest.approx(1.538, abs=5e-4)


SAMPLINGS: list[Sampling] = [
    Cyclic(batch_size=10, steps_per_pass=4),
    WHOLE,
    STOPPED,
    BallsAndBins(steps_per_pass=4),
    RandomAllocation(steps_per_pass=4, participations=2),
]


@settings(deadline=None, max_examples=25)
@given(
    sampling=st.sampled_from(SAMPLINGS),
    noises=st.lists(
        st.tuples(st.sampled_from([0.9, 1.0, 1.5, 2.5, 2.6, 3.0]), st.integers(1, 9)),
        min_size=1,
        max_size=12,
    ),
    known=st.booleans(),
)
def test_fewer_events_never_read_less(
    sampling: Sampling, noises: list[tuple[float, int]], known: bool
) -> None:
    rare = Span(event=event(1.0, Poisson(sampling_probability=0.01)), steps=5)
    found = count_events([[*spans(*noises, sampling=sampling), rare]])
    if not known:
        found = EventCounts(steps=found.steps, passes=found.passes)
    for relation in (SPECIAL, NeighboringRelation.REPLACE_ONE):
        given = {"relation": relation, "delta": 1e-5, "accept": TRUSTING}
        whole = odometer_epsilon(found, **given)  # type: ignore[arg-type]
        for noises_left in (16, 8, 3, 2, 1):
            fewer = dominating(found, noises_left)
            assert odometer_epsilon(fewer, **given) >= whole * (1 - 1e-12)  # type: ignore[arg-type]
            # What a schedule fixed in advance cost is gathered as before.
            assert sum(fewer.passes.values()) == sum(found.passes.values())


def test_units_of_a_fall_are_rounded_up() -> None:
    upper, lower = loss_units(1e-9), limit_units(1e-9)
    assert upper > lower
    given = {"release_upper": [upper, upper], "release_lower": [lower, lower]}
    fallen = falling_noise_units(begun=[1, 0], passes=[0, 1], first=[7, 7], **given)
    assert fallen == 7 + upper - lower
    assert falling_noise_units(begun=[3, 2], passes=[3, 2], first=[7, 9], **given) == 39
