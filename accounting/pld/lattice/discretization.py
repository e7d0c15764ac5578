"""One step's loss on a lattice: a law whose profile lies above the step's, and one below.

Both compose, because profiles are integrals of increasing convex functions of the likelihood
ratio. However a law's masses were rounded, its excess is found by comparing its profile with the
step's. docs/theory/lattice.md has the proofs.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting.events import Direction
from accounting.pld.convex_hull import take_hull
from accounting.pld.lattice.fft_convolution import Law
from accounting.pld.pairs import Atomic, DiscretePair, LaplacePair, Pair, SymmetricPair
from accounting.pld.profiles import WRITTEN, discrete_atoms, totals
from accounting.pld.tails import Tails, profiles, tails
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, Array
from accounting.work_limit import cached_with_cost

_U: Final = UNIT_ROUNDOFF
EXPONENT_MAX: Final = 700.0  # below the overflow of exp
LAWS_KEPT: Final = 128  # of both sides; a law of 1e5 points takes 1.6 MB


@dataclass(frozen=True, slots=True)
class Lattice:
    """The losses o + j h of one step, of few enough bits that they and their halves are doubles."""

    width: float  # h, nats
    offset: float  # o, nats
    bottom: float  # P-mass of losses below is dropped or moved up; a multiple of the last bit
    first: int  # index of the first point, not above the bottom
    last: int  # what lies above the last becomes infinite, or is moved down
    bit: float  # width, offset and bottom are multiples of it, and so are the tangents' places

    def points(self) -> Array:
        """Losses of the points."""
        return self.offset + self.width * np.arange(self.first, self.last + 1, dtype=np.float64)

    def tangents(self, excess: Array) -> Array:
        """Losses of the tangents, `tangent_gap` below each point, but not below the bottom."""
        halves = np.arange(2 * self.first - 1, 2 * self.last, 2, dtype=np.float64)
        near = self.points() - tangent_gap(excess, self.width)
        near = np.floor(near / self.bit) * self.bit
        return np.maximum(np.maximum(self.offset + 0.5 * self.width * halves, near), self.bottom)


def tangent_gap(excess: Array, width: float) -> Array:
    """How far below a point the tangent is taken: half a width, and half the excess at the point.

    A tangent at y is positive up to y plus the excess at y, the mean of S - y where S > y over y.
    """
    return np.minimum(0.5 * width, 0.5 * excess)


def has_atoms(pair: Pair) -> bool:
    """Whether single losses have positive probability."""
    if isinstance(pair, SymmetricPair):
        return isinstance(pair.near, LaplacePair)
    return isinstance(pair, DiscretePair | LaplacePair)


def mean_excess(losses: Array, at: Tails, profile: Array) -> Array:
    """E_Q[S/x - 1 | S > x] at x = e^l, about; infinite where nothing lies above."""
    slope = np.exp(losses) * at.q_above
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((slope > 0) & (profile > 0), profile / slope, np.inf)


@cached_with_cost(maxsize=LAWS_KEPT)
def laws(pair: Pair, *, direction: Direction, lattice: Lattice, small: float) -> tuple[Law, Law]:
    """The lower and the upper law of one step.

    Args:
        pair: the dominating pair.
        direction: which law of the pair is first.
        lattice: where their losses may lie.
        small: about the delta asked for; profiles below it are corrected absolutely.

    Raises:
        ArithmeticError: the lattice reaches losses whose exponential overflows.
    """
    losses = lattice.points()
    if not losses[-1] <= EXPONENT_MAX:
        raise ArithmeticError("Losses reach beyond what a double's exponential holds.")
    at = tails(pair, direction=direction, losses=losses)
    _, above = profiles(pair, direction=direction, losses=losses)
    beyond = mean_excess(losses, at, above)
    if has_atoms(pair):
        # A point just below an atom has hardly any excess; between atoms the middle serves.
        beyond = np.full_like(beyond, np.inf)
    return (
        lower_law(pair, lattice, direction=direction, beyond=beyond, small=small),
        upper_law(pair, lattice, at, above, direction=direction, small=small),
    )


def joined_dots(losses: Array, at: Tails) -> Array:
    """P-masses at rising losses of the law whose profile joins the dots at them.

    dP to the two ends of (l, l'], keeping dP and dQ: (dP - e^l dQ) / (1 - e^(l-l')) goes up. The
    left tail is moved up to the first loss; of the right tail the last keeps the Q-mass.
    """
    p, q = cell_masses(at.p_above, at.p_below), cell_masses(at.q_above, at.q_below)
    ratio = np.exp(losses)
    up = np.clip((p - ratio[:-1] * q) / -np.expm1(-np.diff(losses)), 0.0, p)
    mass = np.append(p - up, min(at.p_above[-1], ratio[-1] * at.q_above[-1]))
    mass[1:] += up
    mass[0] += at.p_below[0]
    return mass


def cell_masses(above: Array, below: Array) -> Array:
    """Masses between neighbouring points, as differences of whichever tail is smaller there."""
    return np.maximum(np.where(above[:-1] < 0.5, -np.diff(above), np.diff(below)), 0.0)


def upper_law(
    pair: Pair,
    lattice: Lattice,
    at: Tails,
    needed: Array,
    *,
    direction: Direction,
    small: float,
) -> Law:
    """The least lattice law above a step: its profile joins the dots of the step's.

    A cell's P-mass dP and Q-mass dQ go to its two ends so that both are kept. However its masses
    were rounded, its excess is found by comparing its profile with the step's at every point.
    """
    losses, width = lattice.points(), lattice.width
    mass = joined_dots(losses, at)
    infinite = float(needed[-1])
    given, total = lattice_profile(mass, losses=losses, width=width)
    given = given * (1 - 2 * sum_error(len(mass))) + infinite
    total = total * (1 - sum_error(len(mass))) + infinite
    # A tiny step's whole profile may be below the delta asked for; then only its far end is small.
    small = min(small, 1e-3 * float(needed[min(max(-lattice.first, 0), len(needed) - 1)]))
    # Where the profile is small its error counts as mass at infinity, elsewhere as a factor.
    lacking = float(np.max(needed - given, where=needed < small, initial=0.0))
    large = needed >= small
    excess = profile_excess(
        np.append(needed[large], _whole(pair, direction)),
        np.append(given[large] + lacking, total + lacking),
    )
    mass.flags.writeable = False
    return Law(
        offset=lattice.offset,
        first=lattice.first,
        mass=mass,
        infinite=infinite + lacking,
        excess=excess,
    )


def _whole(pair: Pair, direction: Direction) -> float:
    """The profile at loss minus infinity: all P-mass, which written probabilities may exceed."""
    if not isinstance(pair, Atomic):
        return 1.0
    first, second, _ = totals(pair)
    return (first if direction is Direction.REMOVE else second) * (1 + WRITTEN + 2 * _U)


def _infinite(pair: Pair, direction: Direction) -> float:
    """P-mass of the outcomes that Q never gives. Lower, and off by a few roundoffs."""
    if not isinstance(pair, Atomic):
        return 0.0
    _, p, q = discrete_atoms(pair, direction)
    return math.fsum(p[q == 0]) * (1 - WRITTEN - 2 * _U)


def profile_excess(needed: Array, given: Array) -> float:
    """The least e >= 0 with needed <= (1 + e) given at every point.

    Profiles scale: if H <= (1+e) H' for every loss, then k-fold delta <= (1+e)^k delta'.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(needed > given, (needed - given) / given, 0.0)
    worst = float(np.max(ratios, initial=0.0)) * (1 + 8 * _U) + 4 * _U
    return worst if worst < math.inf else math.inf


