import mpmath
import numpy as np
import pytest

from accounting.events import Direction
from accounting.pld.pairs import (
    DiscretePair,
    GaussianPair,
    LaplacePair,
    Pair,
    ReplacedGaussianPair,
    SampledGaussianPair,
    SymmetricPair,
)
from accounting.pld.tails import TINY, profile, profiles, tails

DIRECTIONS = pytest.mark.parametrize("direction", list(Direction))
SAMPLED = [(1.0, 0.01), (0.6, 1e-7), (3.0, 0.5), (1.1, 1 - 1e-9), (0.3, 1e-3)]


def _gaussian_tails(pair: SampledGaussianPair, direction: Direction, loss: float) -> list[object]:
    """P(L > l), Q(L > l), P(L <= l), Q(L <= l) at 50 digits, from the definition."""
    sigma, q = mpmath.mpf(pair.noise_multiplier), mpmath.mpf(pair.sampling_probability)
    sign = 1 if direction is Direction.REMOVE else -1
    inner = (mpmath.exp(sign * mpmath.mpf(loss)) - (1 - q)) / q
    x = sigma**2 * mpmath.log(inner) + mpmath.mpf(1) / 2 if inner > 0 else -mpmath.inf

    def cdf(z: object) -> object:
        return mpmath.erfc(-z / mpmath.sqrt(2)) / 2  # type: ignore[operator]

    below, above = [cdf(x / sigma), cdf((x - 1) / sigma)], [cdf(-x / sigma), cdf((1 - x) / sigma)]
    mixed = [(1 - q) * side[0] + q * side[1] for side in (above, below)]
    if direction is Direction.REMOVE:
        return [mixed[0], above[0], mixed[1], below[0]]
    return [below[0], mixed[1], above[0], mixed[0]]


@DIRECTIONS
@pytest.mark.parametrize(("sigma", "q"), SAMPLED)
def test_tails_of_a_sampled_gaussian_are_right_to_their_stated_error(
    sigma: float, q: float, direction: Direction
) -> None:
    pair = SampledGaussianPair(noise_multiplier=sigma, sampling_probability=q)
    losses = np.concatenate((-np.geomspace(1e-12, 40, 25), [0.0], np.geomspace(1e-12, 40, 25)))
    found = tails(pair, direction=direction, losses=losses)
    with mpmath.workdps(50):
        for i, loss in enumerate(losses):
            exact = _gaussian_tails(pair, direction, float(loss))
            values = (found.p_above[i], found.q_above[i], found.p_below[i], found.q_below[i])
            for value, truth in zip(values, exact, strict=True):
                allowed = truth * mpmath.mpf(float(found.error[i])) + mpmath.mpf(TINY)
                assert abs(mpmath.mpf(float(value)) - truth) <= allowed, (loss, value, truth)


@DIRECTIONS
def test_the_stated_error_of_tails_is_small_where_the_mass_is(direction: Direction) -> None:
    pair = SampledGaussianPair(noise_multiplier=1.0, sampling_probability=0.01)
    losses = np.array([-0.008, -0.004, -1e-5, 1e-5, 0.004, 0.008])
    assert np.all(tails(pair, direction=direction, losses=losses).error < 1e-13)


@DIRECTIONS
@pytest.mark.parametrize(("sigma", "q"), SAMPLED)
def test_profiles_of_a_sampled_gaussian_contain_the_exact_ones(
    sigma: float, q: float, direction: Direction
) -> None:
    pair = SampledGaussianPair(noise_multiplier=sigma, sampling_probability=q)
    losses = np.concatenate((-np.geomspace(1e-9, 30, 20), [0.0], np.geomspace(1e-9, 30, 20)))
    lower, upper = profiles(pair, direction=direction, losses=losses)
    with mpmath.workdps(60):
        for i, loss in enumerate(losses):
            above = _gaussian_tails(pair, direction, float(loss))
            truth = above[0] - mpmath.exp(mpmath.mpf(float(loss))) * above[1]
            assert mpmath.mpf(float(lower[i])) <= truth <= mpmath.mpf(float(upper[i])), loss


@DIRECTIONS
def test_profiles_lose_no_digits_to_little_sampling(direction: Direction) -> None:
    pair = SampledGaussianPair(noise_multiplier=1.0, sampling_probability=1e-7)
    losses = np.array([-1e-3, -1e-8, 0.0, 1e-9, 5e-8])
    lower, upper = profiles(pair, direction=direction, losses=losses)
    assert np.all(upper - lower <= 1e-13 * upper)


PAIRS: list[Pair] = [
    GaussianPair(noise_multiplier=2.0),
    ReplacedGaussianPair(noise_multiplier=0.8, sampling_probability=0.2),
    SampledGaussianPair(noise_multiplier=0.8, sampling_probability=0.2),
    LaplacePair(scale=2.0, sampling_probability=1.0),
    LaplacePair(scale=0.7, sampling_probability=0.3),
    DiscretePair(first=(0.5, 0.3, 0.2, 0.0), second=(0.2, 0.3, 0.4, 0.1)),
    SymmetricPair(
        near=GaussianPair(noise_multiplier=1.0),
        far=GaussianPair(noise_multiplier=0.5),
        sampling_probability=0.1,
    ),
    SymmetricPair(
        near=LaplacePair(scale=1.0, sampling_probability=1.0),
        far=LaplacePair(scale=0.5, sampling_probability=1.0),
        sampling_probability=0.2,
    ),
]


