from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.event_counts import EventCounts, OpenPass, Place, advance, count_events, pass_length
from accounting.events import (
    ApproximateDp,
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    Mechanism,
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

CYCLIC = Cyclic(batch_size=10, steps_per_pass=5)
SHUFFLE = Shuffle(batch_size=10, steps_per_pass=3, reshuffle=Reshuffle.EACH_PASS)
ONCE = Shuffle(batch_size=10, steps_per_pass=3, reshuffle=Reshuffle.ONCE)
SAMPLINGS: list[Sampling] = [
    Full(),
    Unknown(),
    Poisson(sampling_probability=0.1),
    FixedSize(batch_size=1, dataset_size=10),
    CYCLIC,
    SHUFFLE,
    ONCE,
]
PROPERTY = settings(deadline=None)


def event(sampling: Sampling, sigma: float = 1.0) -> Event:
    """A step with this noise; none at all where sigma is zero."""
    mechanism: Mechanism = Gaussian(noise_multiplier=sigma) if sigma else NoNoise()
    return Event(mechanism=mechanism, sampling=sampling)


def span(steps: int, sampling: Sampling = CYCLIC, sigma: float = 1.0) -> Span:
    return Span(event=event(sampling, sigma), steps=steps)


UNPROVED: list[Mechanism] = [  # no pass of theirs has a bound
    Laplace(noise_multiplier=1.0),
    Laplace(noise_multiplier=5.0),
    RandomizedResponse(probability_of_truth=0.7, categories=2),
    ApproximateDp(epsilon=1.0, delta=1e-9),
    Zcdp(rho=0.1),
]
ANY_MECHANISM = st.sampled_from(
    [NoNoise(), Gaussian(noise_multiplier=1.0), Gaussian(noise_multiplier=2.0), *UNPROVED]
)
ANY_EVENT = st.builds(Event, mechanism=ANY_MECHANISM, sampling=st.sampled_from(SAMPLINGS))
SPANS = st.lists(st.builds(Span, event=ANY_EVENT, steps=st.integers(1, 12)), max_size=8)


@pytest.mark.no_cover
@PROPERTY
@given(spans=SPANS, data=st.data())
def test_splitting_spans_anywhere_gives_the_same_balance(
    spans: list[Span], data: st.DataObject
) -> None:
    pieces: list[Span] = []
    for whole in spans:
        left = whole.steps
        while left:
            taken = data.draw(st.integers(1, left))
            pieces.append(Span(event=whole.event, steps=taken))
            left -= taken
    assert count_events([pieces]) == count_events([spans])
    assert count_events([pieces]).units() == count_events([spans]).units()


@PROPERTY
@given(branches=st.lists(SPANS, max_size=5), data=st.data())
def test_branches_count_alike_in_whatever_order(
    branches: list[list[Span]], data: st.DataObject
) -> None:
    moved = data.draw(st.permutations(branches))
    assert count_events(moved) == count_events(branches)
    assert count_events(moved).units() == count_events(branches).units()


@PROPERTY
@given(spans=SPANS, copies=st.integers(1, 4))
def test_equal_branches_cost_as_often_as_they_ran(spans: list[Span], copies: int) -> None:
    once, many = count_events([spans]), count_events([spans] * copies)
    assert many.steps == {event: copies * n for event, n in once.steps.items()}
    assert many.passes == {event: copies * n for event, n in once.passes.items()}


@PROPERTY
@given(spans=SPANS, cut=st.integers(0, 8))
def test_batches_of_a_branch_add_up_to_the_branch(spans: list[Span], cut: int) -> None:
    passes: Counter[Event] = Counter()
    open_pass: Place = None
    for batch in (spans[:cut], spans[cut:]):  # only the open pass is carried between batches
        for one in batch:
            changes, open_pass = advance(open_pass, one)
            passes.update(changes)
    assert {event: n for event, n in passes.items() if n} == count_events([spans]).passes


@PROPERTY
@given(branches=st.lists(SPANS, max_size=4))
def test_no_count_is_negative_and_every_step_is_covered_by_a_pass(
    branches: list[list[Span]],
) -> None:
    counts = count_events(branches)
    assert all(n > 0 for n in [*counts.steps.values(), *counts.passes.values()])
    for sampling in (CYCLIC, SHUFFLE, ONCE):
        taken = sum(n for event, n in counts.steps.items() if event.sampling == sampling)
        begun = sum(n for event, n in counts.passes.items() if event.sampling == sampling)
        assert begun * sampling.steps_per_pass >= taken


@PROPERTY
@given(sigmas=st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=1, max_size=20))
def test_each_pass_counts_as_its_least_noisy_step(sigmas: list[float]) -> None:
    length = CYCLIC.steps_per_pass
    passes = [sigmas[start : start + length] for start in range(0, len(sigmas), length)]
    expected = Counter(event(CYCLIC, min(steps)) for steps in passes)
    assert count_events([[span(1, sigma=sigma) for sigma in sigmas]]).passes == expected