def sum_error(count: int) -> float:
    """Relative error of `suffix_sums` of `count` positive terms, each right to a few roundoffs."""
    return _U * (2 * math.isqrt(count) + 8 + 4 * LIBRARY_ULPS)


def suffix_sums(terms: Array) -> Array:
    """Sums of each term and all after it, in blocks: the error grows as the root of the count."""
    side = math.isqrt(len(terms)) + 1
    padded = np.zeros(side * side)
    padded[: len(terms)] = terms
    rows = padded.reshape(side, side)
    inner = np.cumsum(rows[:, ::-1], axis=1)[:, ::-1]
    after = np.append(np.cumsum(inner[::-1, 0])[::-1][1:], 0.0)
    return np.asarray((inner + after[:, None]).ravel()[: len(terms)], dtype=np.float64)


def lattice_profile(mass: Array, *, losses: Array, width: float) -> tuple[Array, float]:
    """Profile of a lattice law at its own points, and its P-mass, by sums of positive terms.

    H(l_j) = sum_{i >= j} (x_{i+1} - x_i) W_{i+1}, where x = e^l and W_i is the Q-mass from point i.
    """
    q_above = np.append(suffix_sums(mass * np.exp(-losses))[1:], 0.0)
    profile = suffix_sums(np.exp(losses) * math.expm1(width) * q_above)
    return profile, float(suffix_sums(mass)[0])


