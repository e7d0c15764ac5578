"""One training whose every step goes into the ledger."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from dpledger_client import Run, gaussian, no_noise, shuffle

from examples.partial_shuffle.algorithm import Floats, Schedule, accuracy, loss, private_sgd


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How a step is taken."""

    noise_multiplier: float  # noise standard deviation / clipping norm; 0 is no noise
    learning_rate: float


NOISY: Final = Method(
    noise_multiplier=2.0,  # the documents' sigma = 2L
    learning_rate=3e-4,  # larger ones raise the loss: the noise of 2,000 features adds up
)
EXACT: Final = Method(noise_multiplier=0.0, learning_rate=0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A training after some of its steps; a line of the CSV file."""

    run: str
    tau: float
    noise_multiplier: float
    steps: int
    epochs: float
    loss: float  # nats, on the training records
    accuracy: float  # the same
    epsilon: float  # nats, upper: what the service answered to the steps; infinite without noise


def train(
    run: Run, rows: Floats, schedule: Schedule, method: Method, *, checkpoints: int
) -> Iterator[Checkpoint]:
    """Train; say where the training stands at evenly spaced steps, the last one included."""
    trained = private_sgd(
        rows,
        schedule,
        learning_rate=method.learning_rate,
        noise_multiplier=method.noise_multiplier,
        # Seeded by the operating system: the bounds are those of orders that nobody knows.
        orders=np.random.default_rng(),
        noise=np.random.default_rng(),
    )
    noisy = method.noise_multiplier > 0
    mechanism = gaussian(noise_multiplier=method.noise_multiplier) if noisy else no_noise()
    length = schedule.steps_per_pass
    sampling = shuffle(batch_size=1, reshuffle="each_pass", steps_per_pass=length)
    pauses = {schedule.steps * part // checkpoints for part in range(1, checkpoints + 1)}
    run.declare(mechanism=mechanism, sampling=sampling)
    for steps in range(1, schedule.steps + 1):
        run.step()  # counted before it is taken
        weights = next(trained)
        if steps in pauses:
            run.flush()  # no checkpoint is ahead of the ledger
            yield Checkpoint(
                run=run.name,
                tau=float(schedule.tau),
                noise_multiplier=method.noise_multiplier,
                steps=steps,
                epochs=steps / len(rows),
                loss=loss(rows, weights),
                accuracy=accuracy(rows, weights),
                epsilon=math.inf if run.epsilon is None else run.epsilon,
            )
