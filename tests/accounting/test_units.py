"""People with several records: pairs against enumeration, values of others, and the chain."""

import math
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import norm

from accounting.accountants.best_bound import best_bound
from accounting.accountants.unit_bound import chain_holds, group_profile, unit_bound
from accounting.event_counts import EventCounts, count_events
from accounting.events import (
    BallsAndBins,
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    NegativeBinomialTrials,
    NeighboringRelation,
    Poisson,
    PrivateSelection,
    Reshuffle,
    Sampling,
    Shuffle,
    Span,
    TruncatedPoisson,
)
from accounting.gaussian import log_gaussian_delta
from accounting.guarantees import Status
from accounting.pld.certified_composition import delta_bracket
from accounting.subsampling.units import (
    TooManyRowsError,
    poisson_unit_lower_pair,
    poisson_unit_pair,
    rows_in_batch,
    unit_release_mu,
)

ADD, ONE, NULL = NeighboringRelation
ACCEPT = frozenset({Status.PUBLISHED, Status.DERIVED})
DELTA = 1e-5
Points = npt.NDArray[np.float64]


def plan(noise: float, sampling: Sampling, steps: int) -> EventCounts:
    event = Event(mechanism=Gaussian(noise_multiplier=noise), sampling=sampling)
    return count_events([[Span(event=event, steps=steps)]])


def poisson(rate: float) -> Poisson:
    return Poisson(sampling_probability=rate)


# rows, rate, noise, steps; what another program gives for the person, and the least chain it knows.
VALUES = [
    (2, 0.01, 1.0, 1000, 3.97909, 4.2320),
    (4, 0.01, 1.0, 1000, 8.89919, 11.8080),
    (8, 0.01, 2.0, 1000, 6.46050, 7.16707),
    (16, 0.001, 1.0, 2000, 4.48653, 5.5620),
    (4, 0.01, 4.0, 1000, 1.23989, 1.2516),
]


@pytest.mark.parametrize(("rows", "rate", "noise", "steps", "person", "chain"), VALUES)
def test_people_have_the_values_of_others(
    rows: int, rate: float, noise: float, steps: int, person: float, chain: float
) -> None:
    found = unit_bound(
        plan(noise, poisson(rate), steps), rows=rows, relation=ADD, delta=DELTA, accept=ACCEPT
    )
    assert found.bound == "poisson-unit"
    assert found.epsilon_lower is not None
    assert found.epsilon_lower <= person <= found.epsilon * (1 + 1e-6)
    assert found.epsilon <= person * (1 + 5e-4)
    assert found.epsilon < found.group_epsilon <= chain


def test_a_person_with_one_record_is_a_record() -> None:
    counts = plan(1.0, poisson(0.01), 1000)
    record = best_bound(counts, relation=ADD, delta=DELTA, accept=ACCEPT)
    found = unit_bound(counts, rows=1, relation=ADD, delta=DELTA, accept=ACCEPT)
    assert record is not None
    assert (found.epsilon, found.epsilon_lower) == (record.epsilon, record.epsilon_lower)
    laplace = Event(
        mechanism=Laplace(noise_multiplier=1.0), sampling=FixedSize(batch_size=2, dataset_size=9)
    )
    unknown = count_events([[Span(event=laplace, steps=1)]])
    none = unit_bound(unknown, rows=1, relation=ADD, delta=DELTA, accept=ACCEPT)
    assert (none.epsilon, none.bound, none.status) == (math.inf, None, None)


def test_more_records_cost_more() -> None:
    counts = plan(2.0, poisson(0.02), 300)
    found = [
        unit_bound(counts, rows=rows, relation=NULL, delta=DELTA, accept=ACCEPT).epsilon
        for rows in (1, 2, 3, 5, 9)
    ]
    assert all(b > a for a, b in pairwise(found))


