import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy import fft
from scipy.fft import next_fast_len

from accounting.events import Direction
from accounting.gaussian import gaussian_delta, gaussian_epsilon
from accounting.pld.lattice import discretization, fft_convolution, parameters, plan
from accounting.pld.lattice import lattice_bounds as engine
from accounting.pld.lattice.lattice_bounds import lattice_delta, lattice_epsilon
from accounting.pld.lattice.plan import NotCertifiedError
from accounting.pld.pairs import (
    DiscretePair,
    GaussianPair,
    LaplacePair,
    Pair,
    SampledGaussianPair,
    SymmetricPair,
)
from accounting.pld.tails import Tails, profile, profiles, tails
from accounting.rounding import Array

DIRECTIONS = pytest.mark.parametrize("direction", list(Direction))
REMOVE = Direction.REMOVE
WIDTH = 1e-3


def _gaussian(sigma: float) -> GaussianPair:
    return GaussianPair(noise_multiplier=sigma)


def _sampled(q: float, sigma: float) -> SampledGaussianPair:
    return SampledGaussianPair(noise_multiplier=sigma, sampling_probability=q)


def _laplace(b: float, q: float = 1.0) -> LaplacePair:
    return LaplacePair(scale=b, sampling_probability=q)


def _both(units: list[tuple[Pair, int]], delta: float) -> tuple[float, float]:
    ends = [lattice_epsilon(units, direction=d, delta=delta, width=WIDTH) for d in Direction]
    return max(low for low, _ in ends), max(high for _, high in ends)


@DIRECTIONS
@pytest.mark.parametrize("delta", [1e-1, 1e-5, 1e-12, 1e-20])
@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 1), (0.4, 1), (5.0, 100), (300.0, 10**5)])
def test_brackets_contain_the_closed_form_of_gaussians(
    sigma: float, steps: int, delta: float, direction: Direction
) -> None:
    mu = math.sqrt(steps) / sigma
    exact = gaussian_epsilon(delta, mu=mu)
    low, high = lattice_epsilon(
        [(_gaussian(sigma), steps)], direction=direction, delta=delta, width=WIDTH
    )
    assert low <= exact <= high
    assert high - low <= WIDTH * high
    low, high = lattice_delta(
        [(_gaussian(sigma), steps)], direction=direction, epsilon=exact, width=WIDTH
    )
    assert low <= gaussian_delta(exact, mu=mu) <= high * (1 + 1e-9)
    assert high - low <= WIDTH * high


def _response_delta(steps: int, epsilon: Fraction, odds: Fraction) -> float:
    """Delta of binary responses with P = (3/5, 2/5), exactly but for e^epsilon."""
    p, power = odds / (1 + odds), mpmath.exp(mpmath.mpf(epsilon.numerator) / epsilon.denominator)
    total = mpmath.mpf(0)
    for ones in range(steps + 1):
        first = p**ones * (1 - p) ** (steps - ones) * math.comb(steps, ones)
        second = p ** (steps - ones) * (1 - p) ** ones * math.comb(steps, ones)
        gain = mpmath.mpf(first.numerator) / first.denominator
        total += max(0, gain - power * mpmath.mpf(second.numerator) / second.denominator)
    return float(total)


@DIRECTIONS
def test_brackets_contain_exact_binomial_sums(direction: Direction) -> None:
    pair = DiscretePair(first=(0.6, 0.4), second=(0.4, 0.6))
    units: list[tuple[Pair, int]] = [(pair, 100)]
    low, high = lattice_epsilon(units, direction=direction, delta=1e-5, width=WIDTH)
    assert low <= 23.65423514037999 <= high
    assert high - low <= 1e-4 * high
    with mpmath.workdps(40):
        for epsilon in (0.5, 3.0, 11.25, 25.0, 38.0):
            exact = _response_delta(100, Fraction(epsilon), Fraction(3, 2))
            low, high = lattice_delta(units, direction=direction, epsilon=epsilon, width=WIDTH)
            assert low <= exact * (1 + 1e-13)
            assert exact <= high * (1 + 1e-13)
            assert high - low <= 1e-4 * high


