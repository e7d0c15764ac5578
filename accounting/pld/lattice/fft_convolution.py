"""Composition of lattice laws: exponential tilting, one FFT per law, and every error of both.

A law puts P-mass on losses o + j h, with its own o. Under a tilt of order lambda its masses become
p e^(lambda l) / M, which are added up by circular convolution, and

    delta(epsilon) = M^k e^(-lambda epsilon) sum_{l > epsilon} g(l) w(l - epsilon),
    w(x) = e^(-lambda x) (1 - e^-x).

All of the composition's mass lies near epsilon after the right tilt, so that a delta of 1e-20 is
found as precisely as one of 1e-2. docs/theory/lattice.md derives every error term below.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy import fft

from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, Array, ComplexArray
from accounting.work_limit import spend

_U: Final = UNIT_ROUNDOFF
_LIBRARY: Final = 2 * LIBRARY_ULPS * _U
_FLOOR: Final = 1e-300
_LARGE: Final = 700.0  # exponents from here on overflow
_ATOM: Final = 0.9  # of the mass of a law that is nearly an atom
_MUCH_OUTSIDE: Final = 1e-5  # tilted mass; more tells that the law is too coarse for the window
_MANY: Final = 1000  # steps, from which on the roundoff of an atom matters
_ODD: Final[list[int]] = [3**i * 5**j for i in range(14) for j in range(10)]  # up to 3e12


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """P-mass on a lattice of losses, which bounds one step's profile from one side.

    An upper law's profile times 1 + excess is at least the step's, a lower law's is at most
    1 + excess times it.
    """

    offset: float  # o, nats
    first: int  # index of the first lattice point
    mass: Array  # P-mass at o + (first + i) h, shape (n,), read-only
    infinite: float  # P-mass at infinite loss, bounded from the law's side
    excess: float  # relative, >= 0


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a composition is looked at: any choice is safe, a good one is precise."""

    order: float  # lambda of the tilt, >= 0
    first: int  # index of the first lattice point of the window
    size: int  # lattice points in the window, the length of the transform
    order_below: float  # > 0; the Chernoff order of what falls below the window
    order_above: float  # > 0; the same above


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """The tilted composition in its window, with what may be wrong about it."""

    width: float  # h, nats
    frame: Frame
    shift: float  # loss of the lattice point of index zero: the sum of the steps' offsets
    shifts: float  # the sum of their moduli
    mass: Array  # tilted masses g, shape (size,)
    log_scale: float  # log of M^k
    log_slack: float  # relative error of everything, as a logarithm
    cell_error: float  # absolute error of each tilted mass
    outside: float  # tilted mass beyond the window
    infinite: float  # P-mass at infinite loss


def kernel_peak(order: float) -> float:
    """max_x e^(-lambda x) (1 - e^-x) = (lambda/(lambda+1))^lambda / (lambda+1). Upper."""
    return math.exp(order * -math.log1p(1 / order)) / (order + 1) * (1 + 4 * _LIBRARY)


