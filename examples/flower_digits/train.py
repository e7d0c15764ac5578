"""Ten clients learn to read digits together, until the budget of the ledger is used up.

    python -m examples.flower_digits.train --url http://127.0.0.1:8000

Flower's simulation with its own strategy for differential privacy, where a record is a client. The
images are those that scikit-learn ships; every client has 150, and 297 measure accuracy.
"""

import argparse
import secrets
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from dpledger_client import Client, Run
from dpledger_client.integrations.flower import LedgerStrategy
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from sklearn.datasets import load_digits

from examples.connection import add_arguments, connected, rounded_up

CLIENTS: Final = 10
IMAGES: Final = 150  # of a client
LOCAL_STEPS: Final = 20
LEARNING_RATE: Final = 0.5
CLIPPING_NORM: Final = 1.0
NOISE_MULTIPLIER: Final = 1.0
ROUNDS: Final = 30  # more than the budget has
EPSILON: Final = 15.0  # nats: ten clients are few, and hide one of them poorly
DELTA: Final = 1e-3

app = ClientApp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of the whole training."""

    rounds: int  # whose model was released
    guarantee: dict[str, Any]
    accuracy: float  # on images of no client


@app.train()
def learn(message: Message, context: Context) -> Message:
    """Some steps of softmax regression on the client's own images."""
    pixels, digits = load_digits(return_X_y=True)
    mine = slice(first := int(context.node_config["partition-id"]) * IMAGES, first + IMAGES)
    rows, labels = pixels[mine] / 16, np.eye(10)[digits[mine]]
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    for _ in range(LOCAL_STEPS):
        scores = np.exp(rows @ weights)
        slope = rows.T @ (scores / scores.sum(axis=1, keepdims=True) - labels) / IMAGES
        weights = weights - LEARNING_RATE * slope
    answer = RecordDict(
        {
            "arrays": ArrayRecord([weights]),
            "metrics": MetricRecord({"num-examples": IMAGES}),  # the same of all: none counts more
        }
    )
    return Message(content=answer, reply_to=message)


def run_experiment(client: Client, *, epsilon: float = EPSILON) -> Outcome:
    """Train until the budget refuses a round."""
    name = f"clients-{secrets.token_hex(4)}"  # names are global and never used again
    client.create_dataset(
        name,
        dataset_size=CLIENTS,
        neighboring_relation="replace_special",
        privacy_unit="one client",
        budget={"epsilon": epsilon, "delta": DELTA, "orders": [2.0]},  # each round is a full batch
    )
    with client.start_run(f"{name}-digits", name, delta=DELTA) as run:
        arrays = federated(run)
        return Outcome(
            rounds=run.next_step, guarantee=run.guarantee(), accuracy=accuracy_of(arrays)
        )


def federated(run: Run) -> ArrayRecord:
    """The model of the last round that the ledger admitted."""
    server, models = ServerApp(), []

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        average = FedAvg(
            fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS
        )
        private = DifferentialPrivacyServerSideFixedClipping(
            average, NOISE_MULTIPLIER, CLIPPING_NORM, CLIENTS
        )
        strategy = LedgerStrategy(private, run, delta=DELTA)
        try:
            strategy.start(grid, ArrayRecord([np.zeros((64, 10))]), num_rounds=ROUNDS)
        except PrivacyBudgetExhausted as refusal:
            print(f"After {strategy.accountant.num_releases} rounds: {refusal}")
        models.append(strategy.arrays)

    resources = {"client_resources": {"num_cpus": 1}}
    run_simulation(server, app, num_supernodes=CLIENTS, backend_config=resources)
    model: ArrayRecord = models[0]
    return model


def accuracy_of(arrays: ArrayRecord) -> float:
    """The part of the other images that the model reads correctly."""
    pixels, digits = load_digits(return_X_y=True)
    (weights,) = arrays.to_numpy_ndarrays()
    others = slice(CLIENTS * IMAGES, None)
    return float(np.mean((pixels[others] @ weights).argmax(axis=1) == digits[others]))


def main() -> None:
    """Train, and print what it cost."""
    parser = argparse.ArgumentParser(prog="flower_digits", description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--epsilon", type=float, default=EPSILON, help="budget, in nats")
    arguments = parser.parse_args()
    with connected(arguments) as client:
        outcome = run_experiment(client, epsilon=arguments.epsilon)
    epsilon = rounded_up(outcome.guarantee["epsilon"])
    print(f"{outcome.rounds} rounds")
    print(f"epsilon {epsilon:.4f} of a budget of {arguments.epsilon:g}, at delta {DELTA:g}")
    print(f"accuracy {outcome.accuracy:.1%} on the images of no client")


if __name__ == "__main__":
    main()