def hockey_stick(
    vectors: Points, rate: float, noise: float, loss: float, *, removed: bool
) -> float:
    """H at e^loss of a step whose person has these contributions, from one without, on a grid."""
    line = np.linspace(-9 * noise - 3, 9 * noise + 3, 401)
    x, y = np.meshgrid(line, line)
    cell = (line[1] - line[0]) ** 2

    def density(mean: Points) -> Points:
        return np.asarray(norm.pdf(x, mean[0], noise) * norm.pdf(y, mean[1], noise))

    mixture = np.zeros_like(x)
    for chosen in product((0, 1), repeat=len(vectors)):
        weight = math.prod(rate if one else 1 - rate for one in chosen)
        mixture += weight * density(np.asarray(chosen) @ vectors)
    first, second = (mixture, density(np.zeros(2))) if removed else (density(np.zeros(2)), mixture)
    return float(np.maximum(first - math.exp(loss) * second, 0.0).sum() * cell)


def on_a_line(rows: int, rate: float, noise: float, loss: float, *, removed: bool) -> float:
    """The same where all contribute one vector, on a fine grid."""
    x, step = np.linspace(-12 * noise, 12 * noise + rows, 400_001, retstep=True)
    weights = [math.comb(rows, j) * rate**j * (1 - rate) ** (rows - j) for j in range(rows + 1)]
    mixture = sum(weight * norm.pdf(x, j, noise) for j, weight in enumerate(weights))
    first, second = mixture, norm.pdf(x, 0, noise)
    if not removed:
        first, second = second, first
    return float(np.maximum(first - math.exp(loss) * second, 0.0).sum() * step)


def test_no_person_in_the_plane_loses_more_than_the_pair_says() -> None:
    generator = np.random.default_rng(7)
    for _ in range(8):
        rows, rate = int(generator.integers(1, 4)), float(generator.uniform(0.05, 0.6))
        noise = float(generator.uniform(0.6, 2.0))
        pair = poisson_unit_pair(noise_multiplier=noise, sampling_probability=rate, rows=rows)
        angles = generator.uniform(0, 2 * math.pi, int(generator.integers(0, rows + 1)))
        some = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        alike = np.tile([1.0, 0.0], (rows, 1))
        for loss in (0.1, 0.7):
            most = delta_bracket([(pair, 1)], epsilon=loss)
            for removed in (True, False):
                # The sum over cells is off by 4e-4 at most.
                for vectors in (some, alike):
                    exact = hockey_stick(vectors, rate, noise, loss, removed=removed)
                    assert exact <= most.upper * (1 + 5e-4) + 1e-8
            attained = on_a_line(rows, rate, noise, loss, removed=True)
            assert 0.9999 * most.lower - 1e-10 <= attained <= most.upper * (1 + 1e-6) + 1e-12
            added = on_a_line(rows, rate, noise, loss, removed=False)
            assert added <= most.upper * (1 + 1e-6) + 1e-12


def test_the_lower_pair_is_below_and_close() -> None:
    given = {"noise_multiplier": 1.2, "sampling_probability": 0.05, "rows": 5}
    above = delta_bracket([(poisson_unit_pair(**given), 20)], epsilon=1.0)  # type: ignore[arg-type]
    below = delta_bracket([(poisson_unit_lower_pair(**given), 20)], epsilon=1.0)  # type: ignore[arg-type]
    assert 0.99 * above.upper <= below.lower <= above.upper


def test_k_norm_bounds_do_not_cover_a_person_who_displaces_others() -> None:
    """Four of four records are drawn; a person of two joins, and two of others' go."""
    noise, loss = 4.0, 0.5
    displaced = math.exp(log_gaussian_delta(loss, mu=4 / noise)[0])
    claimed = math.exp(
        log_gaussian_delta(
            loss, mu=unit_release_mu(noise_multiplier=noise, rows=2, exchanged=False)
        )[0]
    )
    assert displaced > 2 * claimed
    counts = plan(noise, FixedSize(batch_size=4, dataset_size=4), 1)
    found = unit_bound(counts, rows=2, relation=ADD, delta=DELTA, accept=ACCEPT)
    assert (found.epsilon, found.bound) == (math.inf, None)


