"""Noise on the output alone: the steps have none, and contract.

docs/theory/output_perturbation.md has the proof.
"""

import math
from typing import Final

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.rounding import require, rounded_up

COUNT_MAX: Final = 10**12  # of steps and passes: far more than anyone runs, exact in a double
LENGTH_MIN: Final = 1e-100  # of a sensitivity and of noise, so that no product underflows
LENGTH_MAX: Final = 1e100
_LEAST: Final = 1e-200  # of what is left of a step; smaller shares count as this
_UP: Final = 1 + 1e-12  # covers logarithms, exponentials and their rounding


def output_perturbation_sensitivity(
    *, sensitivity: float, contraction: float, steps_per_pass: int, passes: int, position: int
) -> float:
    """How far one record moves the output of noise-free passes in one fixed order.

    Delta_i = s rho^(l-i) (1 - rho^(l E)) / (1 - rho^l); s E at rho = 1.

    Args:
        sensitivity: s, how far the record moves a step that uses it; 0 or in [1e-100, 1e100], in
            units of the iterate.
        contraction: rho >= 0, the Lipschitz constant of every step.
        steps_per_pass: l in [1, COUNT_MAX].
        passes: E in [1, COUNT_MAX].
        position: i in [1, l], of the step that uses the record in each pass.

    Returns:
        Delta_i in units of the iterate, may be infinite. Upper, relative excess about 1e-12.

    Raises:
        ValueError: an argument is out of range.
    """
    require(
        sensitivity == 0 or LENGTH_MIN <= sensitivity <= LENGTH_MAX,
        f"sensitivity is 0 or lies in [{LENGTH_MIN:g}, {LENGTH_MAX:g}]",
    )
    require(0 <= contraction < math.inf, "contraction is finite and not negative")
    require(1 <= steps_per_pass <= COUNT_MAX, f"steps_per_pass lies in [1, {COUNT_MAX}]")
    require(1 <= passes <= COUNT_MAX, f"passes lies in [1, {COUNT_MAX}]")
    require(1 <= position <= steps_per_pass, "position lies in [1, steps_per_pass]")
    if sensitivity == 0:
        return 0.0
    if contraction == 1:
        return rounded_up(sensitivity * passes)
    if contraction == 0:
        return sensitivity if position == steps_per_pass else 0.0
    log = math.log1p(contraction - 1) if 0.5 <= contraction <= 2 else math.log(contraction)
    whole = steps_per_pass * log
    # Each exponent is off by a few roundoffs of itself, so that its exponential needs as much room.
    room = 1 + 16 * 2.0**-53 * (1 + min(abs(whole), 800.0) * (1 + min(passes, 800)))
    if whole * passes > 700:
        return math.inf
    series = math.expm1(whole * passes) / math.expm1(whole)
    carried = max(math.exp((steps_per_pass - position) * log), _LEAST)
    return sensitivity * carried * series * room * _UP


@theorem(
    id="output-perturbation",
    source="docs/theory/output_perturbation.md, Theorem 1; from document 004, Section 3.2.2",
    status=Status.CONDITIONAL,
    relations=(NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL),
    assumptions=(
        Assumption.HIDDEN_ITERATES,
        Assumption.LOSS_CURVATURE,
        Assumption.FIXED_DIVISOR,
        Assumption.DATA_INDEPENDENT_START,
        Assumption.DATA_INDEPENDENT_ORDER,
        Assumption.INDEPENDENT_GAUSSIAN_NOISE,
        Assumption.PARAMETERS_FIXED_IN_ADVANCE,
        Assumption.BOUNDED_GRADIENTS,
    ),
)
def output_perturbation_mu(
    *,
    sensitivity: float,
    contraction: float,
    steps_per_pass: int,
    passes: int,
    position: int,
    noise: float,
) -> float:
    """Gaussian DP of an output with noise, after passes without any, for the record in one place.

    mu_i = Delta_i / sigma with Delta_i = s rho^(l-i) (1 - rho^(l E)) / (1 - rho^l). The worst place
    is the last for rho <= 1, the first for rho > 1. Where the order is random and secret, the
    average over places serves: random-order-average.

    Args:
        sensitivity: s >= 0, how far the record moves a step that uses it; units of the iterate.
        contraction: rho >= 0, the Lipschitz constant of every step; useful below one. A step whose
            gradients may be clipped is no contraction in two dimensions and more.
        steps_per_pass: l in [1, COUNT_MAX].
        passes: E in [1, COUNT_MAX], in the same order.
        position: i in [1, l], of the step that uses the record in each pass.
        noise: sigma in [1e-100, 1e100], standard deviation of the noise on the output.

    Returns:
        mu, may be infinite. Upper; exact for quadratic losses, to rounding.

    Raises:
        ValueError: an argument is out of range.
    """
    require(LENGTH_MIN <= noise <= LENGTH_MAX, f"noise lies in [{LENGTH_MIN:g}, {LENGTH_MAX:g}]")
    moved = output_perturbation_sensitivity(
        sensitivity=sensitivity,
        contraction=contraction,
        steps_per_pass=steps_per_pass,
        passes=passes,
        position=position,
    )
    return rounded_up(moved / noise) if moved > 0 else 0.0


THEOREMS = (output_perturbation_mu,)
