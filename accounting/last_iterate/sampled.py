"""Batches drawn afresh each step, of which only the last iterate is shown: what later steps hide.

docs/theory/sampled_last_iterate.md has the proof, and says what the two constants are.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.last_iterate.declared import DataOrder
from accounting.last_iterate.sampled_run import (
    Constant,
    SampledChoice,
    SampledRun,
    shift_of,
    units_of,
)
from accounting.last_iterate.sampled_search import Aim, choices
from accounting.pld.certified_composition import delta_bracket, epsilon_bracket
from accounting.renyi.fixed_size import swap_rdp
from accounting.renyi.orders import checked_orders
from accounting.renyi.poisson import poisson_gaussian_rdp
from accounting.rounding import UNIT_ROUNDOFF, Array

_PROOF: Final = "docs/theory/sampled_last_iterate.md, Theorem 1"
_RELATIONS: Final = (NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL)
# The sampling is a parameter, and with a diameter PROJECTION_EVERY_STEP is needed, too.
_ASSUMPTIONS: Final = (
    Assumption.HIDDEN_ITERATES,
    Assumption.LOSS_CURVATURE,
    Assumption.FIXED_DIVISOR,
    Assumption.DATA_INDEPENDENT_START,
    Assumption.INDEPENDENT_GAUSSIAN_NOISE,
    Assumption.PARAMETERS_FIXED_IN_ADVANCE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledBound:
    """A bound, and the choice that gave it."""

    epsilon: float  # nats, upper
    delta: float  # upper
    choice: SampledChoice


def sampled_bound(
    run: SampledRun, *, delta: float | None = None, epsilon: float | None = None
) -> SampledBound:
    """Epsilon at a delta, or delta at an epsilon, of a run's last iterate.

    Args:
        run: the run, with the constant that is wanted.
        delta: in (0, 1); None asks for it.
        epsilon: nats, >= 0; None asks for it.

    Returns:
        The least of the bounds that were composed. Upper.

    Raises:
        ValueError: delta or epsilon is out of range, or both are given or neither.
    """
    if (delta is None) == (epsilon is None):
        raise ValueError("Either delta or epsilon is given.")
    if delta is not None and not 0 < delta < 1:
        raise ValueError("delta lies in (0, 1).")
    if epsilon is not None and not 0 <= epsilon < math.inf:
        raise ValueError("epsilon is finite and not negative.")
    found = [
        _read(run, choice, delta, epsilon or 0.0)
        for choice in choices(run, Aim(delta=delta, epsilon=epsilon))
    ]
    return min(found, key=lambda one: (one.epsilon, one.delta))


def _read(
    run: SampledRun, choice: SampledChoice, delta: float | None, epsilon: float
) -> SampledBound:
    units = units_of(run, choice)
    if delta is None:
        delta = delta_bracket(units, epsilon=epsilon).upper
    else:
        epsilon = epsilon_bracket(units, delta=delta).upper
    return SampledBound(epsilon=epsilon, delta=delta, choice=choice)


@theorem(
    id="sampled-last-iterate",
    source=_PROOF,
    status=Status.DERIVED,
    relations=_RELATIONS,
    assumptions=_ASSUMPTIONS,
)
def sampled_last_iterate(
    *,
    delta: float,
    steps: int,
    step_lipschitz: float,
    sensitivity: float,
    noise: float,
    sampling: DataOrder,
    rate: float,
    diameter: float = math.inf,
) -> SampledBound:
    """The last iterate of steps on batches drawn afresh, with the conservative constant.

    As sampled-last-iterate-sharp, with 2 s in the place of s where a step's batch is hidden and
    R < T: C_q(G(2 s / sigma_2))^R. Neither D_tau nor the composition of all steps is doubled.
    Whoever doubts the proof's splitting of the noise step by step is left with what was published.

    Args:
        delta: in (0, 1).
        steps: T, in [1, STEPS_MAX].
        step_lipschitz: c >= 0 of the step without noise, for every batch of either dataset. Under
            Poisson sampling a batch may be larger than expected, which the constant must cover.
        sensitivity: s > 0, how far any one record moves a step that uses it: under fixed_size
            between any two records; in units of the iterate.
        noise: sigma > 0, standard deviation on the iterate.
        sampling: fixed_size under replace_one, poisson under replace_special.
        rate: q in (0, 1], batch_size / dataset_size rounded up, or the sampling probability.
        diameter: D >= 0 of the convex set that every step projects onto and the run begins in, in
            units of the iterate; left out where there is none.

    Returns:
        Epsilon in nats, and the choice that gave it. Upper; any choice is a bound.

    Raises:
        ValueError: an argument is out of range.
    """
    run = SampledRun(
        steps=steps,
        step_lipschitz=step_lipschitz,
        sensitivity=sensitivity,
        noise=noise,
        sampling=sampling,
        rate=rate,
        diameter=diameter,
    )
    return sampled_bound(run, delta=delta)


@theorem(
    id="sampled-last-iterate-sharp",
    source=_PROOF,
    status=Status.DERIVED,
    relations=_RELATIONS,
    assumptions=_ASSUMPTIONS,
)
def sampled_last_iterate_sharp(
    *,
    delta: float,
    steps: int,
    step_lipschitz: float,
    sensitivity: float,
    noise: float,
    sampling: DataOrder,
    rate: float,
    diameter: float = math.inf,
) -> SampledBound:
    """The last iterate of steps on batches drawn afresh, with the constant that the proof gives.

    For any R <= T, tau = T - R and sigma_1^2 + sigma_2^2 = sigma^2 it is dominated by
    C_q(G(s / sigma_2))^R and G(D_tau sqrt(A_R) / sigma_1) together, where
    A_R = c^(2R) / (1 + c^2 + ... + c^(2R-2)) and D_tau = min(D, s (1 + c + ... + c^(tau-1))). R = T
    is the composition of all steps. The constant is half of one in public software.

    Args:
        delta: in (0, 1).
        steps: T, in [1, STEPS_MAX].
        step_lipschitz: c >= 0 of the step without noise, for every batch of either dataset. Under
            Poisson sampling a batch may be larger than expected, which the constant must cover.
        sensitivity: s > 0, how far any one record moves a step that uses it: under fixed_size
            between any two records; in units of the iterate.
        noise: sigma > 0, standard deviation on the iterate.
        sampling: fixed_size under replace_one, poisson under replace_special.
        rate: q in (0, 1], batch_size / dataset_size rounded up, or the sampling probability.
        diameter: D >= 0 of the convex set that every step projects onto and the run begins in, in
            units of the iterate; left out where there is none.

    Returns:
        Epsilon in nats, and the choice that gave it. Upper; any choice is a bound.

    Raises:
        ValueError: an argument is out of range.
    """
    run = SampledRun(
        steps=steps,
        step_lipschitz=step_lipschitz,
        sensitivity=sensitivity,
        noise=noise,
        sampling=sampling,
        rate=rate,
        diameter=diameter,
        constant=Constant.SHARP,
    )
    return sampled_bound(run, delta=delta)


def sampled_rdp(run: SampledRun, choice: SampledChoice, *, orders: Array) -> Array:
    """RDP of a run's last iterate at one choice: R r(alpha) + alpha D_tau^2 A_R / (2 sigma_1^2).

    r is the curve of one sampled Gaussian step of noise sigma_2. It serves Renyi accountants; what
    sampled_bound composes is tighter.

    Args:
        run: the run, with the constant that is wanted.
        choice: any.
        orders: alpha > 1, shape (k,).

    Returns:
        RDP in nats, shape (k,). Upper.

    Raises:
        ValueError: the choice or an order is out of range.
    """
    orders = checked_orders(orders)
    units_of(run, choice)  # refuses what is out of range
    ratio = run.sampled_noise(choice.last_steps, choice.noise_share)
    if run.sampling is DataOrder.POISSON:
        step = poisson_gaussian_rdp(
            noise_multiplier=ratio, sampling_probability=run.rate, orders=orders
        )
    else:
        step = swap_rdp(noise_multiplier=2 * ratio, rate=run.rate, orders=orders)
    shift = shift_of(run, choice)
    total = choice.last_steps * step + 0.5 * orders * shift * shift
    return np.asarray(total * (1 + 8 * UNIT_ROUNDOFF))


THEOREMS = (sampled_last_iterate, sampled_last_iterate_sharp)
