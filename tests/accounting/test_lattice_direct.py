"""Compositions by sums of positive terms, shifted lattices and laws that are nearly an atom."""

import itertools
import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.events import Direction
from accounting.pld.convex_hull import take_hull
from accounting.pld.lattice import direct_convolution, discretization, fft_convolution, plan
from accounting.pld.lattice import lattice_bounds as engine
from accounting.pld.lattice.fft_convolution import Composition, Law, read_delta
from accounting.pld.lattice.lattice_bounds import lattice_delta, lattice_epsilon
from accounting.pld.lattice.parameters import atoms, lattice_offset
from accounting.pld.pairs import (
    DiscretePair,
    GaussianPair,
    LaplacePair,
    Pair,
    SampledGaussianPair,
    SymmetricPair,
)
from accounting.work_limit import limit_work

DIRECTIONS = pytest.mark.parametrize("direction", list(Direction))
REMOVE = Direction.REMOVE


def _sampled(q: float, sigma: float) -> SampledGaussianPair:
    return SampledGaussianPair(noise_multiplier=sigma, sampling_probability=q)


# Against other evaluations


def _profile(q: object, sigma: object, loss: object) -> object:
    """The profile of a sampled Gaussian, from its definition."""
    inner = (mpmath.exp(loss) - (1 - q)) / q  # type: ignore[operator]
    if inner <= 0:
        return 1 - mpmath.exp(loss)
    x = sigma**2 * mpmath.log(inner) + mpmath.mpf(1) / 2  # type: ignore[operator]
    far, near = mpmath.ncdf(-x / sigma), mpmath.ncdf((1 - x) / sigma)
    return (1 - q) * far + q * near - mpmath.exp(loss) * far  # type: ignore[operator]


def _two_step_delta(q: float, sigma: float, epsilon: float) -> float:
    """E_P[H(epsilon - L)] over the first step's loss, at 40 digits."""
    with mpmath.workdps(40):
        q_, s_ = mpmath.mpf(q), mpmath.mpf(sigma)

        def integrand(x: object) -> object:
            ratio = 1 - q_ + q_ * mpmath.exp((2 * x - 1) / (2 * s_**2))  # type: ignore[operator]
            rest = mpmath.mpf(epsilon) - mpmath.log(ratio)
            return mpmath.npdf(x, 0, s_) * ratio * _profile(q_, s_, rest)

        return float(mpmath.quad(integrand, mpmath.linspace(-12 * s_, 1 + 14 * s_, 41)))


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("q", "sigma", "epsilon"), [(1e-3, 0.5, 2.0), (1e-4, 1.2, 0.05), (1e-7, 0.49, 0.3)]
)
def test_two_rarely_sampled_steps_contain_their_double_integral(
    q: float, sigma: float, epsilon: float
) -> None:
    exact = _two_step_delta(q, sigma, epsilon)
    units = [(_sampled(q, sigma), 2)]
    low, high = lattice_delta(units, direction=REMOVE, epsilon=epsilon, width=1e-3)
    assert low <= exact <= high
    assert high - low <= 0.02 * high
    low, high = lattice_epsilon(units, direction=REMOVE, delta=exact, width=5e-4)
    assert low <= epsilon <= high
    assert high - low <= 1e-3 * high


def _exact_delta(pairs: list[DiscretePair], direction: Direction, odds: Fraction) -> Fraction:
    """Sum over all outcomes of (P - odds Q)_+, in fractions of the written probabilities."""
    sides = [
        (pair.first, pair.second) if direction is REMOVE else (pair.second, pair.first)
        for pair in pairs
    ]
    total = Fraction(0)
    for places in itertools.product(*(range(len(p)) for p, _ in sides)):
        both = list(zip(sides, places, strict=True))
        first = math.prod((Fraction(p[i]) for (p, _), i in both), start=Fraction(1))
        second = math.prod((Fraction(q[i]) for (_, q), i in both), start=Fraction(1))
        total += max(Fraction(0), first - odds * second)
    return total


