"""Steps whose gradients are affine: the law of the last iterate is Gaussian, and known.

An audit compares two given datasets: what it says of them is exact, and of others nothing. Only
where the curvature is the same whatever the data does it become a guarantee. docs/theory/affine.md
has the proofs.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.rounding import Array, require

DIMENSION_MAX: Final = 256  # a step multiplies matrices of this size
STEPS_MAX: Final = 10**5
_SYMMETRIC: Final = 1e-12  # relative; how far a Hessian may be from its transpose
_RELATIONS: Final = (NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class AffineLaw:
    """The Gaussian law of an iterate, by its moments."""

    mean: Array  # shape (d,)
    covariance: Array  # shape (d, d)


@dataclass(frozen=True, slots=True, kw_only=True)
class AffineAudit:
    """How well two given datasets can be told apart. It guarantees nothing for other datasets."""

    forth: float  # nats; Renyi divergence of the first dataset's law from the second's
    back: float  # nats; the reverse


def _checked(hessians: Array) -> Array:
    found = np.asarray(hessians, dtype=np.float64)
    require(
        found.ndim == 3 and found.shape[1] == found.shape[2] and found.shape[0] > 0,
        "hessians has the shape (steps, d, d)",
    )
    require(found.shape[0] <= STEPS_MAX, f"hessians has at most {STEPS_MAX} steps")
    require(1 <= found.shape[1] <= DIMENSION_MAX, f"d lies in [1, {DIMENSION_MAX}]")
    require(bool(np.all(np.isfinite(found))), "hessians are finite")
    apart = np.abs(found - np.swapaxes(found, 1, 2))
    require(bool(np.all(apart <= _SYMMETRIC * np.max(np.abs(found)))), "hessians are symmetric")
    return found


def operators_of(hessians: Array, learning_rate: float, noise: float) -> Array:
    """I - gamma A_t for each step, shape (T, d, d)."""
    require(0 < learning_rate < math.inf, "learning_rate is positive and finite")
    require(0 < noise < math.inf, "noise is positive and finite")
    found = _checked(hessians)
    return np.asarray(np.eye(found.shape[1]) - learning_rate * found)


def covariance_of(operators: Array, variance: float, *, feedback: bool) -> Array:
    """Sigma_T: S+ = M S M + v I. With feedback V+ = M V M + v (I - M)^2 and Sigma = V + v I.

    With feedback the noise that a step added is taken away by the next one but for what the step
    has made of it, (I - M) of it.
    """
    eye = np.eye(operators.shape[1])
    added = variance * eye
    carried = np.zeros_like(eye)
    for index, operator in enumerate(operators):
        gone = eye - operator if feedback else eye
        first = feedback and index == 0  # no noise has been added yet
        carried = operator @ carried @ operator + (0.0 if first else variance) * (gone @ gone)
    return carried + added if feedback else carried


def affine_law(
    *,
    hessians: Array,
    offsets: Array,
    learning_rate: float,
    noise: float,
    start: Array | None = None,
    feedback: bool = False,
) -> AffineLaw:
    """The law of the last iterate where step t has the gradient A_t x + b_t.

    x+ = (I - gamma A_t) x - gamma b_t + noise; with feedback a step also takes away the noise that
    the step before had added: - eta_(t+1) + eta_t with eta_0 = 0.

    Args:
        hessians: A_t, symmetric, shape (T, d, d).
        offsets: b_t, shape (T, d).
        learning_rate: gamma > 0.
        noise: sigma > 0, standard deviation on the iterate; gamma times that on the gradient.
        start: x_0, shape (d,); the origin if left out.
        feedback: whether noise is taken away again.

    Returns:
        Mean and covariance. Exact, to rounding.

    Raises:
        ValueError: an argument is out of range.
    """
    operators = operators_of(hessians, learning_rate, noise)
    steps, size = operators.shape[:2]
    shifts, mean = np.asarray(offsets, dtype=np.float64), np.zeros(size)
    require(shifts.shape == (steps, size), "offsets has the shape (steps, d)")
    if start is not None:
        mean = np.asarray(start, dtype=np.float64)
    require(mean.shape == (size,), "start has the shape (d,)")
    require(
        bool(np.all(np.isfinite(shifts)) and np.all(np.isfinite(mean))),
        "offsets and start are finite",
    )
    for operator, shift in zip(operators, shifts, strict=True):
        mean = operator @ mean - learning_rate * shift
    return AffineLaw(
        mean=mean, covariance=covariance_of(operators, noise * noise, feedback=feedback)
    )


@theorem(
    id="affine-pair-audit-mu",
    source="docs/theory/affine.md, Proposition 1; from document 004, Proposition 3.2",
    status=Status.DERIVED,
    relations=_RELATIONS,
    assumptions=(Assumption.HIDDEN_ITERATES, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def affine_audit_mu(
    *,
    hessians: Array,
    offsets: Array,
    other_offsets: Array,
    learning_rate: float,
    noise: float,
    feedback: bool = False,
) -> float:
    """An audit of two datasets whose steps differ in their offsets alone: no guarantee.

    Their last iterates are two Gaussians of one covariance:
    mu = sqrt((m - m')^T Sigma^-1 (m - m')).

    Args:
        hessians: A_t of both datasets, symmetric, shape (T, d, d).
        offsets: b_t of the one, shape (T, d).
        other_offsets: b_t of the other, shape (T, d).
        learning_rate: gamma > 0.
        noise: sigma > 0, standard deviation on the iterate.
        feedback: whether each step takes away the noise of the step before.

    Returns:
        mu of these two datasets: exact to about the condition number times 1e-13, on either
        side: an audit, and neither end of a bracket.

    Raises:
        ValueError: an argument is out of range.
    """
    apart = np.asarray(offsets, dtype=np.float64) - np.asarray(other_offsets, dtype=np.float64)
    law = affine_law(
        hessians=hessians,
        offsets=apart,
        learning_rate=learning_rate,
        noise=noise,
        feedback=feedback,
    )
    return float(np.linalg.norm(np.linalg.solve(np.linalg.cholesky(law.covariance), law.mean)))


@theorem(
    id="affine-pair-audit",
    source="docs/theory/affine.md, Proposition 1; from document 004, Proposition 3.2",
    status=Status.DERIVED,
    relations=_RELATIONS,
    assumptions=(Assumption.HIDDEN_ITERATES, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def affine_audit(*, first: AffineLaw, second: AffineLaw, order: float) -> AffineAudit:
    """An audit of two datasets whose last iterates have these laws: no guarantee.

    D = alpha/2 dm^T S^-1 dm - log(|S| |Sigma|^(alpha-1) / |Sigma'|^alpha) / (2 (alpha - 1)) with
    S = alpha Sigma' + (1 - alpha) Sigma, infinite where S is not positive definite.

    Args:
        first: of the one dataset, from affine_law.
        second: of the other.
        order: alpha > 1.

    Returns:
        Renyi divergences in both orders, nats: exact to about the condition number times 1e-13,
        on either side, and infinite within that of where they are: an audit, no end of a bracket.

    Raises:
        ValueError: the order is out of range or the laws differ in dimension.
    """
    require(1 < order < math.inf, "order is finite and above 1")
    require(first.mean.shape == second.mean.shape, "the laws have one dimension")
    return AffineAudit(forth=_renyi(first, second, order), back=_renyi(second, first, order))


def _renyi(first: AffineLaw, second: AffineLaw, order: float) -> float:
    mixed = order * second.covariance + (1 - order) * first.covariance
    if np.min(np.linalg.eigvalsh(mixed)) <= 0:
        return math.inf
    apart = first.mean - second.mean
    distance = float(apart @ np.linalg.solve(mixed, apart))
    logs = [float(np.linalg.slogdet(m)[1]) for m in (mixed, first.covariance, second.covariance)]
    volumes = (logs[0] + (order - 1) * logs[1] - order * logs[2]) / (2 * (order - 1))
    return max(0.0, 0.5 * order * distance - volumes)


THEOREMS = (affine_audit_mu, affine_audit)
