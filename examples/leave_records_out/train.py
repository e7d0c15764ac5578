"""A shuffled loader that leaves a few records out of each pass: as accurate, and far less epsilon.

    python -m examples.leave_records_out.train --url http://127.0.0.1:8000 [--quick]

The records are synthetic: ten classes in 32 dimensions. A linear classifier is trained with Opacus
several times on batches of a plain shuffle, and as often on those of dpledger_client.shuffled.
"""

import argparse
import secrets
import statistics
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from dpledger_client import Client, compare_sampling, shuffled
from dpledger_client.integrations.opacus import LedgerAccountant
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from examples.connection import add_arguments, connected, rounded_up

RECORDS: Final = 20_000
TESTED: Final = 10_000
COLUMNS: Final = 32
CLASSES: Final = 10
BATCH_SIZE: Final = 128  # 156 whole batches, and 32 records
NOISE_MULTIPLIER: Final = 4.0
MAX_GRAD_NORM: Final = 1.0
LEARNING_RATE: Final = 0.2
PASSES: Final = 60
QUICK_PASSES: Final = 2
TRAININGS: Final = 5  # with each loader
QUICK_TRAININGS: Final = 2
DELTA: Final = 1e-5
RELATION: Final = "replace_special"

NAMES: Final = {"as_it_is": "all records", "leave_out": "a few left out"}
PLANNED: Final = {"balls_and_bins": "balls and bins", "poisson": "Poisson"}
LINE: Final = "{name:16} {steps:6} steps  accuracy {mean:.2%} +- {spread:.2%}  epsilon {upper:.4f}"
ONLY_PLANNED: Final = "{name:16} {steps:6} steps  not trained here          epsilon {upper:.4f}"


def mixture() -> tuple[TensorDataset, TensorDataset]:
    """Records to train on, and others to test with; always the same ones."""
    source = torch.Generator().manual_seed(1)
    centres = 0.45 * torch.randn(CLASSES, COLUMNS, generator=source)
    labels = torch.randint(CLASSES, (RECORDS + TESTED,), generator=source)
    rows = centres[labels] + torch.randn(RECORDS + TESTED, COLUMNS, generator=source)
    return (
        TensorDataset(rows[:RECORDS], labels[:RECORDS]),
        TensorDataset(rows[RECORDS:], labels[RECORDS:]),
    )


def loader_of(choice: str, records: TensorDataset) -> DataLoader[Any]:
    """A plain shuffle, whose last batch is smaller, or one that leaves records out."""
    if choice == "as_it_is":
        return DataLoader(records, batch_size=BATCH_SIZE, shuffle=True)
    return DataLoader(records, batch_sampler=shuffled(records, BATCH_SIZE))


def train(accountant: LedgerAccountant, loader: DataLoader[Any], *, passes: int) -> Any:
    """Train for some passes; the model."""
    model = nn.Linear(COLUMNS, CLASSES)
    engine = PrivacyEngine()
    engine.accountant = accountant
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        data_loader=loader,
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=MAX_GRAD_NORM,
        poisson_sampling=False,
    )
    for _ in range(passes):
        for rows, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()
    return model


def accuracy(model: Any, records: TensorDataset) -> float:
    """The share that is told right."""
    rows, labels = records.tensors
    with torch.no_grad():
        return float((model(rows).argmax(dim=1) == labels).float().mean())


def run_experiment(client: Client, *, passes: int, trainings: int) -> list[dict[str, Any]]:
    """Accuracy and epsilon of both loaders, and epsilon of two others by a plan."""
    records, tested = mixture()
    dataset = f"mixture-{secrets.token_hex(4)}"  # names are global and never used again
    client.create_dataset(
        dataset,
        dataset_size=RECORDS,
        neighboring_relation=RELATION,
        privacy_unit="one record",
        accept=["published", "derived"],
    )
    told = []
    for choice, name in NAMES.items():
        found: list[float] = []
        guarantee: Mapping[str, Any] = {}
        for number in range(trainings):
            run_name = f"{dataset}-{choice}-{number}"
            with client.start_run(run_name, dataset, delta=DELTA) as run:
                accountant = LedgerAccountant(run)
                model = train(accountant, loader_of(choice, records), passes=passes)
                found.append(accuracy(model, tested))
                guarantee = run.guarantee()  # that of each training is the same
        told.append(
            {
                "choice": choice,
                "name": name,
                "steps": guarantee["steps"],
                "mean": statistics.mean(found),
                "spread": statistics.stdev(found),
                "accuracies": found,
                "upper": rounded_up(guarantee["epsilon"]),
            }
        )
    return told + planned(client, passes=passes)


def planned(client: Client, *, passes: int) -> list[dict[str, Any]]:
    """The two choices that are not trained here."""
    answers = compare_sampling(
        client, dataset_size=RECORDS, batch_size=BATCH_SIZE, passes=passes,
        noise_multiplier=NOISE_MULTIPLIER, neighboring_relation=RELATION, delta=DELTA,
    )  # fmt: skip
    return [
        {
            "choice": choice,
            "name": name,
            "steps": answers[choice]["event"]["steps"],
            "upper": rounded_up(answers[choice]["epsilon"]),
        }
        for choice, name in PLANNED.items()
    ]


def main(given: Sequence[str] | None = None) -> None:
    """Train, and print accuracy and epsilon of each loader."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="fewer passes and trainings")
    arguments = parser.parse_args(given)
    warnings.filterwarnings("ignore", message="Secure RNG turned off")
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    torch.set_num_threads(1)  # the batches are too small for more
    passes = QUICK_PASSES if arguments.quick else PASSES
    trainings = QUICK_TRAININGS if arguments.quick else TRAININGS
    with connected(arguments) as client:
        told = run_experiment(client, passes=passes, trainings=trainings)
    for one in told:
        print((LINE if "mean" in one else ONLY_PLANNED).format(**one))
    ended = f"{passes} passes, {trainings} trainings of each loader"
    print(f"{ended}, epsilon at delta {DELTA:g} under {RELATION}")


if __name__ == "__main__":
    main()
