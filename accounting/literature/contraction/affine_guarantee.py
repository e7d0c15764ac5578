"""Affine gradients whose curvature is the same whatever the data does: a guarantee.

docs/theory/affine.md has the proof, and the bounds of every rounding error.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.literature.contraction.affine import covariance_of, operators_of
from accounting.rounding import UNIT_ROUNDOFF, Array

_SPECTRAL: Final = (
    1e-12  # relative error of norms and eigenvalues by the library, with much to spare
)


def _norm(matrix: Array) -> float:
    """The spectral norm. Upper."""
    return float(np.linalg.norm(matrix, 2)) * (1 + _SPECTRAL * len(matrix))


def product_error(size: int) -> float:
    """Relative to the product of spectral norms: what a product of three matrices may be off by."""
    # Of absolute values each norm is at most sqrt(d) times as large, and I - gamma A is rounded.
    return UNIT_ROUNDOFF * (4 * size + 16) * size * math.sqrt(size)


def covariance_error(operators: Array, norms: Array, variance: float, *, feedback: bool) -> float:
    """By how much the computed covariance may be off, as a spectral norm. Upper."""
    each = product_error(operators.shape[1])
    size, error = variance, 0.0
    for norm in norms:
        added = variance * ((1 + norm) ** 2 if feedback else 1.0)
        # The exact factor I - gamma A may be larger than the computed one by its rounding.
        grown = norm * norm * (1 + 8 * each)
        error = grown * error + each * ((1 + norm) ** 2 * size + added)
        size = grown * size + added
    return float(error * (1 + 1e-9) + each * variance)


@theorem(
    id="affine-constant-hessian",
    source="docs/theory/affine.md, Theorem 2",
    status=Status.CONDITIONAL,
    relations=(NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL),
    assumptions=(
        Assumption.HIDDEN_ITERATES,
        Assumption.CONSTANT_CURVATURE,
        Assumption.FIXED_DIVISOR,
        Assumption.PARAMETERS_FIXED_IN_ADVANCE,
        Assumption.DATA_INDEPENDENT_START,
        Assumption.DATA_INDEPENDENT_ORDER,
        Assumption.INDEPENDENT_GAUSSIAN_NOISE,
    ),
)
def affine_constant_hessian_mu(
    *,
    hessians: Array,
    learning_rate: float,
    noise: float,
    offset_distance: float,
    uses: Sequence[int],
    feedback: bool = False,
) -> float:
    """Gaussian DP of the last iterate where the gradient is A_t x + b_t and only b_t is private.

    mu = gamma B sum over the steps t that use the record of |Sigma^(-1/2) M_T ... M_(t+1)|, with
    M_t = I - gamma A_t and the spectral norm: the supremum for one use, a bound for several.

    Args:
        hessians: A_t, symmetric, shape (T, d, d); the same for every dataset.
        learning_rate: gamma > 0.
        noise: sigma > 0, standard deviation on the iterate.
        offset_distance: B >= 0; no record moves b_t by more in a step that uses it.
        uses: the steps that use the record, counted from 0, each once; the worst record is to be
            taken. With steps that use disjoint records, the largest over single steps.
        feedback: whether each step takes away the noise of the step before.

    Returns:
        mu, infinite where rounding leaves nothing sure. Upper.

    Raises:
        ValueError: an argument is out of range.
    """
    if not 0 <= offset_distance < math.inf:
        raise ValueError("offset_distance is finite and not negative.")
    operators = operators_of(hessians, learning_rate, noise)
    steps, size = operators.shape[:2]
    places = sorted(set(uses), reverse=True)
    if not places or places[0] >= steps or places[-1] < 0 or len(places) != len(uses):
        raise ValueError("uses names one step or more, each once and each in [0, steps).")
    norms = np.array([_norm(operator) for operator in operators])
    variance = noise * noise
    covariance = covariance_of(operators, variance, feedback=feedback)
    off = covariance_error(operators, norms, variance, feedback=feedback)
    # Sigma is at least v I: what is taken off may leave less only if rounding decides.
    values = np.linalg.eigvalsh(covariance)
    if not (off < 1e-3 * variance and math.isfinite(values[-1])):
        return math.inf
    factor = np.asarray(np.linalg.cholesky(covariance - off * np.eye(size)), dtype=np.float64)
    condition = float(values[-1]) / (0.99 * variance)
    room = 1 + 64 * size * size * UNIT_ROUNDOFF * condition
    total = sum_of_norms(operators, norms, factor, places, 0.99 * variance)
    return float(learning_rate * offset_distance * total * room * (1 + 1e-12))


def sum_of_norms(
    operators: Array, norms: Array, factor: Array, places: list[int], least: float
) -> float:
    """The sum over uses of |Sigma^(-1/2) M_T ... M_(t+1)|. Upper, but for the solver's rounding."""
    each = product_error(operators.shape[1])
    product, bound, off, total = np.eye(operators.shape[1]), 1.0, 0.0, 0.0
    last = len(operators) - 1
    for place in places:
        while last > place:
            off = norms[last] * off * (1 + 8 * each) + each * (1 + norms[last]) * bound
            product = product @ operators[last]
            bound *= norms[last] * (1 + 8 * each)
            last -= 1
        seen = np.asarray(np.linalg.solve(factor, product), dtype=np.float64)
        total += _norm(seen) + off / math.sqrt(least)
    return float(total)


THEOREMS = (affine_constant_hessian_mu,)
