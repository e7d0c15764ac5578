"""Mechanisms of one answer, local and central, and what sampling makes of a guarantee.

What a shuffler adds is in shuffling. docs/theory/local_models.md has the proofs.
"""

import math
from collections.abc import Callable
from typing import Final

from accounting.events import FixedSize, NeighboringRelation, Poisson
from accounting.guarantees import Assumption, Status, theorem
from accounting.renyi.pure import amplified_epsilon
from accounting.rounding import LIBRARY_ULPS, rounded_down, rounded_up

_ROUNDING: Final = 4 * LIBRARY_ULPS  # ulps, of a few operations
ADD_OR_REMOVE_ONE: Final = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE_ONE: Final = NeighboringRelation.REPLACE_ONE


def _rate(sampling: FixedSize | Poisson, relation: NeighboringRelation) -> float:
    """The chance that a record joins a step, to a roundoff.

    Raises:
        ValueError: the relation is not the one that the scheme is amplified under.
    """
    match sampling:
        case FixedSize():
            if relation is not REPLACE_ONE:
                raise ValueError("A batch of fixed size is amplified under replace_one only.")
            return sampling.batch_size / sampling.dataset_size
        case Poisson():
            if relation is not ADD_OR_REMOVE_ONE:
                raise ValueError("A Poisson batch is amplified under add_or_remove_one only.")
            return sampling.sampling_probability
        case _:
            raise ValueError("Amplified are fixed_size and poisson sampling, and nothing else.")


@theorem(
    id="sampled-dp",
    source="Balle, Barthe and Gaboardi 2018, NeurIPS, arXiv:1807.01647v2, Theorem 8 and Theorem 9; "
    "from document 003 (Brown), Theorem 1.1",
    status=Status.PUBLISHED,
    relations=(ADD_OR_REMOVE_ONE, REPLACE_ONE),
)
def sampled_dp(
    *,
    epsilon: float,
    delta: float,
    sampling: FixedSize | Poisson,
    relation: NeighboringRelation,
) -> tuple[float, float]:
    """What an (epsilon, delta)-DP step loses on a batch: a fixed-size subset, or a Poisson sample.

    (log(1 + p (e^epsilon - 1)), p delta), where p is the chance of being in the batch. The step
    must be (epsilon, delta)-DP under the same relation, on every batch that can be drawn.

    Args:
        epsilon: nats, >= 0 and finite.
        delta: in [0, 1].
        sampling: fixed_size under replace_one, poisson under add_or_remove_one.
        relation: that of the step, and of the result.

    Returns:
        (epsilon' in nats, at most epsilon; delta'). Upper, to a relative 1e-11.

    Raises:
        ValueError: an argument is out of range, or the scheme is not amplified under the relation.
    """
    rate = _rate(sampling, relation)
    if not (0 <= epsilon < math.inf and 0 <= delta <= 1):
        raise ValueError("epsilon is finite and not negative, and delta lies in [0, 1].")
    amplified = amplified_epsilon(epsilon=epsilon, sampling_probability=rate)
    return amplified, min(1.0, rounded_up(rate * delta, ulps=2))


@theorem(
    id="sampled-profile",
    source="Balle, Barthe and Gaboardi 2018, NeurIPS, arXiv:1807.01647v2, Theorem 8 and Theorem 9",
    status=Status.PUBLISHED,
    relations=(ADD_OR_REMOVE_ONE, REPLACE_ONE),
)
def sampled_profile(
    epsilon: float,
    *,
    profile: Callable[[float], float],
    sampling: FixedSize | Poisson,
    relation: NeighboringRelation,
) -> float:
    """Delta at epsilon of a step on a batch, from the step's delta at every epsilon.

    p delta(log(1 + (e^epsilon - 1)/p)): sampled_dp at the one epsilon of the step that leads here.

    Args:
        epsilon: nats, >= 0 and finite.
        profile: the step's delta at an epsilon in nats, on every batch that can be drawn; falling
            in it, and upper.
        sampling: fixed_size under replace_one, poisson under add_or_remove_one.
        relation: that of the step, and of the result.

    Returns:
        Delta in [0, 1]. Upper, to rounding.

    Raises:
        ValueError: an argument is out of range, or the scheme is not amplified under the relation.
    """
    rate = _rate(sampling, relation)
    if not 0 <= epsilon < math.inf:
        raise ValueError("epsilon is finite and not negative.")
    # log(1 + (e^epsilon - 1)/p) = epsilon + log1p((1/p - 1)(1 - e^-epsilon)): no overflow.
    more = (1 - rate) / rate * -math.expm1(-epsilon)
    inner = max(epsilon, rounded_down(epsilon + math.log1p(more), ulps=_ROUNDING))
    delta = profile(inner)
    if not 0 <= delta <= 1:
        raise ValueError("A profile lies in [0, 1].")
    return min(1.0, rounded_up(rate * delta, ulps=2))


@theorem(
    id="coin-response",
    source="Dwork and Roth 2014, Foundations and Trends in Theoretical Computer Science, as in "
    "document 004 (Berthier 2019), Section 2.2",
    status=Status.PUBLISHED,
    relations=(REPLACE_ONE,),
    assumptions=(Assumption.INDEPENDENT_ANSWERS,),
)
def coin_response_epsilon(*, heads: float) -> float:
    """Epsilon of a yes or no that is truthful if a coin shows heads, and else a second coin.

    log((1+h)/(1-h)) = log1p(2h/(1-h)), the second coin being fair: log 3 where the first is too.

    Args:
        heads: h, of the first coin, in [0, 1].

    Returns:
        Epsilon in nats; infinite where h is 1. Upper; exact to rounding.

    Raises:
        ValueError: heads is not in [0, 1].
    """
    if not 0 <= heads <= 1:
        raise ValueError("heads lies in [0, 1].")
    if heads == 1:
        return math.inf
    return rounded_up(math.log1p(2 * heads / (1 - heads)), ulps=_ROUNDING)


