"""The bracket of a composition: which engine, both orders of the pairs, one answer.

The rule. Steps that are all Gaussian have a closed form. A single unit is read from its profile,
and few discrete outcomes are counted. All else goes to the contour if it has moments and its
transform decays within the contour's nodes, and to the lattice if not. The answer of a composition
is the larger of the two orders; the smaller need only be shown not to exceed it, which takes fewer
nodes.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

import numpy as np

from accounting import work_budgets
from accounting.events import Direction, NeighboringRelation
from accounting.gaussian import gaussian_bracket_delta, gaussian_bracket_epsilon
from accounting.guarantees import Assumption, Status, theorem
from accounting.pld.contour import complex_moments, real_moments
from accounting.pld.contour.contour_bounds import contour_delta, contour_epsilon, failure_of
from accounting.pld.contour.inversion import NoDecayError, log_total_moments
from accounting.pld.contour.real_moments import LADDER, LOG_BEST_SHARE, NoMomentsError
from accounting.pld.exact_search import exact_epsilon
from accounting.pld.lattice.lattice_bounds import End, lattice_delta, lattice_epsilon
from accounting.pld.multinomial import counted_delta, find_few_counts
from accounting.pld.pairs import (
    DensePair,
    DiscretePair,
    GaussianPair,
    InterpolatedSteps,
    Pair,
    Units,
    different_orders,
)
from accounting.pld.rare_losses import are_rare, rare_bracket, rare_delta
from accounting.pld.tails import profile
from accounting.rounding import UNIT_ROUNDOFF
from accounting.work_limit import attempt, cached_with_cost

WIDTH: Final = 1e-8  # relative, aimed at where the contour serves
LATTICE_WIDTH: Final = 5e-4  # and where the lattice does
FLOOR_WIDTH: Final = 1e-4  # the same for lower bounds alone, of pairs that are quickly composed
DENSE_FLOOR_WIDTH: Final = 2e-4  # and of many outcomes, which are not
ANSWERS: Final = 128  # that are cached: a ledger is often read again before it grows
LATTICE_PAIRS_MAX: Final = 256
_CHECK_WIDTH: Final = 0.05  # of a delta that need only be shown to be small enough


class Engine(StrEnum):
    """What worked an answer out."""

    CLOSED_FORM = "closed_form"
    CONTOUR = "contour"
    LATTICE = "lattice"


@dataclass(frozen=True, slots=True)
class Bracket:
    """A number that lies between two others, proved with all rounding inside."""

    lower: float
    upper: float
    engine: Engine


def _gaussian_mu(units: Units) -> tuple[float, float] | None:
    """(lower, upper) mu where every pair is Gaussian, else None."""
    if not all(isinstance(pair, GaussianPair) for pair, _ in units):
        return None
    squares = math.fsum(
        count / pair.noise_multiplier / pair.noise_multiplier
        for pair, count in units
        if isinstance(pair, GaussianPair)
    )
    mu = math.sqrt(squares)
    return mu * (1 - 8 * UNIT_ROUNDOFF), mu * (1 + 8 * UNIT_ROUNDOFF)


@theorem(
    id="pld-composition",
    source="Zhu, Dong and Wang 2022, AISTATS, arXiv:2106.08567v4, Theorem 10; inversion as in "
    "Alghamdi et al. 2023, ICML, arXiv:2208.09595v2, Theorem 3.1",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.PARAMETERS_FIXED_IN_ADVANCE,),
)
def epsilon_bracket(
    units: Units,
    *,
    delta: float,
    width: float = WIDTH,
    rough: Units | None = None,
    only: End | None = None,
) -> Bracket:
    """Epsilon at a delta of a composition whose steps are dominated by pairs.

    Steps may depend on the answers of earlier ones; their parameters may not. Each order of the
    pairs is composed over the whole history, and the larger epsilon counts. With M the product of
    the moments E[e^(zL)] of the losses,

    delta(epsilon) = (1/2 pi) int M(z) e^(-z epsilon) / (z (1+z)) dt,  z = lam + i t,

    or the convolution of losses rounded outward onto a lattice; docs/theory bounds every error.

    Args:
        units: distinct pairs and how often each counts; not empty.
        delta: in (0, 1).
        width: relative width to aim at.
        rough: a composition of fewer pairs that dominates the units; enough to show that the second
            order is not the larger.
        only: the end that is asked for, where it is one: the other may be farther off.

    Returns:
        Lower and upper epsilon in nats, >= 0. The upper end may be infinite.
    """
    return _epsilon_bracket(tuple(units), delta, width, tuple(rough) if rough else None, only)


@cached_with_cost(maxsize=ANSWERS)
def _epsilon_bracket(
    units: tuple[tuple[Pair, int], ...],
    delta: float,
    width: float,
    rough: tuple[tuple[Pair, int], ...] | None,
    only: End | None,
) -> Bracket:
    mu = _gaussian_mu(units)
    if mu is not None:
        return Bracket(*gaussian_bracket_epsilon(delta, mu=mu), Engine.CLOSED_FORM)
    lower, upper, engine = 0.0, 0.0, Engine.CLOSED_FORM
    for direction in different_orders(pair for pair, _ in units):
        # Of very many steps the other order may have a lower end where this one has none.
        known = upper > 0 and (lower > 0 or not are_rare(units))
        if known and _is_no_larger(rough or units, direction, upper, delta):
            continue
        low, high, used = _epsilon(units, direction, delta=delta, width=width, only=only)
        lower, upper = max(lower, low), max(upper, high)
        engine = max(engine, used, key=list(Engine).index)
    return Bracket(lower, upper, engine)


def forget_answers() -> None:
    """Forget whole answers, not what single steps need."""
    _epsilon_bracket.cache_clear()
    _lower_epsilon.cache_clear()


def forget() -> None:
    """Empty every cache of this engine, for measurements."""
    forget_answers()
    complex_moments.forget()
    real_moments.log_moments.cache_clear()


def lower_epsilon(units: Units, *, delta: float, width: float = WIDTH) -> float:
    """What epsilon at a delta is at least, by one order of the pairs alone. Lower, nats, >= 0."""
    return _lower_epsilon(tuple(units), delta, width)


@cached_with_cost(maxsize=ANSWERS)
def _lower_epsilon(units: tuple[tuple[Pair, int], ...], delta: float, width: float) -> float:
    mu = _gaussian_mu(units)
    if mu is not None:
        return gaussian_bracket_epsilon(delta, mu=mu)[0]
    lattice = DENSE_FLOOR_WIDTH if _has_dense(units) else FLOOR_WIDTH
    end = End.LOWER
    return _epsilon(units, Direction.REMOVE, delta=delta, width=width, lattice=lattice, only=end)[0]


def _has_dense(units: Units) -> bool:
    return any(isinstance(pair, DensePair) for pair, _ in units)


def lower_delta(units: Units, *, epsilon: float, width: float = WIDTH) -> float:
    """What delta at an epsilon is at least, by one order of the pairs alone. Lower, in [0, 1]."""
    mu = _gaussian_mu(units)
    if mu is not None:
        return gaussian_bracket_delta(epsilon, mu=mu)[0]
    return _delta(units, Direction.REMOVE, epsilon=epsilon, width=width, only=End.LOWER)[0]


def epsilon_in_order(units: Units, direction: Direction, *, delta: float, width: float) -> float:
    """Epsilon at a delta in one order of the pairs. Upper, nats."""
    mu = _gaussian_mu(units)
    if mu is not None:
        return gaussian_bracket_epsilon(delta, mu=mu)[1]
    return _epsilon(units, direction, delta=delta, width=width, only=End.UPPER)[1]


def delta_in_order(units: Units, direction: Direction, *, epsilon: float, width: float) -> float:
    """Delta at an epsilon in one order of the pairs. Upper."""
    mu = _gaussian_mu(units)
    if mu is not None:
        return gaussian_bracket_delta(epsilon, mu=mu)[1]
    return _delta(units, direction, epsilon=epsilon, width=width, only=End.UPPER)[1]


@theorem(
    id="pld-profile",
    source="Zhu, Dong and Wang 2022, AISTATS, arXiv:2106.08567v4, Theorem 10; inversion as in "
    "Alghamdi et al. 2023, ICML, arXiv:2208.09595v2, Theorem 3.1",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.PARAMETERS_FIXED_IN_ADVANCE,),
)
def delta_bracket(
    units: Units, *, epsilon: float, width: float = WIDTH, only: End | None = None
) -> Bracket:
    """Delta at an epsilon of a composition whose steps are dominated by pairs.

    As epsilon_bracket, read the other way.

    Args:
        units: distinct pairs and how often each counts; not empty.
        epsilon: nats, >= 0.
        width: relative width to aim at.
        only: the end that is asked for, where it is one: the other may be farther off.

    Returns:
        Lower and upper delta, in [0, 1].
    """
    mu = _gaussian_mu(units)
    if mu is not None:
        return Bracket(*gaussian_bracket_delta(epsilon, mu=mu), Engine.CLOSED_FORM)
    lower, upper, engine = 0.0, 0.0, Engine.CLOSED_FORM
    for direction in different_orders(pair for pair, _ in units):
        if upper and _within(units, direction, epsilon=epsilon, delta=upper):
            continue
        low, high, used = _delta(units, direction, epsilon=epsilon, width=width, only=only)
        lower, upper = max(lower, low), max(upper, high)
        engine = max(engine, used, key=list(Engine).index)
    return Bracket(lower, min(1.0, upper), engine)


def _is_no_larger(units: Units, direction: Direction, epsilon: float, delta: float) -> bool:
    """Whether epsilon of an order is proved to be at most a value, by a coarse lattice at last."""
    if _within(units, direction, epsilon=epsilon, delta=delta):
        return True
    if not _has_dense(units):
        return False
    with suppress(ArithmeticError):  # no lattice serves these units
        found = lattice_epsilon(units, direction=direction, delta=delta, width=_CHECK_WIDTH)
        return found[1] <= epsilon
    return False


def _within(units: Units, direction: Direction, *, epsilon: float, delta: float) -> bool:
    """Whether delta at an epsilon is proved to be at most a value; False if that takes more."""
    if not math.isfinite(epsilon):
        return True
    read = _read_exactly(units, direction)
    if read is not None:
        return read(epsilon)[1] <= delta
    try:
        if chernoff_delta(units, direction, epsilon) <= delta:
            return True
        return contour_delta(units, direction, epsilon=epsilon, width=_CHECK_WIDTH)[1] <= delta
    except (NoDecayError, NoMomentsError):
        return False


def _alone(units: Units) -> bool:
    return len(units) == 1 and units[0][1] == 1 and not isinstance(units[0][0], InterpolatedSteps)


def _epsilon(
    units: Units,
    direction: Direction,
    *,
    delta: float,
    width: float,
    lattice: float = LATTICE_WIDTH,
    only: End | None = None,
) -> tuple[float, float, Engine]:
    read = _read_exactly(units, direction)
    if read is not None:
        return (*exact_epsilon(read, delta), Engine.CLOSED_FORM)
    lower, upper = 0.0, math.inf
    with suppress(NoDecayError, NoMomentsError):
        lower, upper = contour_epsilon(units, direction, delta=delta, width=width)
    wide = max(width, lattice)
    if upper < math.inf and upper - lower <= wide * upper:
        return lower, upper, Engine.CONTOUR
    lower, upper = _both((lower, upper), (0.0, chernoff_epsilon(units, direction, delta)))
    if are_rare(units):
        lower, upper = _both((lower, upper), rare_bracket(units, direction, delta=delta))
    if _too_many(units, upper):
        return lower, upper, Engine.CONTOUR
    asked = partial(lattice_epsilon, units, direction=direction, delta=delta, width=wide, only=only)
    return (*_both((lower, upper), _on_lattice(units, asked) or (0.0, math.inf)), Engine.LATTICE)


def _on_lattice(
    units: Units, compute: Callable[[], tuple[float, float]]
) -> tuple[float, float] | None:
    """A bracket; None where the lattice cannot serve, or takes more than it is worth."""
    most = work_budgets.LATTICE_OF_RARE_LOSSES if are_rare(units) else math.inf
    try:
        return attempt(most, compute)
    except ArithmeticError:  # it cannot serve these units at all
        return None


def _too_many(units: Units, upper: float) -> bool:
    # Each distinct pair needs a law of its own on the lattice; what moments say must then do.
    several = any(isinstance(pair, InterpolatedSteps) for pair, _ in units)
    return (several or len(units) > LATTICE_PAIRS_MAX) and upper < math.inf


def _both(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """What two brackets of the same number say together.

    Raises:
        ArithmeticError: they do not meet, so one of them is wrong.
    """
    lower, upper = max(one[0], other[0]), min(one[1], other[1])
    if not lower <= upper:
        raise ArithmeticError("Two brackets of the same number do not meet.")
    return lower, upper


def chernoff_delta(units: Units, direction: Direction, epsilon: float) -> float:
    """Return delta from real moments alone, as chernoff_epsilon. Upper; it may exceed one.

    Raises:
        NoMomentsError: some pair is known by its tails alone.
    """
    failed = failure_of(units, direction)[1]
    logs = log_total_moments(units, direction) + LOG_BEST_SHARE - LADDER * epsilon
    least = float(np.min(logs + 16 * UNIT_ROUNDOFF * (1 + LADDER * epsilon)))
    return (failed + math.exp(min(0.0, least))) * (1 + 1e-12)


def chernoff_epsilon(units: Units, direction: Direction, delta: float) -> float:
    """Return epsilon from real moments alone: delta <= failure + c M e^(-lam epsilon). Upper."""
    try:
        failed = failure_of(units, direction)[1]
        if not failed < delta:
            return math.inf
        logs = log_total_moments(units, direction) + LOG_BEST_SHARE
    except NoMomentsError:
        return math.inf
    target = math.log(delta - failed)
    slack = 16 * UNIT_ROUNDOFF * (np.abs(logs) + abs(target) + 1)
    return max(0.0, float(np.min((logs - target + slack) / LADDER))) * (1 + 4 * UNIT_ROUNDOFF)


def _read_exactly(
    units: Units, direction: Direction
) -> Callable[[float], tuple[float, float]] | None:
    """(lower, upper) delta by epsilon where it needs no engine: single units, few counts."""
    if _alone(units):
        pair = units[0][0]
        return lambda epsilon: profile(pair, direction=direction, epsilon=epsilon)
    discrete = [(pair, count) for pair, count in units if isinstance(pair, DiscretePair)]
    few = find_few_counts(discrete) if len(discrete) == len(units) else None
    if few is not None:
        return lambda epsilon: counted_delta(few, direction=direction, epsilon=epsilon)
    return None


def _delta(
    units: Units, direction: Direction, *, epsilon: float, width: float, only: End | None = None
) -> tuple[float, float, Engine]:
    read = _read_exactly(units, direction)
    if read is not None:
        return (*read(epsilon), Engine.CLOSED_FORM)
    lower, upper = 0.0, 1.0
    with suppress(NoDecayError, NoMomentsError):
        lower, upper = contour_delta(units, direction, epsilon=epsilon, width=width)
    if upper - lower <= 10 * LATTICE_WIDTH * upper or _too_many(units, upper):
        return lower, upper, Engine.CONTOUR
    if are_rare(units):
        upper = min(upper, rare_delta(units, direction, epsilon=epsilon))
    wide = max(width, LATTICE_WIDTH)
    asked = partial(
        lattice_delta, units, direction=direction, epsilon=epsilon, width=wide, only=only
    )
    return (*_both((lower, upper), _on_lattice(units, asked) or (0.0, 1.0)), Engine.LATTICE)


THEOREMS = (epsilon_bracket, delta_bracket)
