"""Noise that falls with the number of records, so that a shuffled pass keeps about one delta.

The finite-n statement is the answer, at every n. What it tends to is no bound of any run: it is
named a limit, and given beside it. docs/theory/contraction.md has the rates.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from accounting.guarantees import Assumption, Status, theorem
from accounting.literature.contraction.contraction import (
    DECLARED_FACTS,
    DECLARED_MAX,
    DECLARED_MIN,
    RELATIONS,
    DeltaBound,
    ProjectedNoisySgd,
    require_steps,
    shuffled_delta,
)
from accounting.literature.contraction.kernels import Noise
from accounting.rounding import Array

_SAME: Final = 1e-12  # kappa is worked out from rounded shifts
_NEWTONS: Final = 6  # each doubles the correct digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How noise falls: C1 sets the limit of delta, C2 keeps the noise of short runs in bounds."""

    c1: float  # > 0
    c2: float  # >= 1, so that the noise is positive and finite at every n

    def __post_init__(self) -> None:
        """Refuse what gives no noise."""
        if not DECLARED_MIN <= self.c1 <= DECLARED_MAX:
            raise ValueError(f"c1 lies in [{DECLARED_MIN:g}, {DECLARED_MAX:g}].")
        if not 1 <= self.c2 <= DECLARED_MAX:
            raise ValueError(f"c2 lies in [1, {DECLARED_MAX:g}].")


def lambert_w(log_x: Array) -> Array:
    """W(x), the solution of w e^w = x, by log x >= 0; to a relative error of 1e-14.

    w + log w = log x is solved instead, in which nothing overflows: it is concave, so that Newton's
    method climbs to its root from max(1/2, log x - log log x).
    """
    w = np.maximum(log_x - np.log(np.maximum(log_x, 1.0)), 0.5)
    for _ in range(_NEWTONS):
        w = w * (1 + log_x - np.log(w)) / (1 + w)
    return np.asarray(w)


def half_shift(noise: Noise, schedule: Schedule, log_times: Array) -> Array:
    """Half the shift M D / (eta scale) that a schedule aims at, by log n (or alpha log t).

    log(n/C1 + C2) for Laplace noise, sqrt(W(n^2/(2 pi C1^2) + C2)) for Gaussian noise.
    """
    relative, log_c2 = log_times - math.log(schedule.c1), math.log(schedule.c2)
    if noise is Noise.LAPLACE:
        return np.asarray(np.logaddexp(relative, log_c2))
    return np.sqrt(lambert_w(np.logaddexp(2 * relative - math.log(2 * math.pi), log_c2)))


def scheduled_scale(run: ProjectedNoisySgd, schedule: Schedule, log_times: float) -> float:
    """The noise scale M D / (2 eta h) at half a shift h; in units of the gradient.

    Raises:
        ValueError: the domain is unbounded.
    """
    if run.diameter == math.inf:
        raise ValueError("diameter is finite where noise follows a schedule.")
    half = float(half_shift(run.noise, schedule, np.array([log_times]))[0])
    return run.lipschitz_constant * run.diameter / (2 * run.learning_rate * half)


def scheduled_run(run: ProjectedNoisySgd, schedule: Schedule, *, steps: int) -> ProjectedNoisySgd:
    """The run with the noise that its schedule gives it at n steps.

    Args:
        run: what was declared; its own noise scale is left out of account.
        schedule: C1 and C2.
        steps: n, >= 1.

    Raises:
        ValueError: steps is out of range, the domain unbounded, or the noise none to declare.
    """
    require_steps(steps)
    return replace(run, noise_scale=scheduled_scale(run, schedule, math.log(steps)))


@theorem(
    id="pnsgd-shuffled-scheduled",
    source="Document 001 (Sordello, Bu, Dong and Su 2021), Theorem 2 at the noise of Theorems 4 "
    "and 5; their limits are not bounds",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=(*DECLARED_FACTS, Assumption.FRESH_SECRET_ORDER),
)
def scheduled_delta(
    run: ProjectedNoisySgd, schedule: Schedule, *, epsilon: float, steps: int
) -> DeltaBound:
    """Delta of a shuffled pass whose noise was chosen for its length; true at every length.

    Laplace noise v(n) = M D / (2 eta log(n/C1 + C2)), for which 1 - B = C1 e^(epsilon/2)/(n + C1
    C2); Gaussian noise sigma(n) = M D / (2 eta sqrt(W(n^2/(2 pi C1^2) + C2))), Lambert's W.

    Args:
        run: what was declared; its own noise scale is left out of account.
        schedule: C1 and C2.
        epsilon: nats, finite, >= 0.
        steps: n, >= 1.

    Returns:
        The bound at these n steps, for every record. Upper.

    Raises:
        ValueError: an argument is out of range.
    """
    return shuffled_delta(scheduled_run(run, schedule, steps=steps), epsilon=epsilon, steps=steps)


def limit_delta(noise: Noise, schedule: Schedule, *, epsilon: float) -> float:
    """What scheduled_delta tends to as n grows: (1 - e^-x)/x. A limit; it bounds no run.

    x is C1 e^(epsilon/2) for Laplace noise and twice that for Gaussian noise.
    """
    x = loss_rate(noise, schedule, epsilon=epsilon)
    return -math.expm1(-x) / x


def loss_rate(noise: Noise, schedule: Schedule, *, epsilon: float) -> float:
    """X, the limit of n (1 - B) under a schedule: C1 e^(epsilon/2), for Gaussian noise twice it."""
    return schedule.c1 * math.exp(0.5 * epsilon) * (2 if noise is Noise.GAUSSIAN else 1)


def kappa(run: ProjectedNoisySgd) -> float:
    """2 L eta / (b M D): how far a record moves its step, over how far apart a step leaves points.

    From 1 on the Laplace schedule meets its limit like 1/n; below, like n^-kappa. A is positive
    iff (n/C1 + C2)^kappa > e^(epsilon/2).
    """
    return run.record_shift / run.domain_shift


def laplace_gap(
    run: ProjectedNoisySgd, schedule: Schedule, *, epsilon: float
) -> tuple[float, float]:
    """(r, K) such that n^r (scheduled_delta - limit_delta) tends to K, for Laplace noise.

    With x = C1 e^(epsilon/2) and k = kappa: if k < 1, r = k and K = -limit e^(epsilon/2) C1^k. If
    k >= 1, r = 1 and K = (C1 C2 (1 - e^-x) - e^-x (x C1 C2 - x^2/2))/x, at k = 1 with
    e^(epsilon/2) C1 (1 - e^-x)/x taken off. A description of a limit, not a bound.
    """
    power, c1, c2 = kappa(run), schedule.c1, schedule.c2
    x = loss_rate(Noise.LAPLACE, schedule, epsilon=epsilon)
    limit = limit_delta(Noise.LAPLACE, schedule, epsilon=epsilon)
    first = limit * math.exp(0.5 * epsilon)
    if power < 1 - _SAME:
        return power, -first * c1**power
    gap = c1 * c2 * limit - math.exp(-x) * (c1 * c2 - 0.5 * x)
    return 1.0, gap - (first * c1 if power < 1 + _SAME else 0.0)


THEOREMS: Final = (scheduled_delta,)
