"""Passes of correlated noise: how they are counted, and when noise may be used again."""

import math

import pytest

from accounting.accountants.best_bound import best_bound, guarantee
from accounting.event_counts import (
    UNPLACED,
    USED_NOISE,
    OpenPass,
    Place,
    advance,
    after_steps,
    count_events,
    count_passes_begun,
)
from accounting.events import (
    Event,
    Full,
    Gaussian,
    NoNoise,
    Poisson,
    Reshuffle,
    Shuffle,
    Span,
)
from accounting.filters import RenyiFilter
from accounting.guarantees import ACCEPTABLE
from tests.accounting.correlated_events import SPECIAL, a_pass, in_turns

# How passes are counted


def counted(*spans: tuple[Event, int], place: Place = None) -> dict[Event, int]:
    parts = [Span(event=event, steps=steps) for event, steps in spans]
    return {e: n for e, n in count_events([parts], places=[place]).passes.items() if n}


def uncovered(event: Event) -> Event:
    return Event(mechanism=NoNoise(), sampling=event.sampling)


STEP = Event(mechanism=Gaussian(noise_multiplier=1.0), sampling=Poisson(sampling_probability=0.1))
SHUFFLED = Event(
    mechanism=Gaussian(noise_multiplier=1.0),
    sampling=Shuffle(batch_size=10, steps_per_pass=10, reshuffle=Reshuffle.EACH_PASS),
)


def test_a_pass_is_one_release_charged_with_its_first_step() -> None:
    event = a_pass()
    for steps in (1, 63, 64):
        assert counted((event, steps)) == {event: 1}


def test_a_step_after_the_pass_has_no_bound_unless_noise_restarts() -> None:
    event, again = a_pass(), a_pass(restarts=True)
    assert counted((event, 65)) == {event: 1, uncovered(event): 1}
    assert counted((event, 64), (event, 1)) == {event: 1, uncovered(event): 1}
    assert counted((event, 64), (STEP, 5), (event, 1)) == {event: 1, uncovered(event): 1}
    assert counted((again, 65)) == {again: 2}
    assert counted((again, 64), (SHUFFLED, 5), (again, 64)) == {again: 2, SHUFFLED: 1}


def test_a_pass_goes_on_after_other_steps() -> None:
    event = a_pass()
    assert counted((event, 30), (STEP, 5), (event, 34)) == {event: 1}
    place = OpenPass(event=event, position=30)
    assert after_steps(place) == place


def test_a_pass_that_is_left_unfinished_leaves_no_bound_to_later_ones() -> None:
    event, other = a_pass(restarts=True), a_pass(strategy="b", restarts=True)
    assert counted((event, 30), (other, 1)) == {event: 1, uncovered(event): 2}
    assert counted((event, 30), (SHUFFLED, 1), (event, 1)) == {
        event: 1, SHUFFLED: 1, uncovered(event): 2,
    }  # fmt: skip
    assert counted((event, 30), (SHUFFLED, 1), (STEP, 1), (event, 1)) == {
        event: 1, SHUFFLED: 1, uncovered(event): 2,
    }  # fmt: skip
    assert counted((event, 64), (other, 64)) == {event: 1, other: 1}


def test_a_line_that_may_use_old_noise_has_no_bound() -> None:
    event = a_pass(restarts=True)
    for place in (UNPLACED, USED_NOISE):
        assert counted((event, 64), place=place) == {uncovered(event): 2}
        assert counted((STEP, 3), (event, 64), place=place) == {uncovered(event): 2}
    # A loader that draws an order of its own is as it was.
    assert counted((SHUFFLED, 10), place=USED_NOISE) == {SHUFFLED: 1}
    assert counted((SHUFFLED, 10), (event, 1), place=USED_NOISE) == {
        SHUFFLED: 1, uncovered(event): 2,
    }  # fmt: skip


def test_noise_that_falls_in_a_pass_is_counted_at_its_least() -> None:
    event, less = a_pass(noise=4.0), a_pass(noise=2.0)
    assert counted((event, 30), (less, 10), (event, 24)) == {less: 1}
    counts = count_events([[Span(event=event, steps=30), Span(event=less, steps=10)]])
    held = RenyiFilter(order=8.0, epsilon=100.0, delta=1e-6)
    whole = held.total(counts, relation=SPECIAL, accept=ACCEPTABLE)
    kept = held.total(
        count_events([[Span(event=less, steps=40)]]), relation=SPECIAL, accept=ACCEPTABLE
    )
    assert whole[:2] == kept[:2]
    assert kept[2] <= whole[2] <= kept[2] * (1 + 1e-12)


def test_noise_that_falls_in_a_sampled_pass_has_no_bound() -> None:
    event, less = in_turns(0.1, 8, 64, noise=2.0), in_turns(0.1, 8, 64, noise=1.0)
    assert counted((event, 30), (less, 10)) == {uncovered(event): 1}
    assert counted((less, 30), (event, 10)) == {less: 1}
    again = in_turns(0.1, 8, 64, noise=2.0, restarts=True)
    fell = in_turns(0.1, 8, 64, noise=1.0, restarts=True)
    assert counted((again, 30), (fell, 64)) == {uncovered(again): 2}
    assert counted((again, 64), (fell, 64)) == {again: 1, fell: 1}
    _, together = advance(OpenPass(event=again, position=30), Span(event=fell, steps=64))
    _, apart = advance(OpenPass(event=again, position=30), Span(event=fell, steps=20))
    _, apart = advance(apart, Span(event=fell, steps=44))
    assert together == apart


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("place", [None, UNPLACED, USED_NOISE])
def test_a_span_may_be_split_anywhere(restarts: bool, place: Place) -> None:
    for event in (a_pass(5, 1, 5, restarts=restarts), in_turns(0.1, 2, 5, restarts=restarts)):
        whole = Span(event=event, steps=13)
        once, end = advance(place, whole)
        for at in range(1, 13):
            parts = [Span(event=event, steps=at), Span(event=event, steps=13 - at)]
            first, middle = advance(place, parts[0])
            second, last = advance(middle, parts[1])
            total = {e: first.get(e, 0) + second.get(e, 0) for e in {*first, *second}}
            assert {e: n for e, n in total.items() if n} == {e: n for e, n in once.items() if n}
            assert last == end
            begun = count_passes_begun(place, parts[0]) + count_passes_begun(middle, parts[1])
            assert begun == count_passes_begun(place, whole)


def test_an_uncovered_pass_leaves_a_guarantee_without_a_number() -> None:
    counts = count_events([[Span(event=a_pass(), steps=65)]])
    found = guarantee(counts, relation=SPECIAL, delta=1e-6, accept=ACCEPTABLE)
    assert found.epsilon is None
    assert "used again" in str(found.reason)


def test_rows_of_several_runs_give_one_sum() -> None:
    event, other = a_pass(squared=2.0), a_pass(16, 4, 4, squared=3.0, strategy="b")
    together = count_events(
        [
            [Span(event=event, steps=10), Span(event=STEP, steps=3), Span(event=event, steps=10)],
            [Span(event=other, steps=16)],
        ]
    )
    mu = math.sqrt((2 + 3) / 16)
    plain = Event(mechanism=Gaussian(noise_multiplier=1 / mu), sampling=Full())
    alike = count_events([[Span(event=plain, steps=1), Span(event=STEP, steps=3)]])
    found = [
        best_bound(one, relation=SPECIAL, delta=1e-6, accept=ACCEPTABLE)
        for one in (together, alike)
    ]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].epsilon == pytest.approx(found[1].epsilon, abs=1e-6)
