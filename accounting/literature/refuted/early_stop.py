"""Shuffled passes that stop early: what was first claimed, taken back, and then conjectured.

The bound that is proved in their place is partial-shuffle-rdp; docs/theory/partial_shuffle.md.
"""

import math
from typing import Final

import numpy as np

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.renyi.orders import checked_orders
from accounting.rounding import Array, require

LEAST_CONSTANT: Final = 16.0  # of the conjectures; the most optimistic, and the figures' choice
_LEAST_NOISE: Final = 2.0  # the conditions' sigma >= 2 L
_STEPS_MAX: Final = 10**7  # summed one by one

_RELATIONS = (NeighboringRelation.REPLACE_ONE,)
_ASSUMPTIONS = (
    Assumption.FRESH_SECRET_ORDER,
    Assumption.ONE_STEP_PER_PASS,
    Assumption.INDEPENDENT_GAUSSIAN_NOISE,
)
_STEP = (
    "n 1000, noise 2, the first step, one record +L among -L: the exact RDP of order 49 is 17.45, "
    "the formula without its open terms 0.000196."
)
_HALF = (
    "n 1000, half of a pass, noise 2, one record +L among -L: the exact RDP of order 14 is 0.0791, "
    "the formula without its open terms 0.0559; of order 49, 17.58 and 0.196."
)


def _require_conditions(noise_multiplier: float, constant: float) -> None:
    require(_LEAST_NOISE <= noise_multiplier < math.inf, "noise_multiplier is at least 2")
    require(LEAST_CONSTANT <= constant < math.inf, "constant is at least 16")


def _step(
    noise_multiplier: float, dataset_size: int, steps_before: int, orders: Array, constant: float
) -> Array:
    orders = checked_orders(orders)
    _require_conditions(noise_multiplier, constant)
    require(0 <= steps_before < dataset_size, "steps_before is in [0, dataset_size)")
    left = float(dataset_size - steps_before + 1)
    return orders * (constant / (left * noise_multiplier) ** 2)


@theorem(
    id="partial-shuffle-conjecture-step",
    source="Document 004 (Berthier 2019), Section 4.3, Conjecture 1",
    status=Status.CONJECTURE,
    relations=_RELATIONS,
    assumptions=_ASSUMPTIONS,
    counterexample=_STEP,
)
def conjectured_step_rdp(
    *,
    noise_multiplier: float,
    dataset_size: int,
    steps_before: int,
    orders: Array,
    constant: float = LEAST_CONSTANT,
) -> Array:
    """RDP of step t+1 of a shuffled pass of single records, given t earlier answers.

    C alpha / ((n-t+1)^2 sigma^2), for some C >= 16, with O(1/(n-t+1)^3) left out. After t answers
    only n-t records are left, so that the index is off by one, too.

    Args:
        noise_multiplier: sigma, at least 2; noise std / max_grad_norm.
        dataset_size: n.
        steps_before: t, in [0, n).
        orders: alpha > 1, one-dimensional.
        constant: C, at least 16.

    Returns:
        RDP of the step in nats, at each order. Upper only if it held as written, which it does not.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    return _step(noise_multiplier, dataset_size, steps_before, orders, constant)


@theorem(
    id="partial-shuffle-conjecture",
    source="Document 004 (Berthier 2019), Section 4.3, the sum in the proof of Conjecture 2",
    status=Status.CONJECTURE,
    relations=_RELATIONS,
    assumptions=_ASSUMPTIONS,
    counterexample=_HALF,
)
def conjectured_partial_shuffle_rdp(
    *,
    noise_multiplier: float,
    dataset_size: int,
    steps_per_pass: int,
    orders: Array,
    constant: float = LEAST_CONSTANT,
) -> Array:
    """RDP of one pass of single records that stops early: Conjecture 1 summed over the pass.

    sum over j = 1 .. k of C alpha / ((n-j+1)^2 sigma^2)

    Args:
        noise_multiplier: sigma, at least 2; noise std / max_grad_norm.
        dataset_size: n.
        steps_per_pass: k, in [1, n), at most 10^7.
        orders: alpha > 1, one-dimensional.
        constant: C, at least 16.

    Returns:
        RDP of the whole pass in nats, at each order. Upper only if it held as written, which it
        does not.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    orders = checked_orders(orders)
    _require_conditions(noise_multiplier, constant)
    require(1 <= steps_per_pass < dataset_size, "steps_per_pass is in [1, dataset_size)")
    require(steps_per_pass <= _STEPS_MAX, "steps_per_pass is at most 10^7")
    left = np.arange(dataset_size - steps_per_pass + 1, dataset_size + 1, dtype=np.float64)
    share = float(np.sum(1 / np.square(left)))
    return orders * (constant * share / (noise_multiplier * noise_multiplier))


def _rate(noise_multiplier: float, dataset_size: int, fraction: float, epochs: float) -> float:
    """What Conjecture 2 multiplies with C alpha: e / (n (1 - tau) sigma^2)."""
    require(dataset_size >= 1, "dataset_size is at least 1")
    require(0 < fraction < 1, "fraction lies in (0, 1)")
    require(0 < epochs < math.inf, "epochs is positive")
    return epochs / (dataset_size * (1 - fraction) * noise_multiplier * noise_multiplier)