@DIRECTIONS
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_tails_agree_with_profiles_and_sum_to_one(pair: Pair, direction: Direction) -> None:
    losses = np.linspace(-1.5, 1.5, 47)
    at = tails(pair, direction=direction, losses=losses)
    lower, upper = profiles(pair, direction=direction, losses=losses)
    difference = at.p_above - np.exp(losses) * at.q_above
    assert np.all(np.abs(difference - 0.5 * (lower + upper)) <= 1e-13)
    assert np.allclose(at.p_above + at.p_below, 1, rtol=0, atol=1e-13)
    assert np.allclose(at.q_above + at.q_below, 1, rtol=0, atol=1e-13)
    assert np.all(np.diff(at.p_above) <= 1e-15)


@DIRECTIONS
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_tails_of_q_are_minus_the_slope_of_the_profile(pair: Pair, direction: Direction) -> None:
    # dH/da = -Q(L > log a), by central differences between atoms.
    losses = np.linspace(-1.4, 1.4, 29) + 0.0123
    step = 1e-5
    near = [profiles(pair, direction=direction, losses=losses + s)[1] for s in (-step, step)]
    slope = (near[0] - near[1]) / (np.exp(losses + step) - np.exp(losses - step))
    at = tails(pair, direction=direction, losses=losses)
    assert np.allclose(slope, at.q_above, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("b", [0.5, 2.0, 20.0])
def test_the_atoms_of_laplace_noise_lie_at_the_ends(b: float) -> None:
    pair = LaplacePair(scale=b, sampling_probability=1.0)
    inside = np.array([-0.999999 / b, 0.999999 / b])
    at = tails(pair, direction=Direction.REMOVE, losses=inside)
    assert at.p_above[1] == pytest.approx(0.5, rel=1e-5)
    assert at.p_below[0] == pytest.approx(0.5 * np.exp(-1 / b), rel=1e-5)
    outside = tails(pair, direction=Direction.REMOVE, losses=inside * 1.00001)
    assert outside.p_above.tolist() == [1.0, 0.0]


def test_an_atom_within_rounding_of_the_loss_has_no_stated_accuracy() -> None:
    laplace = LaplacePair(scale=3.0, sampling_probability=1.0)
    response = DiscretePair(first=(0.6, 0.4), second=(0.4, 0.6))
    for pair, atom in ((laplace, 1 / 3), (response, np.log(0.6) - np.log(0.4))):
        at = tails(pair, direction=Direction.REMOVE, losses=np.array([atom, atom + 1e-9]))
        assert np.isinf(at.error[0])
        assert at.error[1] < 1e-12


@DIRECTIONS
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_the_scalar_profile_agrees_with_the_vector_one(pair: Pair, direction: Direction) -> None:
    for epsilon in (0.0, 1e-6, 0.05, 0.3, 1.0, 2.5):
        lower, upper = profile(pair, direction=direction, epsilon=epsilon)
        low, high = profiles(pair, direction=direction, losses=np.array([epsilon]))
        assert lower <= upper
        assert lower <= high[0]
        assert low[0] <= upper
        assert upper - lower <= 1e-11 * upper + 1e-280


@DIRECTIONS
@pytest.mark.parametrize(("sigma", "q"), SAMPLED)
def test_the_scalar_profile_contains_the_exact_one(
    sigma: float, q: float, direction: Direction
) -> None:
    pair = SampledGaussianPair(noise_multiplier=sigma, sampling_probability=q)
    with mpmath.workdps(60):
        for epsilon in (0.0, 1e-9, 1e-4, 0.3, 2.0, 15.0):
            above = _gaussian_tails(pair, direction, epsilon)
            truth = above[0] - mpmath.exp(mpmath.mpf(epsilon)) * above[1]
            lower, upper = profile(pair, direction=direction, epsilon=epsilon)
            assert mpmath.mpf(lower) <= truth <= mpmath.mpf(upper), epsilon


@pytest.mark.parametrize("epsilon", [-1.0, float("nan"), float("inf")])
def test_a_profile_at_no_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        profile(PAIRS[0], direction=Direction.ADD, epsilon=epsilon)


@DIRECTIONS
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_an_enormous_epsilon_has_an_upper_bound(pair: Pair, direction: Direction) -> None:
    sure = 0.1 if isinstance(pair, DiscretePair) and direction is Direction.ADD else 0.0
    assert profile(pair, direction=direction, epsilon=1e4)[1] <= sure * (1 + 1e-12) + 1e-30


def _symmetric_profile(pair: SymmetricPair, a: object) -> object:
    """H at a = e^l, from the definition of the pair; any number of digits."""
    q = mpmath.mpf(pair.sampling_probability)
    if a < 1:  # type: ignore[operator]
        return 1 - a + a * _symmetric_profile(pair, 1 / a)  # type: ignore[operator]
    inner = 1 + (a - 1) / q  # type: ignore[operator]
    c = a / inner
    near, far = (_base_delta(base, mpmath.log(inner)) for base in (pair.near, pair.far))
    return q * ((1 - c) * near + c * far)


def _base_delta(base: GaussianPair | LaplacePair, loss: object) -> object:
    if isinstance(base, LaplacePair):
        half = (loss - 1 / mpmath.mpf(base.scale)) / 2
        return -mpmath.expm1(min(mpmath.mpf(0), half))
    sigma = mpmath.mpf(base.noise_multiplier)
    first, last = 1 / (2 * sigma) - sigma * loss, -1 / (2 * sigma) - sigma * loss
    return mpmath.ncdf(first) - mpmath.exp(loss) * mpmath.ncdf(last)


SYMMETRIC = [
    *(pair for pair in PAIRS if isinstance(pair, SymmetricPair)),
    SymmetricPair(
        near=GaussianPair(noise_multiplier=0.6),
        far=GaussianPair(noise_multiplier=0.3),
        sampling_probability=1e-4,
    ),
]


@pytest.mark.parametrize("pair", SYMMETRIC, ids=str)
def test_tails_of_a_symmetric_pair_are_right_to_their_stated_error(pair: SymmetricPair) -> None:
    # Q(L > l) = -H'(a) and P(L > l) = H + a Q(L > l), by differences at 60 digits.
    losses = np.concatenate((-np.geomspace(1e-7, 2, 12), np.geomspace(1e-7, 2, 12)))
    found = tails(pair, direction=Direction.REMOVE, losses=losses)
    with mpmath.workdps(60):
        for i, loss in enumerate(losses):
            a = mpmath.exp(mpmath.mpf(float(loss)))
            step = a * mpmath.mpf(10) ** -24
            ends = [_symmetric_profile(pair, a + s) for s in (-step, step)]
            q_above = (ends[0] - ends[1]) / (2 * step)  # type: ignore[operator]
            p_above = _symmetric_profile(pair, a) + a * q_above
            exact = (p_above, q_above, 1 - p_above, 1 - q_above)
            values = (found.p_above[i], found.q_above[i], found.p_below[i], found.q_below[i])
            for value, truth in zip(values, exact, strict=True):
                allowed = truth * mpmath.mpf(float(found.error[i])) + mpmath.mpf(10) ** -30
                assert abs(mpmath.mpf(float(value)) - truth) <= allowed, (loss, value, truth)


def test_the_stated_error_of_symmetric_tails_is_small_in_the_body() -> None:
    for pair in SYMMETRIC:
        at = tails(pair, direction=Direction.REMOVE, losses=np.array([-0.04, -1e-4, 1e-4, 0.04]))
        assert np.all(at.error < 1e-8)


def test_outcomes_that_only_one_law_gives_have_no_finite_loss() -> None:
    pair = DiscretePair(first=(1.0, 0.0), second=(0.0, 1.0))
    at = tails(pair, direction=Direction.REMOVE, losses=np.array([-1.0, 3.0]))
    assert at.p_above.tolist() == [1.0, 1.0]
    assert at.q_below.tolist() == [1.0, 1.0]
    assert np.all(at.error < 1e-14)


def test_written_probabilities_may_be_off_by_eight_roundoffs() -> None:
    # Masses and losses of a pair whose exact probabilities are thirds and sevenths.
    truth = ((1 / 3, 2 / 3), (3 / 7, 4 / 7))
    units = 8 * 2.0**-53
    for sign in (-1, 1):
        first = (truth[0][0] * (1 + sign * units), truth[0][1])
        pair = DiscretePair(first=first, second=truth[1])
        at = tails(pair, direction=Direction.REMOVE, losses=np.array([-1.0, 0.0]))
        exact = np.array([1.0, 2 / 3])
        assert np.all(np.abs(at.p_above - exact) <= at.error * exact)
        atom = np.log(truth[0][0] / truth[1][0])
        inside = tails(pair, direction=Direction.REMOVE, losses=np.array([atom]))
        assert np.isinf(inside.error[0])


def test_beyond_what_e_can_be_raised_to_nothing_is_known_of_a_tail() -> None:
    base = GaussianPair(noise_multiplier=0.02)
    pair = SymmetricPair(near=base, far=base, sampling_probability=0.5)
    losses = np.array([-1e4, -800.0, -10.0, 10.0, 800.0, 1e4])
    found = tails(pair, direction=Direction.REMOVE, losses=losses)
    assert list(np.isinf(found.error)) == [True, True, False, False, True, True]
    for part in (found.p_above, found.q_above, found.p_below, found.q_below):
        assert np.all((part >= 0) & (part <= 1 + 1e-9))