@DIRECTIONS
@pytest.mark.parametrize("odds", [Fraction(5, 4), Fraction(3), Fraction(40)])
def test_three_discrete_steps_contain_their_exact_delta(
    odds: Fraction, direction: Direction
) -> None:
    pairs = [
        DiscretePair(first=(0.5, 0.375, 0.125), second=(0.25, 0.25, 0.5)),
        DiscretePair(first=(0.125, 0.875), second=(0.5, 0.5)),
        DiscretePair(first=(0.0625, 0.9375, 0.0), second=(0.0, 0.875, 0.125)),
    ]
    exact = float(_exact_delta(pairs, direction, odds))
    units: list[tuple[Pair, int]] = [(pair, 1) for pair in pairs]
    epsilon = math.log(odds)
    low, high = lattice_delta(units, direction=direction, epsilon=epsilon, width=1e-3)
    assert low <= exact * (1 + 1e-12)
    assert exact <= high * (1 + 1e-12)
    assert high - low <= 0.01 * high


# Sums of positive terms


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 700), st.integers(1, 700), st.integers(1, 1400), st.integers(0, 99))
def test_a_product_by_blocks_is_a_convolution(a: int, b: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = rng.exponential(size=a), rng.exponential(size=b)
    full = np.append(np.convolve(one, other), np.zeros(1400))[:size]
    found = direct_convolution.convolve(one, other, size=size)
    assert np.all(np.abs(found - full) <= 2 * direct_convolution.product_slack(max(a, b)) * full)


LAWS = [
    Law(offset=1e-3, first=-1, mass=np.array([0.2, 0.7, 0.0, 0.1]), infinite=1e-4, excess=0.0),
    Law(offset=-2e-3, first=0, mass=np.array([0.9, 0.0, 0.1]), infinite=0.0, excess=0.0),
]


def _enumerated(units: list[tuple[Law, int]], *, epsilon: float, upper: bool, last: int) -> float:
    """Delta of a composition by listing all outcomes; losses above the last are infinite."""
    steps = [law for law, count in units for _ in range(count)]
    total = 0.0
    for places in itertools.product(*(range(len(law.mass)) for law in steps)):
        mass = math.prod(law.mass[i] for law, i in zip(steps, places, strict=True))
        index = sum(law.first + i for law, i in zip(steps, places, strict=True))
        loss = math.fsum(
            law.offset + 0.1 * (law.first + i) for law, i in zip(steps, places, strict=True)
        )
        if index > last:
            total += mass if upper else 0.0
        elif loss > epsilon:
            total += mass * -math.expm1(epsilon - loss)
    return total - math.expm1(math.fsum(math.log1p(-law.infinite) for law in steps))


@pytest.mark.parametrize("last", [100, 7])
@pytest.mark.parametrize("upper", [False, True])
def test_a_direct_composition_is_what_its_outcomes_add_up_to(upper: bool, last: int) -> None:
    units = [(LAWS[0], 5), (LAWS[1], 2)]
    found = direct_convolution.compose_directly(units, width=0.1, last=last, upper=upper)
    reading = read_delta(found, epsilon=0.25)
    exact = _enumerated(units, epsilon=0.25, upper=upper, last=last)
    # Sums that would have come down again are cut off too.
    assert exact <= reading.upper * (1 + 1e-12) if upper else reading.lower <= exact * (1 + 1e-12)
    assert reading.upper == pytest.approx(exact, rel=1e-12 if last == 100 else 1e-2)
    assert reading.upper - reading.lower <= 1e-9
    assert direct_convolution.products([5, 2]) == 5


def test_a_direct_composition_agrees_with_a_transform() -> None:
    units = [(LAWS[0], 20), (LAWS[1], 7)]
    frame = fft_convolution.Frame(order=1.0, first=-20, size=100, order_below=1.0, order_above=1.0)
    other = fft_convolution.compose(units, width=0.1, frame=frame)
    found = direct_convolution.compose_directly(units, width=0.1, last=200, upper=True)
    for epsilon in (-0.5, 0.3, 2.0):
        one, two = read_delta(found, epsilon=epsilon), read_delta(other, epsilon=epsilon)
        assert one.lower <= two.upper
        assert two.lower <= one.upper
        assert one.upper - one.lower <= 1e-11 * one.upper


def test_what_is_too_small_is_counted_above() -> None:
    law = Law(offset=0.0, first=0, mass=np.array([1e-200, 1.0, 1e-160]), infinite=0.0, excess=0.0)
    found = direct_convolution.compose_directly([(law, 3)], width=0.1, last=50, upper=True)
    assert found.frame.first == 3
    assert found.mass.tolist() == [1.0]
    assert 1e-160 < found.infinite < 1e-145
    empty = Law(offset=0.0, first=0, mass=np.zeros(3), infinite=0.0, excess=0.0)
    nothing = direct_convolution.compose_directly([(empty, 3)], width=0.1, last=50, upper=False)
    assert read_delta(nothing, epsilon=-1.0).lower == 0.0


def test_sums_with_more_roundoff_need_the_product_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = direct_convolution.convolve
    units = [(LAWS[0], 8)]
    exact = _enumerated(units, epsilon=0.2, upper=True, last=10**6)

    def holds() -> bool:
        found = direct_convolution.compose_directly(units, width=0.1, last=10**6, upper=True)
        reading = read_delta(found, epsilon=0.2)
        return reading.lower <= exact <= reading.upper

    monkeypatch.setattr(
        direct_convolution, "convolve", lambda a, b, *, size: 0.999 * honest(a, b, size=size)
    )
    assert not holds()
    monkeypatch.setattr(direct_convolution, "product_slack", lambda count: 2e-3)
    assert holds()


# Laws that are nearly an atom, taken often


def _often(many: int, monkeypatch: pytest.MonkeyPatch) -> Composition:
    monkeypatch.setattr(fft_convolution, "_MANY", many)
    mass = np.array([0.0, 1e-8, 1.0 - 3e-8, 1.2e-8, 8e-9])
    law = Law(offset=-1e-9, first=-2, mass=mass, infinite=0.0, excess=0.0)
    frame = fft_convolution.Frame(order=0.5, first=-40, size=96, order_below=2.0, order_above=2.0)
    return fft_convolution.compose([(law, 10**7)], width=0.1, frame=frame)


def test_an_atom_taken_often_has_the_roundoff_of_the_rest_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    near, plain = _often(1000, monkeypatch), _often(10**9, monkeypatch)
    assert near.cell_error < 1e-4 * plain.cell_error
    assert np.max(np.abs(near.mass - plain.mass)) <= near.cell_error + plain.cell_error
    # Counts of the three other losses are Poisson up to 1e-8.
    first = np.exp(-0.3) * 0.1
    index = int(np.argmin(np.abs(np.arange(-40, 56) - -1)))
    untilted = near.mass * np.exp(near.log_scale - 0.5 * (0.1 * np.arange(-40, 56) - 0.01))
    assert untilted[index] > first
    assert math.isclose(float(np.sum(untilted)), 1.0, rel_tol=1e-7)


# Where laws lie


@pytest.mark.parametrize("q", [1e-4, 1e-3, 1e-2])
def test_a_bulk_in_one_cell_lies_on_a_point_of_both_laws(q: float) -> None:
    pair, width, bit = _sampled(q, 0.7), 0.125, 2.0**-45
    ends = (math.log1p(-q), 3.0)
    offset = lattice_offset(pair, direction=REMOVE, ends=ends, width=width, last=bit)
    assert math.log1p(-q) < offset < 0
    lattice = discretization.Lattice(
        width=width,
        offset=offset,
        bottom=math.floor(ends[0] / bit) * bit,
        first=-3,
        last=24,
        bit=bit,
    )
    lower, upper = discretization.laws(pair, direction=REMOVE, lattice=lattice, small=1e-12)
    for law in (lower, upper):
        assert law.offset == offset
        assert law.mass[-law.first] >= 1 - 30 * q
        assert 0.99 < np.sum(law.mass) < 1.01


def test_pairs_with_atoms_keep_their_lattice() -> None:
    laplace = LaplacePair(scale=1.0, sampling_probability=1.0)
    far = LaplacePair(scale=0.5, sampling_probability=1.0)
    pair = SymmetricPair(near=laplace, far=far, sampling_probability=0.1)
    options = {"direction": REMOVE, "ends": (-1.0, 1.0), "width": 0.1, "last": 2.0**-40}
    for each in (laplace, pair):
        assert lattice_offset(each, **options) == 0.0  # type: ignore[arg-type]
    up = [math.log1p(0.1 * math.expm1(edge)) for edge in (1.0, 2.0)]
    assert atoms(pair, REMOVE) == [*up, *(-loss for loss in up)]
    low, high = lattice_epsilon([(pair, 20)], direction=REMOVE, delta=1e-6, width=1e-3)
    assert 0 < low <= high <= low * 1.01


# What is answered, and what it costs


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta"),
    [
        (1.7e-4, 1.2, 12, 3.9e-19),
        (1.34e-7, 0.49, 2, 1.5e-17),
        (4.4e-5, 1.85, 146, 6.7e-17),
        (3.6e-5, 0.46, 31, 5e-12),
        (1e-4, 1.0, 30, 1e-10),
        (1e-4, 0.4, 30, 1e-5),
    ],
)
def test_rare_participation_is_answered_precisely(
    q: float, sigma: float, steps: int, delta: float
) -> None:
    units = [(_sampled(q, sigma), steps)]
    low, high = lattice_epsilon(units, direction=REMOVE, delta=delta, width=5e-4)
    assert 0 < low <= high <= low * (1 + 1e-3)
    coarse = lattice_delta(units, direction=REMOVE, epsilon=high, width=0.01)
    assert coarse[0] <= delta
    assert coarse[1] >= 0.9 * delta


