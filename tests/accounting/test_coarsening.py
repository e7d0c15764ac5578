import numpy as np
import pytest

from accounting import work_budgets
from accounting.accountants.best_bound import best_bound, guarantee
from accounting.accountants.event_grouping import (
    DISTINCT_MAX,
    GROUPS,
    ROUGH_GROUPS,
    GroupedEvents,
    distinct,
    group_events,
    stronger,
)
from accounting.accountants.queries import pairs_above
from accounting.bounds.lower_bounds import lower_bound_units
from accounting.event_counts import EventCounts
from accounting.events import (
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    NeighboringRelation,
    Poisson,
    Zcdp,
)
from accounting.guarantees import DEFAULT_ACCEPT
from accounting.pld.certified_composition import epsilon_bracket, lower_epsilon
from accounting.pld.pairs import Units

ADD_OR_REMOVE_ONE, REPLACE_ONE, REPLACE_SPECIAL = NeighboringRelation
DELTA = 1e-5
MARK = 2**1000  # beside it what marks a step is nothing: all weigh the same


def above(counts: EventCounts, relation: NeighboringRelation = ADD_OR_REMOVE_ONE) -> Units:
    return pairs_above(counts, relation, DEFAULT_ACCEPT)[1]


def below(counts: EventCounts, relation: NeighboringRelation = ADD_OR_REMOVE_ONE) -> Units:
    return lower_bound_units(counts, relation)


def sampled(noise: float, rate: float) -> Event:
    return Event(
        mechanism=Gaussian(noise_multiplier=noise), sampling=Poisson(sampling_probability=rate)
    )


def parameters(event: Event) -> tuple[float, float]:
    assert isinstance(event.mechanism, Gaussian)
    assert isinstance(event.sampling, Poisson)
    return event.mechanism.noise_multiplier, event.sampling.sampling_probability


def curve(size: int, *, rate: float = 0.01) -> list[Event]:
    return [sampled(1.0 + i / size, rate) for i in range(size)]


def cloud(size: int, seed: int) -> list[Event]:
    random = np.random.default_rng(seed)
    noises = np.exp(random.uniform(np.log(0.3), np.log(20), size)).tolist()
    rates = np.exp(random.uniform(np.log(1e-5), np.log(0.5), size)).tolist()
    return [sampled(noise, rate) for noise, rate in zip(noises, rates, strict=True)]


def ledgers(size: int) -> list[list[Event]]:
    both = [sampled(1 + i / size, 0.02 - 0.01 * i / size) for i in range(size)]
    against = [sampled(1 + i / size, 0.01 + 0.01 * i / size) for i in range(size)]
    tiny = [sampled(1e-3 + i * 1e-6, 0.5) for i in range(size)]
    return [curve(size), both, against, tiny, cloud(size, 1), cloud(size, 2)]


def sides(rounded: GroupedEvents) -> list[EventCounts]:
    return [rounded.upper, rounded.lower, rounded.rough_upper, rounded.rough_lower]


@pytest.mark.parametrize("kind", range(6))
def test_every_step_lies_between_the_corners_of_its_group(kind: int) -> None:
    events = ledgers(900)[kind]
    # Each count carries a bit of its own, so a group's count tells which steps are in it.
    steps = {event: MARK + 2**i for i, event in enumerate(events)}
    assert len(steps) == 900
    rounded = group_events(EventCounts(steps=steps))
    for side, sign in zip(sides(rounded), (1, -1, 1, -1), strict=True):
        seen = 0
        for event, count in side.steps.items():
            noise, rate = parameters(event)
            bits = f"{count % MARK:b}"[::-1]
            members = [i for i, bit in enumerate(bits) if bit == "1"]
            assert count == len(members) * MARK + count % MARK
            seen += len(members)
            for i in members:
                own_noise, own_rate = parameters(events[i])
                assert sign * noise <= sign * own_noise
                assert sign * rate >= sign * own_rate
        assert seen == 900
    assert distinct(rounded.rough_upper) <= 2 * ROUGH_GROUPS
    assert distinct(rounded.rough_lower) <= 2 * ROUGH_GROUPS
    assert distinct(rounded.rough_upper) > ROUGH_GROUPS // 8


