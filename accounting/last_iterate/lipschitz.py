"""How far one step can move two iterates apart: Lipschitz constants of gradient steps.

Declared are a smoothness M and a convexity k: the curvature of every record's loss lies between k
and M; k > 0 is strong and k < 0 weak convexity. Values are computed in exact fractions and rounded
up at the end. docs/theory/last_iterate.md has the proofs.
"""

import math
from fractions import Fraction

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.rounding import rounded_up

RELATIONS = (NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL)


def _declared(
    learning_rate: float, smoothness: float, convexity: float
) -> tuple[Fraction, Fraction, Fraction]:
    """(eta, M, k) as fractions.

    Raises:
        ValueError: one of them is out of range.
    """
    if not 0 < learning_rate < math.inf:
        raise ValueError("learning_rate is positive and finite.")
    if not 0 < smoothness < math.inf:
        raise ValueError("smoothness is positive and finite.")
    if not abs(convexity) <= smoothness:
        raise ValueError("convexity lies in [-smoothness, smoothness].")
    return Fraction(learning_rate), Fraction(smoothness), Fraction(convexity)


def _float_up(exact: Fraction) -> float:
    """The least double that is not below a fraction; inf if there is none."""
    try:
        nearest = float(exact)
    except OverflowError:
        return math.inf
    return nearest if nearest >= exact else math.nextafter(nearest, math.inf)


def _unclipped(eta: Fraction, smoothness: Fraction, convexity: Fraction) -> Fraction:
    return max(abs(1 - eta * convexity), abs(1 - eta * smoothness))


@theorem(
    id="step-lipschitz",
    source="docs/theory/last_iterate.md, Proposition 1",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=(Assumption.LOSS_CURVATURE, Assumption.CLIPPING_INACTIVE),
)
def step_lipschitz(*, learning_rate: float, smoothness: float, convexity: float) -> float:
    """Lipschitz constant of a gradient step without clipping.

    L = max(|1 - eta k|, |1 - eta M|): the Hessian has eigenvalues in [k, M], and an average of
    such losses has too. A quadratic attains it.

    Args:
        learning_rate: eta, > 0; the step is x - eta times the average gradient.
        smoothness: M, > 0; the largest curvature of every loss.
        convexity: k, in [-M, M]; the least curvature of every loss.

    Returns:
        L >= 0. Upper, to one rounding; exact where that is a double.

    Raises:
        ValueError: an argument is out of range.
    """
    return _float_up(_unclipped(*_declared(learning_rate, smoothness, convexity)))


def _clipped(eta: Fraction, smoothness: Fraction, convexity: Fraction) -> float:
    """The constant of clipped_step_lipschitz. Upper."""
    weak = -convexity
    flat = max(Fraction(1), 1 + eta * weak, eta * smoothness - 1)
    spread = smoothness - weak  # the sum of the largest and the least curvature
    room = 4 / eta - spread
    if not (spread > 0 and room > 0):
        return _float_up(flat)
    curve = 4 * weak * smoothness / eta + 4 * spread / eta**2
    place = (eta / 4 * curve * spread / room - weak * smoothness) / spread
    if not -weak <= place <= smoothness:
        return _float_up(flat)
    squared = 4 * (eta * weak * smoothness + spread) / (spread * (4 - eta * spread))
    return rounded_up(math.sqrt(_float_up(squared)))


@theorem(
    id="clipped-step-lipschitz",
    source="docs/theory/last_iterate.md, Proposition 2",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=(Assumption.LOSS_CURVATURE,),
)
def clipped_step_lipschitz(*, learning_rate: float, smoothness: float, convexity: float) -> float:
    """Lipschitz constant of a gradient step in which clipping, or any prox, may be active.

    With m = -k and p = M - m: 2 sqrt((eta m M + p) / (p (4 - eta p))) where the worst angle between
    the clipped and the whole difference of gradients lies inside the range of curvatures, else
    max(1, 1 + eta m, eta M - 1). For a convex loss and eta M <= 3 it is 2 / sqrt(4 - eta M) > 1: a
    clipped step of a convex loss can expand.

    Args:
        learning_rate: eta, > 0; the step is x - eta times the average of clipped gradients.
        smoothness: M, > 0; the largest curvature of every loss.
        convexity: k, in [-M, M]; the least curvature of every loss.

    Returns:
        L >= 1. Upper, to three roundings; attained in two dimensions and more.

    Raises:
        ValueError: an argument is out of range.
    """
    return _clipped(*_declared(learning_rate, smoothness, convexity))


