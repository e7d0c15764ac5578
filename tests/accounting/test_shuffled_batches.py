import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.accountants import shuffled_passes
from accounting.accountants.best_bound import best_bound
from accounting.accountants.queries import pairs_above
from accounting.accountants.shuffled_passes import (
    SHARE,
    bounds_with_passes,
    delta_of_passes,
    epsilon_of_passes,
    kept_passes,
    set_aside,
)
from accounting.bounds.pair_choice import choose_bounds, close_rival
from accounting.event_counts import EventCounts, count_events
from accounting.events import (
    Cyclic,
    Event,
    Gaussian,
    Laplace,
    NeighboringRelation,
    Poisson,
    Reshuffle,
    Shuffle,
    Span,
)
from accounting.guarantees import DEFAULT_ACCEPT, Bound, Status
from accounting.pld.certified_composition import delta_bracket
from accounting.shuffling.partial import DATASET_SIZE_MAX
from accounting.shuffling.shuffled_batches import (
    shuffled_batches_pairs,
)

ACCEPT = DEFAULT_ACCEPT | {Status.DERIVED}
REPLACE_ONE, SPECIAL = NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL
ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
MNIST = Shuffle(
    batch_size=4096, steps_per_pass=14, reshuffle=Reshuffle.EACH_PASS, dataset_size=60_000
)


def step(sigma: float, sampling: Shuffle | Cyclic = MNIST) -> Event:
    return Event(mechanism=Gaussian(noise_multiplier=sigma), sampling=sampling)


def shuffle(n: int, b: int, k: int, reshuffle: Reshuffle = Reshuffle.EACH_PASS) -> Shuffle:
    return Shuffle(batch_size=b, steps_per_pass=k, reshuffle=reshuffle, dataset_size=n)


def counts_of(*spans: tuple[Event, int]) -> EventCounts:
    return count_events([[Span(event=event, steps=steps) for event, steps in spans]])


def answer(
    counts: EventCounts,
    *,
    relation: NeighboringRelation = REPLACE_ONE,
    accept: frozenset[Status] = ACCEPT,
    delta: float | None = 1e-5,
    epsilon: float | None = None,
) -> Bound:
    found = best_bound(
        counts,
        relation=relation,
        accept=accept,
        delta=delta,
        epsilon=epsilon,
        accountant="pld",
        with_lower=False,
    )
    assert found is not None
    return found


# Values


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("n", "b", "sigma", "passes", "delta", "epsilon"),
    [
        (60_000, 256, 4.0, 60, 1e-5, 1.44),
        (60_000, 256, 2.0, 60, 1e-5, 5.46),
        (60_000, 256, 2.0, 10, 1e-5, 1.97),
        (60_000, 256, 1.1, 60, 1e-5, 43.8),
        (50_000, 512, 4.0, 100, 1e-5, 3.41),
        (1_281_167, 1024, 2.0, 90, 1e-7, 2.76),
        (1_281_167, 1024, 1.0, 90, 1e-7, 29.5),
        (1_281_167, 1024, 1.0, 10, 1e-7, 10.4),
        (60_000, 4096, 8.0, 60, 1e-5, 3.12),
    ],
)
def test_the_answers_are_those_of_the_theory(
    n: int, b: int, sigma: float, passes: int, delta: float, epsilon: float
) -> None:
    k = (n - 1) // b
    counts = counts_of((step(sigma, shuffle(n, b, k)), k * passes))
    for relation in (REPLACE_ONE, SPECIAL):
        found = answer(counts, relation=relation, delta=delta)
        assert found.epsilon == pytest.approx(epsilon, rel=0.01)
        assert found.bound == "shuffled-batches"
        assert found.status is Status.DERIVED


# Refusals


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"steps_per_pass": 1000}, "steps_per_pass"),
        ({"batch_size": 100, "steps_per_pass": 10}, "steps_per_pass"),
        ({"steps_per_pass": 0}, "steps_per_pass"),
        ({"batch_size": 0}, "batch_size"),
        ({"dataset_size": DATASET_SIZE_MAX + 1}, "dataset_size"),
        ({"passes": 0}, "passes"),
        ({"passes": 2**40 + 1}, "passes"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
    ],
)
def test_what_the_theorem_does_not_cover_is_refused(changed: dict[str, float], field: str) -> None:
    known = {"batch_size": 1, "dataset_size": 1000, "steps_per_pass": 500, "passes": 1}
    given: dict[str, Any] = {"delta": 1e-6, **known, **changed}
    with pytest.raises(ValueError, match=field):
        shuffled_batches_pairs(noise_multiplier=2.0, **given)


