"""The shift engine: what noise hides of a difference while later steps carry it on.

A run X_t = phi_t(psi_t(X_{t-1}) + Z_t) with Z_t ~ N(0, sigma_t^2 I) shows X_T alone. Two such runs
on neighbouring data come apart by at most s_t in a step that uses the record, and a step multiplies
their distance by at most L_t. The noise of each step can hide a part a_t of it, at the price of a
Gaussian release with mu = a_t / sigma_t; what is left is z_t = L_t z_{t-1} + s_t - a_t >= 0, and
z_T = 0. The least sum of (a_t / sigma_t)^2 is found, in time linear in the number of steps but for
a logarithm. All lengths are in units of the iterate.

docs/theory/last_iterate.md has the proofs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.last_iterate.blocks import Blocks, Mask
from accounting.last_iterate.starts import best_start
from accounting.rounding import Array, rounded_up

_LEAST: Final = 1e-290  # of a distance that is carried; smaller ones count as this
STEPS_MAX: Final = 10**7  # of one run; ten arrays of them stay below a gigabyte
STRETCHES_MAX: Final = 10**4  # that are searched one by one, at a tenth of a millisecond each
RELATIONS: Final = (NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL)
ASSUMPTIONS: Final = (
    Assumption.HIDDEN_ITERATES,
    Assumption.LOSS_CURVATURE,
    Assumption.INDEPENDENT_GAUSSIAN_NOISE,
    Assumption.DATA_INDEPENDENT_START,
    Assumption.DATA_INDEPENDENT_ORDER,
    Assumption.FIXED_DIVISOR,
    Assumption.PARAMETERS_FIXED_IN_ADVANCE,
)
BOUNDED: Final = (*ASSUMPTIONS, Assumption.PROJECTION_EVERY_STEP)


@dataclass(frozen=True, slots=True)
class _Run:
    """The steps of a run, checked; arrays of shape (T,)."""

    lipschitz: Array
    shifts: Array
    noises: Array
    fresh: Mask  # before which steps both iterates have to be together

    def mu(self) -> float:
        """The least mu of the run. Upper."""
        shifts, fresh = self._without_the_forgotten()
        if np.any(shifts == np.inf):
            return math.inf
        noises = np.where(self.noises == np.inf, 1.0, self.noises)
        blocks = Blocks.of_steps(
            lipschitz=self.lipschitz, shifts=shifts, noises=noises, fresh=fresh
        )
        return blocks.pooled().mu()

    def _without_the_forgotten(self) -> tuple[Array, Mask]:
        """Shifts without those that cost nothing, and where blocks begin.

        Infinite noise hides all that came before at no cost, and a constant map forgets it, as far
        back as the last time at which both iterates had to be together.
        """
        count = len(self.shifts)
        together = self.fresh | (self.lipschitz == np.inf)
        together[0] = True
        hidden, constant = self.noises == np.inf, self.lipschitz == 0
        if not (hidden.any() or constant.any()):
            return self.shifts, together
        steps = np.arange(count)
        ends = np.where(hidden, steps + 1, np.where(constant, steps, 0))
        starts = np.flatnonzero(together)
        last = np.repeat(np.maximum.reduceat(ends, starts), np.diff(starts, append=count))
        shifts = np.where(steps < last, 0.0, self.shifts)
        return shifts, together | constant

    def part(self, first: int, end: int) -> "_Run":
        """The steps from one up to another, from where both iterates are together."""
        return _Run(
            self.lipschitz[first:end],
            self.shifts[first:end],
            self.noises[first:end],
            self.fresh[first:end],
        )

    def after(self, first: int, distance: float) -> "_Run":
        """The steps from one on, the iterates being a distance apart before it."""
        moved = self.shifts[first:].copy()
        if distance > 0:
            # Two roundings, which blocks take into account; a product may fall below all doubles.
            with np.errstate(over="ignore", under="ignore"):
                far = 0.0 if self.lipschitz[first] == 0 else self.lipschitz[first] * distance
                moved[0] += far if far > _LEAST or self.lipschitz[first] == 0 else _LEAST
        fresh = self.fresh[first:].copy()
        fresh[0] = True
        return _Run(self.lipschitz[first:], moved, self.noises[first:], fresh)


def _check_values(name: str, values: Array, count: int | None = None) -> Array:
    """An array of numbers that are not negative.

    Raises:
        ValueError: it is not, or of another length.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not 1 <= len(array) <= STEPS_MAX or (count or len(array)) != len(array):
        raise ValueError(f"{name} has one entry for each of 1 to {STEPS_MAX} steps.")
    if not np.all(array >= 0):
        raise ValueError(f"No entry of {name} is negative or not a number.")
    return array


