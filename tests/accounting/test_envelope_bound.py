"""What all items of an envelope certify together, and how many steps of the last one fit."""

import math
from typing import Any

import pytest

from accounting.accountants.best_bound import guarantee
from accounting.accountants.envelope_bound import (
    admissible_of_last,
    envelope_bound,
    epsilon_of,
    unused_delta,
)
from accounting.event_counts import EventCounts
from accounting.events import (
    Cyclic,
    Event,
    Full,
    Gaussian,
    NeighboringRelation,
    Poisson,
    Reshuffle,
    Shuffle,
    Zcdp,
)
from accounting.filters import EnvelopeItem
from accounting.guarantees import DEFAULT_ACCEPT
from accounting.pld.certified_composition import delta_bracket
from accounting.pld.pairs import SampledGaussianPair

ADD, ONE, NULL = NeighboringRelation
DELTA = 1e-5


def step(noise: float, rate: float) -> Event:
    sampling = Poisson(sampling_probability=rate)
    return Event(mechanism=Gaussian(noise_multiplier=noise), sampling=sampling)


def epsilon(*items: EnvelopeItem, relation: NeighboringRelation = ADD) -> float:
    return epsilon_of(items, relation=relation, accept=DEFAULT_ACCEPT, delta=DELTA)


@pytest.mark.parametrize(
    ("delta", "rate", "steps", "noise", "certified"),
    [
        (1e-5, 0.05, 400, 1.6260, 2.986086),
        (1e-5, 0.01, 1000, 1.4258, 0.988331),
        (1e-5, 0.01, 5000, 0.7532, 7.985438),
        (1e-5, 0.001, 10_000, 0.6299, 1.980953),
        (1.1e-10, 4.08e-5, 100_000, 0.614, 1.710498),
    ],
)
def test_an_envelope_of_one_kind_certifies_what_a_fixed_schedule_of_it_does(
    delta: float, rate: float, steps: int, noise: float, certified: float
) -> None:
    items = [EnvelopeItem(event=step(noise, rate), steps=steps)]
    found = envelope_bound(items, relation=ADD, accept=DEFAULT_ACCEPT, delta=delta)
    assert found.epsilon == pytest.approx(certified, abs=1e-5)
    fixed = guarantee(EventCounts(steps={step(noise, rate): steps}), relation=ADD, delta=delta)
    assert fixed.epsilon == pytest.approx(found.epsilon, rel=1e-6)


def test_items_of_equal_steps_add_up() -> None:
    parts = [EnvelopeItem(event=step(2.0, 0.05), steps=steps) for steps in (30, 70)]
    assert epsilon(*parts) == epsilon(EnvelopeItem(event=step(2.0, 0.05), steps=100))


def test_a_shuffled_pass_is_certified_as_one_release_whatever_its_order_hides() -> None:
    noise = Gaussian(noise_multiplier=4.0)
    shuffled = Event(
        mechanism=noise,
        sampling=Shuffle(
            batch_size=10, steps_per_pass=5, reshuffle=Reshuffle.EACH_PASS, dataset_size=1000
        ),
    )
    known = Event(mechanism=noise, sampling=Cyclic(batch_size=10, steps_per_pass=5))
    release = Event(mechanism=noise, sampling=Full())
    for steps, passes in ((1, 1), (5, 1), (6, 2), (11, 3)):
        found = epsilon(EnvelopeItem(event=shuffled, steps=steps), relation=NULL)
        assert found == epsilon(EnvelopeItem(event=known, steps=steps), relation=NULL)
        assert found == epsilon(EnvelopeItem(event=release, steps=passes), relation=NULL)
    assert epsilon(EnvelopeItem(event=shuffled, steps=5)) == math.inf  # a missing record


def test_an_item_without_a_pair_certifies_nothing() -> None:
    declared = Event(mechanism=Zcdp(rho=0.01), sampling=Full())
    assert epsilon(EnvelopeItem(event=declared, steps=1)) == math.inf


@pytest.mark.parametrize("limit", [0.5, 1.0, 3.0])
def test_as_many_steps_of_the_last_item_fit_as_are_certified(limit: float) -> None:
    others = EnvelopeItem(
        event=Event(mechanism=Gaussian(noise_multiplier=40.0), sampling=Full()), steps=3
    )
    last = EnvelopeItem(event=step(1.6, 0.05), steps=5000)
    given = {"relation": ADD, "accept": DEFAULT_ACCEPT, "epsilon": limit, "delta": DELTA}
    fit = admissible_of_last([others, last], **given)  # type: ignore[arg-type]
    assert 0 < fit < 5000
    for steps, fits in ((fit, True), (fit + 1, False)):
        whole = epsilon(others, EnvelopeItem(event=last.event, steps=steps))
        assert (whole <= limit) is fits


def test_of_passes_whole_ones_fit_and_of_a_unit_that_is_too_much_none() -> None:
    loader = Event(
        mechanism=Gaussian(noise_multiplier=4.0), sampling=Cyclic(batch_size=10, steps_per_pass=5)
    )
    item = EnvelopeItem(event=loader, steps=500)
    given = {"relation": NULL, "accept": DEFAULT_ACCEPT, "delta": DELTA}
    fit = admissible_of_last([item], epsilon=3.0, **given)  # type: ignore[arg-type]
    assert fit > 0
    assert fit % 5 == 0
    assert admissible_of_last([item], epsilon=0.1, **given) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [2.99, 3.0, 4.0, 1e5])
def test_what_items_leave_of_delta_is_what_they_do_not_need_at_the_budget(limit: float) -> None:
    items = [EnvelopeItem(event=step(1.6260, 0.05), steps=400)]
    given: dict[str, Any] = {"relation": ADD, "accept": DEFAULT_ACCEPT, "delta": DELTA}
    given["certified"] = epsilon_of(items, relation=ADD, accept=DEFAULT_ACCEPT, delta=DELTA)
    unused = unused_delta(items, epsilon=limit, **given)
    asked = min(limit, 4 * given["certified"] + 40)
    units = [(SampledGaussianPair(noise_multiplier=1.6260, sampling_probability=0.05), 400)]
    needed = delta_bracket(units, epsilon=asked)
    assert (DELTA - needed.upper * (1 + 1e-6)) * (1 - 1e-15) <= unused <= DELTA - needed.lower
    assert unused_delta(items, epsilon=1.0, **given) == 0
