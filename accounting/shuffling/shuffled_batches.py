"""Shuffled passes that leave a record out, with what the answers themselves have shown counted.

partial.py takes it that all earlier steps of a pass might have been ruled out. Noise keeps an
observer from ruling them out: up to a small chance, each counts nearly as much as at the beginning.
docs/theory/shuffled_batches.md has the proofs.
"""

import math
from typing import Final

import numpy as np

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.pld.pairs import GaussianPair, SymmetricPair
from accounting.rounding import (
    LIBRARY_ULPS,
    UNIT_ROUNDOFF,
    Array,
    require,
    rounded_down,
    rounded_up,
)
from accounting.shuffling.likelihood_sums import least_sums
from accounting.shuffling.partial import DATASET_SIZE_MAX

# Steps of a pass whose rates are worked out; of more, each stretch has the rate of its last step.
STEPS_MAX: Final = 4096
RATES: Final = 10  # distinct rates that are composed, where a pass has more than OWN_RATES steps
OWN_RATES: Final = 16  # steps of a pass that keep their own rates
_COINS: Final = 0.125  # of what is set aside, for the coins
_NARROW: Final = 1.001  # a factor between rates below which all have the largest
_COIN_ERROR: Final = 1e-9  # far more than what rounding moves a coin, whose rates differ by 1e-4
PASSES_MAX: Final = 2**40

Rates = tuple[tuple[float, int], ...]  # rising rates, and how many steps count at each


@theorem(
    id="shuffled-batches",
    source="docs/theory/shuffled_batches.md, Theorem 1 and Lemma 4",
    status=Status.DERIVED,
    relations=(NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL),
    assumptions=(
        Assumption.FRESH_SECRET_ORDER,
        Assumption.ONE_STEP_PER_PASS,
        Assumption.INDEPENDENT_GAUSSIAN_NOISE,
        Assumption.PARAMETERS_FIXED_IN_ADVANCE,
    ),
)
def shuffled_batches_pairs(
    *,
    noise_multiplier: float,
    batch_size: int,
    dataset_size: int,
    steps_per_pass: int,
    passes: int,
    delta: float,
) -> tuple[tuple[SymmetricPair, int], ...]:
    """Pairs whose product, with a delta set aside, bounds passes that leave a record out.

    Step t = 0, 1, .. of a pass counts as the symmetrised pair

    ((1-c) N(0, sigma^2) + c N(2, sigma^2), N(0, sigma^2)),  c = 1 / (n/b - t + lambda_t),

    lambda_t being what the likelihood ratios of t - 1 answers add up to but for a chance of
    beta/(2k), and beta the delta of one pass. With H the profile of the product,
    H_a(transcripts) <= H(a) + delta for all a >= 0, in both orders. A published coin rounds each
    rate up or down to one of few and keeps its mean.

    Args:
        noise_multiplier: a lower bound of sigma at all steps, fixed before the passes, > 0.
        batch_size: b, at least 1.
        dataset_size: n, a public constant or less, at most DATASET_SIZE_MAX.
        steps_per_pass: k, at least 1, with k b < n.
        passes: how many began, at least 1, at most PASSES_MAX; fixed in advance.
        delta: set aside for all of them together, in (0, 1).

    Returns:
        Distinct pairs and how many steps of all passes count at each. Upper, in both orders.

    Raises:
        ValueError: an argument is out of range; the text names it.
    """
    require(batch_size >= 1, "batch_size is at least 1")
    require(steps_per_pass >= 1, "steps_per_pass is at least 1")
    require(dataset_size <= DATASET_SIZE_MAX, "dataset_size is at most 2^50")
    # Strictly: with k b = n all rates would still be below one, but nothing is proved.
    require(
        steps_per_pass * batch_size < dataset_size,
        "steps_per_pass times batch_size is below dataset_size",
    )
    require(1 <= passes <= PASSES_MAX, "passes lie in [1, 2^40]")
    require(1e-300 < delta < 1, "delta lies in (1e-300, 1)")
    kept = steps_per_pass <= OWN_RATES
    beta = rounded_down((1.0 if kept else 1 - _COINS) * delta / passes, ulps=4)
    rates, steps = pass_rates(noise_multiplier, batch_size, dataset_size, steps_per_pass, beta)
    if kept:
        counts: Rates = tuple((float(rate), passes) for rate in rates)
    else:
        counts = rounded_rates(rates, [count * passes for count in steps], chance=_COINS * delta)
    half = GaussianPair(noise_multiplier=0.5 * noise_multiplier)
    return tuple(
        (SymmetricPair(near=half, far=half, sampling_probability=rate), count)
        for rate, count in counts
    )


