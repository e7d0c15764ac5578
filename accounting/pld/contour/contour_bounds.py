"""Delta of a composition by inverting the Laplace transform of its loss on a vertical line.

    delta(epsilon) = (1/2 pi) int M(lam + i t) e^(-(lam + i t) epsilon) / ((lam + i t)(1 + lam + i
    t)) dt

where M is the product of the steps' moments to the power of their counts, and lam > 0. The integral
is summed at t = 2 pi n / W. Summing instead of integrating adds delta(epsilon + m W) e^(lam m W)
for every m other than 0: never less than the truth, and bounded by real moments. What is left out
beyond the last node, the errors of the moments and every rounding are bounded and added on both
sides. docs/theory/contour.md derives every term.
"""

import math
from typing import Final

import numpy as np

from accounting.events import Direction
from accounting.pld.contour.complex_moments import line_of, log_modulus
from accounting.pld.contour.inversion import (
    Guess,
    Inversion,
    NoDecayError,
    Placement,
    epsilon_of,
    guess_at_delta,
    guess_at_epsilon,
    guess_near,
    log_total_moments,
    log_truncations,
    moment_errors,
    place,
)
from accounting.pld.contour.real_moments import LADDER, NoMomentsError, finite_losses
from accounting.pld.contour.tilted_grids import theta_grid
from accounting.pld.pairs import Atomic, InterpolatedSteps, Units
from accounting.rounding import UNIT_ROUNDOFF, Array
from accounting.work_limit import spend

NODES_MAX: Final = 20_000  # beyond, the lattice is faster
_FEW_NODES: Final = 1024  # beyond, a closer look at the decay pays
NODES_OF_ALL_MAX: Final = 2_000_000  # nodes times distinct pairs: about a second
_ROUGH_NODES: Final = 512
_USEFUL_WIDTH: Final = 5e-4  # relative, of epsilon: the lattice is at least as narrow
_SHARE_MIN: Final = 1e-11  # below, rounding decides
_SHARE_MAX: Final = 1e-2
_PASSES: Final = 12
# Times the width aimed at that is good enough: another pass costs more, the more nodes it takes.
_PATIENCE: Final = (3.0, 20.0, 1000.0)
_SLOW: Final = (512, 8192)


def failure_of(units: Units, direction: Direction) -> tuple[float, float]:
    """(lower, upper) probability that some loss is infinite."""
    failures = [
        (finite_losses(pair, direction)[2], count)
        for pair, count in units
        if isinstance(pair, Atomic)
    ]
    if any(not each < 1 for each, _ in failures):
        return 1.0, 1.0
    log_kept = math.fsum(count * math.log1p(-each) for each, count in failures)
    failure = -math.expm1(log_kept)
    return failure * (1 - 16 * UNIT_ROUNDOFF), failure * (1 + 16 * UNIT_ROUNDOFF)