@theorem(
    id="partial-shuffle-conjecture-global",
    source="Document 004 (Berthier 2019), Section 4.3, Conjecture 2",
    status=Status.CONJECTURE,
    relations=_RELATIONS,
    assumptions=_ASSUMPTIONS,
    counterexample=_HALF,
)
def conjectured_global_rdp(
    *,
    noise_multiplier: float,
    dataset_size: int,
    fraction: float,
    epochs: float,
    orders: Array,
    constant: float = LEAST_CONSTANT,
) -> Array:
    """RDP of all passes of single records, each stopped after a fraction of the records.

    C e alpha / (n (1 - tau) sigma^2), for some C >= 16, with terms of higher order left out.

    Args:
        noise_multiplier: sigma, at least 2; noise std / max_grad_norm.
        dataset_size: n.
        fraction: tau, in (0, 1): the share of the records that a pass uses.
        epochs: e > 0: how often each record is used on average.
        orders: alpha > 1, one-dimensional.
        constant: C, at least 16.

    Returns:
        RDP of the whole training in nats, at each order. Upper only if it held as written, which it
        does not.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    orders = checked_orders(orders)
    _require_conditions(noise_multiplier, constant)
    return orders * (constant * _rate(noise_multiplier, dataset_size, fraction, epochs))


@theorem(
    id="partial-shuffle-conjecture-epsilon",
    source="Document 004 (Berthier 2019), Section 4.6, the curves of its Figure 12",
    status=Status.CONJECTURE,
    relations=_RELATIONS,
    assumptions=_ASSUMPTIONS,
    counterexample=_HALF + " The epsilons of the figure itself lie above what is proved.",
)
def conjectured_epsilon(
    *,
    noise_multiplier: float,
    dataset_size: int,
    fraction: float,
    epochs: float,
    delta: float,
    constant: float = LEAST_CONSTANT,
) -> float:
    """Epsilon at delta of Conjecture 2, at its best order.

    With rdp = a alpha, the least of a alpha + log(1/delta)/(alpha - 1) is
    a + 2 sqrt(a log(1/delta)), at alpha = 1 + sqrt(log(1/delta)/a). It grows like the square root
    of the number of epochs, not linearly as the document says of its figure.

    Args:
        noise_multiplier: sigma, at least 2; noise std / max_grad_norm.
        dataset_size: n.
        fraction: tau, in (0, 1): the share of the records that a pass uses.
        epochs: e > 0: how often each record is used on average.
        delta: in (0, 1).
        constant: C, at least 16.

    Returns:
        epsilon in nats. Upper only if Conjecture 2 held as written, which it does not.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    _require_conditions(noise_multiplier, constant)
    require(0 < delta < 1, "delta lies in (0, 1)")
    slope = constant * _rate(noise_multiplier, dataset_size, fraction, epochs)
    return slope + 2 * math.sqrt(-slope * math.log(delta))


@theorem(
    id="partial-shuffle-retracted-step",
    source="Document 000 (Berthier and Karimireddy 2019), Theorem 2.1, withdrawn by its first page",
    status=Status.RETRACTED,
    relations=_RELATIONS,
    assumptions=_ASSUMPTIONS,
    counterexample=_STEP,
)
def retracted_step_rdp(
    *, noise_multiplier: float, dataset_size: int, steps_before: int, orders: Array
) -> Array:
    """RDP of step t+1 of a shuffled pass of single records, given t earlier answers.

    16 alpha / ((n-t+1)^2 sigma^2), with O(1/(n-t+1)^3) left out. Its proof takes the chance of each
    record to be next, given the answers, to be the same on both datasets.

    Args:
        noise_multiplier: sigma, at least 2; noise std / max_grad_norm.
        dataset_size: n.
        steps_before: t, in [0, n).
        orders: alpha > 1, one-dimensional.

    Returns:
        RDP of the step in nats, at each order. Upper only if it held as written, which it does not.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    return _step(noise_multiplier, dataset_size, steps_before, orders, LEAST_CONSTANT)


@theorem(
    id="partial-shuffle-retracted-noise",
    source="Document 000 (Berthier and Karimireddy 2019), Theorem 2.2, withdrawn by its first page",
    status=Status.RETRACTED,
    relations=_RELATIONS,
    assumptions=_ASSUMPTIONS,
    counterexample="n 1000, half of one pass, order 14: for an RDP of 0.056 it asks for noise 2, "
    "at which one record +L among -L loses 0.0791.",
)
def retracted_noise_multiplier(
    *, dataset_size: int, fraction: float, epochs: float, order: float, rdp: float
) -> float:
    """Noise with which all passes would have a given RDP at one order.

    sigma^2 = max(16 e alpha / (n (1 - tau) rdp), 4), with O(1/n^2) left out.

    Args:
        dataset_size: n.
        fraction: tau, in (0, 1): the share of the records that a pass uses.
        epochs: e > 0: how often each record is used on average.
        order: alpha > 1.
        rdp: nats, > 0; of the whole training.

    Returns:
        noise_multiplier, noise std / max_grad_norm. Upper, that is enough, as claimed; it is not.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    require(1 < order < math.inf, "order is above 1")
    require(0 < rdp < math.inf, "rdp is positive")
    needed = LEAST_CONSTANT * order * _rate(1.0, dataset_size, fraction, epochs) / rdp
    return math.sqrt(max(needed, _LEAST_NOISE * _LEAST_NOISE))


THEOREMS = (
    conjectured_step_rdp,
    conjectured_partial_shuffle_rdp,
    conjectured_global_rdp,
    conjectured_epsilon,
    retracted_step_rdp,
    retracted_noise_multiplier,
)