@pytest.mark.parametrize(
    ("units", "delta", "low", "high"),
    [
        ([(_laplace(10.0), 100)], 1e-6, 4.69262, 4.6926675),
        ([(_gaussian(5.0), 10), (_laplace(10.0), 10)], 1e-6, 3.2725, 3.27326),
        ([(_laplace(1.0, 0.01), 1000)], 1e-5, 1.1082, 1.12377),
        ([(_sampled(0.01, 1.0), 1)], 1e-5, 0.1994484, 0.1994532),
        ([(_sampled(0.001, 0.5), 100)], 1e-5, 2.108639, 2.108651),
        ([(_sampled(256 / 60000, 1.1), 14040)], 1e-5, 2.37955451866, 2.37955451895),
    ],
    ids=str,
)
def test_brackets_agree_with_those_of_others(
    units: list[tuple[Pair, int]], delta: float, low: float, high: float
) -> None:
    found_low, found_high = _both(units, delta)
    assert found_low <= high
    assert low <= found_high
    assert found_high - found_low <= WIDTH * found_high


@DIRECTIONS
@pytest.mark.parametrize(
    "pair", [_sampled(0.1, 1.0), _gaussian(2.0), _laplace(1.0), _laplace(2.0, 0.3)]
)
def test_a_single_step_contains_its_closed_form(pair: Pair, direction: Direction) -> None:
    for epsilon in (0.0, 0.02, 0.3):
        exact = profile(pair, direction=direction, epsilon=epsilon)
        low, high = lattice_delta([(pair, 1)], direction=direction, epsilon=epsilon, width=WIDTH)
        assert low <= exact[1]
        assert exact[0] <= high
        assert high - low <= 0.01 * high + 1e-12


@DIRECTIONS
@pytest.mark.parametrize("epsilon", [0.05, 0.4])
def test_two_steps_contain_their_double_integral(epsilon: float, direction: Direction) -> None:
    # delta(eps) = E_P[ H(eps - L) ] over the first step's loss, by the trapezoidal rule.
    q, sigma = 0.2, 1.0
    pair = _sampled(q, sigma)
    x, weight = np.linspace(-14, 14, 280001), 1e-4
    base = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    ratio = 1 - q + q * np.exp(x - 0.5)
    sign = 1 if direction is REMOVE else -1
    density = base * ratio if direction is REMOVE else base
    inner = profiles(pair, direction=direction, losses=epsilon - sign * np.log(ratio))[1]
    exact = float(np.sum(weight * density * inner))
    low, high = lattice_delta([(pair, 2)], direction=direction, epsilon=epsilon, width=WIDTH)
    assert low <= exact * (1 + 1e-9)
    assert exact <= high * (1 + 1e-9)
    assert high - low <= WIDTH * high


PAIRS: st.SearchStrategy[Pair] = st.one_of(
    st.builds(_gaussian, st.floats(0.5, 50)),
    st.builds(_sampled, st.floats(1e-4, 0.9), st.floats(0.5, 5)),
    st.builds(_laplace, st.floats(0.5, 50), st.sampled_from([1.0, 0.5, 0.01])),
    st.builds(
        lambda p, q: DiscretePair(first=(p, 1 - p), second=(q, 1 - q)),
        st.floats(0.05, 0.95),
        st.floats(0.05, 0.95),
    ),
    st.builds(
        lambda near, q: SymmetricPair(
            near=_gaussian(near), far=_gaussian(near / 2), sampling_probability=q
        ),
        st.floats(1, 10),
        st.floats(0.01, 0.9),
    ),
)


@settings(max_examples=60, deadline=None)
@given(
    units=st.lists(st.tuples(PAIRS, st.integers(1, 200)), min_size=1, max_size=3),
    log_delta=st.floats(-40, -0.8),
    direction=st.sampled_from(list(Direction)),
)
def test_brackets_are_never_inverted(
    units: list[tuple[Pair, int]], log_delta: float, direction: Direction
) -> None:
    delta = math.exp(log_delta)
    with pytest.MonkeyPatch.context() as patch:
        # Small limits keep the search short; a bracket they widen must hold all the same.
        patch.setattr(plan, "MAX_CELLS", 2**14)
        patch.setattr(plan, "MAX_TRANSFORM", 2**14)
        patch.setattr(plan, "MAX_DIRECT", 2**11)
        patch.setattr(engine, "MAX_ROUNDS", 3)
        low, high = lattice_epsilon(units, direction=direction, delta=delta, width=0.02)
        assert 0 <= low <= high
        if 0 < high < math.inf:
            assert lattice_delta(units, direction=direction, epsilon=high, width=0.1)[0] <= delta
        if low > 0:
            assert lattice_delta(units, direction=direction, epsilon=low, width=0.1)[1] >= delta