def lower_law(
    pair: Pair, lattice: Lattice, *, direction: Direction, beyond: Array, small: float
) -> Law:
    """A lattice law below a step: its profile lies below tangents of the step's.

    t_j is the tangent at y_j between x_j and x_{j+1}. At x_j the law's profile is the lesser of
    t_{j-1} and t_j, so that on [x_j, x_{j+1}] both ends, and with them the chord, lie below t_j.
    The last tangent is zero. Where this is not convex, the hull is lower still.
    """
    losses, width = lattice.points(), lattice.width
    halves = lattice.tangents(beyond)
    at = tails(pair, direction=direction, losses=halves)
    infinite = _infinite(pair, direction)
    skipped = _empty_start(losses, at, infinite)
    first, losses = lattice.first + skipped, losses[skipped:]
    used = np.append(0, np.arange(skipped + 1, len(halves)))
    halves, at = halves[used], Tails(*(getattr(at, name)[used] for name in Tails.__slots__))
    floor, _ = profiles(pair, direction=direction, losses=halves)
    # Infinite loss adds the same to the profile everywhere; it is kept apart.
    floor = floor - infinite - 4 * _U * floor
    p_above = np.maximum(at.p_above - infinite, 0.0)
    x = np.exp(losses)
    # Tangents at y_{j-1} and y_j, read at x_j; from below.
    error = np.where(np.isfinite(at.error), at.error, 1.0)
    slope_high = np.minimum(at.q_above * (1 + error) + (at.error > 1), 1.0)
    left = floor + x * np.expm1(halves - losses) * slope_high * (1 + 32 * _U)
    slope_low = at.q_above[1:] * np.maximum(1 - error[1:], 0.0)
    right = floor[1:] + x[:-1] * np.expm1(halves[1:] - losses[:-1]) * slope_low * (1 - 32 * _U)
    failing = np.flatnonzero(left <= 0)
    count = int(failing[0]) if len(failing) else len(x)
    if count < 1:
        nothing = np.zeros(1)
        return Law(offset=lattice.offset, first=first, mass=nothing, infinite=infinite, excess=0.0)
    mass = _tangent_masses(p_above, at.p_below, at.q_above, at.q_below, x, width, count)
    take_hull(mass, losses=losses[:count])
    if count == len(x):
        # What lies above the lattice is too little to matter, but a tilt may magnify it: dropped.
        mass[-1] = 0.0
    given, total = lattice_profile(mass, losses=losses[:count], width=width)
    given = given[:-1] * (1 + 2 * sum_error(count))
    room = np.minimum(left[: count - 1], right[: count - 1])
    last = _last_point(mass, given, room, small=small)
    mass[last + 1 :] = 0.0  # what is left has no excess at the last point, and no more before it
    excess = profile_excess(
        np.append(given[:last], total * (1 + sum_error(count))),
        np.append(room[:last], _kept_mass(pair, at, infinite)),
    )
    mass.flags.writeable = False
    return Law(offset=lattice.offset, first=first, mass=mass, infinite=infinite, excess=excess)