def invert(
    units: Units,
    direction: Direction,
    guess: Guess,
    log_total: Array,
    *,
    share: float,
    nodes_max: int | None = None,
) -> Inversion:
    """The composition on the line that suits a guess, with errors about a share of delta.

    Raises:
        NoDecayError: it would need more than NODES_MAX nodes, or no order bounds the window.
    """
    steps = sum(
        count * (sum(pair.counts) if isinstance(pair, InterpolatedSteps) else 1)
        for pair, count in units
    )
    placed = place(log_total, guess, share=share, steps=steps)
    order = float(LADDER[placed.index])
    spacing = 2 * math.pi / placed.window
    log_scale = float(log_total[placed.index]) - order * guess.epsilon
    needed = guess.log_delta + math.log(share / 2) - log_scale
    spread = max(float(guess.spread[placed.index]), 1e-300)
    theta = max(math.sqrt(2 * max(1.0, -needed)) / spread, spacing)
    most = min(nodes_max or NODES_MAX, NODES_OF_ALL_MAX // len(units))
    if not theta / spacing < 4 * most:
        raise NoDecayError("The transform would need too many nodes.")
    for fine in (False, True):
        thetas, truncations = _truncations(units, direction, order, spacing, most, fine)
        last = int(np.argmax(truncations <= needed))
        nodes = math.ceil(thetas[last] / spacing * (1 + 1e-12)) + 1
        if truncations[last] <= needed and nodes <= (most if fine else _FEW_NODES):
            break
    else:
        raise NoDecayError("The transform does not decay fast enough.")
    coarse = max(8, 2 ** (nodes.bit_length() - 4))
    nodes = -(-nodes // coarse) * coarse  # few sizes, so that growing ledgers share lines
    return _assemble(
        units, direction, placed, nodes, log_total, truncated=math.exp(truncations[last])
    )


def _truncations(
    units: Units, direction: Direction, order: float, spacing: float, most: int, fine: bool
) -> tuple[Array, Array]:
    """(thetas, log of what is left out when the nodes end before each)."""
    offset, thetas = theta_grid(spacing, most * spacing)
    spend(len(units) * (2000 + len(thetas) // 4))
    log_moduli = np.zeros_like(thetas)
    for pair, count in units:
        log_moduli += count * log_modulus(
            pair, direction, order=order, offset=offset, thetas=thetas, fine=fine
        )
    return thetas, log_truncations(log_moduli, thetas, spacing)


def _assemble(
    units: Units,
    direction: Direction,
    placed: Placement,
    nodes: int,
    log_total: Array,
    *,
    truncated: float,
) -> Inversion:
    order, spacing = float(LADDER[placed.index]), 2 * math.pi / placed.window
    log_values, slack = np.zeros(nodes, dtype=np.complex128), np.zeros(nodes)
    sizes = np.zeros(nodes)
    log_moments_, log_errors = [], 0.0
    spend(len(units) * nodes // 4)
    for pair, count in units:
        line = line_of(pair, direction, order=order, spacing=spacing, nodes=nodes)
        log_values += count * line.log_values
        slack += count * line.slack
        sizes += count * np.abs(line.log_values)
        log_moments_.append(count * line.log_moment)
        log_errors += count * line.log_moment_error
    # Products and sums of the logarithms round, the phases before they are reduced to a turn.
    slack += UNIT_ROUNDOFF * (4 * (len(units) + 2) * sizes + 256)
    thetas = np.asarray(spacing * np.arange(nodes), dtype=np.float64)
    z = np.asarray(order + 1j * thetas, dtype=np.complex128)
    log_terms = log_values - np.log(z) - np.log1p(z)
    kernel = 1 / (np.abs(z) * np.abs(1 + z))
    return Inversion(
        index=placed.index,
        order=order,
        window=placed.window,
        spacing=spacing,
        thetas=thetas,
        points=z,
        log_terms=log_terms,
        log_moment=math.fsum(log_moments_),
        log_sizes=(len(units) + 2) * math.fsum(abs(term) for term in log_moments_),
        log_errors=log_errors,
        moments_off=moment_errors(log_values.real, slack, kernel, spacing),
        truncated=truncated,
        log_total=log_total,
        failure=failure_of(units, direction),
    )


def _share(width: float, guess: Guess) -> float:
    """Which share of delta may be error for a relative width of epsilon.

    The logarithm of delta falls by about the order times epsilon's change.
    """
    steepness = float(LADDER[guess.index]) * max(guess.epsilon, 1e-3)
    return min(_SHARE_MAX, max(_SHARE_MIN, 0.1 * width * steepness))


def _worth(share: float, guess: Guess) -> int:
    """How many nodes a share is worth: few, if it only tells where to look."""
    steepness = float(LADDER[guess.index]) * guess.epsilon
    return NODES_MAX if share <= _USEFUL_WIDTH * steepness else min(_ROUGH_NODES, NODES_MAX)


def _close(one: Guess, other: Guess) -> bool:
    """Whether inverting around the other guess would give about the same bracket."""
    near = abs(one.epsilon - other.epsilon) <= 0.01 * other.epsilon
    return near and one.index == other.index


def contour_epsilon(
    units: Units, direction: Direction, *, delta: float, width: float
) -> tuple[float, float]:
    """(lower, upper) epsilon at a delta for one order of the pairs, in nats.

    Args:
        units: pairs and how often each counts.
        direction: the order of the pairs.
        delta: in (0, 1).
        width: the relative width that is aimed at; the bracket may be wider, and says so.

    Raises:
        NoDecayError: the transform cannot be summed, or nothing can be certified.
        NoMomentsError: some pair is known by its tails alone.
    """
    failed = failure_of(units, direction)[1]
    if not failed < delta:
        raise NoDecayError("Infinite losses alone reach this delta.")
    log_total = log_total_moments(units, direction)
    log_target = math.log(delta - failed)
    guess = guess_at_delta(log_total, log_target)
    lower, upper = 0.0, math.inf
    least = 0.0  # a share that can be summed from this guess, as far as is known
    for _ in range(_PASSES):
        share = max(least, _share(width, guess))
        try:
            inversion = invert(
                units, direction, guess, log_total, share=share, nodes_max=_worth(share, guess)
            )
        except (NoDecayError, NoMomentsError):
            if share == _SHARE_MAX:
                break
            least = min(_SHARE_MAX, 30 * share)  # a rougher answer still tells where to look
            continue
        low, high, middle = epsilon_of(inversion, delta=delta, start=guess.epsilon)
        lower, upper = max(lower, low), min(upper, high)
        before, guess = guess, guess_near(log_total, middle, log_target)
        wanted = width * _PATIENCE[sum(len(inversion.thetas) > few for few in _SLOW)]
        narrow = upper < math.inf and upper - lower <= wanted * upper
        if narrow or _close(before, guess):
            break
        least = 0.0
    if upper == math.inf:
        raise NoDecayError("The transform does not decay fast enough.")
    return lower, upper


def contour_delta(
    units: Units, direction: Direction, *, epsilon: float, width: float
) -> tuple[float, float]:
    """(lower, upper) delta at an epsilon for one order of the pairs.

    Args:
        units: pairs and how often each counts.
        direction: the order of the pairs.
        epsilon: nats, >= 0.
        width: the relative width that is aimed at.

    Raises:
        NoDecayError: the transform cannot be summed.
        NoMomentsError: some pair is known by its tails alone.
    """
    log_total = log_total_moments(units, direction)
    guess = guess_at_epsilon(log_total, epsilon)
    share = min(_SHARE_MAX, max(_SHARE_MIN, 0.1 * width))
    lower, upper = 0.0, 1.0
    for _ in range(_PASSES):
        inversion = invert(units, direction, guess, log_total, share=share)
        low, high = inversion.read(epsilon)
        value, _ = inversion.estimate(epsilon)
        lower, upper = max(lower, low), min(upper, high)
        if upper - lower <= width * upper or not 0 < value < math.inf:
            break
        guess = guess_near(log_total, epsilon, math.log(min(1.0, value)))
    return lower, upper
