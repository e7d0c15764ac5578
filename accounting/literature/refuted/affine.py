"""Variances of noisy descent on quadratics, as misprinted. Scalar: one eigenvalue at a time."""

import math

import numpy as np

from accounting.events import NeighboringRelation
from accounting.guarantees import Status, theorem
from accounting.rounding import Array


def _variances(curvatures: Array, *, learning_rate: float, noise: float, added: Array) -> Array:
    """V_{t+1} = added_t + (1 - gamma a_t)^2 V_t from V_0 = 0."""
    if not (0 < learning_rate < math.inf and 0 <= noise < math.inf):
        raise ValueError("learning_rate is positive, noise_std not negative, and both are finite.")
    if curvatures.ndim != 1 or not np.all((curvatures >= 0) & (curvatures < math.inf)):
        raise ValueError("curvatures are finite and not negative, shape (t,).")
    found, last = [], 0.0
    for curvature, term in zip(curvatures, added, strict=True):
        last = float(term + (1 - learning_rate * curvature) ** 2 * last)
        found.append(last)
    return np.array(found)


@theorem(
    id="affine-gradients-as-printed",
    source="Document 004 (Berthier 2019), Proposition 3.2, with its noise on the gradient",
    status=Status.REFUTED,
    relations=(NeighboringRelation.REPLACE_ONE,),
    counterexample="learning rate 0.3, noise 1.5, one step: it says 2.25, noise on the gradient "
    "has variance 0.2025 in the iterate.",
)
def affine_variance(*, curvatures: Array, learning_rate: float, noise_std: float) -> Array:
    """Variance of each iterate where gradients are affine: V+ = s^2 + (1 - gamma a)^2 V.

    The text adds the noise to the gradient, where it is multiplied by gamma: gamma^2 s^2. The
    recursion is right for noise on the iterate.

    Args:
        curvatures: a_t >= 0, shape (t,), in the order of the steps.
        learning_rate: gamma > 0.
        noise_std: s >= 0, of the noise on the gradient.

    Returns:
        Variances, shape (t,). Exact as claimed, which it is not.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    added = np.full(curvatures.shape, noise_std * noise_std)
    return _variances(curvatures, learning_rate=learning_rate, noise=noise_std, added=added)


@theorem(
    id="noise-feedback-as-printed",
    source="Document 004 (Berthier 2019), Proposition 3.3",
    status=Status.REFUTED,
    relations=(NeighboringRelation.REPLACE_ONE,),
    counterexample="learning rate 0.3, curvature 0.8, noise 1.5, two steps: it says 0.4089, the "
    "variance is 2.3796, and never below noise^2 = 2.25.",
)
def noise_feedback_variance(*, curvatures: Array, learning_rate: float, noise_std: float) -> Array:
    """Variance of each iterate where each step takes the last one's noise back.

    V+ = 2 gamma^2 s^2 a^2 + (1 - gamma a)^2 V from V_0 = 0. The algebra of its proof gives
    2 gamma s^2 a, and the first step has nothing to take back: V_1 = s^2. So the variance is never
    below s^2, contrary to Section 3.4.3.

    Args:
        curvatures: a_t >= 0, shape (t,), in the order of the steps.
        learning_rate: gamma > 0.
        noise_std: s >= 0, of the noise on the iterate.

    Returns:
        Variances, shape (t,). Exact as claimed, which it is not.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    added = 2 * np.square(learning_rate * noise_std * curvatures)
    return _variances(curvatures, learning_rate=learning_rate, noise=noise_std, added=added)


THEOREMS = (affine_variance, noise_feedback_variance)
