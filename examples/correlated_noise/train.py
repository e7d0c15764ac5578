"""Correlated noise against independent noise at one epsilon, in plain numpy.

    .venv/bin/python -m examples.correlated_noise.train [--quick]

Records are 1,500 of the 1,797 handwritten digits that scikit-learn ships; the others measure
accuracy. Batches come in one fixed order, pass after pass: nothing is amplified by sampling.
"""

import argparse
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from dpledger_client import (
    Client,
    gaussian,
    matrix_gaussian,
    min_separation,
    poisson,
)
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from examples.connection import add_arguments, connected, rounded_up
from examples.correlated_noise.optimizer import (
    CorrelatedDescent,
    Floats,
    sensitivity,
    square_root,
)

RECORDS: Final = 1500
BATCH: Final = 100
SEPARATION: Final = RECORDS // BATCH  # steps from a record's batch to its next one
PASSES: Final = 8  # over the records: all of them are one pass of the noise
STEPS: Final = PASSES * SEPARATION
RATE: Final = 0.5 / BATCH
DELTA: Final = 1e-5
# Noise multipliers at which a training costs epsilon 1, as `POST /v1/plan` with `solve_for` says:
ONE_RELEASE: Final = 3.730632  # of one Gaussian release, which moves by one norm bound
BY_COINS: Final = 2.950485  # of STEPS steps with a batch by Poisson sampling
REPEATS, QUICK_REPEATS = 5, 1
RELATION: Final = "replace_special"

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Method:
    """One way to train: what is added, what is recorded, and who joins a step."""

    name: str
    coefficients: list[float]
    noise: float  # raw noise / norm bound
    mechanism: dict[str, Any]
    sampling: dict[str, Any]
    batches: Callable[[], Iterator[Indices]]


def in_order() -> Iterator[Indices]:
    """The batches of a fixed order that has nothing to do with the digits."""
    order = np.random.default_rng(0).permutation(RECORDS)
    for step in range(STEPS):
        start = step % SEPARATION * BATCH
        yield order[start : start + BATCH]


def by_coins() -> Iterator[Indices]:
    """Each digit joins each step by a secret coin."""
    coins = np.random.default_rng()
    for _ in range(STEPS):
        yield np.flatnonzero(coins.random(RECORDS) < BATCH / RECORDS)


def methods(client: Client) -> list[Method]:
    """Three ways to train at epsilon 1; the first two differ in the coefficients alone."""
    found = []
    for name, coefficients in (
        ("independent noise", [1.0]),
        ("correlated noise", square_root(SEPARATION)),
    ):
        moved = sensitivity(coefficients, separation=SEPARATION, participations=PASSES)
        noise = ONE_RELEASE * moved
        strategy = client.keep_strategy({"kind": "toeplitz", "coefficients": coefficients})
        mechanism = matrix_gaussian(noise_multiplier=noise, strategy=strategy)
        sampling = min_separation(
            steps_per_pass=STEPS, min_separation=SEPARATION, placement="by_slot"
        )
        found.append(Method(name, coefficients, noise, mechanism, sampling, in_order))
    coin = poisson(sampling_probability=BATCH / RECORDS)
    mechanism = gaussian(noise_multiplier=BY_COINS)
    return [*found, Method("independent, Poisson", [1.0], BY_COINS, mechanism, coin, by_coins)]


def digits() -> tuple[Floats, Floats]:
    """Rows of 64 pixels from 0 to 1 and a constant, and the digit of each as a row of 0 and 1."""
    images, labels = load_digits(return_X_y=True)
    return np.column_stack([images / 16, np.ones(len(images))]), np.eye(10)[labels]


def clipped_sum(rows: Floats, labels: Floats, weights: Floats) -> Floats:
    """Gradients of the cross-entropy, each clipped to norm 1, added up; (65, 10)."""
    likely = np.exp(rows @ weights - (rows @ weights).max(axis=1, keepdims=True))
    errors = likely / likely.sum(axis=1, keepdims=True) - labels
    norms = np.linalg.norm(rows, axis=1) * np.linalg.norm(errors, axis=1)
    total: Floats = rows.T @ (errors / np.maximum(1.0, norms)[:, None])
    return total


def train(client: Client, dataset: str, method: Method) -> tuple[float, float]:
    """One recorded training: its accuracy on the other digits, and its certified epsilon."""
    rows, labels = digits()
    descent = CorrelatedDescent(
        np.zeros((rows.shape[1], 10)),
        coefficients=method.coefficients,
        deviation=method.noise,
        rate=RATE,
    )
    with client.start_run(
        f"{dataset}-{secrets.token_hex(4)}",
        dataset,
        mechanism=method.mechanism,
        sampling=method.sampling,
        delta=DELTA,
    ) as run:
        for batch in method.batches():
            run.step()  # the first one is charged with all steps of a pass
            descent.step(clipped_sum(rows[batch], labels[batch], descent.weights))
        epsilon = run.guarantee()["epsilon"]
    told = (rows[RECORDS:] @ descent.weights).argmax(axis=1)
    return float(np.mean(told == labels[RECORDS:].argmax(axis=1))), float(epsilon)


Train = Callable[[Client, str, Method], tuple[float, float]]


def compare(
    client: Client, *, repeats: int, trainer: Train = train
) -> dict[str, tuple[list[float], float, float]]:
    """By method: accuracies, the largest epsilon of a training, and the noise multiplier."""
    dataset = f"digits-{secrets.token_hex(4)}"  # names are global and never used again
    client.create_dataset(
        dataset,
        dataset_size=RECORDS,
        neighboring_relation=RELATION,
        privacy_unit="one digit",
        accept=["published", "derived"],
    )
    found = {}
    for method in methods(client):
        made = [trainer(client, dataset, method) for _ in range(repeats)]
        accuracies = [accuracy for accuracy, _ in made]
        found[method.name] = accuracies, max(epsilon for _, epsilon in made), method.noise
    return found


def main(trainer: Train = train) -> None:
    """Train each way, and print what came of it."""
    parser = argparse.ArgumentParser(description="correlated noise against independent noise")
    add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="one training of each kind")
    arguments = parser.parse_args()
    repeats = QUICK_REPEATS if arguments.quick else REPEATS
    with connected(arguments) as client:
        found = compare(client, repeats=repeats, trainer=trainer)
    print(f"{STEPS} steps, delta {DELTA:g}, {repeats} trainings each")
    for name, (accuracies, epsilon, noise) in found.items():
        low, high = min(accuracies), max(accuracies)
        print(
            f"{name:21} noise {noise:6.2f}  epsilon {rounded_up(epsilon):.4f}  "
            f"accuracy {np.mean(accuracies):.1%} ({low:.1%} to {high:.1%})"
        )


if __name__ == "__main__":
    main()