# Which passes are served


def served(counts: EventCounts, relation: NeighboringRelation = REPLACE_ONE) -> bool:
    return bool(kept_passes(counts, relation))


def test_passes_that_kept_their_noise_are_served() -> None:
    assert kept_passes(counts_of((step(8.0), 30)), REPLACE_ONE) == {step(8.0): 3}  # one is open
    assert served(counts_of((step(8.0), 28)), SPECIAL)
    assert served(counts_of((step(8.0), 3), (step(9.0), 25)))  # the noise rose


@pytest.mark.parametrize(
    "sampling",
    [
        shuffle(60_000, 4000, 15),  # everything is released
        shuffle(60_000, 4001, 15),  # the last batch is smaller
        shuffle(60_000, 4096, 14, Reshuffle.ONCE),
        replace(MNIST, dataset_size=None),
        replace(MNIST, dataset_size=DATASET_SIZE_MAX + 1),
        Cyclic(batch_size=4096, steps_per_pass=14),
    ],
)
def test_other_passes_are_not_served(sampling: Shuffle | Cyclic) -> None:
    assert not served(counts_of((step(8.0, sampling), 28)))


def test_a_pass_whose_noise_fell_is_not_served() -> None:
    assert not served(counts_of((step(8.0), 20), (step(7.0), 8)))
    known = counts_of((step(8.0), 28))
    assert not served(replace(known, begun={}))  # where passes began is not known
    fell = answer(counts_of((step(8.0), 20), (step(7.0), 8)))
    assert fell.bound != "shuffled-batches"
    assert fell.epsilon > 1.2 * answer(counts_of((step(8.0), 28))).epsilon


def test_other_relations_and_mechanisms_are_not_served() -> None:
    assert not served(counts_of((step(8.0), 28)), ADD)
    laplace = Event(mechanism=Laplace(noise_multiplier=8.0), sampling=MNIST)
    assert not served(counts_of((laplace, 28)))


# Answers


def test_the_bound_is_given_to_none_that_does_not_accept_it() -> None:
    counts = counts_of((step(8.0), 28))
    found = answer(counts, accept=DEFAULT_ACCEPT)
    assert found.status is Status.PUBLISHED
    assert found.epsilon > 1.2 * answer(counts).epsilon
    assert set_aside(counts, REPLACE_ONE, DEFAULT_ACCEPT, delta=1e-5, epsilon=None) == 0
    offered = bounds_with_passes(counts, REPLACE_ONE, DEFAULT_ACCEPT, aside=1e-7)
    assert {bound.delta for bound in offered[0][0]} == {0.0}


def test_what_is_set_aside_is_part_of_delta() -> None:
    poisson = Event(
        mechanism=Gaussian(noise_multiplier=8.0), sampling=Poisson(sampling_probability=0.01)
    )
    other = step(9.0, shuffle(60_000, 6000, 9))
    counts = counts_of((step(8.0), 28), (other, 18), (poisson, 10))
    used, above = pairs_above(counts, REPLACE_ONE, ACCEPT, delta=1e-5, aside=SHARE * 1e-5)
    failed = math.fsum(bound.delta for bound in used)
    assert 0.99e-7 < failed <= 1e-7
    found = answer(counts)
    upper = delta_bracket(above, epsilon=found.epsilon, width=1e-2).upper
    assert upper + failed <= 1e-5 * (1 + 1e-9)


def test_nothing_is_set_aside_for_what_does_not_use_it() -> None:
    # With so little noise one release a pass is less.
    counts = counts_of((step(0.3), 28))
    used, _ = pairs_above(counts, REPLACE_ONE, ACCEPT, delta=1e-5, aside=1e-7)
    assert [bound.delta for bound in used] == [0.0]
    assert answer(counts).epsilon <= answer(counts, accept=DEFAULT_ACCEPT).epsilon


def test_delta_at_an_epsilon_includes_what_is_set_aside() -> None:
    counts = counts_of((step(8.0), 14 * 60))
    forth = answer(counts)
    back = answer(counts, delta=None, epsilon=forth.epsilon)
    assert back.bound == "shuffled-batches"
    assert back.delta == pytest.approx(1e-5, rel=0.15)
    aside = set_aside(counts, REPLACE_ONE, ACCEPT, delta=None, epsilon=forth.epsilon)
    _, above = pairs_above(counts, REPLACE_ONE, ACCEPT, epsilon=forth.epsilon, aside=aside)
    alone = delta_bracket(above, epsilon=forth.epsilon, width=1e-2).upper
    assert back.delta == pytest.approx(alone + aside, rel=0.1)
    assert 0.5 * SHARE * back.delta < aside < 2 * SHARE * back.delta