RELEASES: list[tuple[Sampling, NeighboringRelation, int, float]] = [
    (Full(), ADD, 10, 3.0),
    (Full(), ONE, 10, 6.0),
    (BallsAndBins(steps_per_pass=10), NULL, 100, 3.0),
    (Cyclic(batch_size=10, steps_per_pass=10), NULL, 100, 3.0),
    (Cyclic(batch_size=10, steps_per_pass=10), ONE, 100, 6.0),
]


@pytest.mark.parametrize(("sampling", "relation", "steps", "distance"), RELEASES)
def test_full_batches_and_passes_are_releases_at_the_sum_of_the_records(
    sampling: Sampling, relation: NeighboringRelation, steps: int, distance: float
) -> None:
    counts = plan(20.0, sampling, steps)
    found = unit_bound(counts, rows=3, relation=relation, delta=DELTA, accept=ACCEPT)
    log_delta, _ = log_gaussian_delta(found.epsilon, mu=distance / 20 * math.sqrt(10))
    if found.bound == "unit-gaussian":
        assert math.exp(log_delta) == pytest.approx(DELTA, rel=1e-6)
    assert found.epsilon <= found.group_epsilon
    assert (found.epsilon_lower is not None) == isinstance(sampling, Full)


def test_what_no_accepted_theorem_bounds_has_no_epsilon() -> None:
    counts = plan(1.0, poisson(0.01), 100)
    published = frozenset({Status.PUBLISHED})
    found = unit_bound(counts, rows=2, relation=ADD, delta=DELTA, accept=published)
    assert (found.epsilon, found.group_epsilon) == (math.inf, math.inf)
    chain = unit_bound(counts, rows=2, relation=ONE, delta=DELTA, accept=ACCEPT)
    assert (chain.bound, chain.status) == ("group-privacy", Status.DERIVED)
    assert chain.epsilon == chain.group_epsilon < math.inf
    passes = plan(1.0, Cyclic(batch_size=10, steps_per_pass=10), 10)
    assert unit_bound(passes, rows=2, relation=ADD, delta=DELTA, accept=ACCEPT).bound is None
    laplace = Event(mechanism=Laplace(noise_multiplier=9.0), sampling=Full())
    found = unit_bound(
        count_events([[Span(event=laplace, steps=1)]]),
        rows=2, relation=ADD, delta=DELTA, accept=ACCEPT,
    )  # fmt: skip
    assert (found.bound, found.epsilon_lower) == ("group-privacy", None)


def test_a_chain_whose_delta_vanishes_says_nothing() -> None:
    counts = plan(0.3, Full(), 50)
    found = unit_bound(counts, rows=10_000, relation=ADD, delta=DELTA, accept=ACCEPT)
    assert found.group_epsilon == math.inf
    assert found.bound == "unit-gaussian"


def test_rows_of_a_batch_are_binomial() -> None:
    chances, rest = rows_in_batch(3, 0.5)
    assert chances.tolist() == pytest.approx([0.125, 0.375, 0.375, 0.125], rel=1e-12)
    assert rest == 0
    chances, rest = rows_in_batch(10_000, 0.001)
    assert len(chances) < 200
    assert 0 < rest < 1e-59
    assert chances.sum() == pytest.approx(1.0, rel=1e-11)
    with pytest.raises(TooManyRowsError):
        rows_in_batch(10_000, 0.5)
    crowd = plan(2.0, poisson(0.5), 1)
    assert unit_bound(crowd, rows=10_000, relation=ADD, delta=DELTA, accept=ACCEPT).bound is None