def pass_rates(
    noise_multiplier: float, batch_size: int, dataset_size: int, steps_per_pass: int, beta: float
) -> tuple[Array, list[int]]:
    """Return rising rates of the steps of a pass, and how many steps each stands for.

    Args:
        noise_multiplier: the sigma that the ratios are bounded by.
        batch_size: b.
        dataset_size: n.
        steps_per_pass: k, with k b < n.
        beta: the chance that a pass fails, > 0.

    Returns:
        Upper; at most STEPS_MAX. Rates rise, as lambda_t never grows by more than one a step.
    """
    places = min(steps_per_pass, STEPS_MAX)
    lasts = [(place + 1) * steps_per_pass // places - 1 for place in range(places)]
    steps = np.array(lasts, dtype=np.float64)
    log_chance = math.log(beta) - math.log(2 * steps_per_pass)
    slack = 4 * LIBRARY_ULPS * UNIT_ROUNDOFF * (abs(math.log(beta)) + math.log(2 * steps_per_pass))
    sums = least_sums(noise_multiplier=noise_multiplier, log_chance=log_chance - slack, steps=steps)
    left = np.array([dataset_size - step * batch_size for step in lasts], dtype=np.float64)
    rates = batch_size / (left + batch_size * sums) * (1 + 8 * UNIT_ROUNDOFF)
    counts = np.diff(lasts, prepend=-1).tolist()
    return np.maximum.accumulate(rates), counts


def rounded_rates(rates: Array, counts: list[int], *, chance: float) -> Rates:
    """Return few rates that stand for many: coins round each to a neighbour, keeping its mean.

    As a pair's profile is convex in its rate, the pair is dominated by a published coin that picks
    one of two rates with the same mean. How many steps are rounded up is bounded by Hoeffding's
    inequality, but for the chance.

    Args:
        rates: rising, in (0, 1), shape (k,).
        counts: how many steps have each.
        chance: that more steps are rounded up than are counted; set aside by the caller.

    Returns:
        At most RATES rates. Upper.
    """
    low, high = float(rates[0]), float(rates[-1])
    if high <= _NARROW * low:
        return ((high, sum(counts)),)
    marks = np.geomspace(low, high, RATES)
    marks[0], marks[-1] = low, high
    group = np.clip(np.searchsorted(marks, rates, side="left") - 1, 0, RATES - 2)
    coins = (rates - marks[group]) / (marks[group + 1] - marks[group])
    nats = math.log(RATES - 1) - math.log(chance)
    above = [0] * (RATES + 1)  # how many steps have each mark or a greater one
    above[0] = sum(counts)
    for mark in range(1, RATES):
        inside = np.flatnonzero(group == mark - 1)
        number = sum(counts[step] for step in inside)
        mean = math.fsum(counts[step] * float(coins[step]) for step in inside)
        raised = rounded_up(mean + math.sqrt(0.5 * number * nats), ulps=8) + _COIN_ERROR * number
        beyond = sum(counts[step] for step in np.flatnonzero(group >= mark))
        above[mark] = beyond + min(number, math.ceil(raised))
    found = [(float(marks[mark]), above[mark] - above[mark + 1]) for mark in range(RATES)]
    return tuple((rate, count) for rate, count in found if count)


THEOREMS = (shuffled_batches_pairs,)
