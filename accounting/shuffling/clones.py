"""Amplification by shuffling, where a batch is one record: it hides among clones of its answer.

A step must be hard to tell apart from itself on any other input. With more than one record in a
batch the inputs are batches, which may be as far apart as all their records; no bound is claimed
then. docs/theory/shuffle.md has the reasons, and how bounds at many epsilons make a pair.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting.events import Direction, NeighboringRelation
from accounting.gaussian import gaussian_delta, gaussian_epsilon
from accounting.guarantees import Assumption, Status, theorem
from accounting.pld.dense_pairs import loss_grid, profile_pair
from accounting.pld.pairs import DensePair, GaussianPair
from accounting.pld.profiles import LIBRARY, LOSS_MAX, profiles
from accounting.rounding import Array, least_true, rounded_up
from accounting.work_limit import spend

SPLITS: Final = 400  # epsilons of a step that are tried at a time
TAIL: Final = 1e-40  # of a pass's profile: what is left where its grid ends is put at infinity
NEAR: Final = 0.1  # delta at which a pass's epsilon is the scale of its grid
GAIN: Final = 1e-6  # relative, by which some delta must fall for a pair to be worth its while
_ROUNDING: Final = 8 * LIBRARY  # relative, of a dozen operations
_CROWD: Final = 16.0  # steps must number this many e^epsilon0 log(4/delta)

_RELATIONS = (NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL)
_ORDER = (Assumption.FRESH_SECRET_ORDER, Assumption.ONE_STEP_PER_PASS)


@theorem(
    id="shuffling-clones",
    source="Feldman, McMillan and Talwar 2021, FOCS, arXiv:2012.12803v3, Theorem 3.1",
    status=Status.PUBLISHED,
    relations=_RELATIONS,
    assumptions=_ORDER,
)
def clones_epsilon(*, epsilon0: float, delta: float, steps_per_pass: int) -> float:
    """Epsilon of n epsilon0-DP steps on one record each, in a secret uniform order.

    log(1 + (e^e0 - 1)/(e^e0 + 1) (8 sqrt(e^e0 log(4/delta) / n) + 8 e^e0 / n))
    if e0 <= log(n / (16 log(4/delta))), else e0.

    Args:
        epsilon0: nats, >= 0; of each step, between any two records, whatever came before.
        delta: in (0, 1].
        steps_per_pass: n, >= 1.

    Returns:
        epsilon in nats, at most epsilon0. Upper, to rounding.

    Raises:
        ValueError: an argument is out of range.
    """
    if not (0 <= epsilon0 < math.inf and 0 < delta <= 1 and steps_per_pass >= 1):
        raise ValueError("epsilon0 is finite and not negative, delta in (0, 1], and steps >= 1.")
    if epsilon0 > math.log(steps_per_pass):  # no crowd at all; the exponential stays a double
        return epsilon0
    share = math.exp(epsilon0) / steps_per_pass * (1 + _ROUNDING)
    needed = (math.log(4) - math.log(delta)) * (1 + _ROUNDING)
    if not _CROWD * share * needed <= 1 - _ROUNDING:
        return epsilon0
    gain = 8 * math.tanh(0.5 * epsilon0) * (math.sqrt(share * needed) + share)
    return min(epsilon0, math.log1p(gain * (1 + _ROUNDING)) * (1 + _ROUNDING))


@dataclass(frozen=True, slots=True)
class _Splits:
    """Ways to see a Gaussian step as (e0, d0)-DP, and what each does to a pass; shape (m,) each."""

    epsilon0: Array
    share: Array  # e^e0 / n; upper
    failure: Array  # (1 + e^-e0 / 2) n d0, upper

    def delta(self, epsilons: Array) -> Array:
        """Delta of a pass by epsilon, at most LOSS_MAX, and split. Upper, shape (k, m).

        With x = (e^epsilon - 1)/(8 tanh(e0/2)) - e^e0/n, the theorem gives epsilon at any delta'
        with log(4/delta') <= x^2 n e^-e0, provided that x <= 1/4; then the failures are added.
        """
        spend(4 * len(epsilons) * len(self.epsilon0))
        # At epsilon = 3 every x is above 1/4.
        gained = np.expm1(np.minimum(epsilons, 3.0))[:, None] / (8 * np.tanh(0.5 * self.epsilon0))
        room = gained * (1 - _ROUNDING) - self.share * (1 + _ROUNDING)
        room = np.clip(room, 0.0, 0.25)
        hidden = 4 * np.exp(-(room**2) / self.share * (1 - _ROUNDING))
        failed = (np.exp(epsilons)[:, None] + 1) * self.failure
        return np.asarray((hidden + failed) * (1 + _ROUNDING))


def _splits(mu: float, steps: int, low: float, high: float) -> _Splits:
    """Splits between two epsilons of a step, the lower one left out."""
    epsilon0 = np.linspace(low, high, SPLITS + 1)[1:]
    delta0 = np.array([gaussian_delta(float(value), mu=mu) for value in epsilon0])
    return _Splits(
        epsilon0=epsilon0,
        share=np.exp(epsilon0) / steps * (1 + _ROUNDING),
        failure=(1 + 0.5 * np.exp(-epsilon0)) * steps * delta0 * (1 + _ROUNDING),
    )


def _all_splits(mu: float, steps: int) -> _Splits | None:
    """Splits of every size that could help; None if there are none."""
    high = math.log(steps / (_CROWD * math.log(4)))
    if not high > 0:
        return None
    return _splits(mu, steps, 0.0, min(high, gaussian_epsilon(TAIL / steps, mu=mu)))


def _distance(noise_multiplier: float) -> float:
    # Any two records are two norm bounds apart, the null record is at most one from each.
    return rounded_up(2 / noise_multiplier)


@theorem(
    id="shuffling-clones-gaussian",
    source="Feldman, McMillan and Talwar 2021, FOCS, arXiv:2012.12803v3, Theorem 3.8",
    status=Status.PUBLISHED,
    relations=_RELATIONS,
    assumptions=(*_ORDER, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def clones_gaussian_epsilon(*, noise_multiplier: float, steps_per_pass: int, delta: float) -> float:
    """Epsilon of one shuffled pass of Gaussian steps on one record each.

    Each step is (e0, d0)-DP between any two records; with e of clones_epsilon at d1, a pass is
    (e, d1 + (e^e + 1)(1 + e^-e0/2) n d0)-DP. The best of many e0 is taken, and never more than
    the one Gaussian of distance 2 / sigma that a pass is.

    Args:
        noise_multiplier: the least sigma of the pass's steps, > 0; noise std / max_grad_norm.
        steps_per_pass: n, >= 1; a pass that stops early counts as a whole one.
        delta: in (0, 1).

    Returns:
        epsilon in nats, >= 0. Upper: at it, delta was evaluated to be small enough.

    Raises:
        ValueError: delta is not in (0, 1).
    """
    mu = _distance(noise_multiplier)
    least = gaussian_epsilon(delta, mu=mu)
    splits = _all_splits(mu, steps_per_pass)
    for _ in range(2):  # the second time around the best split of the first
        high = min(least, LOSS_MAX)
        if splits is None or not _holds(splits, high, delta):
            break
        least = _least_epsilon(splits, high, delta)
        best = int(np.argmin(splits.delta(np.array([least]))[0]))
        step = float(splits.epsilon0[1] - splits.epsilon0[0])
        around = float(splits.epsilon0[best])
        splits = _splits(mu, steps_per_pass, around - step, around + step)
    return least


def _holds(splits: _Splits, epsilon: float, delta: float) -> bool:
    return bool(np.min(splits.delta(np.array([epsilon]))) <= delta)


def _least_epsilon(splits: _Splits, high: float, delta: float) -> float:
    return least_true(lambda epsilon: _holds(splits, epsilon, delta), low=0.0, high=high)


@theorem(
    id="shuffling-clones-pass",
    source="Feldman, McMillan and Talwar 2021, FOCS, arXiv:2012.12803v3, Theorem 3.8",
    status=Status.PUBLISHED,
    relations=_RELATIONS,
    assumptions=(*_ORDER, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def clones_pair(*, noise_multiplier: float, steps_per_pass: int) -> DensePair | None:
    """A pair that dominates one shuffled pass of Gaussian steps on one record each.

    The bound of clones_gaussian_epsilon holds at every epsilon at once, and so does that of one
    Gaussian a pass; what joins the lesser of the two at many epsilons is a profile.

    Args:
        noise_multiplier: the least sigma of the pass's steps, > 0; noise std / max_grad_norm.
        steps_per_pass: n, >= 1; a pass that stops early counts as a whole one.

    Returns:
        The pair, the same in both orders, or None if it would be no better than a Gaussian a pass.
        Upper.
    """
    mu = _distance(noise_multiplier)
    splits, top = _all_splits(mu, steps_per_pass), gaussian_epsilon(TAIL, mu=mu)
    if splits is None or top > LOSS_MAX:
        return None
    scale = clones_gaussian_epsilon(
        noise_multiplier=noise_multiplier, steps_per_pass=steps_per_pass, delta=NEAR
    )
    losses = loss_grid(scale=max(scale, 1e-6), top=top)
    alone = GaussianPair(noise_multiplier=noise_multiplier / 2)
    plain = profiles(alone, direction=Direction.REMOVE, losses=losses)[1]
    amplified = np.min(splits.delta(losses), axis=1)
    if not np.any(amplified < plain * (1 - GAIN)):
        return None
    deltas = np.minimum(amplified, plain)
    return profile_pair(losses, removed=deltas, added=deltas)


THEOREMS = (clones_epsilon, clones_gaussian_epsilon, clones_pair)
