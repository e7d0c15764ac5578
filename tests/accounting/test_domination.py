import math
from fractions import Fraction

import pytest

from accounting import EventCounts, guarantee
from accounting.bounds.dominating_pairs import (
    REASON_ZCDP,
    approximate_dp_pair,
    pld_bounds,
    poisson_replace_pair,
)
from accounting.bounds.event_bounds import (
    REASON_BATCHES_MOVE,
    REASON_FULL_OR_POISSON,
    REASON_MISSING_ANSWER,
    REASON_NO_NOISE,
    NoBoundError,
)
from accounting.bounds.lower_bounds import lower_bound_pair
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.bounds.sampled_pairs import batch_bounds
from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    Mechanism,
    NeighboringRelation,
    NoNoise,
    Poisson,
    RandomAllocation,
    RandomizedResponse,
    Reshuffle,
    Sampling,
    Shuffle,
    Unknown,
    Zcdp,
)
from accounting.guarantees import ACCEPTABLE, Assumption, Status
from accounting.pld.certified_composition import delta_bracket, epsilon_bracket
from accounting.pld.pairs import (
    DiscretePair,
    GaussianPair,
    LaplacePair,
    Pair,
    ReplacedGaussianPair,
    SampledGaussianPair,
    SymmetricPair,
)

ADD_OR_REMOVE_ONE, REPLACE_ONE, REPLACE_SPECIAL = NeighboringRelation
GAUSSIAN = Gaussian(noise_multiplier=3.0)
LAPLACE = Laplace(noise_multiplier=3.0)
RESPONSE = RandomizedResponse(probability_of_truth=0.75, categories=4)
DECLARED = ApproximateDp(epsilon=1.0, delta=1e-6)
POISSON = Poisson(sampling_probability=0.25)
FIXED = FixedSize(batch_size=1, dataset_size=4)
CYCLIC = Cyclic(batch_size=1, steps_per_pass=5)
SHUFFLE = Shuffle(batch_size=1, steps_per_pass=5, reshuffle=Reshuffle.EACH_PASS)


def gaussian(sigma: float) -> GaussianPair:
    return GaussianPair(noise_multiplier=sigma)


def laplace(scale: float, rate: float = 1.0) -> LaplacePair:
    return LaplacePair(scale=scale, sampling_probability=rate)


def sampled(sigma: float, rate: float) -> SampledGaussianPair:
    return SampledGaussianPair(noise_multiplier=sigma, sampling_probability=rate)


