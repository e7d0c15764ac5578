"""Amplification that was claimed for more samplings than it holds for."""

import math
from typing import Final

import numpy as np

from accounting import special
from accounting.events import Direction, NeighboringRelation, TruncatedPoisson
from accounting.guarantees import Assumption, Status, theorem
from accounting.pld.pairs import SampledGaussianPair
from accounting.pld.profiles import profile
from accounting.renyi.conversion import rdp_epsilon
from accounting.renyi.orders import ORDERS
from accounting.renyi.poisson import poisson_gaussian_rdp
from accounting.rounding import Array, require
from accounting.subsampling.truncated import branches

ORDER_MAX: Final = 256  # a sum of as many terms
STEPS_MAX: Final = 10**6  # of a pass: as many binomial chances
_ONE = (NeighboringRelation.REPLACE_ONE,)


def _require_noise(noise_multiplier: float) -> None:
    require(0 < noise_multiplier < math.inf, "noise_multiplier is positive and finite")


def _subsampled(noise_multiplier: float, weight: float, order: int, first: int) -> float:
    """The printed bound at an integer order, its last sum from `first` on."""
    _require_noise(noise_multiplier)
    require(0 < weight < 1, "max_weight lies in (0, 1)")
    require(2 <= order <= ORDER_MAX, f"order is a whole number in [2, {ORDER_MAX}]")
    loss = 2 / (noise_multiplier * noise_multiplier)  # RDP at order j is j times this
    powers = np.arange(first, order + 1, dtype=np.float64)
    binomials = special.gammaln(order + 1) - special.gammaln(powers + 1)
    binomials -= special.gammaln(order - powers + 1)
    terms = math.log(2) + powers * math.log(weight) + binomials + (powers - 1) * powers * loss
    second = 2 * math.log(weight) + math.log(2 * order * (order - 1)) + _log_expm1(2 * loss)
    total = float(np.logaddexp.reduce(np.array([0.0, second, *terms])))
    return total / (order - 1)


def _log_expm1(x: float) -> float:
    return x + math.log(-math.expm1(-x))


@theorem(
    id="data-dependent-weights",
    source="Document 000 (Berthier and Karimireddy 2019), Theorem 3.1",
    status=Status.REFUTED,
    relations=_ONE,
    assumptions=(Assumption.INDEPENDENT_GAUSSIAN_NOISE,),
    counterexample="n 1001, noise 2, weights 1/500 on the records +1 or on the records -1, as the "
    "one that differs says: the RDP of order 2 is 1, the bound 2.75e-5.",
)
def data_dependent_weights_rdp(*, noise_multiplier: float, max_weight: float, order: int) -> float:
    """RDP of a Gaussian step on one record, drawn with weights that may depend on the data.

    log(1 + 4 c^2 C(a,2) (e^e(2) - 1) + 2 sum_{j=3}^a c^j C(a,j) e^((j-1) e(j))) / (a-1) with
    e(j) = 2j/sigma^2, where no weight is above c. It holds if the weights are the same on both
    datasets; the document allows them to depend on the data.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        max_weight: c, in (0, 1).
        order: alpha, a whole number in [2, 256].

    Returns:
        RDP in nats. Upper as claimed, which it is not.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    return _subsampled(noise_multiplier, max_weight, order, 3)


@theorem(
    id="non-uniform-subsampling-as-printed",
    source="Document 004 (Berthier 2019), Theorem 4.2, from which Conjecture 1 is said to follow",
    status=Status.REFUTED,
    relations=_ONE,
    assumptions=(Assumption.DATA_INDEPENDENT_WEIGHTS, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
    counterexample="noise 2, order 2, c 0.01: the sum from j = 1 gives 0.0404, from j = 3 as "
    "meant 0.000687; 16 alpha c^2/sigma^2 is 0.0008. A bound it is, but not of second order in c.",
)
def misprinted_subsampling_rdp(*, noise_multiplier: float, max_weight: float, order: int) -> float:
    """RDP of a Gaussian step on one record, drawn with weights fixed in advance.

    As data-dependent-weights, but for weights that are the same on both datasets and with the last
    sum from j = 1 on. The two terms too many leave it above the truth and destroy the amplification
    by c^2 that the document takes from it.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        max_weight: c, in (0, 1).
        order: alpha, a whole number in [2, 256].

    Returns:
        RDP in nats. Upper; what is refuted is that it is of order c^2.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    return _subsampled(noise_multiplier, max_weight, order, 1)


