"""The contraction of divergences step by step, with what the step before left taken into account.

A divergence d at e^epsilon is the mass d of two laws that differ; between those two the comparison
is at a level above e^epsilon, at which a step keeps less. docs/theory/contraction.md, Theorem 3.
"""

import math
from typing import Final

from accounting.guarantees import Assumption, Status, theorem
from accounting.literature.contraction.contraction import (
    DECLARED_FACTS,
    ONE_RECORD,
    RELATIONS,
    DeltaBound,
    ProjectedNoisySgd,
    log_product,
    log_sum_up,
    require_steps,
)
from accounting.literature.contraction.kernels import Kernel, log_mean_power, step_kernel
from accounting.rounding import UNIT_ROUNDOFF, rounded_down, rounded_up

CHAIN_MAX: Final = 2000  # steps that are refined one by one; the rest keep the last one's share
_LOG_NOTHING: Final = -1e6  # of delta: below, a chain is not followed any further
_LEVEL_MAX: Final = 1e9  # nats, of the level of a comparison; at a lower one a step keeps more


@theorem(
    id="pnsgd-record-refined",
    source="docs/theory/contraction.md, Theorem 3",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=ONE_RECORD,
)
def refined_contraction_delta(
    run: ProjectedNoisySgd, *, epsilon: float, steps: int, record: int
) -> DeltaBound:
    """Delta of a pass in a fixed order, for the record of one step, by the refined chain.

    d_0 = A at e^epsilon and d_(k+1) = d_k E(1 + (e^epsilon - 1)/d_k), with E(g) what a later step
    keeps of a divergence at level g. At epsilon = 0 it is A B^(n-i), above it less.

    Args:
        run: what was declared.
        epsilon: nats, finite, >= 0.
        steps: n, >= 1; of a whole pass.
        record: i, in [1, n], the step that uses the record, in the order of processing.

    Returns:
        The bound, for this record alone. Upper.

    Raises:
        ValueError: an argument is out of range.
    """
    require_steps(steps, record)
    later = steps - record
    chain, last = _chain(run, epsilon, min(later, CHAIN_MAX))
    rest = later + 1 - len(chain)
    log_delta = log_product(Kernel(chain[-1], 0.0), last, rest)
    return DeltaBound(log_delta=log_delta, record=record)


@theorem(
    id="pnsgd-shuffled-refined",
    source="docs/theory/contraction.md, Theorem 3",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=(*DECLARED_FACTS, Assumption.FRESH_SECRET_ORDER),
)
def refined_shuffled_delta(run: ProjectedNoisySgd, *, epsilon: float, steps: int) -> DeltaBound:
    """Delta of one pass in a secret uniform order: the mean of the refined chain over the places.

    Little below shuffled_delta, since the last place costs A/n in both.

    Args:
        run: what was declared.
        epsilon: nats, finite, >= 0.
        steps: n, >= 1; batches of the pass.

    Returns:
        The bound, for every record. Upper.

    Raises:
        ValueError: an argument is out of range.
    """
    require_steps(steps)
    chain, last = _chain(run, epsilon, min(steps - 1, CHAIN_MAX))
    if chain[0] == -math.inf:
        return DeltaBound(log_delta=-math.inf, record=None)
    total = math.fsum(math.exp(one - chain[0]) for one in chain)
    rest = steps - len(chain)
    if rest:  # their sum is the last of the chain times that of B, ..., B^rest
        mean = log_mean_power(last.log_lost, rest)
        total += math.exp(log_sum_up(chain[-1], last.log_kept) - chain[0] + mean) * rest
    share = rounded_up(math.log(rounded_up(total, ulps=8) / steps), ulps=4) + 4 * UNIT_ROUNDOFF
    return DeltaBound(log_delta=log_sum_up(chain[0], min(0.0, share)), record=None)


def _chain(run: ProjectedNoisySgd, epsilon: float, length: int) -> tuple[list[float], Kernel]:
    """Logarithms of d_0, ..., d_length or until they vanish, and what the last step keeps."""
    first = step_kernel(run.noise, epsilon, shift=run.record_shift).log_kept
    kernel = step_kernel(run.noise, epsilon, shift=run.domain_shift)
    chain = [first]
    while len(chain) <= length and chain[-1] > _LOG_NOTHING and kernel.log_kept > -math.inf:
        kernel = step_kernel(run.noise, _level(epsilon, chain[-1]), shift=run.domain_shift)
        chain.append(log_sum_up(chain[-1], kernel.log_kept))
    return chain, kernel


def _level(epsilon: float, log_delta: float) -> float:
    """log(1 + (e^epsilon - 1)/d). Lower: at a lower level a step keeps more."""
    if epsilon == 0:
        return 0.0
    log_part = math.log(-math.expm1(-epsilon))
    excess = epsilon + log_part - log_delta
    level = math.log1p(math.exp(excess)) if excess < 1 else excess + math.log1p(math.exp(-excess))
    slack = 8 * UNIT_ROUNDOFF * (1 + epsilon - log_part - log_delta)
    return min(_LEVEL_MAX, max(0.0, rounded_down(level - slack * min(1.0, level), ulps=8)))


THEOREMS: Final = (refined_contraction_delta, refined_shuffled_delta)
