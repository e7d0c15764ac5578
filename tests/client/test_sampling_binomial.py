import math
from fractions import Fraction

import mpmath
import pytest
from dpledger_client.sampling_check import binomial
from dpledger_client.sampling_check.batch_size_laws import Law
from dpledger_client.sampling_check.betting_alternatives import (
    SHIFTS,
    Bet,
    EachOncePerPass,
    Shifted,
    Spread,
)
from dpledger_client.sampling_check.e_process import ROUNDING

PROBABILITIES = (1e-12, 1e-3, 0.1, 0.3, 0.5, 0.7, 0.999)
LARGE = [
    (10**6, 256 / 60_000),
    (10**6, 1e-6),
    (10**6, 0.3),
    (10**6, 0.999),
    (10**9, 1e-5),
    (10**9, 0.4),
    (10**12, 1e-12),
    (10**12, 0.01),
]
OFFSETS = (-30.0, -6.0, -1.0, -0.01, 0.0, 0.2, 3.0, 12.0, 40.0)  # standard deviations


def exact(size: int, trials: int, p: float) -> Fraction:
    q = Fraction(p)
    return math.comb(trials, size) * q**size * (1 - q) ** (trials - size)


def log_of(value: Fraction) -> float:
    with mpmath.workdps(40):
        return float(mpmath.log(mpmath.mpf(value.numerator) / value.denominator))


def precise(size: int, trials: int, p: float) -> mpmath.mpf:
    choose = mpmath.loggamma(trials + 1) - mpmath.loggamma(size + 1)
    choose -= mpmath.loggamma(trials - size + 1)
    return choose + size * mpmath.log(p) + (trials - size) * mpmath.log1p(-mpmath.mpf(p))


def allowed(law: Law, size: int, log_mass: float) -> float:
    return ROUNDING * (1 + law.sd + abs(size - law.mean) - log_mass)


def sizes_of(law: Law) -> list[int]:
    wanted = {round(law.mean + offset * max(1.0, law.sd)) for offset in OFFSETS}
    return sorted(size for size in wanted if 0 <= size < law.trials)


@pytest.mark.parametrize("probability", PROBABILITIES)
@pytest.mark.parametrize("trials", [1, 2, 7, 15, 16, 17, 60])
def test_masses_of_few_trials_equal_the_rationals(trials: int, probability: float) -> None:
    for size in range(trials + 1):
        mass = binomial.log_mass(size, trials=trials, probability=probability)
        assert mass == pytest.approx(log_of(exact(size, trials, probability)), rel=4e-15, abs=2e-14)


@pytest.mark.parametrize(("trials", "probability"), LARGE)
def test_masses_of_many_trials_keep_their_digits(trials: int, probability: float) -> None:
    law = Law.binomial(trials, probability)
    with mpmath.workdps(60):
        for size in sizes_of(law):
            want = float(precise(size, trials, probability))
            assert abs(law.log_mass(size) - want) < allowed(law, size, want) / 25


def test_a_million_records_cost_no_more_than_two_digits() -> None:
    law = Law.binomial(10**6, 256 / 60_000)
    with mpmath.workdps(60):
        for size in range(4000, 4600, 7):
            want = float(precise(size, 10**6, 256 / 60_000))
            assert law.log_mass(size) == pytest.approx(want, abs=3e-14)


def test_certain_and_impossible_sizes() -> None:
    assert binomial.log_mass(5, trials=5, probability=1.0) == 0
    assert binomial.log_mass(4, trials=5, probability=1.0) == -math.inf
    assert binomial.log_mass(6, trials=5, probability=0.5) == -math.inf
    assert binomial.log_mass(0, trials=0, probability=0.5) == 0


@pytest.mark.parametrize("probability", PROBABILITIES)
@pytest.mark.parametrize("trials", [1, 2, 7, 40])
def test_tails_of_few_trials_enclose_the_rationals(trials: int, probability: float) -> None:
    for size in range(trials + 1):
        lower, upper = binomial.log_tail(size, trials=trials, probability=probability)
        tail = sum(exact(k, trials, probability) for k in range(size, trials + 1))
        want = log_of(Fraction(tail))
        assert lower - 3e-14 * (1 - want) <= want <= upper + 3e-14 * (1 - want)
        assert upper - lower < 1e-12