@theorem(
    id="subsampling-leading-term",
    source="Document 004 (Berthier 2019), Section 3.2.3, after Theorem 3.2",
    status=Status.REFUTED,
    relations=_ONE,
    assumptions=(Assumption.INDEPENDENT_GAUSSIAN_NOISE,),
    counterexample="noise 2, records that move a step by 2: 4 (e - 1) = 6.87, where 2 is claimed; "
    "32/sigma^2 = 8 is true.",
)
def subsampling_leading_factor(*, noise_multiplier: float) -> float:
    """The factor 4 (e^e(2) - 1) of a subsampled step, said to be at most 8/sigma^2.

    That is the factor of records that move a step by 1, and only at sigma^2 >= 0.8; a record that
    is replaced moves it by 2, e(2) = 4/sigma^2, and the factor is up to 32/sigma^2 at sigma >= 2.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.

    Returns:
        The factor. Upper as claimed, which it is not.

    Raises:
        ValueError: noise_multiplier is not positive and finite.
    """
    _require_noise(noise_multiplier)
    return 8 / (noise_multiplier * noise_multiplier)


@theorem(
    id="clones-stronger-general",
    source="Feldman, McMillan and Talwar 2023, SODA, arXiv:2208.04591, Theorem 3.1 and Theorem 3.2 "
    "for all randomizers, withdrawn by their erratum; docs/theory/errata.md, Section 7",
    status=Status.RETRACTED,
    relations=_ONE,
    assumptions=(Assumption.FRESH_SECRET_ORDER, Assumption.ONE_STEP_PER_PASS),
    counterexample="epsilon0 1: an answer as likely on both records and e times less so on a third "
    "hides them with a chance of 0.368 of theirs, where the proof takes 0.538. No law of two or "
    "three records that we searched exceeds the bound itself.",
)
def stronger_clones_delta(*, epsilon0: float, epsilon: float, steps_per_pass: int) -> float:
    """Delta of n epsilon0-DP steps on one record each, in a secret uniform order.

    The profile of (A + D, C - A + 1 - D) against its mirror image, C ~ Bin(n-1, 2/(e^e0 + 1)),
    A ~ Bin(C, 1/2), D ~ Bernoulli(e^e0/(e^e0 + 1)). It holds where each answer is at least
    1/(e^e0 + 1) as likely as on any two other records together, as with randomized response.

    Args:
        epsilon0: nats, in (0, 700].
        epsilon: nats, >= 0.
        steps_per_pass: n, in [1, 10^6].

    Returns:
        delta in [0, 1]. Upper as claimed; unproved for general randomizers.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    require(0 < epsilon0 <= 700, "epsilon0 lies in (0, 700]")
    require(0 <= epsilon < math.inf, "epsilon is finite and not negative")
    require(1 <= steps_per_pass <= STEPS_MAX, f"steps_per_pass is in [1, {STEPS_MAX}]")
    if epsilon >= epsilon0:
        return 0.0
    truth, lie = float(special.expit(epsilon0)), float(special.expit(-epsilon0))
    gain, cost = truth - lie * math.exp(epsilon), truth * math.exp(epsilon) - lie
    clones = np.arange(steps_per_pass, dtype=np.float64)
    least = np.floor((clones + 1) * cost / (gain + cost)) + 1
    deltas = gain * _fair_tail(least - 1, clones) - cost * _fair_tail(least, clones)
    chances = _binomial_chances(steps_per_pass - 1, 2 * lie)
    return float(np.sum(chances * np.maximum(deltas, 0.0)))


def _fair_tail(least: Array, count: Array) -> Array:
    """P(Bin(count, 1/2) >= least)."""
    inner = (least > 0) & (least <= count)
    tail = special.betainc(np.where(inner, least, 1), np.where(inner, count - least + 1, 1), 0.5)
    return np.asarray(np.where(inner, tail, least <= 0), dtype=np.float64)


def _binomial_chances(count: int, chance: float) -> Array:
    each = np.arange(count + 1, dtype=np.float64)
    logs = (
        special.gammaln(count + 1) - special.gammaln(each + 1) - special.gammaln(count - each + 1)
    )
    logs += special.xlogy(each, chance) + special.xlog1py(count - each, -chance)
    return np.asarray(np.exp(logs), dtype=np.float64)


@theorem(
    id="truncated-poisson-special-as-added",
    source="As docs/theory/subsampling.md, Proposition 3, taken for replace_special, too",
    status=Status.REFUTED,
    relations=(NeighboringRelation.REPLACE_SPECIAL,),
    assumptions=(Assumption.TRUNCATED_POISSON_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
    counterexample="5 records -1, probability 0.3, cap 1, noise 1: against a null record delta at "
    "epsilon 0.3 is 0.00670, 24 times the 0.000280 of the pair; at 0.5 the pair has none.",
)
def truncated_as_added_delta(
    *,
    noise_multiplier: float,
    sampling_probability: float,
    max_batch_size: int,
    dataset_size: int,
    epsilon: float,
    direction: Direction,
) -> float:
    """Delta of a step of truncated Poisson sampling against a null record, in one order.

    (1-p) H(Poisson at q, sigma) + p H(Poisson at q', sigma/2): what holds when a record is added.
    A null record may be in a full batch, too, and then keeps another record out of it.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        sampling_probability: q, in (0, 1).
        max_batch_size: the cap.
        dataset_size: n, above the cap.
        epsilon: nats, >= 0.
        direction: "remove" for the dataset with the record against the other, or "add".

    Returns:
        delta in [0, 1]. Upper as claimed, which it is not.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    _require_noise(noise_multiplier)
    require(0 < sampling_probability < 1, "sampling_probability lies in (0, 1)")
    require(1 <= max_batch_size < dataset_size, "dataset_size is above max_batch_size")
    require(0 <= epsilon < math.inf, "epsilon is finite and not negative")
    found = branches(
        TruncatedPoisson(
            sampling_probability=sampling_probability,
            max_batch_size=max_batch_size,
            dataset_size=dataset_size,
        ),
        dataset_size=dataset_size,
    )
    parts = (
        (found.open_chance, noise_multiplier, sampling_probability),
        (found.full_chance, noise_multiplier / 2, found.kept_rate),
    )
    return sum(
        chance
        * profile(
            SampledGaussianPair(noise_multiplier=noise, sampling_probability=rate),
            direction=direction,
            epsilon=epsilon,
        )[1]
        for chance, noise, rate in parts
    )


@theorem(
    id="cyclic-add-remove-as-shuffled",
    source="As docs/theory/shuffle.md, Proposition 2, taken for a fixed order",
    status=Status.REFUTED,
    relations=(NeighboringRelation.ADD_OR_REMOVE_ONE,),
    assumptions=(Assumption.ONE_STEP_PER_PASS, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
    counterexample="records -1, -1, 1, -1, -1, -1 in batches of 2, noise 1: without the first the "
    "sums move by 2, 2 and 1, which is exactly 3-GDP, above sqrt(5) = 2.24.",
)
def cyclic_add_remove_mu(*, noise_multiplier: float) -> float:
    """Gaussian DP of a pass in a fixed order, when a record is added or removed: sqrt(5)/sigma.

    A record less moves all later ones into other batches: up to sqrt(4 (T-1) + 1)/sigma for T
    batches. In a secret random order the gap can be filled by the last record; in a fixed one not.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.

    Returns:
        mu. Upper as claimed, which it is not.

    Raises:
        ValueError: noise_multiplier is not positive and finite.
    """
    _require_noise(noise_multiplier)
    return math.sqrt(5) / noise_multiplier


@theorem(
    id="poisson-accounting-of-shuffled-batches",
    source="Common practice; refuted by Chua et al. 2024, ICML, arXiv:2403.17673; "
    "docs/theory/shuffle.md, Section 3",
    status=Status.REFUTED,
    relations=(NeighboringRelation.REPLACE_SPECIAL,),
    assumptions=(Assumption.FRESH_SECRET_ORDER, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
    counterexample="noise 1, 1000 steps, one pass, delta 1e-5: it says 0.678, some dataset "
    "loses at least 2.88.",
)
def poisson_of_shuffled_epsilon(
    *, noise_multiplier: float, steps_per_pass: int, passes: int, delta: float
) -> float:
    """Epsilon of shuffled passes as if each batch had been Poisson-sampled at rate 1/T.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        steps_per_pass: T, at least 1.
        passes: at least 1.
        delta: in (0, 1).

    Returns:
        epsilon in nats. Upper as claimed, which it is not.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    _require_noise(noise_multiplier)
    require(steps_per_pass >= 1 and passes >= 1, "steps_per_pass and passes are at least 1")
    curve = poisson_gaussian_rdp(
        noise_multiplier=noise_multiplier, sampling_probability=1 / steps_per_pass, orders=ORDERS
    )
    return rdp_epsilon(rdp=passes * steps_per_pass * curve, orders=ORDERS, delta=delta)[0]


THEOREMS = (
    data_dependent_weights_rdp,
    misprinted_subsampling_rdp,
    subsampling_leading_factor,
    stronger_clones_delta,
    truncated_as_added_delta,
    cyclic_add_remove_mu,
    poisson_of_shuffled_epsilon,
)
