"""One trainer: a process with records of its own, which leave it only as a masked noisy sum."""

import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

import numpy as np
from numpy.typing import NDArray

from examples.secure_sum.protocol import ProtocolError, secure_sum
from examples.secure_sum.ring import Integers, Ring, Words

Floats = NDArray[np.float64]

RING: Final = Ring()
STEP: Final = b"step"  # the coordinator's only word
MAX_GRAD_NORM: Final = 1.0
UNITS: Final = 2.0**32  # fixed-point units in 1; a power of two, so that scaling is exact
PART_MAX: Final = 2**53  # units of one trainer's part; up to there floats are whole numbers
TRAINERS_MAX: Final = 1000  # so many such parts stay inside the ring
RECORDS_MAX: Final = 2**20  # of one trainer: so many gradients stay below PART_MAX
# Clipping rounds; a record's gradient must not come out longer than the norm for it.
INSIDE: Final = 1 - 1e-12
DATA_SEED: Final = 2  # of the synthetic records
ALIGNMENT: Final = 1.0  # of a record with the direction that tells the classes apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What all agreed on before the first step; all of it is public.

    Args:
        trainers: n, 3 to TRAINERS_MAX.
        colluders: so many may put together what they know, 0 to n - 2.
        records: of each trainer, 1 to RECORDS_MAX.
        features: d.
        steps: of the run.
        sampling_probability: each trainer lets each of its records join a step by this chance.
        noise_multiplier: noise standard deviation / MAX_GRAD_NORM that is left for the colluders.
        learning_rate: > 0.

    Raises:
        ValueError: the group is too small or too large.
    """

    trainers: int = 4
    colluders: int = 1
    records: int = 500
    features: int = 20
    steps: int = 200
    sampling_probability: float = 0.05
    noise_multiplier: float = 1.5
    learning_rate: float = 1.0

    def __post_init__(self) -> None:
        if not 3 <= self.trainers <= TRAINERS_MAX:
            raise ValueError(f"There must be 3 to {TRAINERS_MAX} trainers.")
        if not 0 <= self.colluders <= self.trainers - 2:
            raise ValueError("At least two trainers must not collude.")
        if not 1 <= self.records <= RECORDS_MAX:
            raise ValueError(f"A trainer must have 1 to {RECORDS_MAX} records.")

    @property
    def noise_share(self) -> float:
        """Standard deviation of one trainer's noise, / MAX_GRAD_NORM.

        Variances add. Colluders know their own shares and take them off; those of the others, at
        least n - colluders, still add up to the noise multiplier.
        """
        return self.noise_multiplier / math.sqrt(self.trainers - self.colluders)

    @property
    def expected_batch_size(self) -> float:
        """Of all trainers together. The size of a batch that was drawn is private."""
        return self.trainers * self.records * self.sampling_probability


def shard(plan: Plan, number: int) -> Floats:
    """Records of one trainer, features times label; they stand for files that only he can read."""
    direction = np.random.default_rng(DATA_SEED).standard_normal(plan.features)
    rng = np.random.default_rng((DATA_SEED, number + 1))
    rows = rng.standard_normal((plan.records, plan.features))
    return np.asarray(rows + ALIGNMENT * direction / np.linalg.norm(direction))


def contribution(
    rows: Floats,
    weights: Floats,
    plan: Plan,
    *,
    coins: np.random.Generator,
    noise: np.random.Generator,
) -> Integers:
    """A trainer's part of a step: its records' clipped gradients and its share of the noise.

    Returns: fixed-point numbers, in units.

    Raises:
        OverflowError: a number is too large for the ring; with Gaussian noise it never is.
    """
    joined = rows[coins.random(len(rows)) < plan.sampling_probability]
    share = noise.normal(0.0, plan.noise_share * MAX_GRAD_NORM * UNITS, size=plan.features)
    part = fixed_point(clipped_gradients(joined, weights)).sum(axis=0) + np.rint(share)
    if not np.abs(part).max() <= PART_MAX:
        raise OverflowError("A contribution does not fit in the ring.")
    return np.asarray(part.astype(np.int64))


def clipped_gradients(rows: Floats, weights: Floats) -> Floats:
    """Of the logistic loss of each record, no longer than MAX_GRAD_NORM."""
    gradients = rows * (0.5 * np.tanh(0.5 * rows @ weights) - 0.5)[:, None]
    lengths = np.linalg.norm(gradients, axis=1, keepdims=True)
    return np.asarray(gradients * np.minimum(1.0, INSIDE * MAX_GRAD_NORM / (lengths + 1e-300)))


def fixed_point(values: Floats) -> Floats:
    """Whole numbers of units, cut off towards zero: no record's contribution becomes longer."""
    return np.asarray(np.trunc(values * UNITS))


def updated(weights: Floats, total: Words, plan: Plan) -> Floats:
    """The weights after a step; everybody computes the same from the sum."""
    gradient = RING.integers(total) / (UNITS * plan.expected_batch_size)
    return np.asarray(weights - plan.learning_rate * gradient)


def work(number: int, plan: Plan, links: Mapping[int, Connection], control: Connection) -> None:
    """A trainer's process: takes a step whenever the coordinator says so, until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the coordinator
    rows, weights = shard(plan, number), np.zeros(plan.features)
    # Seeded by the operating system: batches and noise are unknown to all other parties.
    coins, noise = np.random.default_rng(), np.random.default_rng()
    try:
        while control.recv_bytes() == STEP:
            value = RING.of(contribution(rows, weights, plan, coins=coins, noise=noise))
            total = secure_sum(value, me=number, links=links, ring=RING)
            weights = updated(weights, total, plan)
            control.send_bytes(total.tobytes())
    except (EOFError, OSError, ProtocolError):
        return  # without all trainers there is no sum, and nothing to be done