def _run(lipschitz: Array, sensitivities: Array, noises: Array) -> _Run:
    constants = _check_values("lipschitz", lipschitz)
    count = len(constants)
    return _Run(
        constants,
        _check_values("sensitivities", sensitivities, count),
        _check_values("noises", noises, count),
        np.zeros(count, dtype=bool),
    )


def _length(name: str, value: float) -> float:
    if not value >= 0:
        raise ValueError(f"{name} is not negative.")
    return float(value)


@theorem(
    id="shift-mu",
    source="docs/theory/last_iterate.md, Theorem 5 and Theorem 6",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=ASSUMPTIONS,
)
def shift_mu(
    *,
    lipschitz: Array,
    sensitivities: Array,
    noises: Array,
    start: float = 0.0,
    residuals: Array | None = None,
) -> float:
    """Gaussian DP of the last iterate of a run whose other iterates are hidden.

    mu^2 = min sum (a_t / sigma_t)^2 over a_t >= 0 with z_0 = start, z_T = 0 and
    z_t = L_t z_{t-1} + zeta_t 1[z_{t-1} > 0] + s_t - a_t >= 0: the squared slopes of the lower
    convex hull of what has gathered over the variance that was there to hide it. With residuals the
    least is not sought; of a few choices of where z is zero the best is taken.

    Args:
        lipschitz: L_t >= 0 of each step, shape (T,); infinite where nothing is known.
        sensitivities: s_t >= 0, in units of the iterate, shape (T,); zero where the record is not
            used.
        noises: sigma_t >= 0, standard deviation on the iterate, shape (T,).
        start: how far apart the iterates are at the start, at most; >= 0, units of the iterate.
        residuals: zeta_t >= 0, what a step adds to iterates that differ, shape (T,).

    Returns:
        mu, in both orders. Upper; the least of the method up to a relative 1e-12 where the
        logarithms of distances are moderate. Infinite where something is left without noise.

    Raises:
        ValueError: an argument is negative, not a number, or of another shape.
    """
    run = _run(lipschitz, sensitivities, noises).after(0, _length("start", start))
    if residuals is None:
        return run.mu()
    return _with_residuals(run, _check_values("residuals", residuals, len(run.shifts)), start > 0)


def _with_residuals(run: _Run, residuals: Array, apart: bool) -> float:
    """The best of three choices of when both iterates are together: always, before uses, never."""
    used = run.shifts > 0
    count = len(used)
    uses = np.concatenate(([0], np.cumsum(used)[:-1]))  # before each step
    found = []
    for choice in (np.ones(count, dtype=bool), used, np.zeros(count, dtype=bool)):
        fresh = run.fresh | choice
        since = np.maximum.accumulate(np.where(fresh, np.arange(count), 0))
        # Where nothing happened since they were together, they still are.
        together = (uses == uses[since]) & ~(apart & (since == 0))
        shifts = run.shifts + np.where(together, 0.0, residuals)
        found.append(replace(run, shifts=shifts, fresh=fresh).mu())
    return min(found)


def _bound_within_diameter(run: _Run, diameter: float) -> float:
    """The least mu over all steps before which the iterates may be taken as a diameter apart."""
    least = run.mu()
    if diameter < math.inf:
        first = best_start(run.lipschitz, run.shifts, run.noises, diameter)
        if first is not None:
            least = min(least, run.after(first, diameter).mu())
    return least


@theorem(
    id="shift-mu-bounded-domain",
    source="docs/theory/last_iterate.md, Theorem 5 and Proposition 7",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=BOUNDED,
)
def best_start_mu(
    *, lipschitz: Array, sensitivities: Array, noises: Array, diameter: float
) -> float:
    """Gaussian DP of the last iterate where every iterate lies in a bounded domain.

    The least over tau of shift_mu for the steps after tau, the iterates being the diameter apart at
    tau; tau = 0, where they are together, included. All steps before tau cost nothing.

    Args:
        lipschitz: L_t >= 0 of each step, shape (T,); infinite where nothing is known.
        sensitivities: s_t >= 0, in units of the iterate, shape (T,).
        noises: sigma_t >= 0, standard deviation on the iterate, shape (T,).
        diameter: D >= 0 of the set onto which each step projects, units of the iterate; inf: none.

    Returns:
        mu, in both orders. Upper; the least over tau to rounding where constants are positive and
        finite.

    Raises:
        ValueError: an argument is negative, not a number, or of another shape.
    """
    return _bound_within_diameter(
        _run(lipschitz, sensitivities, noises), _length("diameter", diameter)
    )