def test_a_delta_that_epsilon_zero_attains_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds = []
    honest = engine._compositions

    def counting(*args: Any) -> Any:
        rounds.append(args)
        return honest(*args)

    monkeypatch.setattr(engine, "_compositions", counting)
    for q, sigma, steps, delta in [(2.1e-5, 3.6, 128, 2.2e-4), (1.6e-4, 4.0, 3, 1.3e-4)]:
        units = [(_sampled(q, sigma), steps)]
        assert lattice_epsilon(units, direction=REMOVE, delta=delta, width=5e-4) == (0.0, 0.0)
    assert len(rounds) <= 3


def test_no_answer_takes_more_than_the_work_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    work = 2**18
    monkeypatch.setattr(engine, "MAX_WORK", work)
    monkeypatch.setattr(plan, "MAX_WORK", work)
    spent = []
    honest = engine._compositions

    def counted(question: plan.LatticeQuery, h: float) -> list[Composition]:
        spent.append(plan.work_of(question) / h)
        return honest(question, h)

    monkeypatch.setattr(engine, "_compositions", counted)
    units: list[tuple[Pair, int]] = [(GaussianPair(noise_multiplier=30.0), 100)]
    low, high = lattice_epsilon(units, direction=REMOVE, delta=1e-9, width=1e-9)
    assert 0 < low < high
    assert sum(spent) <= 1.5 * work


