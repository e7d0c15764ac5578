"""Steps said to contract, or not to expand, under fewer conditions than they need."""

import math

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.rounding import require

_RELATIONS = (NeighboringRelation.REPLACE_ONE,)
_NOISE = (Assumption.INDEPENDENT_GAUSSIAN_NOISE,)


@theorem(
    id="proximal-step-with-clipping",
    source="Document 002 (Kong and Ribero, arXiv:2407.05237v3), Proposition 3.4, part (b), read "
    "with gradients clipped",
    status=Status.REFUTED,
    relations=_RELATIONS,
    counterexample="f(x) = x_1^2/2 + a linear term in two dimensions, learning rate 1: a step "
    "clipped along (sqrt 2, 1)/sqrt 3 moves two points 1.1547 times as far apart as they were.",
)
def clipped_step_lipschitz(
    *, learning_rate: float, weak_convexity: float, smoothness: float
) -> float:
    """Lipschitz constant of a step along the clipped gradient: max(1 + eta m, |1 - eta M|).

    That of a step along the gradient itself, -m <= f'' <= M. Clipping is a projection of the
    gradient, and a projection of the gradient is in general not the gradient of such a function: in
    two dimensions or more a step on a convex loss may move points apart.

    Args:
        learning_rate: eta > 0.
        weak_convexity: m; 0 for convex losses, negative for strongly convex ones.
        smoothness: M >= -m.

    Returns:
        The constant. Upper as claimed, which it is not where gradients are clipped.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    require(0 < learning_rate < math.inf, "learning_rate is positive and finite")
    require(-weak_convexity <= smoothness < math.inf, "smoothness is at least -weak_convexity")
    return max(abs(1 + learning_rate * weak_convexity), abs(1 - learning_rate * smoothness))


@theorem(
    id="contraction-without-step-condition",
    source="Document 001 (Sordello, Bu, Dong and Su 2021), Theorem 1, without a condition on eta",
    status=Status.REFUTED,
    relations=_RELATIONS,
    counterexample="eta 3, beta 1, rho 0: it says 1, a step on x^2/2 doubles distances.",
)
def unconditional_contraction(
    *, learning_rate: float, smoothness: float, strong_convexity: float
) -> float:
    """Lipschitz constant of a gradient step: M = sqrt(1 - 2 eta beta rho / (beta + rho)).

    It needs eta <= 2/(beta + rho), which the theorem does not say; beyond, M^2 may be negative.

    Args:
        learning_rate: eta > 0.
        smoothness: beta > 0.
        strong_convexity: rho, in [0, beta].

    Returns:
        M. Upper as claimed, which it is not for large eta.

    Raises:
        ValueError: an argument is out of range, or M would not be real; the text says which.
    """
    require(0 < learning_rate < math.inf, "learning_rate is positive and finite")
    require(0 < smoothness < math.inf, "smoothness is positive and finite")
    require(0 <= strong_convexity <= smoothness, "strong_convexity is in [0, smoothness]")
    share = strong_convexity / (smoothness + strong_convexity)
    square = 1 - 2 * learning_rate * smoothness * share
    require(square >= 0, "learning_rate is so large that M is not real")
    return math.sqrt(square)


def _small_step(noise_multiplier: float, order: float, dataset_size: int) -> float:
    require(0 < noise_multiplier < math.inf, "noise_multiplier is positive and finite")
    require(1 < order < math.inf, "order is above 1")
    require(dataset_size >= 1, "dataset_size is at least 1")
    return 4 * order * math.log(dataset_size) / (noise_multiplier * noise_multiplier)


@theorem(
    id="small-step-rate",
    source="Document 004 (Berthier 2019), Proposition 3.1, its second part",
    status=Status.REFUTED,
    relations=_RELATIONS,
    assumptions=_NOISE,
    counterexample="n 1: it says 0, a step has 2 alpha/sigma^2. The sum it stands for is 1.25 "
    "times as large at n 1000, 1.13 times at n 10^6.",
)
def small_step_rdp(*, noise_multiplier: float, order: float, dataset_size: int) -> float:
    """RDP of one shuffled epoch with learning rate 1/(beta n): 4 alpha log n / (sigma^2 n).

    The sum that it stands for, (4 alpha/(sigma^2 n)) sum_i theta(i), is log n + 1.739 for large n:
    right as a rate, too small at every n.

    Args:
        noise_multiplier: sigma, > 0; noise std / Lipschitz constant.
        order: alpha > 1.
        dataset_size: n, at least 1.

    Returns:
        RDP in nats. Upper as claimed, which it is not at finite n.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    return _small_step(noise_multiplier, order, dataset_size) / dataset_size


@theorem(
    id="small-step-rate-root",
    source="Document 004 (Berthier 2019), Proposition 3.1, its first part",
    status=Status.REFUTED,
    relations=_RELATIONS,
    assumptions=_NOISE,
    counterexample="n 1: it says 0, a step has 2 alpha/sigma^2; below the sum up to n 4. For large "
    "n the sum is 8 alpha/(sigma^2 sqrt n), without the logarithm.",
)
def root_step_rdp(*, noise_multiplier: float, order: float, dataset_size: int) -> float:
    """RDP of one shuffled epoch with learning rate 1/(beta sqrt n): 4 a log n / (sigma^2 sqrt n).

    The sum that it stands for is close to 2 sqrt n: too small for n <= 4, needlessly large from
    n = 8 on. Its proof sets C^-2 = 1 - 1/sqrt n, which is off by a factor 2.

    Args:
        noise_multiplier: sigma, > 0; noise std / Lipschitz constant.
        order: alpha > 1.
        dataset_size: n, at least 1.

    Returns:
        RDP in nats. Upper as claimed, which it is not at small n.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    return _small_step(noise_multiplier, order, dataset_size) / math.sqrt(dataset_size)


THEOREMS = (clipped_step_lipschitz, unconditional_contraction, small_step_rdp, root_step_rdp)