def test_an_open_pass_is_charged_as_a_whole_one() -> None:
    whole, begun = answer(counts_of((step(8.0), 42))), answer(counts_of((step(8.0), 29)))
    assert begun.epsilon == whole.epsilon


def test_where_work_is_short_moments_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    _, above = pairs_above(
        counts_of((step(8.0), 14 * 60)), REPLACE_ONE, ACCEPT, delta=1e-5, aside=1e-7
    )
    fine = epsilon_of_passes(above, delta=1e-5, failed=1e-7)
    monkeypatch.setattr(shuffled_passes, "_PASSES_WIDTHS", {1e-2: 0.0})
    rough = epsilon_of_passes(above, delta=1e-5, failed=1e-7)
    assert fine < rough < 1.5 * fine
    assert 1e-5 < delta_of_passes(above, epsilon=fine, failed=1e-7) < 1e-2
    assert delta_of_passes(above, epsilon=60.0, failed=1e-7) == pytest.approx(1e-7)


@settings(deadline=None, max_examples=5)
@given(sigma=st.floats(1.0, 12.0), passes=st.integers(1, 100))
def test_more_noise_and_fewer_passes_never_cost_more(sigma: float, passes: int) -> None:
    def epsilon(noise: float, count: int) -> float:
        return answer(counts_of((step(noise), 14 * count))).epsilon

    known = epsilon(sigma, passes)
    assert epsilon(1.2 * sigma, passes) <= known * 1.02
    assert epsilon(sigma, passes + 1) >= known * 0.98


def test_where_moments_favour_a_release_by_little_the_less_is_told_once_both_are_composed() -> None:
    six, seven = counts_of((step(2.0), 14 * 6)), counts_of((step(2.0), 14 * 7))
    release = answer(six, accept=DEFAULT_ACCEPT)
    assert release.bound == "gaussian-per-pass"
    used, _ = pairs_above(six, REPLACE_ONE, ACCEPT, delta=1e-5, aside=SHARE * 1e-5)
    assert [bound.theorem.id for bound in used] == ["gaussian-per-pass"]  # by moments alone
    found = answer(six)
    assert found.bound == "shuffled-batches"
    assert found.epsilon < 0.9 * release.epsilon
    assert found.epsilon < answer(seven).epsilon
    back = answer(six, delta=None, epsilon=found.epsilon)
    assert back.bound == "shuffled-batches"
    least = answer(six, accept=DEFAULT_ACCEPT, delta=None, epsilon=found.epsilon).delta
    assert back.delta < 0.2 * least
    two = counts_of((step(1.45), 14 * 2))
    given: dict[str, Any] = {"delta": None, "epsilon": 2.0}
    assert answer(two, **given).delta < 0.8 * answer(two, **given, accept=DEFAULT_ACCEPT).delta


def test_a_release_that_costs_less_stands_though_moments_favour_it_by_little() -> None:
    counts = counts_of((step(1.97), 14 * 2))
    offered = bounds_with_passes(counts, REPLACE_ONE, ACCEPT, aside=1e-7)
    rival = close_rival(offered, choose_bounds(offered, delta=1e-5), delta=1e-5, epsilon=None)
    assert rival is not None
    assert rival[0].theorem is shuffled_batches_pairs
    found, release = answer(counts), answer(counts, accept=DEFAULT_ACCEPT)
    assert (found.bound, found.epsilon) == ("gaussian-per-pass", release.epsilon)


def test_epsilon_and_delta_are_charged_with_what_may_fail() -> None:
    _, above = pairs_above(
        counts_of((step(8.0), 14 * 60)), REPLACE_ONE, ACCEPT, delta=1e-5, aside=1e-7
    )
    half = epsilon_of_passes(above, delta=1e-5, failed=5e-6)
    assert half == pytest.approx(epsilon_of_passes(above, delta=5e-6, failed=0.0), rel=1e-3)
    assert half > 1.01 * epsilon_of_passes(above, delta=1e-5, failed=1e-9)
    without, more = (delta_of_passes(above, epsilon=3.0, failed=one) for one in (0.0, 1e-3))
    assert more == pytest.approx(without + 1e-3, rel=1e-9)
