"""The shift engine's optimum in closed form, where all steps are alike.

Each step has Lipschitz constant L, noise sigma and, where it uses the record, sensitivity s, in
units of the iterate. With lambda = |log L| all is made of sums of e^(-j lambda), which expm1 gives:
10^9 steps cost as much as one, and nothing cancels at L near 1. docs/theory/last_iterate.md has the
proofs.
"""

import math
from typing import Final

import numpy as np

from accounting.guarantees import Status, theorem
from accounting.last_iterate.domains import least_bounded
from accounting.last_iterate.geometric import SURELY, TINY, UP, power, rate_of, total
from accounting.last_iterate.shift import ASSUMPTIONS, BOUNDED, RELATIONS
from accounting.rounding import UNIT_ROUNDOFF, Array, rounded_up

COUNT_MAX: Final = 10**12  # of steps, and of passes; their products are far below overflow
POSITIONS_MAX: Final = 10**7  # of a pass, where all are asked for


def _ratio(*, lipschitz: float, sensitivity: float, noise: float, **counts: int) -> float:
    """The ratio s / sigma, once all that the closed forms share is in range.

    Raises:
        ValueError: an argument is out of range.
    """
    if not 0 <= lipschitz < math.inf:
        raise ValueError("lipschitz is finite and not negative.")
    if not 0 <= sensitivity < math.inf:
        raise ValueError("sensitivity is finite and not negative.")
    if not 0 < noise < math.inf or not sensitivity / noise < math.inf:
        raise ValueError("noise is positive and finite, and so is sensitivity / noise.")
    for name, count in counts.items():
        if not 1 <= count <= COUNT_MAX:
            raise ValueError(f"{name} lies in [1, {COUNT_MAX}].")
    return rounded_up(sensitivity / noise) if sensitivity > 0 else 0.0


def _shares(lipschitz: float, steps: Array) -> Array:
    """theta_L(k) at each k >= 1. Upper, at most 1."""
    if lipschitz == 0:
        return np.where(steps == 1, 1.0, 0.0)
    rate = rate_of(lipschitz)
    share = UP / total(2 * rate, steps)
    if lipschitz < 1:
        share = share * power(rate, 2 * (steps - 1))
    return np.asarray(np.minimum(share, 1.0))


def shift_share(*, lipschitz: float, steps: int) -> float:
    """theta_L(k) = 1 / sum over j < k of L^(-2j): what k equal steps leave of one use's mu squared.

    1/k at L = 1; it falls in k, to max(0, 1 - L^-2), and rises with L. Upper, at least 1e-300 / k.

    Args:
        lipschitz: L >= 0.
        steps: k in [1, COUNT_MAX], from the one that uses the record to the last.
    """
    _ratio(lipschitz=lipschitz, sensitivity=1.0, noise=1.0, steps=steps)
    return float(_shares(lipschitz, np.array([float(steps)]))[0])


def _times(ratio: float, squared: Array) -> Array:
    """Ratio * sqrt(squared). Upper."""
    found = ratio * np.sqrt(squared) * UP
    return np.asarray(np.nextafter(found, np.inf) if ratio > 0 else found)


@theorem(
    id="shift-mu-single-use",
    source="docs/theory/last_iterate.md, Corollary 9",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=ASSUMPTIONS,
)
def single_use_mu(*, lipschitz: float, sensitivity: float, noise: float, steps_left: int) -> float:
    """Gaussian DP of the last iterate for a record that equal steps use once.

    mu^2 = (s / sigma)^2 theta_L(k). With L = 1 and s = 2 eta G it is the bound of privacy
    amplification by iteration, with L = 1 + eta beta that of document 004, Theorem 3.6.

    Args:
        lipschitz: L >= 0 of a step.
        sensitivity: s >= 0 of the use, units of the iterate.
        noise: sigma > 0 of a step, standard deviation on the iterate.
        steps_left: k in [1, COUNT_MAX], from the one that uses the record to the last.

    Returns:
        mu. Upper, relative excess about 1e-13.

    Raises:
        ValueError: an argument is out of range.
    """
    ratio = _ratio(lipschitz=lipschitz, sensitivity=sensitivity, noise=noise, steps_left=steps_left)
    return float(_times(ratio, _shares(lipschitz, np.array([float(steps_left)])))[0])