@pytest.mark.parametrize("offset", [-4.0, -1.0, 0.0, 1.0, 4.0])
@pytest.mark.parametrize(("trials", "probability"), [(60_000, 256 / 60_000), (10**4, 0.3)])
def test_tails_of_many_trials_are_narrow(trials: int, probability: float, offset: float) -> None:
    sd = math.sqrt(trials * probability * (1 - probability))
    size = round(trials * probability + offset * sd)
    lower, upper = binomial.log_tail(size, trials=trials, probability=probability)
    with mpmath.workdps(40):
        terms = (
            mpmath.exp(precise(k, trials, probability))
            for k in range(size, min(trials, size + int(16 * sd)))
        )
        want = float(mpmath.log(mpmath.fsum(terms)))
    assert lower - 1e-12 <= want <= upper + 1e-12
    assert upper - lower < 1e-10


def test_a_tail_too_long_to_add_is_enclosed() -> None:
    trials, size = 10**12, 5 * 10**11 + 250_000
    lower, upper = binomial.log_tail(size, trials=trials, probability=0.5)
    with mpmath.workdps(30):
        normal = float(
            mpmath.log(mpmath.erfc((size - 0.5 - trials / 2) * 2 / 1e6 / mpmath.sqrt(2)) / 2)
        )
    assert lower < normal < upper
    assert upper - lower < 4


def log_g(bet: Bet, law: Law, size: int) -> mpmath.mpf:
    """The log of what a bet proposes for a size below the cap, from its definition."""
    if isinstance(bet, Spread):
        scale = mpmath.mpf(bet.scale) / mpmath.sqrt(
            law.trials * mpmath.mpf(law.probability) * (1 - mpmath.mpf(law.probability))
        )
        # Mirrored to the right of the mean, where the difference keeps its digits.
        excess = abs(size - law.trials * mpmath.mpf(law.probability))
        low, high = (excess - 0.5) * scale, (excess + 0.5) * scale
        return mpmath.log((mpmath.erfc(low) - mpmath.erfc(high)) / 2)
    assert isinstance(bet, EachOncePerPass)
    return precise(size, bet.rest, 1 / bet.left)


@pytest.mark.parametrize(("trials", "probability"), LARGE)
def test_rounding_of_bets_is_within_what_is_taken_off(trials: int, probability: float) -> None:
    law = Law.binomial(trials, probability)
    bets: list[Bet] = [Spread.by(-6), Spread.by(-1), Spread.by(1), Spread.by(6)]
    if probability < 0.5:
        steps = round(1 / probability)
        bets.append(EachOncePerPass(trials, steps, steps, trials))
    with mpmath.workdps(60):
        for size in sizes_of(law):
            want_f = precise(size, trials, probability)
            for bet in bets:
                got, _ = bet.play(size, law, law.log_mass(size))
                want = mpmath.log(0.3 + 0.7 * mpmath.exp(log_g(bet, law, size) - want_f))
                assert got - float(want) < allowed(law, size, float(want_f)) / 2


@pytest.mark.parametrize(("trials", "probability"), LARGE)
@pytest.mark.parametrize("shift", SHIFTS)
def test_rounding_of_shifts_is_within_what_is_taken_off(
    trials: int, probability: float, shift: float
) -> None:
    law = Law.binomial(trials, probability)
    bet = Shifted.by(shift, law)
    if bet is None:
        return
    with mpmath.workdps(60):
        p = mpmath.mpf(probability)
        other = p + mpmath.mpf(shift * law.sd / trials)
        for size in sizes_of(law):
            misses = trials - size
            log_ratio = size * mpmath.log(other / p) + misses * mpmath.log((1 - other) / (1 - p))
            got, _ = bet.play(size, law, law.log_mass(size))
            want = float(mpmath.log(0.3 + 0.7 * mpmath.exp(log_ratio)))
            assert abs(got - want) < allowed(law, size, law.log_mass(size)) / 2
