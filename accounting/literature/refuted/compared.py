"""Document 004's Figure 12 with what is proved beside it: data for a figure, no theorem.

It stands here because one of its curves is a conjecture.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from accounting.literature.refuted.early_stop import conjectured_epsilon
from accounting.pld.certified_composition import epsilon_bracket
from accounting.renyi.conversion import rdp_epsilon
from accounting.renyi.orders import ORDERS
from accounting.shuffling.partial import partial_shuffle_pairs, partial_shuffle_rdp

WIDTH: Final = 1e-3  # relative, of the profiles' epsilon; a figure shows no more


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """Epsilons of one training of shuffled passes that stop early; nats, replace_one."""

    passes: int
    steps_per_pass: int
    conjectured: float  # Conjecture 2 with C = 16; bounds nothing
    moments: float  # upper, proved
    profiles: float  # upper, proved


def early_stop_epsilons(
    *, noise_multiplier: float, dataset_size: int, fraction: float, epochs: float, delta: float
) -> EarlyStop:
    """Epsilon of Algorithm 1 of documents 000 and 004, as conjectured and as proved.

    Each pass takes floor(tau n) records, and floor(e/tau) passes are made; tau and e are read as
    the decimals they are written as.

    Args:
        noise_multiplier: sigma, at least 2; noise std / max_grad_norm.
        dataset_size: n.
        fraction: tau, in [1/n, 1).
        epochs: e, at least tau.
        delta: in (0, 1).

    Returns:
        The three epsilons.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    conjectured = conjectured_epsilon(
        noise_multiplier=noise_multiplier,
        dataset_size=dataset_size,
        fraction=fraction,
        epochs=epochs,
        delta=delta,
    )
    share = Fraction(repr(float(fraction)))
    passes = math.floor(Fraction(repr(float(epochs))) / share)
    steps = math.floor(share * dataset_size)
    if passes < 1:
        raise ValueError("Out of range: epochs is at least fraction.")
    units = partial_shuffle_pairs(
        noise_multiplier=noise_multiplier,
        batch_size=1,
        dataset_size=dataset_size,
        steps_per_pass=steps,
    )
    curve = partial_shuffle_rdp(
        noise_multiplier=noise_multiplier,
        batch_size=1,
        dataset_size=dataset_size,
        steps_per_pass=steps,
        orders=ORDERS,
    )
    composed = tuple((pair, count * passes) for pair, count in units)
    return EarlyStop(
        passes=passes,
        steps_per_pass=steps,
        conjectured=conjectured,
        moments=rdp_epsilon(rdp=passes * curve, orders=ORDERS, delta=delta)[0],
        profiles=epsilon_bracket(composed, delta=delta, width=WIDTH).upper,
    )