def _cyclic(lipschitz: float, period: int, passes: int, left: Array) -> Array:
    """mu^2 at s = sigma = 1 for uses in every pass, `left` steps from the last use on. Upper."""
    last = _shares(lipschitz, left)
    if passes == 1 or lipschitz == 0:
        return last
    if lipschitz >= 1:
        return (passes - 1) * _shares(lipschitz, np.array([float(period)])) + last
    rate, earlier = rate_of(lipschitz), float(period) * (passes - 1)
    uses = total(period * rate, float(passes - 1))
    variance = total(2 * rate, earlier)
    apart = power(rate, 2.0 * (period - 1)) * (uses * uses / variance) + last
    all_uses, all_variance = total(period * rate, float(passes)), total(2 * rate, earlier + left)
    together = power(rate, 2 * (left - 1)) * (all_uses * all_uses / all_variance)
    # A rate that is not rounded up, against one that is: what underflows stays apart.
    higher = math.exp(-(period - 1.0) * rate) * uses / variance
    lower = power(rate, 2 * left - 1) / total(2 * rate, left)
    return np.where(higher >= lower * SURELY, together, apart)


@theorem(
    id="shift-mu-cyclic",
    source="docs/theory/last_iterate.md, Corollary 10",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=ASSUMPTIONS,
)
def cyclic_mus(
    *, lipschitz: float, sensitivity: float, noise: float, steps_per_pass: int, passes: int
) -> Array:
    """Gaussian DP of the last iterate of equal cyclic passes, for each place in the order.

    With l steps a pass and k from the place to the end of a pass: for L >= 1,
    mu^2 = (s / sigma)^2 ((E - 1) theta_L(l) + theta_L(k)); for L < 1 the uses before the last make
    one block, and the last one joins it if it would release at a lower rate.

    Args:
        lipschitz: L >= 0 of a step.
        sensitivity: s >= 0 of a use, units of the iterate.
        noise: sigma > 0 of a step, standard deviation on the iterate.
        steps_per_pass: l in [1, POSITIONS_MAX].
        passes: E in [1, COUNT_MAX], all of them whole.

    Returns:
        mu for a record in the first to the last batch of a pass, shape (l,), rising. Upper,
        relative excess about 1e-12.

    Raises:
        ValueError: an argument is out of range.
    """
    ratio = _ratio(
        lipschitz=lipschitz,
        sensitivity=sensitivity,
        noise=noise,
        steps_per_pass=steps_per_pass,
        passes=passes,
    )
    if steps_per_pass > POSITIONS_MAX:
        raise ValueError(f"steps_per_pass lies in [1, {POSITIONS_MAX}].")
    left = np.arange(steps_per_pass, 0, -1, dtype=np.float64)
    return _times(ratio, _cyclic(lipschitz, steps_per_pass, passes, left))


