"""Last iterates of sampled batches by quadrature, against the bound that hides the others."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import pytest
from scipy import special

from accounting.events import Direction
from accounting.last_iterate.declared import DataOrder
from accounting.last_iterate.sampled import sampled_bound
from accounting.last_iterate.sampled_run import Constant, SampledChoice, SampledRun, units_of
from accounting.pld.certified_composition import delta_bracket, delta_in_order
from accounting.rounding import Array

POISSON, FIXED = DataOrder.POISSON, DataOrder.FIXED_SIZE
Map = Callable[[Array], Array]
Kernel = Sequence[tuple[float, Map]]  # chances of batches, and the step without noise for each
NODES, WEIGHTS = np.polynomial.legendre.leggauss(240)


def density_of_last(kernel: Kernel, run: SampledRun, reach: float, y: Array) -> Array:
    """Density at y of the last iterate before its projection, which only tells less.

    Between steps the iterate is a density on (-reach, reach) and, where there is a projection, two
    atoms at the ends of the set; Gauss quadrature of smooth densities is exact to many digits.
    """
    projected = run.diameter < math.inf
    half = 0.5 * run.diameter if projected else reach
    points = np.concatenate(([-half], half * NODES, [half]))
    masses = np.zeros(len(points))  # of atoms and of quadrature nodes
    start = np.zeros(1)
    step = _step(kernel, run.noise, points, half, projected)
    masses = _step(kernel, run.noise, start, half, projected, onto=points)[:, 0]
    for _ in range(run.steps - 2):
        masses = step @ masses
    return np.asarray(_densities(kernel, run.noise, points, y) @ masses)


def _densities(kernel: Kernel, noise: float, points: Array, y: Array) -> Array:
    found = np.zeros((len(y), len(points)))
    for chance, move in kernel:
        z = (y[:, None] - move(points)) / noise
        found += chance * np.exp(-0.5 * z * z) / (noise * math.sqrt(2 * math.pi))
    return found


def _step(
    kernel: Kernel,
    noise: float,
    points: Array,
    half: float,
    projected: bool,
    onto: Array | None = None,
) -> Array:
    target = points if onto is None else onto
    inner = np.concatenate(([0.0], half * WEIGHTS, [0.0]))
    found = inner[:, None] * _densities(kernel, noise, points, target)
    if projected:
        for chance, move in kernel:
            mean = move(points)
            found[0] += chance * special.ndtr((-half - mean) / noise)
            found[-1] += chance * special.ndtr((mean - half) / noise)
    return found


def deltas(
    first: Kernel, second: Kernel, run: SampledRun, reach: float, epsilons: Sequence[float]
) -> list[float]:
    """The larger delta of both orders at each epsilon."""
    y = np.linspace(-reach, reach, 8001)
    one, other = (density_of_last(kernel, run, reach, y) for kernel in (first, second))
    width = y[1] - y[0]
    assert np.sum(one) * width == pytest.approx(1, abs=1e-7)
    found = []
    for epsilon in epsilons:
        a, b = one - math.exp(epsilon) * other, other - math.exp(epsilon) * one
        found.append(float(max(np.sum(np.maximum(a, 0)), np.sum(np.maximum(b, 0))) * width))
    return found


@dataclass(frozen=True)
class Case:
    name: str
    run: SampledRun
    first: Kernel
    second: Kernel
    reach: float


def linear(slope: float, shift: float) -> Map:
    return lambda x: slope * x + shift


def softplus(rate: float, shift: float) -> Map:
    """A gradient step of a convex, smooth, not quadratic loss."""
    return lambda x: x - rate * special.expit(3 * x) + 0.5 * rate + shift


def poisson_case(
    name: str,
    *,
    steps: int,
    c: float,
    rate: float,
    noise: float,
    reach: float,
    diameter: float = math.inf,
    base: Map | None = None,
) -> Case:
    """One record that shifts a step by 1 when it is drawn, against a null record."""
    move = base or linear(c, 0.0)
    run = SampledRun(
        steps=steps,
        step_lipschitz=c,
        sensitivity=1.0,
        noise=noise,
        sampling=POISSON,
        rate=rate,
        diameter=diameter,
        constant=Constant.SHARP,
    )
    with_record: Kernel = [(1 - rate, move), (rate, lambda x: move(x) + 1.0)]
    return Case(name, run, with_record, [(1.0, move)], reach)


def poisson_crowd() -> Case:
    """Other records come and go, each with a quadratic of its own."""
    rate, slopes, pulls = 0.3, (0.25, 0.1), (0.6, -0.4)
    first: list[tuple[float, Map]] = []
    second: list[tuple[float, Map]] = []
    for drawn in product((False, True), repeat=2):
        chance = math.prod(rate if one else 1 - rate for one in drawn)
        slope = 1 - sum(k for k, one in zip(slopes, drawn, strict=True) if one)
        shift = sum(p for p, one in zip(pulls, drawn, strict=True) if one)
        second.append((chance, linear(slope, shift)))
        first.append((chance * (1 - rate), linear(slope, shift)))
        first.append((chance * rate, linear(slope, shift + 1.0)))
    run = SampledRun(
        steps=30,
        step_lipschitz=1.0,
        sensitivity=1.0,
        noise=1.5,
        sampling=POISSON,
        rate=rate,
        diameter=6.0,
        constant=Constant.SHARP,
    )
    return Case("poisson, other records, set", run, first, second, 16.0)


def fixed_case(
    name: str,
    *,
    steps: int,
    c: float,
    size: int,
    batch: int,
    noise: float,
    reach: float,
    diameter: float = math.inf,
    base: Map | None = None,
) -> Case:
    """Records pull by 0; the one that differs by 1/2, its replacement by -1/2."""
    move, rate = base or linear(c, 0.0), batch / size
    run = SampledRun(
        steps=steps,
        step_lipschitz=c,
        sensitivity=1.0,
        noise=noise,
        sampling=FIXED,
        rate=rate,
        diameter=diameter,
        constant=Constant.SHARP,
    )
    first: Kernel = [(1 - rate, move), (rate, lambda x: move(x) + 0.5)]
    second: Kernel = [(1 - rate, move), (rate, lambda x: move(x) - 0.5)]
    return Case(name, run, first, second, reach)


def fixed_crowd(*, batch: int, steps: int, noise: float, extremes: bool) -> Case:
    """Records with bounded gradients of their own: all batches of four records, one replaced."""
    rate, centres = 0.25, [-1.0, 0.3, 1.2]
    away = (-8.0, 8.0) if extremes else (-2.0, 2.0)

    def pulled(chosen: tuple[float, ...]) -> Map:
        return lambda x: x - rate / batch * np.sum([np.tanh(x - one) for one in chosen], axis=0)

    def kernel(centre: float) -> Kernel:
        batches = list(combinations([centre, *centres], batch))
        return [(1 / len(batches), pulled(chosen)) for chosen in batches]

    run = SampledRun(
        steps=steps,
        step_lipschitz=1.0,
        sensitivity=2 * rate / batch,
        noise=noise,
        sampling=FIXED,
        rate=batch / 4,
        diameter=4.0,
        constant=Constant.SHARP,
    )
    return Case(f"fixed, other records, b {batch}", run, kernel(away[0]), kernel(away[1]), 14.0)


CASES = [
    poisson_case("poisson, c 0.8", steps=60, c=0.8, rate=0.4, noise=2.0, reach=40.0),
    poisson_case("poisson, c 0.5", steps=10, c=0.5, rate=0.2, noise=1.0, reach=14.0),
    poisson_case("poisson, c 0.95", steps=120, c=0.95, rate=0.1, noise=3.0, reach=90.0),
    poisson_case(
        "poisson, c 1, set", steps=80, c=1.0, rate=0.3, noise=2.0, diameter=4.0, reach=20.0
    ),
    poisson_case(
        "poisson, c 1.05, set", steps=40, c=1.05, rate=0.5, noise=1.5, diameter=3.0, reach=16.0
    ),
    poisson_case(
        "poisson, convex, set",
        steps=50,
        c=1.0,
        rate=0.25,
        noise=1.2,
        diameter=3.0,
        reach=14.0,
        base=softplus(0.4, 0.0),
    ),
    poisson_crowd(),
    fixed_case("fixed, c 0.8", steps=60, c=0.8, size=5, batch=2, noise=2.0, reach=36.0),
    fixed_case("fixed, c 0.6", steps=12, c=0.6, size=3, batch=1, noise=1.0, reach=16.0),
    fixed_case(
        "fixed, c 1, set", steps=80, c=1.0, size=4, batch=1, noise=2.0, diameter=4.0, reach=20.0
    ),
    fixed_case(
        "fixed, c 1.05, set", steps=40, c=1.05, size=2, batch=1, noise=1.5, diameter=3.0, reach=16.0
    ),
    fixed_crowd(batch=1, steps=60, noise=0.5, extremes=True),
    fixed_crowd(batch=2, steps=60, noise=0.4, extremes=False),
]
EPSILONS = (0.0, 0.3, 1.0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_exact_delta_is_within_the_bound(case: Case) -> None:
    exact = deltas(case.first, case.second, case.run, case.reach, EPSILONS)
    for epsilon, value in zip(EPSILONS, exact, strict=True):
        assert value <= sampled_bound(case.run, epsilon=epsilon).delta + 1e-7


@pytest.mark.parametrize("case", CASES[::3], ids=lambda case: case.name)
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("last", [1, 3, 8])
def test_any_choice_is_a_bound(case: Case, last: int, share: float) -> None:
    exact = deltas(case.first, case.second, case.run, case.reach, EPSILONS)
    units = units_of(case.run, SampledChoice(last_steps=last, noise_share=share))
    for epsilon, value in zip(EPSILONS, exact, strict=True):
        assert value <= delta_bracket(units, epsilon=epsilon).upper + 1e-7


def test_hiding_gains_where_the_run_is_long() -> None:
    case = CASES[0]
    every = SampledChoice(last_steps=case.run.steps, noise_share=1.0)
    shown = delta_bracket(units_of(case.run, every), epsilon=0.3).upper
    assert sampled_bound(case.run, epsilon=0.3).delta < 0.7 * shown


# One step of the proof: the shift may depend on whether the record was drawn


def _two_parts(
    parts: Sequence[tuple[float, float, float]], x: Array, y: Array, sigmas: tuple[float, float]
) -> Array:
    """Density of a mixture of Gaussians with independent parts (chance, mean, mean), on a grid."""
    return np.asarray(
        sum(
            chance
            * np.exp(-0.5 * ((x - a) / sigmas[0]) ** 2)[:, None]
            * np.exp(-0.5 * ((y - b) / sigmas[1]) ** 2)
            / (2 * math.pi * sigmas[0] * sigmas[1])
            for chance, a, b in parts
        )
    )


@pytest.mark.parametrize("sampling", [POISSON, FIXED])
@pytest.mark.parametrize("rate", [0.2, 0.6])
def test_a_shift_that_knows_the_batch_gains_nothing(sampling: DataOrder, rate: float) -> None:
    """Experiment of docs/theory/sampled_last_iterate.md: what would break its Theorem 1."""
    sigmas, reach = (0.9, 1.3), 1.0
    run = SampledRun(
        steps=2,
        step_lipschitz=1.0,
        sensitivity=1.0,
        noise=math.hypot(*sigmas),
        sampling=sampling,
        rate=rate,
        diameter=reach,
        constant=Constant.SHARP,
    )
    share = sigmas[0] ** 2 / run.noise**2
    units = units_of(run, SampledChoice(last_steps=1, noise_share=share))
    x, y = np.linspace(-8, 9, 700), np.linspace(-9, 9, 700)
    cell = (x[1] - x[0]) * (y[1] - y[0])
    up, down = (0.0, 1.0) if sampling is POISSON else (-0.5, 0.5)
    second = _two_parts([(1 - rate, 0.0, 0.0), (rate, up, 0.0)], x, y, sigmas)
    for idle, drawn in product((-1.0, 0.0, 1.0), repeat=2):
        first = _two_parts([(1 - rate, 0.0, idle), (rate, down, drawn)], x, y, sigmas)
        for epsilon in (0.0, 0.4, 1.2):
            a = np.sum(np.maximum(first - math.exp(epsilon) * second, 0)) * cell
            b = np.sum(np.maximum(second - math.exp(epsilon) * first, 0)) * cell
            assert a <= delta_in_order(units, Direction.REMOVE, epsilon=epsilon, width=1e-6) + 1e-6
            assert b <= delta_in_order(units, Direction.ADD, epsilon=epsilon, width=1e-6) + 1e-6