def test_order_of_units_and_splitting_a_count_do_not_matter() -> None:
    a, b = _gaussian(5.0), _laplace(10.0)
    one = lattice_epsilon([(a, 10), (b, 10)], direction=REMOVE, delta=1e-6, width=WIDTH)
    two = lattice_epsilon([(b, 4), (a, 10), (b, 6)], direction=REMOVE, delta=1e-6, width=WIDTH)
    assert two == pytest.approx(one, rel=1e-9)


def test_infinite_loss_is_counted_on_both_sides() -> None:
    pair = DiscretePair(first=(1e-4, 0.9999), second=(0.0, 1.0))
    exact = -math.expm1(10 * math.log1p(-1e-4))
    low, high = lattice_delta([(pair, 10)], direction=REMOVE, epsilon=1.0, width=WIDTH)
    assert low <= exact <= high
    assert high - low <= 1e-3 * high
    assert lattice_epsilon([(pair, 10)], direction=REMOVE, delta=1e-4, width=WIDTH)[1] == math.inf


@pytest.mark.parametrize(
    ("steps", "delta", "width"), [(0, 0.1, 0.1), (1, 0.0, 0.1), (1, 1.0, 0.1), (1, 0.1, 0.0)]
)
def test_what_is_not_a_question_is_refused(steps: int, delta: float, width: float) -> None:
    with pytest.raises(NotCertifiedError):
        lattice_epsilon([(_gaussian(1.0), steps)], direction=REMOVE, delta=delta, width=width)
    with pytest.raises(NotCertifiedError):
        lattice_delta([], direction=REMOVE, epsilon=1.0, width=0.1)


# One test for each error term: with the term the bracket holds, without it, it does not.


def _exact_and_bracket(steps: int = 100) -> tuple[float, float, float]:
    discretization.laws.cache_clear()
    exact = gaussian_delta(3.0, mu=math.sqrt(steps) / 10)
    low, high = lattice_delta([(_gaussian(10.0), steps)], direction=REMOVE, epsilon=3.0, width=0.01)
    discretization.laws.cache_clear()
    return exact, low, high


def _holds(values: tuple[float, float, float]) -> bool:
    exact, low, high = values
    return low <= exact <= high


