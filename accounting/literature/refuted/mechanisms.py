"""Single mechanisms whose noise or law is misstated."""

import math

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.rounding import require

_EVERY = tuple(NeighboringRelation)


def _positive(**values: float) -> None:
    for name, value in values.items():
        require(0 < value < math.inf, f"{name} is positive and finite")


@theorem(
    id="gaussian-classic-unrestricted",
    source="Document 004 (Berthier 2019), Proposition 2.2, read without epsilon < 1",
    status=Status.REFUTED,
    relations=_EVERY,
    assumptions=(Assumption.INDEPENDENT_GAUSSIAN_NOISE,),
    counterexample="epsilon 20, delta 1e-5: the true delta is 1.53e-3; at delta 1e-5 it fails "
    "from epsilon 8.42 on, at delta 0.01 from 6.78.",
)
def classic_gaussian_noise(*, epsilon: float, delta: float, sensitivity: float) -> float:
    """Noise of a Gaussian release for any epsilon: sqrt(2 log(1.25/delta)) S / epsilon.

    The proof needs epsilon < 1, which the proposition does not ask for; analytic-gaussian is exact.

    Args:
        epsilon: nats, > 0.
        delta: in (0, 1).
        sensitivity: S > 0, L2.

    Returns:
        Standard deviation, in units of the sensitivity's. Upper, that is enough, as claimed; it is
        not for large epsilon.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    _positive(epsilon=epsilon, sensitivity=sensitivity)
    require(0 < delta < 1, "delta lies in (0, 1)")
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon


@theorem(
    id="tv-laplace-as-printed",
    source="Document 004 (Berthier 2019), Proposition 2.4",
    status=Status.REFUTED,
    relations=_EVERY,
    assumptions=(Assumption.INDEPENDENT_LAPLACE_NOISE,),
    counterexample="sensitivity 1, delta 0.01: scale 7.07 has total variation 0.0683; 49.75 is "
    "needed.",
)
def total_variation_laplace_scale(*, sensitivity: float, delta: float) -> float:
    """Scale of Laplace noise with total variation delta: b = sqrt(S / (2 delta)).

    Its proof bounds the distance of densities at a point, which is not a total variation: 1/b has a
    unit. The total variation is 1 - exp(-S/(2b)), above delta here once S > 2 log(1-delta)^2/delta.

    Args:
        sensitivity: S > 0, L1.
        delta: in (0, 1).

    Returns:
        Scale b of the noise of each coordinate. Upper, that is enough, as claimed; it is not.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    _positive(sensitivity=sensitivity)
    require(0 < delta < 1, "delta lies in (0, 1)")
    return math.sqrt(sensitivity / (2 * delta))


@theorem(
    id="output-perturbation-as-printed",
    source="Document 004 (Berthier 2019), Section 3.2.2",
    status=Status.REFUTED,
    relations=_EVERY,
    assumptions=(Assumption.INDEPENDENT_GAUSSIAN_NOISE,),
    counterexample="sensitivity 1, order 2, RDP 4: it asks for variance 0.0625, which has RDP 16.",
)
def output_perturbation_noise(*, sensitivity: float, order: float, rdp: float) -> float:
    """Noise on the output of a training for a given RDP: sigma^2 = alpha s^2 / (2 rdp^2).

    The document's own Proposition 2.6 gives alpha s^2 / (2 rdp): the exponent is a slip, which asks
    for too little noise where rdp > 1.

    Args:
        sensitivity: s > 0, L2, of the whole training.
        order: alpha > 1.
        rdp: nats, > 0.

    Returns:
        Standard deviation. Upper, that is enough, as claimed; it is not for rdp > 1.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    _positive(sensitivity=sensitivity, rdp=rdp)
    require(1 < order < math.inf, "order is above 1")
    return sensitivity * math.sqrt(order / 2) / rdp


@theorem(
    id="subsampled-response-as-printed",
    source="Document 003 (Brown's lecture notes), Section 1.3",
    status=Status.REFUTED,
    relations=(NeighboringRelation.REPLACE_ONE,),
    assumptions=(Assumption.INDEPENDENT_ANSWERS,),
    counterexample="epsilon 1, p 0.5: it says 0.2, the true chance of the own bit is 1/6; the "
    "answer is log(1.4) = 0.3365-DP, not 0.5.",
)
def subsampled_response_kept(*, epsilon: float, sampling_probability: float) -> float:
    """Chance that a subsampled randomized response reports the record's own bit, coin aside.

    RR'' keeps the bit with chance epsilon / (2 + epsilon), else reports a fair coin. Used with
    probability p it is said to be exactly RR'' at epsilon p, of chance epsilon p / (2 + epsilon p).
    The true chance is p epsilon / (2 + epsilon), that of RR'' at 2 p epsilon/(2 + (1-p) epsilon).

    Args:
        epsilon: the lecture's parameter, > 0; RR'' is log(1 + epsilon)-DP.
        sampling_probability: p, in (0, 1].

    Returns:
        The chance, in (0, 1). Exact as claimed; it is too large for p < 1.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    _positive(epsilon=epsilon)
    require(0 < sampling_probability <= 1, "sampling_probability lies in (0, 1]")
    product = epsilon * sampling_probability
    return product / (2 + product)


@theorem(
    id="central-mean-of-unbounded-data",
    source="Document 003 (Brown's lecture notes), Section 2.1",
    status=Status.REFUTED,
    relations=(NeighboringRelation.REPLACE_ONE,),
    assumptions=(Assumption.INDEPENDENT_LAPLACE_NOISE,),
    counterexample="epsilon 1, n 100, one normal value moves from 0 to 5: the answers are told "
    "apart with epsilon 5.",
)
def central_mean_scale(*, epsilon: float, dataset_size: int) -> float:
    """Scale of Laplace noise on the mean of n normal values: 1 / (n epsilon).

    A mean has sensitivity 1/n only where values have a range of 1; normal values have none, so that
    they must be clipped first, which has to be said.

    Args:
        epsilon: nats, > 0.
        dataset_size: n, at least 1.

    Returns:
        Scale of the noise. Upper, that is enough, as claimed; no scale is without clipping.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    _positive(epsilon=epsilon)
    require(dataset_size >= 1, "dataset_size is at least 1")
    return 1 / (dataset_size * epsilon)


THEOREMS = (
    classic_gaussian_noise,
    total_variation_laplace_scale,
    output_perturbation_noise,
    subsampled_response_kept,
    central_mean_scale,
)