@pytest.mark.parametrize("kind", range(6))
def test_what_stands_for_a_step_has_no_more_noise_and_no_smaller_rate(kind: int) -> None:
    events = ledgers(900)[kind]
    instead = stronger(EventCounts(steps=dict.fromkeys(events, 1)), 8)
    assert set(instead) == set(events)
    assert 1 < len(set(instead.values())) < 200
    for event, other in instead.items():
        (own_noise, own_rate), (noise, rate) = parameters(event), parameters(other)
        assert noise <= own_noise
        assert rate >= own_rate


@pytest.mark.parametrize("kind", range(6))
@pytest.mark.parametrize("size", [500, 2000])
def test_no_step_is_lost_or_gained_however_many_there_are(kind: int, size: int) -> None:
    events = ledgers(size)[kind]
    random = np.random.default_rng(kind)
    counts = [2**53 + int(n) for n in random.integers(1, 10**6, size)]
    steps = dict(zip(events, counts, strict=True))
    for side in sides(group_events(EventCounts(steps=steps))):
        assert sum(side.steps.values()) == sum(counts)
        assert all(type(count) is int for count in side.steps.values())
        assert distinct(side) <= 1.1 * GROUPS + 1


def test_other_events_stay_as_they_are() -> None:
    cyclic = Cyclic(batch_size=1, steps_per_pass=9)
    a_pass = Event(mechanism=Gaussian(noise_multiplier=2.0), sampling=cyclic)
    passes = {a_pass: 3}
    laplace, poisson = Laplace(noise_multiplier=3.0), Poisson(sampling_probability=0.1)
    others = {
        Event(mechanism=laplace, sampling=Full()): 5,
        Event(mechanism=laplace, sampling=poisson): 4,
        Event(mechanism=Gaussian(noise_multiplier=3.0), sampling=Full()): 6,
        Event(mechanism=Zcdp(rho=0.1), sampling=Full()): 7,
        a_pass: 20,
    }
    counts = EventCounts(steps={**others, **dict.fromkeys(curve(600), 2)}, passes=passes)
    for side in sides(group_events(counts)):
        assert side.passes == passes
        assert {event: side.steps[event] for event in others} == others
        assert sum(side.steps.values()) == 42 + 1200
    alone = EventCounts(steps=others, passes=passes)
    assert sides(group_events(alone)) == [alone] * 4


def test_a_single_sampled_step_is_its_own_group() -> None:
    counts = EventCounts(steps={sampled(1.0, 0.01): 3})
    assert all(side.steps == counts.steps for side in sides(group_events(counts)))


def test_steps_of_parameters_far_apart_still_fall_into_groups() -> None:
    events = [sampled(10.0**power, 0.5) for power in range(-100, 101)]
    events += [sampled(1.0, 10.0**-power) for power in range(1, 101)]
    for side in sides(group_events(EventCounts(steps=dict.fromkeys(events, 1)))):
        assert sum(side.steps.values()) == len(events)


@pytest.mark.parametrize("events", [curve(401), cloud(401, 3)], ids=["curve", "cloud"])
def test_the_sides_enclose_the_composition_of_every_step(events: list[Event]) -> None:
    counts = EventCounts(steps=dict.fromkeys(events, 3))
    exact = epsilon_bracket(above(counts), delta=DELTA)
    rounded = group_events(counts)
    for upper, lower in (
        (rounded.upper, rounded.lower),
        (rounded.rough_upper, rounded.rough_lower),
    ):
        most = epsilon_bracket(above(upper), delta=DELTA, width=1e-4)
        least = epsilon_bracket(above(lower), delta=DELTA, width=1e-4)
        assert least.lower <= exact.upper
        assert exact.lower <= most.upper
    found = guarantee(counts, relation=ADD_OR_REMOVE_ONE, delta=DELTA, accountant="pld")
    assert found.epsilon is not None
    assert found.epsilon_lower is not None
    assert found.epsilon_lower <= exact.lower <= exact.upper <= found.epsilon


