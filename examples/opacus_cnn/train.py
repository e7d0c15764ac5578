"""A convolutional network on handwritten digits, privately, with Opacus.

    python -m examples.opacus_cnn.train --url http://127.0.0.1:8000 [--quick]

The digits are scikit-learn's. Training ends with its plan or with its budget, whichever is first.
"""

import argparse
import math
import secrets
import warnings
from collections.abc import Sequence
from typing import Any, Final

import torch
from dpledger_client import BudgetExhausted, Client, Run
from dpledger_client.integrations.opacus import LedgerAccountant
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from examples.connection import add_arguments, connected, rounded_up

RECORDS: Final = 1500  # to train on; the other 297 are held back
BATCH_SIZE: Final = 100  # expected
NOISE_MULTIPLIER: Final = 1.2
MAX_GRAD_NORM: Final = 1.0
LEARNING_RATE: Final = 1.0
DELTA: Final = 1e-5
BUDGET: Final = 6.0
PASSES: Final = 40
QUICK_PASSES: Final = 4

SUMMARY: Final = """{steps} steps, each in the ledger before its noise was drawn{ended}
accuracy {accuracy:.1%} on {tested} other digits
epsilon  {upper:.4f} at delta {delta:g}, which no dataset exceeds; some lose {lower:.4f}
         {opacus:.4f} by Opacus' own accountant"""


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Those to train on, and those to test with."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    return (
        TensorDataset(images[:RECORDS], labels[:RECORDS]),
        TensorDataset(images[RECORDS:], labels[RECORDS:]),
    )


def network() -> nn.Module:
    """Two convolutions and a layer for the ten digits; some 12,000 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 48), nn.Tanh(), nn.Linear(48, 10),
    )  # fmt: skip


def made_private(run: Run | None, dataset: TensorDataset) -> tuple[Any, Any, Any]:
    """Model, optimizer and loader; with the two lines, if there is a run."""
    model = network()
    privacy_engine = PrivacyEngine()
    if run is not None:
        privacy_engine.accountant = LedgerAccountant(run)
    made = privacy_engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        data_loader=DataLoader(dataset, batch_size=BATCH_SIZE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=MAX_GRAD_NORM,
    )
    return made[0], made[1], made[2]


def take_pass(model: Any, optimizer: Any, loader: Any) -> None:
    """As many steps as the loader has batches.

    Raises:
        BudgetExhausted: the next step does not fit; the weights are those before it.
    """
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def accuracy(model: Any, records: TensorDataset) -> float:
    """The share that is told right."""
    images, labels = records.tensors
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == labels).float().mean())


def train(client: Client, *, passes: int) -> dict[str, Any]:
    """Train until the plan or the budget ends; what came of it."""
    trained, tested = digits()
    name = f"digits-{secrets.token_hex(4)}"  # names are global and never used again
    client.create_dataset(
        name,
        dataset_size=RECORDS,
        neighboring_relation="add_or_remove_one",
        privacy_unit="one digit",
        budget={"epsilon": BUDGET, "delta": DELTA},
    )
    ended = ""
    with client.start_run(name, name) as run:
        model, optimizer, loader = made_private(run, trained)
        try:
            for _ in range(passes):
                take_pass(model, optimizer, loader)
        except BudgetExhausted:
            ended = ", until the budget was used up"
        guarantee = run.guarantee()
        return {
            "steps": run.next_step,
            "ended": ended,
            "accuracy": accuracy(model, tested),
            "tested": len(tested),
            "lower": guarantee["epsilon_lower"],
            "upper": guarantee["epsilon"],
            "opacus": by_opacus(run.next_step, 1 / len(loader)),
        }


def by_opacus(steps: int, sample_rate: float) -> float:
    """What Opacus would have printed."""
    accountant = PrivacyEngine().accountant
    accountant.history = [(NOISE_MULTIPLIER, sample_rate, steps)]
    return float(accountant.get_epsilon(DELTA))


def main(given: Sequence[str] | None = None) -> None:
    """Train, and print what it cost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    arguments = parser.parse_args(given)
    warnings.filterwarnings("ignore", message="Secure RNG turned off")
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    warnings.filterwarnings("ignore", message="Optimal order is the largest alpha")
    torch.set_num_threads(1)  # the images are too small for more
    with connected(arguments) as client:
        told = train(client, passes=QUICK_PASSES if arguments.quick else PASSES)
    told["upper"] = rounded_up(told["upper"])
    told["lower"] = math.floor(told["lower"] * 1e4) / 1e4
    print(SUMMARY.format(**told, delta=DELTA))


if __name__ == "__main__":
    main()
