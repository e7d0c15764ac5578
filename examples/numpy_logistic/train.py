"""Private logistic regression in plain numpy: a checkpoint, a crash, and a budget that holds.

    .venv/bin/python -m examples.numpy_logistic.train [--epsilon EPSILON]

Records are 455 of the 569 breast cancer cases that scikit-learn ships; the others measure accuracy.
"""

import argparse
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from dpledger_client import BudgetExhausted, Client, Run, gaussian, poisson
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

from examples.connection import add_arguments, connected, rounded_up

Floats = NDArray[np.float64]

RECORDS: Final = 455
SAMPLING_PROBABILITY: Final = 0.1
NOISE_MULTIPLIER: Final = 3.0
MAX_GRAD_NORM: Final = 1.0
LEARNING_RATE: Final = 1.0
DELTA: Final = 1e-4
EPSILON: Final = 2.0  # nats; of all runs on the dataset
CHECKPOINT_STEPS: Final = 100  # then one is saved
LOST_STEPS: Final = 40  # taken after the checkpoint, before the crash
# Units of the 30 columns, to orders of magnitude. Means of the records would tell about them.
UNITS: Final = np.array(
    [
        [10, 10, 100, 1000, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1],  # of means
        [1, 1, 10, 100, 0.01, 0.1, 0.1, 0.01, 0.1, 0.01],  # of standard errors
        [10, 10, 100, 1000, 0.1, 1, 1, 0.1, 1, 0.1],  # of the worst
    ]
).ravel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of the whole training."""

    weights: Floats
    steps: int  # that the weights have taken
    counted: int  # that the ledger counts: those that were lost as well
    guarantee: dict[str, Any]
    accuracy: float  # on cases that nobody trained on


def load() -> tuple[Floats, Floats]:
    """Rows with a constant, in units, and labels -1 and 1; all 569 in the package's order."""
    columns, benign = load_breast_cancer(return_X_y=True)
    rows = np.column_stack([columns / UNITS, np.ones(len(columns))])
    return rows, 2.0 * benign - 1


def noisy_gradient(
    rows: Floats, labels: Floats, weights: Floats, *, noise: np.random.Generator
) -> Floats:
    """Clipped gradients of a batch, summed, with noise, over the expected size of a batch."""
    slopes = -labels * (1 - np.tanh(labels * (rows @ weights) / 2)) / 2
    gradients = slopes[:, None] * rows
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    total = (gradients / np.maximum(1, norms / MAX_GRAD_NORM)).sum(axis=0)
    total += noise.normal(0, NOISE_MULTIPLIER * MAX_GRAD_NORM, len(weights))
    expected: float = SAMPLING_PROBABILITY * RECORDS  # the realised size is private
    return total / expected


def train(run: Run, rows: Floats, labels: Floats, weights: Floats) -> Iterator[Floats]:
    """Weights after each step; ends before the step that the budget refuses."""
    # Seeded by the operating system: a bound for sampled batches is one for secret coins.
    coins, noise = np.random.default_rng(), np.random.default_rng()
    while True:
        batch = np.flatnonzero(coins.random(RECORDS) < SAMPLING_PROBABILITY)
        try:
            run.step(size=len(batch))  # the size stays here; it only tests the declaration
        except BudgetExhausted:
            return
        gradient = noisy_gradient(rows[batch], labels[batch], weights, noise=noise)
        weights = weights - LEARNING_RATE * gradient
        yield weights


def run_experiment(client: Client, *, epsilon: float = EPSILON) -> Outcome:
    """Train to a checkpoint, lose what came after it, and go on until the budget is used up."""
    name = f"cases-{secrets.token_hex(4)}"  # names are global and never used again
    client.create_dataset(
        name,
        dataset_size=RECORDS,
        neighboring_relation="add_or_remove_one",
        privacy_unit="one case",
        budget={"epsilon": epsilon, "delta": DELTA},
    )
    rows, labels = load()
    weights, steps = np.zeros(rows.shape[1]), 0
    with (
        TemporaryDirectory(prefix="dpledger-checkpoint-") as folder,
        client.start_run(
            f"{name}-logistic",
            name,
            mechanism=gaussian(noise_multiplier=NOISE_MULTIPLIER),
            sampling=poisson(sampling_probability=SAMPLING_PROBABILITY),
        ) as run,
    ):
        file = Path(folder) / "checkpoint.json"
        for reached in train(run, rows, labels, weights):
            weights, steps = reached, steps + 1
            if steps == CHECKPOINT_STEPS:
                save(file, run, weights)
            if steps == CHECKPOINT_STEPS + LOST_STEPS:
                break  # as if the machine had failed: these weights are gone
        if steps == CHECKPOINT_STEPS + LOST_STEPS:
            steps, weights = go_on(file, run)
            for reached in train(run, rows, labels, weights):
                weights, steps = reached, steps + 1
        guarantee = run.guarantee()
    return Outcome(
        weights=weights,
        steps=steps,
        counted=guarantee["steps"],
        guarantee=guarantee,
        accuracy=accuracy(rows[RECORDS:], labels[RECORDS:], weights),
    )


def save(file: Path, run: Run, weights: Floats) -> None:
    """Keep the weights together with the place in the ledger that they belong to."""
    file.write_text(json.dumps({"weights": weights.tolist(), "run": run.state_dict()}))


def go_on(file: Path, run: Run) -> tuple[int, Floats]:
    """Steps and weights of a checkpoint. A new process would give its "run" to start_run."""
    checkpoint = json.loads(file.read_text())
    run.load_state_dict(checkpoint["run"])
    return run.next_step, np.array(checkpoint["weights"])


def accuracy(rows: Floats, labels: Floats, weights: Floats) -> float:
    """The part of the rows on the right side."""
    return float(np.mean(rows @ weights * labels > 0))


def main() -> None:
    """Train, and print what it cost."""
    parser = argparse.ArgumentParser(prog="numpy_logistic", description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--epsilon", type=float, default=EPSILON, help="budget, in nats")
    arguments = parser.parse_args()
    with connected(arguments) as client:
        outcome = run_experiment(client, epsilon=arguments.epsilon)
    print(f"The weights took {outcome.steps} steps: then the budget refused the next one.")
    print(f"The ledger counts {outcome.counted}, for those that were lost had been taken, too.")
    epsilon = rounded_up(outcome.guarantee["epsilon"])
    print(f"epsilon {epsilon:.4f} of a budget of {arguments.epsilon:g}, at delta {DELTA:g}")
    print(f"accuracy {outcome.accuracy:.1%} on {569 - RECORDS} other cases")


if __name__ == "__main__":
    main()
