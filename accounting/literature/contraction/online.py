"""Noise that falls step by step, so that records may keep arriving: what it promises one of them.

Never a guarantee of a data set: the newest record has A alone, and A tends to 1 as the noise falls.
docs/theory/contraction.md has the proof that sums of blocks are above the sums they stand for.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from accounting.guarantees import Status, theorem
from accounting.literature.contraction.contraction import (
    ONE_RECORD,
    RELATIONS,
    DeltaBound,
    ProjectedNoisySgd,
    log_sum_up,
    require_steps,
)
from accounting.literature.contraction.kernels import Noise, log_gaussian_lost, step_kernel
from accounting.literature.contraction.schedules import Schedule, half_shift, scheduled_scale
from accounting.rounding import Array

EXPONENT_MIN: Final = 1.05  # of the time in the schedule: at _LAST nothing to speak of is left
EXPONENT_MAX: Final = 10.0  # noise falls fast enough far below it
FINE: Final = 5e-5  # relative width of the first blocks of steps; each costs its square
BLOCKS: Final = 400_000  # at most, of steps in geometric progression
_GROWTH: Final = 0.25  # of the widths of blocks, at most, as a power of the time
_LAST: Final = 1e300  # steps later than this are left out, which is on the safe side
# A schedule's noise is a double, and so is all that is worked out of log(1 - B): it is lowered by
# this share, far more than rounding takes of it, or of its products and sums.
_SLACK: Final = 1e-13
_SUBDIVISIONS: Final = 400  # of an integral over all later steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Online:
    """A schedule by time instead of number: t^alpha stands where n stood."""

    schedule: Schedule
    alpha: float  # in [EXPONENT_MIN, EXPONENT_MAX]; up to 1, delta would tend to 0

    def __post_init__(self) -> None:
        """Refuse exponents for which delta tends to 0, or hardly to anything else."""
        if not EXPONENT_MIN <= self.alpha <= EXPONENT_MAX:
            raise ValueError(f"alpha lies in [{EXPONENT_MIN:g}, {EXPONENT_MAX:g}].")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineLimit:
    """What the delta of one record tends to as later records arrive."""

    upper: DeltaBound  # certified; no run of finite length has less
    integral: float  # the document's delta*: above the limit, below delta at most lengths
    lower: float  # the limit is at least this, to the accuracy of an integral


def online_run(run: ProjectedNoisySgd, online: Online, *, step: int) -> ProjectedNoisySgd:
    """The run with the noise that the schedule gives to one step.

    Raises:
        ValueError: step is out of range, the domain unbounded, or the noise none to declare.
    """
    require_steps(step)
    log_times = online.alpha * math.log(step)
    return replace(run, noise_scale=scheduled_scale(run, online.schedule, log_times))


@theorem(
    id="pnsgd-online",
    source="Document 001 (Sordello, Bu, Dong and Su 2021), Theorems 6 and 7 before their limits; "
    "docs/theory/contraction.md, Theorem 4",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=ONE_RECORD,
)
def online_delta(
    run: ProjectedNoisySgd, online: Online, *, epsilon: float, steps: int, record: int
) -> DeltaBound:
    """Delta of one record among n that arrive in turn, with noise that falls: A_i prod B_t.

    The product is over t = i+1, ..., n; step t has the noise of a schedule at n = t^alpha. Single
    steps are summed one by one at first, later ones in blocks: log B is concave in time there, so
    that a block's sum is at most its length times log B at its middle.

    Args:
        run: what was declared; its own noise scale is left out of account.
        online: C1, C2 and alpha.
        epsilon: nats, finite, >= 0.
        steps: n, >= 1; records that have arrived so far.
        record: i, in [1, n]. Nothing is said of any other record.

    Returns:
        The bound, for this record alone. Upper; relative excess about 1e-7 where the sum is -100.

    Raises:
        ValueError: an argument is out of range.
    """
    require_steps(steps, record)
    return _bound(run, online, epsilon=epsilon, record=record, last=float(steps))


def online_limit(
    run: ProjectedNoisySgd, online: Online, *, epsilon: float, record: int
) -> OnlineLimit:
    """What online_delta tends to as records keep arriving, and the document's figure for it.

    The sum of log B over t > i lies between its integrals from i and from i + 1. The limit is no
    bound at any length, since delta falls towards it, like n^(1-alpha).

    Args:
        run: what was declared; its own noise scale is left out of account.
        online: C1, C2 and alpha.
        epsilon: nats, finite, >= 0.
        record: i, >= 1.

    Raises:
        ValueError: an argument is out of range.
    """
    require_steps(record)
    first = _log_first(run, online, epsilon, record)

    def product(start: float) -> float:
        return math.exp(min(0.0, first + _integral(run.noise, online, epsilon, start)))

    return OnlineLimit(
        upper=_bound(run, online, epsilon=epsilon, record=record, last=_LAST),
        integral=product(record + 1.0),
        lower=product(float(record)),
    )


def _log_first(run: ProjectedNoisySgd, online: Online, epsilon: float, record: int) -> float:
    own = online_run(run, online, step=record)
    return step_kernel(run.noise, epsilon, shift=own.record_shift).log_kept


def _bound(
    run: ProjectedNoisySgd, online: Online, *, epsilon: float, record: int, last: float
) -> DeltaBound:
    first = _log_first(run, online, epsilon, record)
    later = _later_log_kept(run.noise, online, epsilon, record, last)
    return DeltaBound(log_delta=log_sum_up(first, later), record=record)


def _later_log_kept(
    noise: Noise, online: Online, epsilon: float, record: int, last: float
) -> float:
    """The sum of log B_t over t in (record, last]. Upper."""
    ends = _block_ends(record, last, online.alpha)
    if len(ends) == 1:
        return 0.0
    counts, left, right = np.diff(ends), ends[:-1] + 1, ends[1:]
    # log B rises in time: at its last step it is the largest of a block that may not be concave.
    times = np.where(left >= _concave_from(noise, online, epsilon), 0.5 * (left + right), right)
    terms = counts * log_kept_at(noise, online, epsilon, times)
    return -math.inf if np.any(np.isinf(terms)) else math.fsum(terms)


def log_kept_at(noise: Noise, online: Online, epsilon: float, times: Array) -> Array:
    """Log B at times t >= 1, rising in t. Upper; minus infinity where a step forgets all."""
    shifts = 2 * half_shift(noise, online.schedule, online.alpha * np.log(times))
    if noise is Noise.LAPLACE:
        log_lost = np.minimum(0.5 * (epsilon - shifts), 0.0)
    else:
        log_lost = log_gaussian_lost(epsilon, shifts=shifts)
    log_lost = log_lost - _SLACK * (1 + np.abs(log_lost)) * (log_lost < 0)
    with np.errstate(divide="ignore"):  # where all is lost the logarithm is minus infinity
        return np.asarray(np.log1p(-np.exp(log_lost)))


def _block_ends(record: int, last: float, alpha: float) -> Array:
    """The last steps of blocks, after the record's own: single steps first, then wider blocks.

    Their widths are FINE t (t/s)^g, from t = s on: t = s (1 - g FINE k)^(-1/g).
    """
    start = max(float(record), 1 / FINE)
    single = np.arange(float(record), min(start, last) + 1)
    if last <= start:
        return single
    growth = min(_GROWTH, 0.25 * (alpha - 1))
    fine = max(FINE, 1 / (growth * BLOCKS))
    reached = (last / start) ** -growth
    number = np.arange(1, math.ceil((1 - reached) / (growth * fine)))
    wide = start * (1 - growth * fine * number) ** (-1 / growth)
    ends = np.concatenate((single, np.floor(wide), [last]))
    return np.unique(ends[ends <= last])


def _concave_from(noise: Noise, online: Online, epsilon: float) -> float:
    """A time from which log B is concave. docs/theory/contraction.md, Lemma 2."""
    c1, c2 = online.schedule.c1, online.schedule.c2
    if noise is Noise.LAPLACE:
        return math.exp(min((math.log(c1) + math.log(c2)) / online.alpha, 700.0))
    ratio = 0.5 * (math.log(2 * math.pi * c2) + math.log(2 * online.alpha - 1)) + math.log(c1)
    # W >= w iff its argument is at least w e^w; C2 on top of it only helps.
    w = max(1.0, 0.5 * epsilon)
    enough = 0.5 * (w + math.log(w) + math.log(2 * math.pi)) + math.log(c1)
    return math.exp(min(max(ratio, enough) / online.alpha, 700.0))


def _integral(noise: Noise, online: Online, epsilon: float, start: float) -> float:
    """The integral of log B over all times from `start`, by t = start u^(-1/(alpha-1))."""
    from scipy import integrate  # half of SciPy comes with it, and few answers need it

    power = 1 / (online.alpha - 1)

    def integrand(u: float) -> float:
        time: float = start * u**-power
        kept = float(log_kept_at(noise, online, epsilon, np.array([time]))[0])
        return kept * power * time / u

    if log_kept_at(noise, online, epsilon, np.array([start]))[0] == -math.inf:
        return -math.inf
    value: float = integrate.quad(
        integrand, 0.0, 1.0, epsabs=1e-12, epsrel=1e-11, limit=_SUBDIVISIONS
    )[0]
    return value


THEOREMS: Final = (online_delta,)