ABOVE, BELOW = 0.25 + 2**-54, 0.25 - 2**-54
TABLE: list[tuple[Mechanism, Sampling, NeighboringRelation, list[Pair], Pair | None]] = [
    (GAUSSIAN, Full(), ADD_OR_REMOVE_ONE, [gaussian(3.0)], gaussian(3.0)),
    (GAUSSIAN, Full(), REPLACE_ONE, [gaussian(1.5)], gaussian(1.5)),
    (GAUSSIAN, Full(), REPLACE_SPECIAL, [gaussian(3.0)], gaussian(3.0)),
    (GAUSSIAN, Unknown(), REPLACE_ONE, [gaussian(1.5)], None),
    (GAUSSIAN, Poisson(sampling_probability=1), REPLACE_ONE, [gaussian(1.5)], gaussian(1.5)),
    (GAUSSIAN, POISSON, ADD_OR_REMOVE_ONE, [sampled(3.0, 0.25)], sampled(3.0, 0.25)),
    (GAUSSIAN, POISSON, REPLACE_SPECIAL, [sampled(3.0, 0.25)], sampled(3.0, 0.25)),
    (
        GAUSSIAN, POISSON, REPLACE_ONE,
        [ReplacedGaussianPair(noise_multiplier=3.0, sampling_probability=0.25), gaussian(1.5)],
        ReplacedGaussianPair(noise_multiplier=3.0, sampling_probability=0.25),
    ),
    (GAUSSIAN, CYCLIC, REPLACE_ONE, [gaussian(1.5)], None),
    (GAUSSIAN, SHUFFLE, REPLACE_SPECIAL, [gaussian(3.0)], None),
    (GAUSSIAN, FIXED, ADD_OR_REMOVE_ONE, [sampled(1.5, ABOVE)], sampled(1.5, BELOW)),
    (
        GAUSSIAN, FIXED, REPLACE_ONE,
        [SymmetricPair(near=gaussian(1.5), far=gaussian(1.5), sampling_probability=ABOVE)],
        sampled(1.5, BELOW),
    ),
    (
        GAUSSIAN, FixedSize(batch_size=4, dataset_size=4), REPLACE_ONE,
        [gaussian(1.5)], gaussian(1.5),
    ),
    (LAPLACE, Full(), ADD_OR_REMOVE_ONE, [laplace(3.0)], laplace(3.0)),
    (LAPLACE, Full(), REPLACE_ONE, [laplace(1.5)], laplace(1.5)),
    (LAPLACE, POISSON, REPLACE_SPECIAL, [laplace(3.0, 0.25)], laplace(3.0, 0.25)),
    (
        LAPLACE, POISSON, REPLACE_ONE,
        [SymmetricPair(near=laplace(3.0), far=laplace(1.5), sampling_probability=0.25),
         laplace(1.5)],
        laplace(3.0, 0.25),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("mechanism", "sampling", "relation", "upper", "lower"), TABLE)
def test_each_step_has_the_pair_the_theory_names(
    mechanism: Mechanism,
    sampling: Sampling,
    relation: NeighboringRelation,
    upper: list[Pair],
    lower: Pair | None,
) -> None:
    event = Event(mechanism=mechanism, sampling=sampling)
    bounds = pld_bounds(event, relation)
    assert [bound.loss for bound in bounds] == [((pair, 1),) for pair in upper]
    assert lower_bound_pair(event, relation, fine=False) == lower
    assert all(relation in bound.theorem.relations for bound in bounds)
    assert all(set(bound.theorem.assumptions) <= set(bound.assumptions) for bound in bounds)
    if sampling == Unknown():
        assert Assumption.OTHERS_UNAFFECTED in bounds[0].assumptions


def discrete(
    mechanism: Mechanism, sampling: Sampling, relation: NeighboringRelation
) -> list[DiscretePair]:
    found = []
    for bound in pld_bounds(Event(mechanism=mechanism, sampling=sampling), relation):
        ((pair, count),) = bound.loss
        assert isinstance(pair, DiscretePair)
        assert count == 1
        found.append(pair)
    return found


def test_a_randomized_response_tells_one_answer_from_another_or_from_none() -> None:
    (replaced,) = discrete(RESPONSE, Full(), REPLACE_ONE)
    assert replaced.first == pytest.approx((0.75, 0.25 / 3, 0.5 / 3))
    assert replaced.second == pytest.approx((0.25 / 3, 0.75, 0.5 / 3))
    (zeroed,) = discrete(RESPONSE, Full(), REPLACE_SPECIAL)
    assert zeroed == DiscretePair(first=(0.75, 0.25), second=(0.25, 0.75))
    revealed, full = discrete(RESPONSE, POISSON, REPLACE_SPECIAL)
    assert revealed.first == (0.75, 0.1875, 0.0625)
    assert revealed.second == (0.75, 0.0625, 0.1875)
    assert full == zeroed
    sampled_response = Event(mechanism=RESPONSE, sampling=POISSON)
    assert lower_bound_pair(sampled_response, REPLACE_SPECIAL) is None
    assert lower_bound_pair(Event(mechanism=RESPONSE, sampling=Full()), REPLACE_SPECIAL) == zeroed
    (bound, _) = pld_bounds(sampled_response, REPLACE_SPECIAL)
    assert Assumption.INDEPENDENT_ANSWERS in bound.assumptions
    assert [theorem.id for theorem in bound.theorems][1:] == ["randomized-response-null-renyi"]


@pytest.mark.parametrize("relation", NeighboringRelation)
def test_a_declared_guarantee_is_its_own_pair(relation: NeighboringRelation) -> None:
    (bound,) = pld_bounds(Event(mechanism=DECLARED, sampling=Full()), relation)
    event = Event(mechanism=DECLARED, sampling=Full())
    assert bound.loss == ((lower_bound_pair(event, relation), 1),)
    assert bound.loss == ((approximate_dp_pair(epsilon=1.0, delta=1e-6), 1),)
    found = delta_bracket(bound.loss, epsilon=1.0)
    assert found.lower <= 1e-6 * (1 + 1e-9)
    assert found.upper >= 1e-6
    assert found.upper - found.lower <= 1e-13
    inside = delta_bracket(bound.loss, epsilon=0.5)
    truth = 1e-6 + (1 - 1e-6) * (math.exp(1.0) - math.exp(0.5)) / (1 + math.exp(1.0))
    assert inside.lower <= truth * (1 + 1e-12)
    assert inside.upper >= truth * (1 - 1e-12)


def test_a_declared_guarantee_is_amplified_only_where_a_record_may_be_missing() -> None:
    (amplified,) = pld_bounds(Event(mechanism=DECLARED, sampling=POISSON), ADD_OR_REMOVE_ONE)
    ((pair, _),) = amplified.loss
    assert isinstance(pair, DiscretePair)
    assert 0.25e-6 < pair.first[0] <= 0.25e-6 * (1 + 1e-14)
    reached = math.log(pair.first[1] / pair.first[2])
    assert reached == pytest.approx(math.log1p(0.25 * math.expm1(1.0)), rel=1e-11)
    assert lower_bound_pair(Event(mechanism=DECLARED, sampling=POISSON), ADD_OR_REMOVE_ONE) is None
    assert len(amplified.premises) == 1
    revealed, full = discrete(DECLARED, POISSON, REPLACE_ONE)
    assert revealed.first == (0.75, *(0.25 * p for p in full.first))
    assert full == approximate_dp_pair(epsilon=1.0, delta=1e-6)


def test_a_huge_declared_epsilon_never_overstates_its_lower_bound() -> None:
    event = Event(mechanism=ApproximateDp(epsilon=5000.0, delta=0.0), sampling=Full())
    (bound,) = pld_bounds(event, REPLACE_ONE)
    below = lower_bound_pair(event, REPLACE_ONE)
    assert below == approximate_dp_pair(epsilon=600.0, delta=0.0)
    assert bound.loss == ((approximate_dp_pair(epsilon=5000.0, delta=0.0), 1),)
    assert isinstance(below, DiscretePair)
    assert below.first[2] > 0
    found = guarantee(EventCounts(steps={event: 1}), relation=REPLACE_ONE, delta=1e-5)
    assert found.epsilon is None or found.epsilon >= 4999
    assert found.epsilon_lower is None or found.epsilon_lower <= 5000
    near = Event(mechanism=ApproximateDp(epsilon=599.0, delta=0.0), sampling=Full())
    assert lower_bound_pair(near, REPLACE_ONE) == approximate_dp_pair(epsilon=599.0, delta=0.0)


BATCHES: list[Sampling] = [FIXED, CYCLIC, SHUFFLE]
REFUSED: list[tuple[Mechanism, Sampling, NeighboringRelation, str]] = [
    *((NoNoise(), s, ADD_OR_REMOVE_ONE, REASON_NO_NOISE) for s in (Full(), POISSON, CYCLIC)),
    *((Zcdp(rho=0.5), s, REPLACE_ONE, REASON_ZCDP) for s in (Full(), POISSON, CYCLIC)),
    *((m, s, REPLACE_ONE, REASON_FULL_OR_POISSON) for m in (LAPLACE, RESPONSE) for s in BATCHES),
    *((DECLARED, s, REPLACE_ONE, REASON_FULL_OR_POISSON) for s in BATCHES),
    *((GAUSSIAN, s, ADD_OR_REMOVE_ONE, REASON_BATCHES_MOVE) for s in (CYCLIC, SHUFFLE)),
    *((RESPONSE, s, ADD_OR_REMOVE_ONE, REASON_MISSING_ANSWER) for s in (Full(), POISSON)),
]  # fmt: skip


@pytest.mark.parametrize(("mechanism", "sampling", "relation", "reason"), REFUSED)
def test_what_no_pair_dominates_is_refused_for_its_reason(
    mechanism: Mechanism, sampling: Sampling, relation: NeighboringRelation, reason: str
) -> None:
    event = Event(mechanism=mechanism, sampling=sampling)
    with pytest.raises(NoBoundError) as refusal:
        pld_bounds(event, relation)
    assert str(refusal.value) == reason
    if not (isinstance(mechanism, Zcdp) and sampling == Full()):
        assert lower_bound_pair(event, relation) is None
    if reason not in (REASON_ZCDP,):  # the Renyi accountant refuses what this one does
        with pytest.raises(NoBoundError):
            renyi_bounds(event, relation)


def _order(reshuffle: Reshuffle, *, left_out: int = 0) -> Shuffle:
    return Shuffle(
        batch_size=1, steps_per_pass=10**6, reshuffle=reshuffle, dataset_size=10**6 + left_out
    )


ALLOCATED = RandomAllocation(steps_per_pass=100, participations=5)
PLAIN = "gaussian-per-pass"
THEOREMS_OF_PASSES: list[tuple[Sampling, NeighboringRelation, list[str], list[str]]] = [
    (_order(Reshuffle.ONCE), REPLACE_ONE, [PLAIN], [PLAIN]),
    (_order(Reshuffle.EACH_PASS), REPLACE_ONE, ["shuffling-clones-pass", PLAIN], [PLAIN]),
    (_order(Reshuffle.EACH_PASS), REPLACE_SPECIAL, ["shuffling-clones-pass", PLAIN], [PLAIN]),
    (
        _order(Reshuffle.EACH_PASS, left_out=10**5), REPLACE_ONE,
        ["partial-shuffle", PLAIN], ["partial-shuffle-rdp", PLAIN],
    ),
    (
        BallsAndBins(steps_per_pass=100), ADD_OR_REMOVE_ONE,
        ["balls-and-bins", PLAIN], ["balls-and-bins-rdp", PLAIN],
    ),
    (BallsAndBins(steps_per_pass=100), REPLACE_ONE, [PLAIN], [PLAIN]),
    (
        ALLOCATED, REPLACE_SPECIAL,
        ["random-allocation", "gaussian-dp"], ["random-allocation-rdp", "gaussian-dp"],
    ),
    (ALLOCATED, REPLACE_ONE, ["gaussian-dp"], ["gaussian-dp"]),
]  # fmt: skip


@pytest.mark.parametrize(("sampling", "relation", "pairs", "curves"), THEOREMS_OF_PASSES)
def test_each_order_has_the_theorems_that_are_proved_of_it(
    sampling: Shuffle | BallsAndBins | RandomAllocation,
    relation: NeighboringRelation,
    pairs: list[str],
    curves: list[str],
) -> None:
    event = Event(mechanism=Gaussian(noise_multiplier=4.0), sampling=sampling)
    assert [bound.theorem.id for bound in batch_bounds(4.0, sampling, relation)] == pairs
    assert [bound.theorem.id for bound in renyi_bounds(event, relation)] == curves


@pytest.mark.parametrize("rho", [1e-100, 1e-3, 0.3, 2.0, 1e4])
@pytest.mark.parametrize("relation", NeighboringRelation)
def test_a_zcdp_release_may_be_a_gaussian_of_that_much_noise(
    rho: float, relation: NeighboringRelation
) -> None:
    pair = lower_bound_pair(Event(mechanism=Zcdp(rho=rho), sampling=Full()), relation)
    assert isinstance(pair, GaussianPair)
    square = Fraction(pair.noise_multiplier) ** 2 * 2 * Fraction(rho)
    assert 1 <= square <= 1 + Fraction(1, 10**14)  # never less noise


def test_the_replaced_pair_keeps_what_it_was_given() -> None:
    pair = poisson_replace_pair(near=laplace(2.0), far=laplace(1.0), sampling_probability=0.1)
    assert (pair.near, pair.far, pair.sampling_probability) == (laplace(2.0), laplace(1.0), 0.1)
    (bound, full) = pld_bounds(Event(mechanism=GAUSSIAN, sampling=POISSON), REPLACE_ONE)
    assert [theorem.status for theorem in bound.theorems] == [Status.DERIVED]
    assert [theorem.status for theorem in full.theorems] == [Status.PUBLISHED]


def test_a_batch_of_nearly_all_records_has_a_rate_of_at_most_one() -> None:
    fixed = FixedSize(batch_size=10**17 - 1, dataset_size=10**17)
    ((pair, _),) = pld_bounds(Event(mechanism=GAUSSIAN, sampling=fixed), ADD_OR_REMOVE_ONE)[0].loss
    assert isinstance(pair, GaussianPair) or pair.sampling_probability < 1  # type: ignore[union-attr]


def _ends(sampling: Sampling, relation: NeighboringRelation) -> tuple[float | None, float]:
    event = Event(mechanism=Gaussian(noise_multiplier=1.0), sampling=sampling)
    found = guarantee(
        EventCounts(steps={event: 1000}), relation=relation, delta=1e-5, accept=ACCEPTABLE
    )
    assert found.epsilon is not None
    return found.epsilon_lower, found.epsilon


def test_batches_of_fixed_size_have_their_known_epsilon() -> None:
    fixed = FixedSize(batch_size=100, dataset_size=10_000)
    lower, upper = _ends(fixed, ADD_OR_REMOVE_ONE)
    assert lower is not None
    assert 13.360822323653714 <= lower <= upper <= 13.360825646466672
    lower, upper = _ends(fixed, REPLACE_ONE)
    assert lower is not None
    assert 13.3608223 <= lower <= 13.3608257
    assert 14.820519605014118 <= upper <= 14.8209 * (1 + 5e-4)
    lower, special = _ends(fixed, REPLACE_SPECIAL)
    assert lower is not None
    assert 10.36 <= lower <= special <= 13.15 < upper


def test_replacing_under_poisson_sampling_has_its_known_epsilon() -> None:
    poisson = Poisson(sampling_probability=0.01)
    lower, upper = _ends(poisson, REPLACE_ONE)
    assert lower is not None
    # +1 against -1 attains what is proved; directly it was 5.3801, through a null record 3.5295.
    assert 2.84332 <= lower <= upper <= 2.84389
    assert upper - lower <= 1e-8 * upper
    event = Event(mechanism=Gaussian(noise_multiplier=1.0), sampling=poisson)
    ((pair, _),) = pld_bounds(event, REPLACE_ONE)[0].loss
    near, far = gaussian(1.0), gaussian(0.5)
    loose = poisson_replace_pair(near=near, far=far, sampling_probability=0.01)
    direct = epsilon_bracket([(loose, 1000)], delta=1e-5)
    assert 5.3801259595 <= direct.upper <= 5.3801259596 * (1 + 5e-4)
    assert upper == epsilon_bracket([(pair, 1000)], delta=1e-5).upper
