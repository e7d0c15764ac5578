"""Total variation privacy: (0, delta)-DP, one number that tests and attacks are bounded by.

What is made of an answer afterwards does not raise it, and it does not ask how likely an answer
was. docs/theory/composition.md has the proofs.
"""

import math
from collections.abc import Sequence
from typing import Final

from accounting import special
from accounting.events import NeighboringRelation
from accounting.gaussian import gaussian_delta, gaussian_dp, gaussian_mu
from accounting.guarantees import Assumption, Status, theorem
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, rounded_up, sum_up

_ALL: Final = tuple(NeighboringRelation)
_PAGE: Final = "docs/theory/composition.md"
_ROUNDING: Final = 16 * LIBRARY_ULPS * UNIT_ROUNDOFF  # relative, of a dozen operations


def _check_distances(distances: Sequence[float]) -> None:
    if not all(0 <= distance <= 1 for distance in distances):
        raise ValueError("Total variation distances lie in [0, 1].")


def _check_noise(name: str, noise: float, sensitivity: float) -> None:
    if not (0 < noise < math.inf and 0 <= sensitivity < math.inf):
        raise ValueError(f"{name} is positive and finite, sensitivity finite and not negative.")


@theorem(
    id="total-variation-sum",
    source=f"{_PAGE}, Theorem 4; as document 004 (Berthier 2019), Theorem 2.2",
    status=Status.DERIVED,
    relations=_ALL,
)
def total_variation_sum(distances: Sequence[float]) -> float:
    """Total variation of steps that may each be chosen after seeing those before.

    sum of delta_i

    Args:
        distances: delta_i in [0, 1], of each step, whatever came before.

    Returns:
        The distance, at most 1. Upper, to rounding.

    Raises:
        ValueError: a distance is not in [0, 1].
    """
    _check_distances(distances)
    return min(1.0, sum_up(list(distances)))


@theorem(
    id="total-variation-product",
    source=f"{_PAGE}, Theorem 4",
    status=Status.DERIVED,
    relations=_ALL,
)
def total_variation_product(distances: Sequence[float]) -> float:
    """Total variation of steps that may each be chosen after seeing those before, at its best.

    1 - prod (1 - delta_i): two runs can be drawn together so that step i, given that they agree so
    far, differs with a chance of delta_i. Steps that give themselves away with that chance attain
    it. Summed as -expm1(sum of log1p(-delta_i)).

    Args:
        distances: delta_i in [0, 1], of each step, whatever came before.

    Returns:
        The distance, at most their sum. Upper; exact to rounding.

    Raises:
        ValueError: a distance is not in [0, 1].
    """
    _check_distances(distances)
    if any(distance == 1 for distance in distances):
        return 1.0
    logs = sum_up([-math.log1p(-distance) for distance in distances])
    return min(1.0, -math.expm1(-logs) * (1 + _ROUNDING))


@theorem(
    id="laplace-total-variation",
    source=f"{_PAGE}, Theorem 5",
    status=Status.DERIVED,
    relations=_ALL,
    assumptions=(Assumption.INDEPENDENT_LAPLACE_NOISE,),
)
def laplace_total_variation(*, scale: float, sensitivity: float) -> float:
    """Total variation of an answer with Laplace noise on each coordinate.

    1 - e^(-D / (2 b)), in every dimension: a record that moves one coordinate attains it.

    Args:
        scale: b, of the noise on each coordinate, > 0.
        sensitivity: D, how far one record moves the answer, in L1; >= 0.

    Returns:
        The distance, in [0, 1]. Upper; exact to rounding.

    Raises:
        ValueError: an argument is out of range.
    """
    _check_noise("scale", scale, sensitivity)
    return min(1.0, rounded_up(-math.expm1(-sensitivity / (2 * scale)), ulps=4 * LIBRARY_ULPS))


@theorem(
    id="laplace-total-variation-noise",
    source=f"{_PAGE}, Theorem 5; instead of document 004 (Berthier 2019), Proposition 2.4",
    status=Status.DERIVED,
    relations=_ALL,
    assumptions=(Assumption.INDEPENDENT_LAPLACE_NOISE,),
)
def laplace_noise_for_total_variation(*, distance: float, sensitivity: float) -> float:
    """The scale of Laplace noise at which an answer has a given total variation.

    b = -D / (2 log(1 - delta))

    Args:
        distance: delta, in (0, 1).
        sensitivity: D, how far one record moves the answer, in L1; >= 0.

    Returns:
        The scale b, in the unit of the answer. Upper, to rounding: more noise than needed.

    Raises:
        ValueError: an argument is out of range.
    """
    if not (0 < distance < 1 and 0 <= sensitivity < math.inf):
        raise ValueError("distance lies in (0, 1); sensitivity is finite and not negative.")
    return rounded_up(sensitivity / (-2 * math.log1p(-distance)), ulps=4 * LIBRARY_ULPS)