def _last_point(mass: Array, given: Array, room: Array, *, small: float) -> int:
    """Where the lower law best ends: far out its profile is not known well enough, relatively.

    Mass that is dropped lowers every profile, and delta by no more than itself; an excess lowers
    delta by as much of it.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(room > 0, np.maximum(given / room - 1, 0.0), np.inf)
    ratios[given <= 0] = 0.0
    worst = np.append(0.0, np.maximum.accumulate(ratios))
    dropped = np.append(np.cumsum(mass[:0:-1])[::-1], 0.0)
    costs = worst * small + dropped
    return int(len(costs) - 1 - np.argmin(costs[::-1]))


def _kept_mass(pair: Pair, at: Tails, infinite: float) -> float:
    """Finite P-mass above the lowest tangent. Lower.

    Where masses add up to one it is also what the tail below leaves: that tail is small, and so is
    its error, however large it is beside the tail itself.
    """
    error = float(at.error[0])
    if not error < 1:
        return 0.0
    kept = (max(float(at.p_above[0]) - infinite, 0.0) - 4 * _U) * (1 - error)
    if isinstance(pair, Atomic):
        return kept
    return max(kept, 1 - float(at.p_below[0]) * (1 + error) - 8 * _U)


def _empty_start(losses: Array, at: Tails, infinite: float) -> int:
    """How many points to skip: until all Q-mass so far has its mean at or below the point.

    The tangent left of the first point then serves up to it. Without this, the function would
    have to fall short of the total mass to stay below the tangents inside the first cell.
    """
    p, q = at.p_below - at.p_below[0], at.q_below - at.q_below[0]
    ends = np.flatnonzero((q[1:] > 0) & (p[1:] <= np.exp(losses[:-1]) * q[1:]))
    # That tangent reaches zero where the mean of all mass is; nothing would be left beyond.
    reached = len(ends) and at.p_above[0] - infinite > math.exp(losses[ends[0]]) * at.q_above[0]
    return int(ends[0]) if reached else 0


def _tangent_masses(
    p_above: Array,
    p_below: Array,
    q_above: Array,
    q_below: Array,
    x: Array,
    width: float,
    count: int,
) -> Array:
    """P-masses of the function that joins the lesser tangents at `count` points; some negative.

    Between tangents lie v_j = dP and w_j = dQ. Since t_j(x_j) - t_{j-1}(x_j) = -d_j with
    d_j = v_j - x_j w_j, the function at x_j is t_{j-1}(x_j) - d_j^+ = t_j(x_j) - d_j^-, and
    its slopes, whose differences are the Q-masses, need no values of the profile.
    """
    v = np.append(cell_masses(p_above[:count], p_below[:count]), p_above[count - 1])
    w = np.append(cell_masses(q_above[:count], q_below[:count]), q_above[count - 1])
    d = v - x[:count] * w
    rises, falls = np.maximum(d, 0.0), np.maximum(-d, 0.0)
    # Beyond the last point the function is zero, and its tangent there is zero.
    falls[-1] = 0.0
    change = rises - np.append(0.0, falls[:-1])
    # The neighbour on the left of the first point is x = 0, at distance x_0 and not x_0 (1-e^-h).
    mass = x[:count] * w + change / np.append(1.0, np.full(count - 1, -math.expm1(-width)))
    mass[:-1] -= change[1:] / math.expm1(width)
    return np.asarray(mass, dtype=np.float64)