def transform_size(points: int) -> int:
    """The least size of a fast transform of so many points: a product of 2s, 3s and 5s."""
    return min(odd << (-(-points // odd) - 1).bit_length() for odd in _ODD)


def transform_error(size: int) -> float:
    """Error of each entry of a transform of length `size`, over the sum of the input's moduli.

    A radix-r butterfly of a transform adds at most 8 log2(r) roundoffs of the moduli it sums, for
    r in 2, 3, 4 and 5; log2(size) such stages follow each other. Ten more cover the last scaling.
    """
    return _U * (8 * math.log2(size) + 10) * (1 + 1e-6)


def spectrum_error(log_modulus: Array, log_growth: Array) -> Array:
    """What a relative error of each factor makes of a product: |G| (e^growth - 1).

    If each |F_i| is off by at most e, then prod |F_i|^k_i is off by at most
    prod (|F_i| + e)^k_i - prod |F_i|^k_i, with growth = sum k_i log(1 + e/|F_i|).
    """
    small = np.minimum(log_growth, 1.0)
    near = np.exp(log_modulus) * np.expm1(small)
    far = np.exp(np.minimum(log_modulus + log_growth, _LARGE))
    return np.where(log_growth <= 1, near, far) * (1 + 4 * _LIBRARY)


def inverse_error(moduli: Array, errors: Array, *, size: int) -> float:
    """Error of each entry of the inverse transform: errors of the spectrum, and its own rounding.

    The entries of the half-spectrum count twice, for themselves and their conjugates.
    """
    total = float(np.sum(errors)) + transform_error(size) * float(np.sum(moduli))
    return 2 * total / size * (1 + size * _U)


def outside_mass(tilted: Sequence[tuple[Law, float, int]], *, width: float, frame: Frame) -> float:
    """Tilted mass that the circular convolution wraps into the window. Upper.

    Chernoff: P~(X >= b) <= e^(-s b) E~[e^(s X)] for s > 0, and likewise below. Nothing is outside
    a window that holds the whole support.
    """
    bottom = sum(count * law.first for law, _, count in tilted)
    top = sum(count * (law.first + len(law.mass) - 1) for law, _, count in tilted)
    shift = math.fsum(count * law.offset for law, _, count in tilted)
    total = 0.0
    if top >= frame.first + frame.size:
        edge = shift + width * (frame.first + frame.size)
        total += _chernoff(tilted, width=width, frame=frame, order=frame.order_above, edge=edge)
    if bottom < frame.first:
        edge = shift + width * frame.first
        total += _chernoff(tilted, width=width, frame=frame, order=-frame.order_below, edge=edge)
    return min(2.0, total)


def _chernoff(
    tilted: Sequence[tuple[Law, float, int]],
    *,
    width: float,
    frame: Frame,
    order: float,
    edge: float,
) -> float:
    """The planned order's bound, or a lesser order's where an upper law reaches further up."""
    best = 2.0
    for part in (1.0, 0.25, 0.06, 0.015):
        best = min(best, _at_order(tilted, width=width, frame=frame, order=part * order, edge=edge))
        if best < 1e-6:
            break
    return best


def _at_order(
    tilted: Sequence[tuple[Law, float, int]],
    *,
    width: float,
    frame: Frame,
    order: float,
    edge: float,
) -> float:
    shifts = math.fsum(count * abs(law.offset) for law, _, count in tilted)
    exponent, slack = -order * edge, 4 * _U * abs(order) * (abs(edge) + 2 * shifts)
    for law, log_total, count in tilted:
        used: Array = np.flatnonzero(law.mass > 0).astype(np.float64)
        logs = np.log(law.mass[law.mass > 0])
        powers = (frame.order + order) * (law.offset + width * (law.first + used)) + logs
        peak = float(np.max(powers, initial=-_LARGE))
        exponent += count * (peak + math.log(float(np.sum(np.exp(powers - peak))) + _FLOOR))
        exponent -= count * log_total
        reach = float(np.max(np.abs(powers) + 2 * np.abs(logs), initial=0.0)) + abs(log_total)
        slack += count * _U * (len(used) + 6 * reach + 4 * LIBRARY_ULPS + 8)
    return math.exp(min(exponent + slack, 1.0)) * (1 + _LIBRARY)


def infinite_mass(units: Sequence[tuple[Law, int]]) -> float:
    """Chance that any step's loss is infinite, 1 - prod (1 - m_i)^k_i. Upper."""
    log_rest = math.fsum(
        count * math.log1p(-min(law.infinite, 1 - _U)) for law, count in units if law.infinite > 0
    )
    return -math.expm1(log_rest * (1 + 4 * _LIBRARY)) * (1 + _LIBRARY)


def excess_slack(units: Sequence[tuple[Law, int]]) -> float:
    """Log of prod (1 + excess_i)^k_i, the factor that the discretisations' own rounding costs."""
    return math.fsum(count * law.excess for law, count in units) * (1 + 4 * _U)


def scale_slack(scales: Sequence[tuple[float, int]]) -> float:
    """Absolute error of log M^k = sum k_i log M_i, for terms each right to a few roundoffs."""
    return (2 * _LIBRARY) * math.fsum(count * abs(scale) for scale, count in scales)


def tilt_slack(reaches: Sequence[tuple[float, int]]) -> float:
    """Relative error of tilted masses, compounded: an exponent of size r is off by 4 r u."""
    return math.fsum(count * _U * (4 * reach + 2 * LIBRARY_ULPS + 4) for reach, count in reaches)


def compose(units: Sequence[tuple[Law, int]], *, width: float, frame: Frame) -> Composition:
    """The composition of lattice laws in a window, under a tilt.

    Args:
        units: laws on one lattice and how often each is taken.
        width: h, nats.
        frame: tilt and window; its size has no prime factor above 5.

    Returns:
        Tilted masses with their error bounds.
    """
    size, order = frame.size, frame.order
    spectrum = np.zeros(size // 2 + 1, dtype=np.complex128)
    growth = np.zeros(size // 2 + 1)
    offset, slack = 0, 0.0
    scales: list[tuple[float, int]] = []
    reaches: list[tuple[float, int]] = []
    tilted: list[tuple[Law, float, int]] = []
    for law, count in units:
        powers = order * (law.offset + width * (law.first + np.arange(len(law.mass))))
        peak = float(np.max(powers))
        mass = law.mass * np.exp(powers - peak)
        total = max(float(np.sum(mass)), _FLOOR)  # a lower law may hold nothing
        mass /= total
        power = _log_power(mass, count, size=size)
        spectrum += power.log_factor
        growth += power.growth
        offset += count * (law.first + power.centre)
        slack += power.slack
        scales += [(peak, count), (math.log(total), count)]
        reaches.append((float(np.max(np.abs(powers))) + abs(peak), count))
        tilted.append((law, peak + math.log(total), count))
    spend(9 * size)
    moduli = np.exp(spectrum.real)
    errors = spectrum_error(spectrum.real, growth + _LIBRARY)
    circular = fft.irfft(np.exp(spectrum), size)
    return Composition(
        width=width,
        frame=frame,
        shift=math.fsum(count * law.offset for law, count in units),
        shifts=math.fsum(count * abs(law.offset) for law, count in units),
        # Rolled so that entry i is the lattice point first + i; a mass is not negative.
        mass=np.maximum(np.roll(circular, (offset - frame.first) % size), 0.0),
        log_scale=math.fsum(count * scale for scale, count in scales),
        log_slack=excess_slack(units) + scale_slack(scales) + tilt_slack(reaches) + slack,
        cell_error=inverse_error(moduli, errors, size=size),
        outside=outside_mass(tilted, width=width, frame=frame),
        infinite=infinite_mass(units),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Power:
    """The logarithm of a power of a transform, of a law whose point `centre` lies at index zero."""

    log_factor: ComplexArray  # the modulus in its real part
    growth: Array  # its error, as `spectrum_error` takes it
    centre: int
    slack: float  # relative error of the whole power


def _log_power(mass: Array, count: int, *, size: int) -> _Power:
    """Count times the logarithm of a transform.

    A law that is nearly an atom is written as one plus the transform of the rest, less its mass, so
    that only the rest's roundoff is multiplied by the count.
    """
    spend(5 * (size + len(mass)))
    centre = int(np.argmax(mass))
    if mass[centre] > _ATOM and count > _MANY:
        return _near_one(mass, count, size=size)
    if len(mass) > size:
        mass = np.bincount(np.arange(len(mass)) % size, mass, minlength=size).astype(np.float64)
    factor = fft.rfft(mass, size)
    modulus = np.maximum(np.abs(factor), _FLOOR)
    log_factor = np.empty_like(factor)  # of real parts: numpy's complex logarithm takes long
    log_factor.real = np.log(modulus)
    log_factor.imag = np.where(modulus > _FLOOR, np.arctan2(factor.imag, factor.real), 0.0)
    rounding = _LIBRARY * (np.abs(log_factor) + 1)  # the one is for the modulus
    growth = count * (np.log1p(transform_error(size) / modulus) + rounding)
    return _Power(log_factor=count * log_factor, growth=growth, centre=0, slack=0.0)


def _near_one(mass: Array, count: int, *, size: int) -> _Power:
    """With T all mass, T (1 + w) where w = (the transform of the rest, less its mass) / T."""
    spend(5 * size)
    centre = int(np.argmax(mass))
    rest = mass.copy()
    rest[centre] = 0.0
    whole, off = math.fsum(mass), math.fsum(rest)
    places = (np.arange(len(mass)) - centre) % size
    rest = np.bincount(places, rest, minlength=size).astype(np.float64)
    w = (fft.rfft(rest, size) - off) / whole
    # |1 + w|^2 = 1 + 2 Re w + |w|^2, and |w| <= 2 off is well below one.
    real = 0.5 * np.log1p(2 * w.real + np.abs(w) ** 2) + math.log(whole)
    log_factor = real + 1j * np.arctan2(w.imag, 1 + w.real)
    modulus = np.abs(1 + w)
    error = off * (transform_error(size) + (8 + len(mass) / size) * _U) / whole
    growth = count * (np.log1p(error / modulus) + 8 * _LIBRARY * np.abs(w) / modulus)
    return _Power(
        log_factor=count * log_factor,
        growth=growth,
        centre=centre,
        slack=count * (2 * _U + 2 * _LIBRARY * abs(math.log(whole))),
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """Delta of a composition at one epsilon."""

    lower: float
    upper: float
    slope: float  # of log delta in epsilon; an estimate, for root finding only
    noise: float  # part of delta that may be error of the transform or of its window; an estimate


def read_delta(composition: Composition, *, epsilon: float) -> Reading:
    """Delta of a composition at an epsilon of any sign, certified.

    Args:
        composition: from `compose`.
        epsilon: nats.

    Returns:
        For an upper law `upper` is what bounds the steps' delta, for a lower law `lower`.
    """
    spend(10_000 + 2 * composition.frame.size)
    frame, h, order = composition.frame, composition.width, composition.frame.order
    log_pre = composition.log_scale - order * epsilon
    if not log_pre < _LARGE:
        return Reading(0.0, 1.0, -order, 0.0)
    above = epsilon - composition.shift  # of the lattice point of index zero
    # One point more than is above epsilon, which rounding may have put on the wrong side.
    start = min(max(math.floor(above / h) - frame.first, 0), frame.size)
    x = h * np.arange(frame.first + start, frame.first + frame.size) - above
    x = np.maximum(x, 0.0)
    decay, gap = np.exp(-order * x), -np.expm1(-x)
    weights = decay * gap
    mass = composition.mass[start:]
    value, mean = float(mass @ weights), float((mass * (gap > 0)) @ decay)
    error = composition.cell_error * float(np.sum(weights)) * (1 + frame.size * _U) + _FLOOR
    near = float(mass @ decay) + composition.cell_error * float(np.sum(decay))
    if composition.outside > 0:
        error += composition.outside * kernel_peak(order)
        near += composition.outside
    error += location_error(composition, epsilon=epsilon) * (1 + order) * 2 * near
    pre, slack = math.exp(log_pre), composition.log_slack
    slack += summation_slack(composition, epsilon=epsilon)
    lower = pre * (value - error) * math.exp(-slack) if slack < _LARGE else 0.0
    upper = pre * (value + error) * math.exp(slack) if slack < _LARGE else 1.0
    # d log delta / d epsilon = -(E[1; L > epsilon] - delta) / delta
    slope = -(mean - value) / value if value > 0 else -order
    noise = composition.cell_error * float(np.sum(weights))
    if 0 < composition.outside < _MUCH_OUTSIDE:
        noise += composition.outside * kernel_peak(order)
    noise /= max(value, _FLOOR)
    # infinite_mass rounds up, by less than this.
    surely = composition.infinite * (1 - 16 * _LIBRARY)
    return Reading(max(0.0, lower) + surely, min(1.0, upper + composition.infinite), slope, noise)


def location_error(composition: Composition, *, epsilon: float) -> float:
    """Error of x = l - epsilon over the window; w moves by (1 + lambda) e^(-lambda x) times it."""
    frame = composition.frame
    reach = composition.width * (abs(frame.first) + frame.size)
    return 4 * _U * (reach + abs(epsilon) + composition.shifts)


def summation_slack(composition: Composition, *, epsilon: float) -> float:
    """Relative error of the final sum of positive terms and of the exponent before it."""
    exponent = abs(composition.log_scale) + composition.frame.order * abs(epsilon)
    return _U * (composition.frame.size + 8 * exponent + 4 * LIBRARY_ULPS)
