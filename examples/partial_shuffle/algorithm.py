"""Private SGD whose passes stop early (Algorithm 1 of documents 000 and 004), in plain numpy.

Nothing here knows of a ledger: a step is yielded once it was taken, and whoever asked for it tells.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MAX_GRAD_NORM: Final = 1.0  # L: a record's gradient is clipped to it
ALIGNMENT: Final = 0.15  # of a record with the direction that tells the classes apart
NEWTON_STEPS_MAX: Final = 50  # it takes about six
NEWTON_TOLERANCE: Final = 1e-9  # length of the last step; the loss is off by its square


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long a pass is and how many there are.

    Args:
        tau: the part of the records that a pass uses, in [1 / records, 1].
        records: n, >= 1.
        epochs: how often a record is used on average, >= 1.

    Raises:
        ValueError: tau is out of range.
    """

    tau: Fraction
    records: int
    epochs: int

    def __post_init__(self) -> None:
        if not Fraction(1, self.records) <= self.tau <= 1:
            raise ValueError(f"tau must lie in [1/{self.records}, 1].")

    @property
    def steps_per_pass(self) -> int:
        """floor(tau n); below n, the pass stops early."""
        return int(self.tau * self.records)

    @property
    def passes(self) -> int:
        """floor(epochs / tau); each begins with a fresh order."""
        return int(self.epochs / self.tau)

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return self.passes * self.steps_per_pass


def synthetic(records: int, features: int, *, seed: int) -> Floats:
    """Two classes in many dimensions: a row is a record's features times its label, -1 or 1.

    Rows have length 1, as in the documents' data set, and lean towards one secret direction.
    """
    rng = np.random.default_rng(seed)
    direction = rng.standard_normal(features)
    direction /= np.linalg.norm(direction)
    rows = rng.standard_normal((records, features)) / np.sqrt(features) + ALIGNMENT * direction
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def loss(rows: Floats, weights: Floats) -> float:
    """Mean logistic loss plus |weights|^2 / n, in nats."""
    return float(np.logaddexp(0.0, -rows @ weights).mean() + weights @ weights / len(rows))


def accuracy(rows: Floats, weights: Floats) -> float:
    """Part of the records on the right side, in [0, 1]."""
    return float(np.mean(rows @ weights > 0))


def least_loss(rows: Floats) -> float:
    """The loss that no weights go below, by Newton's method on all records at once.

    Raises:
        ArithmeticError: it did not converge.
    """
    records, features = rows.shape
    weights, identity = np.zeros(features), np.eye(features)
    for _ in range(NEWTON_STEPS_MAX):
        wrong = _chance_of_the_other_class(rows @ weights)
        slope = 2 * weights / records - rows.T @ wrong / records
        bend = (rows.T * (wrong * (1 - wrong))) @ rows / records + 2 / records * identity
        step = np.linalg.solve(bend, slope)
        weights -= step
        if np.linalg.norm(step) < NEWTON_TOLERANCE:
            return loss(rows, weights)
    raise ArithmeticError("Newton's method did not converge.")


def private_sgd(
    rows: Floats,
    schedule: Schedule,
    *,
    learning_rate: float,
    noise_multiplier: float,
    orders: np.random.Generator,
    noise: np.random.Generator,
) -> Iterator[Floats]:
    """The weights after each step; one array, which the next step changes.

    Args:
        rows: (n, d), one record each.
        schedule: how long passes are and how many.
        learning_rate: > 0.
        noise_multiplier: noise standard deviation / MAX_GRAD_NORM, >= 0; at 0 nothing is private.
        orders: draws a fresh order of the records for each pass. Secret: the bounds need it.
        noise: draws the noise; secret, too.
    """
    records, features = rows.shape
    weights = np.zeros(features)
    for _ in range(schedule.passes):
        for record in orders.permutation(records)[: schedule.steps_per_pass]:
            update = _clipped(_gradient(rows[record], weights, records))
            if noise_multiplier > 0:
                update += noise.normal(0.0, noise_multiplier * MAX_GRAD_NORM, size=features)
            weights -= learning_rate * update
            yield weights


def _gradient(row: Floats, weights: Floats, records: int) -> Floats:
    """Of one record's loss, its share of the quadratic term included."""
    return (2 / records) * weights - _chance_of_the_other_class(row @ weights) * row


def _clipped(gradient: Floats) -> Floats:
    length = np.sqrt(gradient @ gradient)
    return gradient * (MAX_GRAD_NORM / length) if length > MAX_GRAD_NORM else gradient


def _chance_of_the_other_class(margins: Floats) -> Floats:
    return np.asarray(0.5 - 0.5 * np.tanh(0.5 * margins))  # 1 / (1 + e^margin), without overflow