def test_decaying_noise_over_twenty_thousand_steps_is_known_within_two_thousandths() -> None:
    events = [sampled(0.8 + 1.2 * i / 20_000, 0.01) for i in range(20_000)]
    found = guarantee(
        EventCounts(steps=dict.fromkeys(events, 1)), relation=ADD_OR_REMOVE_ONE, delta=DELTA
    )
    assert found.headline is not None
    assert found.epsilon is not None
    assert found.epsilon_lower is not None
    assert found.headline.accountant == "pld"
    assert "outward-rounding" in found.headline.theorems
    assert 0 <= found.epsilon - found.epsilon_lower <= 2e-3 * found.epsilon
    # The ends of the schedule, were all steps taken at them, lie far outside.
    assert 2 < found.epsilon_lower < found.epsilon < 12


@pytest.mark.parametrize(("size", "names"), [(DISTINCT_MAX, False), (DISTINCT_MAX + 1, True)])
def test_only_what_is_rounded_says_so(size: int, names: bool) -> None:
    counts = EventCounts(steps=dict.fromkeys(curve(size), 5))
    for delta, epsilon in ((DELTA, None), (None, 900.0)):
        found = best_bound(
            counts, relation=REPLACE_SPECIAL, delta=delta, epsilon=epsilon, accountant="gdp"
        )
        assert found is not None
        assert ("outward-rounding" in found.theorems) is names


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("other", "relation"),
    [
        (Event(mechanism=Zcdp(rho=1e-3), sampling=Full()), ADD_OR_REMOVE_ONE),
        (
            Event(
                mechanism=Gaussian(noise_multiplier=9.0),
                sampling=FixedSize(batch_size=1, dataset_size=100),
            ),
            ADD_OR_REMOVE_ONE,
        ),
    ],
)
def test_a_lower_bound_comes_from_the_lower_side(
    other: Event, relation: NeighboringRelation
) -> None:
    # In the cloud the sides lie far apart, so the wrong one would be seen.
    events = cloud(500, 5)
    counts = EventCounts(steps={**dict.fromkeys(events, 2), other: 2})
    found = guarantee(counts, relation=relation, delta=DELTA)
    alone = EventCounts(steps=dict.fromkeys(events, 2))
    lower = group_events(alone).lower
    known = lower_epsilon(below(lower), delta=DELTA)
    upper_side = lower_epsilon(below(group_events(alone).upper), delta=DELTA)
    assert found.epsilon is not None
    assert found.epsilon_lower is not None
    # The other step may add to what is known; it adds far less than lies between the sides.
    assert known * (1 - 1e-3) <= found.epsilon_lower < 0.5 * (known + upper_side)
    exact = epsilon_bracket(above(alone), delta=DELTA)
    assert known <= exact.upper <= found.epsilon


def test_a_lower_bound_comes_from_the_lower_side_where_delta_is_asked_for() -> None:
    counts = EventCounts(steps=dict.fromkeys(curve(2000), 1))
    found = guarantee(counts, relation=ADD_OR_REMOVE_ONE, epsilon=0.5, accountant="pld")
    assert found.delta is not None
    assert found.epsilon_lower is not None
    exact = epsilon_bracket(above(counts), delta=found.delta)
    assert found.epsilon_lower <= exact.upper


def test_where_all_groups_are_too_much_work_fewer_of_them_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = EventCounts(steps=dict.fromkeys(curve(1000), 1))
    exact = guarantee(counts, relation=ADD_OR_REMOVE_ONE, delta=DELTA)
    monkeypatch.setattr(work_budgets, "PLD_OF_GROUPED_EVENTS", 40_000_000)
    monkeypatch.setattr(work_budgets, "FEWER_NOISES", ())
    found = guarantee(counts, relation=ADD_OR_REMOVE_ONE, delta=DELTA)
    assert found.headline is not None
    assert found.headline.accountant == "pld"
    assert exact.epsilon is not None
    assert exact.epsilon_lower is not None
    assert found.epsilon is not None
    assert found.epsilon_lower is not None
    assert exact.epsilon < found.epsilon < 1.004 * exact.epsilon
    assert 0.99 * exact.epsilon_lower < found.epsilon_lower < exact.epsilon_lower
