"""Binomial probabilities that keep their digits at a trillion records."""

import math
from typing import Final

TERMS_MAX: Final = 20_000  # of a tail; past them it is bounded, so that a step's time is bounded
HALF_LOG_TAU: Final = 0.5 * math.log(math.tau)
# log(n!) minus Stirling's formula; from 16 on, five terms of its series leave less than 1e-16.
STIRLING_ERRORS: Final = (
    0.0,
    *(
        math.log(math.factorial(n)) - ((n + 0.5) * math.log(n) - n + HALF_LOG_TAU)
        for n in range(1, 16)
    ),
)


def log_mass(size: int, *, trials: int, probability: float) -> float:
    """The log of Pr[Bin(trials, probability) = size].

    Loader's saddle-point form: the sum is of small terms, whereas logs of factorials are of the
    order of `trials` and cancel, which at 1e9 trials leaves seven digits.

    Args:
        size: >= 0.
        trials: in [0, 1e12].
        probability: in [1e-12, 1].

    Returns:
        Nats; -inf where the probability is 0. Off by less than 2e-15 * (1 + standard deviation
        + abs(size - mean) + abs(result)): not exact, so `evidence.ROUNDING` is taken off.
    """
    if probability > 0.5:  # so that 1 - probability below has lost nothing
        return _log_mass(trials - size, trials, 1.0 - probability)
    return _log_mass(size, trials, probability)


def _log_mass(size: int, trials: int, p: float) -> float:
    misses = trials - size
    if size < 0 or misses < 0:
        return -math.inf
    if size == 0:
        return trials * math.log1p(-p)
    if p == 0.0:
        return -math.inf
    if misses == 0:
        return trials * math.log(p)
    mean = trials * p
    excess = size - mean
    return (
        _stirling_error(trials)
        - _stirling_error(size)
        - _stirling_error(misses)
        - _deviance(size, mean, excess)
        - _deviance(misses, trials - mean, -excess)
        + 0.5 * math.log(trials / (math.tau * size * misses))
    )


def _stirling_error(n: int) -> float:
    if n < 16:
        return STIRLING_ERRORS[n]
    s = 1.0 / (n * n)
    return (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - s / 1188) * s) * s) * s) / n


def _deviance(count: int, mean: float, excess: float) -> float:
    """The sum count * log(count / mean) + mean - count, by a series where those would cancel."""
    v = excess / (count + mean)
    if abs(v) > 0.1:
        return count * math.log(count / mean) - excess
    total, term, square, odd = excess * v, 2.0 * count * v, v * v, 3
    while True:
        term *= square
        after = total + term / odd
        if after == total:
            return total
        total, odd = after, odd + 2


def log_tail(size: int, *, trials: int, probability: float) -> tuple[float, float]:
    """Bounds on the log of Pr[Bin(trials, probability) >= size].

    Masses are added from `size` outwards, away from the mean, where each is the one before times
    a ratio below 1 that keeps falling. What is left after `TERMS_MAX` is at most a geometric sum.

    Args:
        size: in [0, trials].
        trials: in [0, 1e12].
        probability: in [1e-12, 1].

    Returns:
        (lower, upper) in nats, apart by less than 1e-10 while the standard deviation is below
        2000. On top comes what `log_mass` is off by.
    """
    if size == 0 or probability == 1.0:
        return 0.0, 0.0
    odds = probability / (1.0 - probability)
    if size > trials * probability:
        first = log_mass(size, trials=trials, probability=probability)
        lower, upper = _outward(size, trials, odds)
        return first + math.log(lower), first + math.log(upper)
    first = math.exp(log_mass(size - 1, trials=trials, probability=probability))
    lower, upper = _outward(trials - size + 1, trials, 1.0 / odds)
    return _log1m(first * upper), _log1m(first * lower)


def _outward(size: int, trials: int, odds: float) -> tuple[float, float]:
    """Bounds on the masses from `size` up, in units of the mass at `size`."""
    total = term = 1.0
    ratio, terms = 0.0, 0
    for terms in range(1, min(trials - size, TERMS_MAX) + 1):
        ratio = (trials - size - terms + 1) / (size + terms) * odds
        term *= ratio
        total += term
        if term < 1e-18 * total:
            break
    rest = term * ratio / (1.0 - ratio) if terms < trials - size else 0.0
    rounding = 2.0**-50 * (terms + 1)  # a ratio is off by three roundings, a sum by one
    return total * (1.0 - rounding), (total + rest) * (1.0 + rounding)


def _log1m(probability: float) -> float:
    return math.log1p(-probability) if probability < 1.0 else -math.inf