@pytest.mark.parametrize(("steps", "passes"), [(1, 1), (4, 1), (5, 1), (6, 2), (10, 2), (11, 3)])
def test_a_pass_that_was_begun_costs_as_a_whole_one(steps: int, passes: int) -> None:
    assert count_events([[span(steps)]]).units() == [(event(CYCLIC), passes)]


def test_the_open_pass_says_how_far_it_has_come() -> None:
    assert advance(None, span(12))[1] == OpenPass(event=event(CYCLIC), position=2)
    assert advance(None, span(10))[1] == OpenPass(event=event(CYCLIC), position=5)
    half = OpenPass(event=event(CYCLIC), position=3)
    changes, after = advance(half, span(2))
    assert not changes
    assert after == OpenPass(event=event(CYCLIC), position=5)


def test_a_change_of_sampling_opens_a_new_pass() -> None:
    counts = count_events([[span(2), span(1, SHUFFLE), span(2), span(1, ONCE)]])
    assert counts.passes == {event(CYCLIC): 2, event(SHUFFLE): 1, event(ONCE): 1}


def test_a_step_counted_by_itself_closes_the_pass() -> None:
    assert advance(OpenPass(event=event(CYCLIC), position=1), span(1, Full())) == (Counter(), None)
    counts = count_events([[span(2), span(1, Full()), span(2)]])
    assert counts.passes == {event(CYCLIC): 2}
    assert counts.units() == [(event(CYCLIC), 2), (event(Full()), 1)]


def test_less_noise_inside_a_pass_moves_the_pass() -> None:
    quiet = event(CYCLIC, 0.5)
    counts = count_events([[span(2), span(1, sigma=0.5), span(2)]])
    assert counts.passes == {quiet: 1}
    assert counts.steps == {event(CYCLIC): 4, quiet: 1}
    changes, _ = advance(OpenPass(event=event(CYCLIC), position=2), span(1, sigma=0.5))
    assert changes == {event(CYCLIC): -1, quiet: 1}


def test_more_noise_inside_a_pass_leaves_it_as_it_was_counted() -> None:
    assert count_events([[span(2), span(3, sigma=2.0)]]).passes == {event(CYCLIC): 1}
    # The next pass has only the noisier steps.
    assert count_events([[span(2), span(4, sigma=2.0)]]).passes == {
        event(CYCLIC): 1,
        event(CYCLIC, 2.0): 1,
    }


def test_less_noise_after_a_full_pass_leaves_that_pass_alone() -> None:
    assert count_events([[span(5), span(1, sigma=0.5)]]).passes == {
        event(CYCLIC): 1,
        event(CYCLIC, 0.5): 1,
    }


def test_a_step_without_noise_takes_its_whole_pass_with_it() -> None:
    counts = count_events([[span(2), span(1, sigma=0), span(4)]])
    assert counts.passes == {event(CYCLIC, 0): 1, event(CYCLIC): 1}


@pytest.mark.parametrize("mechanism", UNPROVED, ids=repr)
def test_a_step_without_a_bound_takes_its_whole_pass_with_it(mechanism: Mechanism) -> None:
    unproved = Event(mechanism=mechanism, sampling=CYCLIC)
    one = Span(event=unproved, steps=1)
    assert count_events([[span(2), one, span(2)]]).passes == {unproved: 1}
    assert count_events([[one, span(4)]]).passes == {unproved: 1}
    # No noise at all comes before everything; of two others the first of the pass stays.
    assert count_events([[one, span(1, sigma=0), span(3)]]).passes == {event(CYCLIC, 0): 1}
    assert count_events([[span(1, sigma=0), one, span(3)]]).passes == {event(CYCLIC, 0): 1}
    for other in UNPROVED:
        later = Span(event=Event(mechanism=other, sampling=CYCLIC), steps=4)
        assert count_events([[one, later]]).passes == {unproved: 1}


def test_only_loaders_that_go_through_the_data_are_counted_by_pass() -> None:
    assert [pass_length(event(sampling)) for sampling in SAMPLINGS] == [
        None, None, None, None, 5, 3, 3,
    ]  # fmt: skip


def test_units_come_in_an_order_that_depends_on_the_events_alone() -> None:
    events = [event(sampling, sigma) for sampling in SAMPLINGS[:4] for sigma in (0, 1.0, 2.0)]
    forward = EventCounts(steps=dict.fromkeys(events, 1))
    backward = EventCounts(steps=dict.fromkeys(reversed(events), 1))
    assert forward.units() == backward.units()
    assert len(forward.units()) == len(events)


def test_an_empty_ledger_has_an_empty_balance() -> None:
    assert count_events([]) == count_events([[]]) == EventCounts()
    assert EventCounts().units() == []