@pytest.mark.parametrize("factor", [0.999, 1.001])
def test_wrong_cell_masses_are_caught_by_the_excess(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(pair: Pair, *, direction: Direction, losses: Array) -> Tails:
        at = tails(pair, direction=direction, losses=losses)
        return Tails(
            at.p_above * factor,
            at.q_above * factor,
            at.p_below * factor,
            at.q_below * factor,
            at.error,
        )

    monkeypatch.setattr("accounting.pld.lattice.discretization.tails", wrong)
    assert _holds(_exact_and_bracket())
    monkeypatch.setattr(discretization, "profile_excess", lambda needed, given: 0.0)
    assert not _holds(_exact_and_bracket())


@pytest.mark.parametrize("which", ["rfft", "irfft"])
def test_transforms_with_more_roundoff_need_the_transform_error(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = getattr(fft, which)

    def noisy(values: object, size: int) -> object:
        found = honest(values, size)
        scale = 1e-3 if which == "rfft" else 1e-2 * float(np.max(np.abs(found)))
        return found * 1.0 + scale

    monkeypatch.setattr(fft, which, noisy)
    assert not _holds(_exact_and_bracket())
    monkeypatch.setattr(fft_convolution, "transform_error", lambda size: 2e-2)
    assert _holds(_exact_and_bracket())


def test_the_error_of_a_power_is_at_most_the_spectrum_error() -> None:
    rng = np.random.default_rng(1)
    factor, off = rng.uniform(0.01, 1, 1000), rng.uniform(-1e-3, 1e-3, 1000)
    growth = 50 * np.log1p(1e-3 / factor)
    bound = fft_convolution.spectrum_error(50 * np.log(factor), growth)
    assert np.all(np.abs((factor + off) ** 50 - factor**50) <= bound)
    assert np.max(np.abs((factor + 1e-3) ** 50 - factor**50) / bound) > 0.999


@pytest.mark.parametrize("count", [3, 10**6])
def test_the_roundoff_of_a_logarithm_is_in_the_growth(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a transform without any of its own: four masses of few binary digits."""
    monkeypatch.setattr(fft_convolution, "transform_error", lambda size: 0.0)
    mass = np.array([0.4375, 0.25, 0.125, 0.1875])
    power = fft_convolution._log_power(mass, count, size=4)
    with mpmath.workdps(40):
        for k, found in enumerate(power.log_factor):
            factor = mpmath.fsum(
                m * mpmath.expj(-mpmath.pi * j * k / 2) for j, m in enumerate(mass)
            )
            assert abs(mpmath.mpc(found) - count * mpmath.log(factor)) <= power.growth[k]


@pytest.mark.parametrize("size", [96, 1000, 4096, 13122, 100000])
def test_transforms_are_as_precise_as_stated(size: int) -> None:
    rng = np.random.default_rng(2)
    values = rng.exponential(size=size)
    values /= values.sum()
    exact = np.fft.rfft(values.astype(np.longdouble))
    error = np.abs(fft.rfft(values, size) - exact)
    assert np.max(error) <= fft_convolution.transform_error(size)


def test_a_transform_has_the_least_size_that_is_fast() -> None:
    for points in (*range(1, 5000), 2**20 - 1, 2**20 + 1, 3**12 + 1, 10**9 + 7):
        assert fft_convolution.transform_size(points) == next_fast_len(points, real=True)


def test_a_window_that_is_too_narrow_needs_the_outside_mass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    view = parameters.outlook
    monkeypatch.setattr(plan, "outlook", lambda *a, **k: view(*a, **{**k, "tolerance": 0.5}))
    assert _holds(_exact_and_bracket())
    monkeypatch.setattr(fft_convolution, "outside_mass", lambda *a, **k: 0.0)
    assert not _holds(_exact_and_bracket())


def test_mass_beyond_the_lattice_needs_the_infinite_mass(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = DiscretePair(first=(1e-4, 0.9999), second=(0.0, 1.0))

    def upper() -> float:
        return lattice_delta([(pair, 10)], direction=REMOVE, epsilon=1.0, width=WIDTH)[1]

    assert upper() >= -math.expm1(10 * math.log1p(-1e-4))
    monkeypatch.setattr(fft_convolution, "infinite_mass", lambda units: 0.0)
    assert upper() < 1e-4


@pytest.mark.no_cover
@pytest.mark.parametrize("term", ["scale_slack", "tilt_slack", "summation_slack"])
def test_rounded_exponents_need_their_slack(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A scale that is off by 2 percent stands for a million roundings.
    honest = math.fsum
    monkeypatch.setattr(fft_convolution, term, lambda *a, **k: 0.03)
    real = fft_convolution.compose

    def shifted(*args: object, **named: object) -> fft_convolution.Composition:
        found = real(*args, **named)  # type: ignore[arg-type]
        fields = {name: getattr(found, name) for name in found.__slots__}
        return fft_convolution.Composition(**{**fields, "log_scale": found.log_scale + 0.02})

    monkeypatch.setattr(engine, "compose", shifted)
    assert honest([1.0]) == 1.0
    assert _holds(_exact_and_bracket())
    monkeypatch.setattr(fft_convolution, term, lambda *a, **k: 0.0)
    assert not _holds(_exact_and_bracket())


def test_a_shift_of_every_loss_needs_the_location_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fft_convolution.read_delta
    monkeypatch.setattr(engine, "read_delta", lambda c, *, epsilon: real(c, epsilon=epsilon + 1e-2))
    assert not _holds(_exact_and_bracket())
    monkeypatch.setattr(fft_convolution, "location_error", lambda *a, **k: 1e-2)
    assert _holds(_exact_and_bracket())


@pytest.mark.parametrize("order", [1e-3, 0.5, 3.0, 400.0])
def test_the_kernel_is_never_above_its_peak(order: float) -> None:
    x = np.geomspace(1e-7, 1e3, 20001)
    kernel = np.exp(-order * x) * -np.expm1(-x)
    peak = fft_convolution.kernel_peak(order)
    assert peak * (1 - 1e-5) <= np.max(kernel) <= peak


def test_a_step_without_mass_on_the_sketch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "joined_dots", lambda losses, _tails: np.zeros(len(losses)))
    pair = DiscretePair(first=(0.25, 0.75), second=(0.75, 0.25))
    with pytest.raises(ArithmeticError, match="beyond what a lattice holds"):
        parameters.sketch(pair, direction=REMOVE, log10_above=-21, log10_below=-21)