def _worst_mu(
    lipschitz: float,
    sensitivity: float,
    noise: float,
    steps: int,
    steps_per_pass: int,
    diameter: float | None,
) -> float:
    """The bound of worst_cyclic_mu or, with a diameter, of bounded_cyclic_mu."""
    ratio = _ratio(
        lipschitz=lipschitz,
        sensitivity=sensitivity,
        noise=noise,
        steps=steps,
        steps_per_pass=steps_per_pass,
    )
    passes = -(-steps // steps_per_pass)
    plain = float(_times(ratio, _cyclic(lipschitz, steps_per_pass, passes, np.ones(1)))[0])
    if diameter is None:
        return plain
    if not diameter >= 0:
        raise ValueError("diameter is not negative.")
    start = diameter / noise
    moves = ratio > 0 and lipschitz > 0 and steps >= steps_per_pass
    if not (moves and TINY * max(ratio, 1.0) < start < math.inf):
        return plain
    most = steps // steps_per_pass - 1
    return min(plain, least_bounded(lipschitz, start, ratio, steps_per_pass, most))


@theorem(
    id="shift-mu-cyclic-worst",
    source="docs/theory/last_iterate.md, Corollary 10 and Proposition 11",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=ASSUMPTIONS,
)
def unbounded_cyclic_mu(
    *, lipschitz: float, sensitivity: float, noise: float, steps: int, steps_per_pass: int
) -> float:
    """Gaussian DP of the last iterate of equal cyclic steps, for every record.

    The worst place is that of the last step: of two records, the one whose last use is later. It
    has ceil(T / l) uses, the last of them with k = 1. For l = 1, where every step uses the record,
    and L < 1 it is mu^2 = (s / sigma)^2 (1 + L)/(1 - L) (1 - L^T)/(1 + L^T).

    Args:
        lipschitz: L >= 0 of a step.
        sensitivity: s >= 0 of a use, units of the iterate.
        noise: sigma > 0 of a step, standard deviation on the iterate.
        steps: T in [1, COUNT_MAX]; it may end within a pass.
        steps_per_pass: l in [1, COUNT_MAX], from one use of a record to the next.

    Returns:
        mu. Upper, relative excess about 1e-12.

    Raises:
        ValueError: an argument is out of range.
    """
    return _worst_mu(lipschitz, sensitivity, noise, steps, steps_per_pass, None)


@theorem(
    id="shift-mu-cyclic-bounded-domain",
    source="docs/theory/last_iterate.md, Corollary 12",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=BOUNDED,
)
def bounded_cyclic_mu(
    *,
    lipschitz: float,
    sensitivity: float,
    noise: float,
    steps: int,
    steps_per_pass: int,
    diameter: float,
) -> float:
    """Gaussian DP of the last iterate of equal cyclic steps in a bounded domain, for every record.

    From a diameter D apart right after a use, R passes and then the last use: at L = 1 it is
    mu^2 = ((D + R s)^2 / ((R + 1) l - 1) + s^2) / sigma^2, or (D + (R + 1) s)^2 / ((R + 1) l) /
    sigma^2 where the last use joins the block of the others, minimized over the R for which those
    make one block; never more than without a domain.

    Args:
        lipschitz: L >= 0 of a step.
        sensitivity: s >= 0 of a use, units of the iterate.
        noise: sigma > 0 of a step, standard deviation on the iterate.
        steps: T in [1, COUNT_MAX]; it may end within a pass.
        steps_per_pass: l in [1, COUNT_MAX], from one use of a record to the next.
        diameter: D >= 0 of the set onto which each step projects, units of the iterate.

    Returns:
        mu. Upper; the least over R as far as a search of some hundred R finds it.

    Raises:
        ValueError: an argument is out of range.
    """
    return _worst_mu(lipschitz, sensitivity, noise, steps, steps_per_pass, diameter)


def worst_cyclic_mu(
    *,
    lipschitz: float,
    sensitivity: float,
    noise: float,
    steps: int,
    steps_per_pass: int,
    diameter: float | None = None,
) -> float:
    """unbounded_cyclic_mu or, with a diameter, bounded_cyclic_mu. Upper."""
    return _worst_mu(lipschitz, sensitivity, noise, steps, steps_per_pass, diameter)


def horizon(*, lipschitz: float, factor: float) -> int:
    """Steps after which theta_L is within a factor of its limit 1 - L^-2, for L > 1.

    theta_L(k) <= xi (1 - L^-2) if and only if k >= log(xi / (xi - 1)) / (2 log L): what is left of
    a use that lies further back hardly depends on how far.

    Args:
        lipschitz: L > 1.
        factor: xi > 1.

    Returns:
        The least such k, or one more where rounding could matter. Upper.
    """
    if not (1 < lipschitz < math.inf and 1 < factor < math.inf):
        raise ValueError("lipschitz and factor exceed 1 and are finite.")
    steps = -math.log1p(-1 / factor) / (2 * math.log(lipschitz))
    return max(1, math.ceil(steps * (1 + 32 * UNIT_ROUNDOFF)))


def nearly_convex_steps(*, lipschitz: float, factor: float) -> int:
    """Steps for which theta_L(k) <= kappa / k, as if the loss were convex up to a factor.

    L^(2 (k - 1)) <= kappa suffices, since no L^(-2j) with j < k is then below 1 / kappa.

    Args:
        lipschitz: L > 1.
        factor: kappa >= 1.

    Returns:
        The largest k for which the condition surely holds. Lower.
    """
    if not (1 < lipschitz < math.inf and 1 <= factor < math.inf):
        raise ValueError("lipschitz exceeds 1, factor is at least 1, and both are finite.")
    return 1 + math.floor(math.log(factor) / (2 * math.log(lipschitz)) * (1 - 32 * UNIT_ROUNDOFF))


THEOREMS = (single_use_mu, cyclic_mus, unbounded_cyclic_mu, bounded_cyclic_mu)
