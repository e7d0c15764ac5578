"""What document 001 says of its schedules beyond what holds."""

import math
from typing import Final

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.rounding import require

_RELATIONS = (NeighboringRelation.REPLACE_ONE,)
_LAPLACE = (Assumption.INDEPENDENT_LAPLACE_NOISE,)
_TOLERANCE: Final = 1e-12  # relative, of the integral


def _positive(**values: float) -> None:
    for name, value in values.items():
        require(0 < value < math.inf, f"{name} is positive and finite")


def _require_growing(start: float, end: float) -> None:
    require(1 < start <= end < math.inf, "1 < start <= end, both finite")


@theorem(
    id="online-rate-as-printed",
    source="Document 001 (Sordello, Bu, Dong and Su 2021), Section 5, Appendix E and Figure 4",
    status=Status.REFUTED,
    relations=_RELATIONS,
    counterexample="exponent 1.5, Appendix G, record 100: from n 10^5 to 10^6 the distance to the "
    "limit falls to 0.213 of itself, not to 0.833.",
)
def online_gap_ratio(*, start: float, end: float) -> float:
    """How far the online delta's distance to its limit falls as n grows: log(start) / log(end).

    The document reads a rate of 1/log n off a figure. The distance is a tail sum of terms t^-alpha:
    it falls like n^-(alpha-1).

    Args:
        start: number of records, > 1.
        end: number of records, at least start.

    Returns:
        The ratio of the distances. Exact in the limit as claimed, which it is not.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    _require_growing(start, end)
    return math.log(start) / math.log(end)


@theorem(
    id="laplace-schedule-rate",
    source="Document 001 (Sordello, Bu, Dong and Su 2021), Theorem 4, for every learning rate",
    status=Status.REFUTED,
    relations=_RELATIONS,
    assumptions=_LAPLACE,
    counterexample="kappa = 2 L eta/(M (b-a)) = 0.5, C1 100, epsilon 1: from n 10^7 to 10^9 the "
    "distance to the limit falls to 0.1 of itself, not to 0.01.",
)
def laplace_gap_ratio(*, start: float, end: float) -> float:
    """How far the shuffled delta's distance to its limit falls as n grows: start / end.

    delta = delta* + O(1/n) holds where kappa = 2 L eta / (M (b-a)) >= 1. Below, the factor A tends
    to one only like n^-kappa, and so does delta.

    Args:
        start: number of records, > 1.
        end: number of records, at least start.

    Returns:
        The ratio of the distances. Exact in the limit as claimed, which it is not for kappa < 1.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    _require_growing(start, end)
    return start / end


@theorem(
    id="online-limit-as-bound",
    source="Document 001 (Sordello, Bu, Dong and Su 2021), Theorem 6, read as a bound at finite n",
    status=Status.REFUTED,
    relations=_RELATIONS,
    assumptions=_LAPLACE,
    counterexample="Appendix G, record 100: it says 1.559e-8; at n 10^4 delta is 4.15e-7. For "
    "the 10,000th record it is 0.0276, and it tends to one: no guarantee for all records.",
)
def online_laplace_limit(
    *,
    epsilon: float,
    step_sensitivity: float,
    exponent: float,
    constant: float,
    offset: float,
    record: int,
) -> float:
    """Delta of one record in online training with falling Laplace noise, however many come after.

    (1 - e^(epsilon/2) (i^alpha/C1 + C2)^-kappa)_+ exp(int_{i+1}^inf log(1 - c/(x^alpha + C1 C2)))
    with c = C1 e^(epsilon/2). It lies above the limit of delta, which falls as records come; before
    the limit delta is larger.

    Args:
        epsilon: nats, >= 0.
        step_sensitivity: kappa = 2 L eta / (M (b-a)) > 0.
        exponent: alpha > 1.
        constant: C1 > 0.
        offset: C2 >= 1.
        record: i, at least 1.

    Returns:
        delta, in [0, 1]. Upper for the limit only; not for any number of records.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    from scipy import integrate  # half of SciPy comes with it, and few answers need it

    _positive(step_sensitivity=step_sensitivity, constant=constant)
    require(0 <= epsilon < math.inf, "epsilon is finite and not negative")
    require(1 < exponent < math.inf, "exponent is above 1")
    require(1 <= offset < math.inf, "offset is at least 1")
    require(record >= 1, "record is at least 1")
    growth = math.exp(epsilon / 2)
    first = 1 - growth * (float(record) ** exponent / constant + offset) ** -step_sensitivity
    numerator, shift = constant * growth, constant * offset
    if first <= 0 or (record + 1) ** exponent + shift <= numerator:
        return 0.0

    def integrand(u: float) -> float:  # u = x^(1 - alpha) maps (i+1, inf) to a finite interval
        x = u ** (1 / (1 - exponent))
        scaled = math.log1p(-numerator / (x**exponent + shift)) * x**exponent
        return float(scaled / (exponent - 1))

    end = (record + 1.0) ** (1 - exponent)
    integral, _ = integrate.quad(integrand, 0.0, end, epsrel=_TOLERANCE, limit=200)
    return float(first * math.exp(integral))


@theorem(
    id="shuffled-below-random-stop",
    source="Document 001 (Sordello, Bu, Dong and Su 2021), Section 3, after Theorem 2",
    status=Status.REFUTED,
    relations=_RELATIONS,
    counterexample="B 0.9, n 10, against the refined bound: the same at record 1, 6.5 times as "
    "large at record 10.",
)
def shuffled_over_random_stop(*, contraction: float, dataset_size: int) -> float:
    """Ratio of the shuffled delta to that of a random stop: 1 - B^n, said to be below one.

    That is against the coarse bound A/(n (1-B)). The bound that the document itself names for a
    random stop, A (1 - B^(n-i+1))/(n (1-B)), equals the shuffled one at record 1 and is smaller at
    every later record.

    Args:
        contraction: B, in (0, 1).
        dataset_size: n, at least 1.

    Returns:
        The ratio. Upper as claimed, which it is not against the refined bound.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    require(0 < contraction < 1, "contraction lies in (0, 1)")
    require(dataset_size >= 1, "dataset_size is at least 1")
    return -math.expm1(dataset_size * math.log(contraction))


THEOREMS = (
    online_gap_ratio,
    laplace_gap_ratio,
    online_laplace_limit,
    shuffled_over_random_stop,
)