@theorem(
    id="gaussian-total-variation",
    source="Dong, Roth and Su 2022, JRSS B, arXiv:1905.02383v3, Corollary 2.13 and Corollary 3.3",
    status=Status.PUBLISHED,
    relations=_ALL,
    assumptions=(Assumption.INDEPENDENT_GAUSSIAN_NOISE,),
)
def gaussian_total_variation(*, noises: Sequence[float], sensitivities: Sequence[float]) -> float:
    """Total variation of answers with Gaussian noise, each chosen after seeing those before.

    2 Phi(sqrt(sum of (D_i / sigma_i)^2) / 2) - 1: together they are one Gaussian answer.

    Args:
        noises: sigma_i, standard deviations of the noise on each coordinate, > 0.
        sensitivities: D_i, how far one record moves each answer, in L2; >= 0.

    Returns:
        The distance, in [0, 1]. Upper; exact to a relative 1e-10.

    Raises:
        ValueError: an argument is out of range, or there are more of one kind than of the other.
    """
    if len(noises) != len(sensitivities):
        raise ValueError("There is one noise and one sensitivity for each answer.")
    squares = []
    for sigma, moved in zip(noises, sensitivities, strict=True):
        _check_noise("A noise", sigma, moved)
        squares.append(rounded_up(gaussian_dp(noise_multiplier=sigma, sensitivity=moved) ** 2))
    return gaussian_delta(0.0, mu=rounded_up(math.sqrt(sum_up(squares))))


@theorem(
    id="gaussian-total-variation-noise",
    source="Balle and Wang 2018, ICML, arXiv:1805.06530v2, Theorem 8; instead of document 004 "
    "(Berthier 2019), Proposition 2.5",
    status=Status.PUBLISHED,
    relations=_ALL,
    assumptions=(Assumption.INDEPENDENT_GAUSSIAN_NOISE,),
)
def gaussian_noise_for_total_variation(*, distance: float, sensitivity: float) -> float:
    """The standard deviation of Gaussian noise at which an answer has a given total variation.

    sigma = D / (2 Phi^-1((1 + delta)/2)), up to a quarter less than D / (2 delta).

    Args:
        distance: delta, in (0, 1).
        sensitivity: D, how far one record moves the answer, in L2; >= 0.

    Returns:
        sigma, in the unit of the answer. Upper; relative excess about 1e-10.

    Raises:
        ValueError: an argument is out of range.
    """
    if not (0 < distance < 1 and 0 <= sensitivity < math.inf):
        raise ValueError("distance lies in (0, 1); sensitivity is finite and not negative.")
    return rounded_up(sensitivity / gaussian_mu(0.0, delta=distance))


@theorem(
    id="gaussian-total-variation-root",
    source=f"{_PAGE}, Theorem 6; as document 004 (Berthier 2019), Section 2.4.2",
    status=Status.DERIVED,
    relations=_ALL,
    assumptions=(Assumption.INDEPENDENT_GAUSSIAN_NOISE,),
)
def gaussian_total_variation_root(distances: Sequence[float]) -> float:
    """Total variation of answers with Gaussian noise, from the total variation of each.

    sqrt(sum of delta_i^2), where delta_i is D_i / (2 sigma_i) or the exact distance. It holds for
    Gaussian noise only; gaussian_total_variation is exact.

    Args:
        distances: delta_i >= 0, of each answer.

    Returns:
        The distance, at most 1. Upper.

    Raises:
        ValueError: a distance is negative or not a number.
    """
    if not all(distance >= 0 for distance in distances):
        raise ValueError("distances are not negative.")
    return min(1.0, rounded_up(math.hypot(*distances), ulps=4))


@theorem(
    id="total-variation-of-dp",
    source=f"{_PAGE}, Theorem 7; from Kairouz, Oh and Viswanath 2015, ICML, arXiv:1311.0776v4, "
    "Theorem 2.1",
    status=Status.DERIVED,
    relations=_ALL,
)
def total_variation_of_dp(*, epsilon: float, delta: float) -> float:
    """The largest total variation of what is (epsilon, delta)-DP.

    (e^epsilon - 1 + 2 delta) / (e^epsilon + 1) = t + delta (1 - t) with t = tanh(epsilon / 2)

    Args:
        epsilon: nats, >= 0; it may be infinite.
        delta: in [0, 1], in both orders.

    Returns:
        The distance, in [0, 1]. Upper; attained.

    Raises:
        ValueError: an argument is out of range.
    """
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise ValueError("epsilon is not negative, and delta lies in [0, 1].")
    half = math.tanh(0.5 * epsilon)
    # 1 - tanh(epsilon/2), without cancellation.
    rest = 2 * float(special.expit(-epsilon))
    return min(1.0, (half + delta * rest) * (1 + _ROUNDING))


THEOREMS = (
    total_variation_sum,
    total_variation_product,
    laplace_total_variation,
    laplace_noise_for_total_variation,
    gaussian_total_variation,
    gaussian_noise_for_total_variation,
    gaussian_total_variation_root,
    total_variation_of_dp,
)