def _shrinkage(eta: Fraction, regularization: float) -> Fraction:
    """1 - eta times the weight of the regularizer.

    Raises:
        ValueError: the weight is out of range.
    """
    if not 0 <= regularization < math.inf or not (left := 1 - eta * Fraction(regularization)) > 0:
        raise ValueError("regularization is not negative, and below 1 / learning_rate.")
    return left


@theorem(
    id="regularized-step-lipschitz",
    source="docs/theory/last_iterate.md, Corollary 3",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=(Assumption.LOSS_CURVATURE,),
)
def regularized_step_lipschitz(
    *, learning_rate: float, smoothness: float, convexity: float, regularization: float
) -> float:
    """Lipschitz constant of a clipped step with a quadratic regularizer outside the clip.

    x - eta (w x + clipped gradient) is (1 - eta w) times a clipped step of learning rate
    eta / (1 - eta w); so L = (1 - eta w) L_clip(eta / (1 - eta w)).

    Args:
        learning_rate: eta, > 0.
        smoothness: M, > 0; the largest curvature of every loss, without the regularizer.
        convexity: k, in [-M, M]; the least curvature of every loss, without the regularizer.
        regularization: w, in [0, 1 / eta); the regularizer is w |x|^2 / 2 and is never clipped.

    Returns:
        L > 0. Upper, to a few roundings.

    Raises:
        ValueError: an argument is out of range.
    """
    eta, largest, least = _declared(learning_rate, smoothness, convexity)
    left = _shrinkage(eta, regularization)
    return rounded_up(_float_up(left) * _clipped(eta / left, largest, least))


@theorem(
    id="linear-model-step-lipschitz",
    source="docs/theory/last_iterate.md, Corollary 4",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=(Assumption.LOSS_CURVATURE, Assumption.GENERALIZED_LINEAR_MODEL),
)
def glm_step_lipschitz(
    *, learning_rate: float, smoothness: float, convexity: float, regularization: float = 0.0
) -> float:
    """Lipschitz constant of a clipped step of a generalized linear model.

    The loss of a record is h(<a, x>), so that its clipped gradient is the gradient of another such
    loss, whose curvature lies between min(k, 0) and M. With w of the regularizer outside the clip,
    L = max(|1 - eta w - eta min(k, 0)|, |1 - eta w - eta M|).

    Args:
        learning_rate: eta, > 0.
        smoothness: M, > 0; the largest curvature of every loss, without the regularizer.
        convexity: k, in [-M, M]; the least curvature of every loss, without the regularizer.
        regularization: w, in [0, 1 / eta); the regularizer is w |x|^2 / 2 and is never clipped.

    Returns:
        L >= 0. Upper, to one rounding.

    Raises:
        ValueError: an argument is out of range.
    """
    eta, largest, least = _declared(learning_rate, smoothness, convexity)
    left = _shrinkage(eta, regularization)
    flattest = min(least, Fraction(0))
    return _float_up(max(abs(left - eta * flattest), abs(left - eta * largest)))


def step_constant(
    *,
    learning_rate: float,
    smoothness: float,
    convexity: float,
    clipping_can_be_active: bool,
    generalized_linear_model: bool,
) -> float:
    """The Lipschitz constant of a step under what was declared of it. Upper.

    Args:
        learning_rate: eta, > 0.
        smoothness: the largest curvature of every loss, > 0.
        convexity: the least curvature of every loss, in [-smoothness, smoothness].
        clipping_can_be_active: whether any gradient may ever be longer than the norm bound.
        generalized_linear_model: whether each record's gradient is a multiple of one vector that
            does not depend on the iterate.
    """
    rule = step_lipschitz
    if clipping_can_be_active:
        rule = clipped_step_lipschitz
        if generalized_linear_model:
            return glm_step_lipschitz(
                learning_rate=learning_rate, smoothness=smoothness, convexity=convexity
            )
    return rule(learning_rate=learning_rate, smoothness=smoothness, convexity=convexity)


THEOREMS = (step_lipschitz, clipped_step_lipschitz, regularized_step_lipschitz, glm_step_lipschitz)
