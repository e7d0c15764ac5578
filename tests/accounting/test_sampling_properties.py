"""What must hold between samplings, whatever their parameters."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import Guarantee, Span, Status, count_events, guarantee
from accounting.events import (
    BallsAndBins,
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    NeighboringRelation,
    NonUniform,
    Poisson,
    RandomAllocation,
    Reshuffle,
    Sampling,
    Shuffle,
    TruncatedPoisson,
    WithReplacement,
)
from accounting.gaussian import gaussian_epsilon
from accounting.guarantees import ACCEPTABLE

ADD_OR_REMOVE_ONE, REPLACE_ONE, REPLACE_SPECIAL = NeighboringRelation
DELTA = 1e-5
WIDTH = 1e-3  # relative, of two answers from lattices
FEW = settings(deadline=None, max_examples=6)


def answer(
    sampling: Sampling, *, noise: float, steps: int, relation: NeighboringRelation
) -> Guarantee:
    event = Event(mechanism=Gaussian(noise_multiplier=noise), sampling=sampling)
    return guarantee(
        count_events([[Span(event=event, steps=steps)]]),
        relation=relation,
        delta=DELTA,
        accept=ACCEPTABLE,
    )


def epsilon(
    sampling: Sampling, *, noise: float, steps: int, relation: NeighboringRelation
) -> float:
    found = answer(sampling, noise=noise, steps=steps, relation=relation).epsilon
    assert found is not None
    return found


def shuffled(
    batches: int, *, steps: int | None = None, once: bool = False, batch: int = 4
) -> Shuffle:
    return Shuffle(
        batch_size=batch,
        steps_per_pass=steps or batches,
        reshuffle=Reshuffle.ONCE if once else Reshuffle.EACH_PASS,
        dataset_size=batch * batches,
    )


KINDS: list[tuple[Sampling, int]] = [
    (FixedSize(batch_size=10, dataset_size=200), 40),
    (WithReplacement(batch_size=10, dataset_size=200), 40),
    (TruncatedPoisson(sampling_probability=0.05, max_batch_size=14, dataset_size=200), 40),
    (Poisson(sampling_probability=0.05), 40),
    (NonUniform(max_weight=0.05), 40),
    (Cyclic(batch_size=10, steps_per_pass=20), 40),
    (shuffled(20, batch=10), 40),
    (shuffled(20, batch=10, once=True), 40),
    (shuffled(20, steps=8, batch=10), 40),
    (BallsAndBins(steps_per_pass=20), 40),
    (RandomAllocation(steps_per_pass=20, participations=2), 40),
]
REPLACED = (REPLACE_ONE, REPLACE_SPECIAL)


@pytest.mark.parametrize(("sampling", "steps"), KINDS)
@pytest.mark.parametrize("relation", NeighboringRelation)
def test_a_bracket_is_in_order_and_more_noise_never_costs_more(
    sampling: Sampling, steps: int, relation: NeighboringRelation
) -> None:
    before = math.inf
    for noise in (0.8, 1.2, 2.5):
        found = answer(sampling, noise=noise, steps=steps, relation=relation)
        if found.epsilon is None:
            assert relation is ADD_OR_REMOVE_ONE
            assert isinstance(sampling, Cyclic | Shuffle | NonUniform)
            assert found.reason
            return
        assert found.epsilon_lower is not None
        assert 0 <= found.epsilon_lower <= found.epsilon
        assert found.epsilon <= before
        before = found.epsilon


@pytest.mark.parametrize(("sampling", "steps"), KINDS)
def test_a_record_is_never_replaced_more_cheaply_than_it_is_blanked(
    sampling: Sampling, steps: int
) -> None:
    special, replaced = (
        epsilon(sampling, noise=1.2, steps=steps, relation=relation)
        for relation in (REPLACE_SPECIAL, REPLACE_ONE)
    )
    assert special <= replaced * (1 + WIDTH)


@pytest.mark.parametrize(("sampling", "steps"), KINDS)
@pytest.mark.parametrize("relation", NeighboringRelation)
def test_by_default_only_published_theorems_answer(
    sampling: Sampling, steps: int, relation: NeighboringRelation
) -> None:
    event = Event(mechanism=Gaussian(noise_multiplier=1.2), sampling=sampling)
    found = guarantee(
        count_events([[Span(event=event, steps=steps)]]), relation=relation, delta=DELTA
    )
    if relation is ADD_OR_REMOVE_ONE and isinstance(sampling, Cyclic | Shuffle | NonUniform):
        assert found.epsilon is None
        return
    assert found.headline is not None
    assert found.headline.status is Status.PUBLISHED
    best = epsilon(sampling, noise=1.2, steps=steps, relation=relation)
    assert best <= found.headline.epsilon


@pytest.mark.parametrize("relation", [ADD_OR_REMOVE_ONE, REPLACE_SPECIAL])
def test_a_growing_cap_tends_to_poisson(relation: NeighboringRelation) -> None:
    poisson = epsilon(Poisson(sampling_probability=0.05), noise=1.0, steps=100, relation=relation)
    before = math.inf
    for cap in (10, 14, 20, 40, 200, 10**6):
        sampling = TruncatedPoisson(sampling_probability=0.05, max_batch_size=cap, dataset_size=200)
        found = epsilon(sampling, noise=1.0, steps=100, relation=relation)
        assert poisson * (1 - WIDTH) <= found <= before * (1 + WIDTH)
        before = found
    assert before == pytest.approx(poisson, rel=WIDTH)


@pytest.mark.parametrize("relation", REPLACED)
@pytest.mark.parametrize("noise", [0.7, 2.0])
def test_a_batch_of_all_records_is_full(relation: NeighboringRelation, noise: float) -> None:
    full = epsilon(Full(), noise=noise, steps=5, relation=relation)
    for sampling in (
        FixedSize(batch_size=50, dataset_size=50),
        NonUniform(max_weight=1.0),
        TruncatedPoisson(sampling_probability=1.0, max_batch_size=50, dataset_size=50),
        RandomAllocation(steps_per_pass=1, participations=1),
    ):
        found = epsilon(sampling, noise=noise, steps=5, relation=relation)
        assert found == pytest.approx(full, rel=1e-6), sampling


@pytest.mark.parametrize("relation", REPLACED)
@pytest.mark.parametrize("noise", [0.7, 2.0])
def test_one_batch_a_pass_is_the_gaussian(relation: NeighboringRelation, noise: float) -> None:
    reach = 2 if relation is REPLACE_ONE else 1
    exact = gaussian_epsilon(DELTA, mu=reach * 2 / noise)
    for sampling in (shuffled(1), shuffled(1, once=True), Cyclic(batch_size=4, steps_per_pass=1)):
        found = answer(sampling, noise=noise, steps=4, relation=relation)
        assert found.epsilon == pytest.approx(exact, rel=1e-9)
        assert found.epsilon_lower == pytest.approx(exact, rel=1e-3)
    ball = answer(BallsAndBins(steps_per_pass=1), noise=noise, steps=4, relation=relation)
    assert ball.epsilon is not None
    assert ball.epsilon <= exact * (1 + 1e-9)


@FEW
@given(noise=st.floats(0.8, 3.0), length=st.integers(2, 60), passes=st.integers(1, 5))
def test_an_allocation_never_costs_more_than_poisson_at_its_rate(
    noise: float, length: int, passes: int
) -> None:
    balls = epsilon(
        BallsAndBins(steps_per_pass=length),
        noise=noise,
        steps=length * passes,
        relation=ADD_OR_REMOVE_ONE,
    )
    poisson = epsilon(
        Poisson(sampling_probability=1 / length),
        noise=noise,
        steps=length * passes,
        relation=ADD_OR_REMOVE_ONE,
    )
    assert balls <= poisson * (1 + WIDTH)


@FEW
@given(noise=st.floats(0.8, 3.0), batches=st.integers(3, 40))
def test_a_longer_part_of_a_pass_costs_more(noise: float, batches: int) -> None:
    before = 0.0
    for steps in sorted({1, batches // 2, batches - 1, batches}):
        found = answer(
            shuffled(batches, steps=steps), noise=noise, steps=steps, relation=REPLACE_ONE
        )
        assert found.epsilon is not None
        assert found.epsilon_lower is not None
        assert found.epsilon_lower <= found.epsilon
        assert found.epsilon >= before * (1 - WIDTH)
        before = found.epsilon


def test_poisson_accounting_of_a_shuffle_is_shown_and_refuted() -> None:
    sampling = shuffled(1000, batch=1)
    found = answer(sampling, noise=1.0, steps=10_000, relation=REPLACE_SPECIAL)
    assert found.poisson_would_say is not None
    assert found.poisson_would_say == pytest.approx(0.4758, abs=1e-4)
    assert found.epsilon_lower is not None
    assert found.epsilon_lower > 9 * found.poisson_would_say
    poisson = answer(
        Poisson(sampling_probability=0.001), noise=1.0, steps=10, relation=REPLACE_SPECIAL
    )
    assert poisson.poisson_would_say is None


def test_what_poisson_would_say_is_composed_with_what_was_poisson() -> None:
    shuffle = Event(mechanism=Gaussian(noise_multiplier=1.0), sampling=shuffled(100))
    poisson = Event(
        mechanism=Gaussian(noise_multiplier=1.0), sampling=Poisson(sampling_probability=0.01)
    )
    mixed = guarantee(
        count_events([[Span(event=shuffle, steps=100), Span(event=poisson, steps=300)]]),
        relation=REPLACE_SPECIAL,
        delta=DELTA,
    )
    alone = guarantee(
        count_events([[Span(event=poisson, steps=400)]]), relation=REPLACE_SPECIAL, delta=DELTA
    )
    assert mixed.poisson_would_say == pytest.approx(alone.epsilon, rel=1e-6)


@pytest.mark.parametrize("relation", REPLACED)
def test_every_scheme_composes_with_every_other(relation: NeighboringRelation) -> None:
    mechanism = Gaussian(noise_multiplier=2.0)
    spans = [
        Span(event=Event(mechanism=mechanism, sampling=sampling), steps=steps)
        for sampling, steps in KINDS
    ]
    alone = [
        guarantee(count_events([[span]]), relation=relation, delta=DELTA, accept=ACCEPTABLE)
        for span in spans
    ]
    mixed = guarantee(count_events([spans]), relation=relation, delta=DELTA, accept=ACCEPTABLE)
    assert mixed.epsilon is not None
    assert mixed.epsilon_lower is not None
    assert max(one.epsilon or 0 for one in alone) <= mixed.epsilon
    assert mixed.epsilon <= sum(one.epsilon or 0 for one in alone)
    assert max(one.epsilon_lower or 0 for one in alone) * (1 - WIDTH) <= mixed.epsilon_lower
    assert mixed.epsilon_lower <= mixed.epsilon