def test_a_search_that_is_cut_short_returns_what_it_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    units: list[tuple[Pair, int]] = [(GaussianPair(noise_multiplier=5.0), 100)]
    best = lattice_epsilon(units, direction=REMOVE, delta=1e-6, width=1e-3)
    monkeypatch.setattr(engine, "MAX_EVALUATIONS", 2)
    low, high = lattice_epsilon(units, direction=REMOVE, delta=1e-6, width=1e-3)
    assert low <= best[1]
    assert best[0] <= high


def test_the_hull_moves_negative_masses_and_keeps_those_of_p_and_q() -> None:
    x = np.exp(0.1 * np.arange(6))
    mass = np.array([0.3, -0.1, 0.2, -0.05, 0.4, 0.25])
    before = mass.copy()
    take_hull(mass, losses=np.linspace(0.0, 0.5, 6))
    assert np.all(mass >= 0)
    assert math.isclose(mass.sum(), before.sum(), rel_tol=1e-14)
    assert math.isclose((mass / x).sum(), (before / x).sum(), rel_tol=1e-14)
    last = np.array([0.3, 0.2, -0.1])
    take_hull(last, losses=np.linspace(0.0, 0.2, 3))
    assert last.tolist() == [0.3, 0.2, 0.0]


@pytest.mark.parametrize("size", [1000, 16_384, 60_000])
def test_a_convolution_counts_as_the_time_that_it_takes(size: int) -> None:
    mass = np.full(size, 1 / size)
    with limit_work(math.inf) as meter:
        direct_convolution.convolve(mass, mass, size=size)
    # On one processor about 0.04 ns a pair of masses and 130 ns a mass, of 10 ns a point.
    assert meter.spent >= size * size / 250 + 13 * size
