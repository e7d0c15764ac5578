"""Records that are replaced: pairs of one step that some dataset attains.

The mixture without the record and the mixture with its replacement are compared with the record's
at once, and not one by one (docs/theory/replaced_records.md).
"""

import math
from typing import Final

import numpy as np

from accounting import special
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.pld.pairs import ReplacedGaussianPair
from accounting.pld.profiles import LIBRARY, NORMAL, NORMAL_SQUARED
from accounting.rounding import ERFCX_UNITS, UNIT_ROUNDOFF, Array
from accounting.work_limit import spend

_U: Final = UNIT_ROUNDOFF
_TINY: Final = 1e-290  # absolute error of everything here: underflow has no relative error


@theorem(
    id="poisson-replace-tight",
    source="docs/theory/replaced_records.md, Proposition 1; after Balle, Barthe and Gaboardi 2018, "
    "NeurIPS, arXiv:1807.01647v2, Theorem 2",
    status=Status.DERIVED,
    relations=(NeighboringRelation.REPLACE_ONE,),
    assumptions=(Assumption.POISSON_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def poisson_replace_tight_pair(
    *, noise_multiplier: float, sampling_probability: float
) -> ReplacedGaussianPair:
    """The pair of a Poisson-sampled Gaussian step when a record may be replaced.

    It is ((1-q) N(0) + q N(1), (1-q) N(0) + q N(-1)). Two records that contribute 1 and -1 beside
    others that contribute nothing attain it.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        sampling_probability: q, in (0, 1).

    Returns:
        The pair. Upper and attained; the same in both orders.
    """
    return ReplacedGaussianPair(
        noise_multiplier=noise_multiplier, sampling_probability=sampling_probability
    )


def exchanged_for_null(
    *, noise_multiplier: float, rate: float, copies: int, losses: Array
) -> Array:
    """H_a'(N(0) || (1-c) N(2k) + c N(k)), with a' = 1 + (a-1)/g and c = a/a', at a = e^l.

    It is the greatest of Phi(x) - (a-1) (1-g)/g Phi(x - 2k) - a Phi(x - k), all over sigma. With
    y = e^(k x/sigma^2) the greatest is at A y^2 + B y = 1, A = (a-1) (1-g)/g e^(-2 k^2/sigma^2) and
    B = a e^(-k^2/(2 sigma^2)).

    Args:
        noise_multiplier: sigma, > 0.
        rate: g, the chance of being in the batch, in (0, 1].
        copies: k, >= 1; how often the record is in the batch.
        losses: l >= 0 in nats, shape (m,).

    Returns:
        Upper, shape (m,).
    """
    spend(9000 + 90 * len(losses))
    sigma, k = noise_multiplier, float(copies)
    reach = k / sigma
    log_odds = (math.log(1 - rate) if rate < 1 else -math.inf) - math.log(rate)
    with np.errstate(divide="ignore", under="ignore"):
        log_share = np.log(-np.expm1(-losses))
        log_absent = losses + log_share + log_odds
        log_a, log_b = log_absent - 2 * reach * reach, losses - 0.5 * reach * reach
        root = 0.5 * np.logaddexp(2 * log_b, math.log(4) + log_a)
        log_y = math.log(2) - np.logaddexp(log_b, root)
        parts = np.where(np.isfinite(log_absent), np.abs(log_share) + abs(log_odds), 0.0)
        sizes = parts + losses + 3 * reach * reach + 8
        z = sigma * log_y / k
        dz = sigma * 4 * LIBRARY * sizes / k
        # a Phi(z) = e^(l - z^2/2) times Mills' ratio at -z > 0: z is at most half the distance k.
        first = special.ndtr(z)
        absent = np.exp(log_absent - 0.5 * (2 * reach - z) ** 2) * _mills(2 * reach - z)
        null = np.exp(losses - 0.5 * (reach - z) ** 2) * _mills(reach - z)
        height = np.exp(-0.5 * z * z)
    most = np.abs(z) + 2 * reach
    relative = _U * (NORMAL + ERFCX_UNITS + (NORMAL_SQUARED + 8) * (most + 1) ** 2)
    relative += 8 * LIBRARY * sizes
    # That x is off costs at most the density there times how far both laws are apart by then.
    error = relative * (first + absent + null) + 8 * reach * dz * dz * height
    sure = (2 * reach * dz < 0.01) & (dz * (most + 1) < 0.1)
    found = np.maximum(first - absent - null, 0.0) + error + _TINY
    return np.where(sure, np.minimum(found, 1.0), 1.0)


def _mills(z: Array) -> Array:
    """Phi(-z) e^(z^2/2) at z >= 0."""
    return np.asarray(0.5 * special.erfcx(z / math.sqrt(2)))


THEOREMS = (poisson_replace_tight_pair,)