def _first_steps(run: _Run, releases: Sequence[int]) -> list[int]:
    """The first steps of the stretches between releases; each stretch begins with both together.

    Raises:
        ValueError: a release is not a step.
    """
    count = len(run.shifts)
    if not all(1 <= step <= count for step in releases):
        raise ValueError(f"releases are steps in [1, {count}].")
    firsts = sorted({0, *releases} - {count})
    run.fresh[firsts] = True
    return firsts


@theorem(
    id="shift-mu-releases",
    source="docs/theory/last_iterate.md, Theorem 5 and Proposition 8",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=ASSUMPTIONS,
)
def unbounded_released_mu(
    *, lipschitz: Array, sensitivities: Array, noises: Array, releases: Sequence[int]
) -> float:
    """Gaussian DP of some iterates together, among them the last.

    Given an iterate that is shown, both runs continue from it: mu^2 is the sum over the stretches
    between releases of what each costs by itself.

    Args:
        lipschitz: L_t >= 0 of each step, shape (T,); infinite where nothing is known.
        sensitivities: s_t >= 0, in units of the iterate, shape (T,).
        noises: sigma_t >= 0, standard deviation on the iterate, shape (T,).
        releases: the steps after which the iterate is shown, each in [1, T]; T always is.

    Returns:
        mu, in both orders. Upper, as accurate as shift_mu.

    Raises:
        ValueError: an argument is negative, not a number, of another shape or out of range.
    """
    run = _run(lipschitz, sensitivities, noises)
    _first_steps(run, releases)
    return run.mu()


@theorem(
    id="shift-mu-releases-bounded-domain",
    source="docs/theory/last_iterate.md, Theorem 5 and Proposition 8",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=BOUNDED,
)
def bounded_released_mu(
    *,
    lipschitz: Array,
    sensitivities: Array,
    noises: Array,
    releases: Sequence[int],
    diameter: float,
) -> float:
    """Gaussian DP of some iterates together, where every iterate lies in a bounded domain.

    Each stretch between releases may begin at its own best step, with the iterates a diameter
    apart: best_start_mu of each stretch, added up in squares.

    Args:
        lipschitz: L_t >= 0 of each step, shape (T,); infinite where nothing is known.
        sensitivities: s_t >= 0, in units of the iterate, shape (T,).
        noises: sigma_t >= 0, standard deviation on the iterate, shape (T,).
        releases: the steps after which the iterate is shown, each in [1, T]; T always is.
        diameter: D >= 0 of the set onto which each step projects, units of the iterate; not used
            where there are more than STRETCHES_MAX stretches.

    Returns:
        mu, in both orders. Upper, as accurate as best_start_mu.

    Raises:
        ValueError: an argument is negative, not a number, of another shape or out of range.
    """
    run, length = _run(lipschitz, sensitivities, noises), _length("diameter", diameter)
    firsts = _first_steps(run, releases)
    if len(firsts) > STRETCHES_MAX:
        return run.mu()
    ends = [*firsts[1:], len(run.shifts)]
    stretches = (run.part(first, end) for first, end in zip(firsts, ends, strict=True))
    return rounded_up(
        math.hypot(*(_bound_within_diameter(part, length) for part in stretches)), ulps=4
    )


def released_mu(
    *,
    lipschitz: Array,
    sensitivities: Array,
    noises: Array,
    releases: Sequence[int],
    diameter: float | None = None,
) -> float:
    """unbounded_released_mu or, with a diameter, bounded_released_mu. Upper."""
    if diameter is None:
        return unbounded_released_mu(
            lipschitz=lipschitz, sensitivities=sensitivities, noises=noises, releases=releases
        )
    return bounded_released_mu(
        lipschitz=lipschitz,
        sensitivities=sensitivities,
        noises=noises,
        releases=releases,
        diameter=diameter,
    )


THEOREMS = (shift_mu, best_start_mu, unbounded_released_mu, bounded_released_mu)