@pytest.mark.parametrize(
    ("rows", "rate", "noise"),
    [(0, 0.5, 1.0), (10_001, 0.5, 1.0), (2, 0.0, 1.0), (2, 1.0, 1.0), (2, math.nan, 1.0),
     (2, 0.5, 0.0), (2, 0.5, math.inf), (2, 0.5, math.nan)],
)  # fmt: skip
def test_what_is_out_of_range_is_refused(rows: int, rate: float, noise: float) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        poisson_unit_pair(noise_multiplier=noise, sampling_probability=rate, rows=rows)


def test_points_of_a_profile_give_those_of_a_group() -> None:
    mu, rows = 0.4, 3
    epsilons = np.linspace(0.0, 2.0, 9)
    deltas = np.exp([log_gaussian_delta(float(one), mu=mu)[0] for one in epsilons])
    together, lost = group_profile(epsilons, deltas, rows=rows)
    assert together == pytest.approx(rows * epsilons, rel=1e-12)
    # A sum of Gaussian noise: three records are three times as far apart, and lose no more.
    really = np.exp([log_gaussian_delta(float(one), mu=rows * mu)[0] for one in together])
    assert np.all(lost >= really)
    ways = 1 + np.exp(epsilons) + np.exp(2 * epsilons)  # the links of the chain
    assert lost == pytest.approx(np.minimum(1.0, deltas * ways), rel=1e-9)


def test_points_that_prove_nothing_are_left_out_of_a_group() -> None:
    epsilons, deltas = np.array([0.0, 1.0, 701.0]), np.array([1.0, 0.1, 0.0])
    together, lost = group_profile(epsilons, deltas, rows=2)
    assert together.tolist() == pytest.approx([2.0])
    assert lost.tolist() == pytest.approx([0.1 * (1 + math.e)])
    nothing, none = group_profile(epsilons[:1], deltas[:1], rows=2)
    assert nothing.shape == none.shape == (0,)


def test_a_chain_needs_samplings_that_do_not_depend_on_the_size() -> None:
    fixed = plan(1.0, FixedSize(batch_size=10, dataset_size=1000), 1)
    assert not chain_holds(fixed, ADD)
    assert chain_holds(fixed, ONE)
    assert chain_holds(fixed, NULL)
    assert chain_holds(plan(1.0, poisson(0.1), 1), ADD)


def selection(sampling: Sampling) -> EventCounts:
    """A selection whose trials draw their batches so."""
    base = Event(mechanism=Gaussian(noise_multiplier=200.0), sampling=sampling)
    law = NegativeBinomialTrials(shape=1.0, halting_probability=0.1)
    best = PrivateSelection(repetitions=law, base=base, steps=10)
    return count_events([[Span(event=Event(mechanism=best, sampling=Full()), steps=1)]])


@pytest.mark.parametrize(
    "sampling",
    [
        FixedSize(batch_size=50, dataset_size=101),
        TruncatedPoisson(sampling_probability=0.1, max_batch_size=20, dataset_size=100),
        # Without six records a pass has nine whole batches, and anyone can count them.
        Shuffle(
            batch_size=10, steps_per_pass=10, dataset_size=105, reshuffle=Reshuffle.EACH_PASS
        ),
    ],
)  # fmt: skip
def test_a_chain_needs_such_samplings_in_the_trials_of_a_selection_too(sampling: Sampling) -> None:
    counts = selection(sampling)
    assert best_bound(counts, relation=ADD, delta=DELTA, accept=ACCEPT) is not None
    found = unit_bound(counts, rows=7, relation=ADD, delta=DELTA, accept=ACCEPT)
    assert math.isinf(found.epsilon)
    assert not chain_holds(counts, ADD)
    assert chain_holds(counts, NULL)


def test_a_selection_of_poisson_trials_has_a_chain() -> None:
    counts = selection(poisson(0.1))
    found = unit_bound(counts, rows=7, relation=ADD, delta=DELTA, accept=ACCEPT)
    assert found.epsilon == found.group_epsilon < math.inf