@theorem(
    id="sampled-response",
    source="docs/theory/local_models.md, Theorem 2; instead of document 003 (Brown), Section 1.3",
    status=Status.DERIVED,
    relations=(REPLACE_ONE,),
    assumptions=(Assumption.INDEPENDENT_ANSWERS, Assumption.UNIFORM_NULL_ANSWER),
)
def sampled_response_epsilon(*, epsilon: float, participation: float) -> float:
    """Epsilon of yes or no by randomized response, where who is not sampled answers a fair coin.

    2 artanh(p tanh(epsilon/2)) = log1p(2c / (1-c)), c = p tanh(epsilon/2), 1 - c = (1-p) + 2p /
    (1 + e^epsilon): nothing cancels, however large epsilon is.

    Args:
        epsilon: nats, >= 0 and finite; the truth is told with odds e^epsilon.
        participation: p, the secret chance to be sampled, in [0, 1].

    Returns:
        epsilon' in nats, at most epsilon. Upper; exact to rounding.

    Raises:
        ValueError: an argument is out of range.
    """
    if not (0 <= epsilon < math.inf and 0 <= participation <= 1):
        raise ValueError("epsilon is finite and not negative; participation lies in [0, 1].")
    kept = participation * math.tanh(0.5 * epsilon)
    lie = math.exp(-epsilon)
    rest = (1 - participation) + 2 * participation * lie / (1 + lie)
    if not rest:  # epsilon is beyond all doubles, and everybody is sampled
        return epsilon
    return min(epsilon, rounded_up(math.log1p(2 * kept / rest), ulps=_ROUNDING))


@theorem(
    id="laplace-mechanism",
    source="Dwork, McSherry, Nissim and Smith 2006, TCC, as in document 004 (Berthier 2019), "
    "Proposition 2.1",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.INDEPENDENT_LAPLACE_NOISE,),
)
def laplace_noise(epsilon: float, *, sensitivity: float) -> float:
    """The scale of Laplace noise on each coordinate that gives epsilon-DP.

    b = sensitivity / epsilon

    Args:
        epsilon: nats, > 0.
        sensitivity: how far one record moves the answer, in L1; >= 0 and finite.

    Returns:
        The scale b, in the unit of the answer. Upper, to rounding: more noise than needed.

    Raises:
        ValueError: an argument is out of range.
    """
    if not (0 < epsilon < math.inf and 0 <= sensitivity < math.inf):
        raise ValueError("epsilon is positive and finite, sensitivity finite and not negative.")
    return rounded_up(sensitivity / epsilon)


@theorem(
    id="central-mean-error",
    source="docs/theory/local_models.md, Proposition 7; from document 003 (Brown), Section 2.1",
    status=Status.DERIVED,
    relations=(REPLACE_ONE,),
    assumptions=(Assumption.INDEPENDENT_LAPLACE_NOISE,),
)
def central_mean_error(*, epsilon: float, records: int, data_range: float) -> float:
    """Mean absolute error that Laplace noise adds to the mean of n records, epsilon-DP.

    r / (n epsilon), for records in an interval of length r. Unbounded records, a Gaussian's draws
    say, must be clipped to one first, and the range is what they were clipped to.

    Args:
        epsilon: nats, > 0.
        records: n, >= 1.
        data_range: r, > 0, in the unit of the data; declared.

    Returns:
        The error, in the unit of the data. Upper; exact to rounding.

    Raises:
        ValueError: an argument is out of range.
    """
    _check_errors(epsilon=epsilon, records=records)
    if not 0 < data_range < math.inf:
        raise ValueError("data_range is positive and finite.")
    # The mean of the noise's absolute value is its scale.
    return laplace_noise(epsilon, sensitivity=rounded_up(data_range / records))


@theorem(
    id="local-mean-error",
    source="docs/theory/local_models.md, Proposition 7; from document 003 (Brown), Section 2.1",
    status=Status.DERIVED,
    relations=(REPLACE_ONE,),
    assumptions=(Assumption.INDEPENDENT_ANSWERS,),
)
def local_mean_error(*, epsilon: float, records: int) -> float:
    """Standard error of the mean of n draws of yes or no, each by randomized response.

    sqrt(q (1-q) / n) / tanh(epsilon/2) <= 1 / (2 tanh(epsilon/2) sqrt(n)), where q is the chance of
    an answer of yes. The range of the data is one; the sampling error of the draws is included.

    Args:
        epsilon: nats, > 0, of each answer.
        records: n, >= 1.

    Returns:
        The standard error of the unbiased estimate. Upper; attained where yes and no are alike.

    Raises:
        ValueError: an argument is out of range.
    """
    _check_errors(epsilon=epsilon, records=records)
    return rounded_up(0.5 / (math.tanh(0.5 * epsilon) * math.sqrt(records)), ulps=_ROUNDING)


def _check_errors(*, epsilon: float, records: int) -> None:
    if not (0 < epsilon < math.inf and records >= 1):
        raise ValueError("epsilon is positive and finite, and there is at least one record.")


THEOREMS = (
    sampled_dp,
    sampled_profile,
    coin_response_epsilon,
    sampled_response_epsilon,
    laplace_noise,
    central_mean_error,
    local_mean_error,
)
