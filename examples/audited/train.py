"""An audit of a training with 1,000 canaries, of an honest one and of two with a planted fault.

    python -m examples.audited.train --url http://127.0.0.1:8000 [--quick]

The records are synthetic. Each canary has a column of its own, which no other record uses, so that
the model's weights there hold the canary's gradients and noise alone.
"""

import argparse
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import torch
from dpledger_client import Client, gaussian, poisson
from dpledger_client.auditing import OneRunAudit

from examples.connection import add_arguments, connected, rounded_up

Fault = Literal["none", "noise", "sampling"]

RECORDS: Final = 2000
COLUMNS: Final = 32
CLASSES: Final = 10
CANARIES: Final = 1000
GUESSES: Final = 200
CANARY: Final = 10.0  # in its own column: clipped, its gradient is a unit vector there
RATE: Final = 0.25
NOISE_MULTIPLIER: Final = 4.0
NOISE_FAULT: Final = 0.5  # of the declared noise is what the faulty trainer adds
STEPS: Final = 120
LEARNING_RATE: Final = 0.5
DELTA: Final = 1e-3  # an audit says little at a small delta, see README.md
TRAININGS: Final = 5
DATASET_SIZE: Final = RECORDS + CANARIES  # declared before any coin is tossed
FAULTS: Final[tuple[Fault, ...]] = ("none", "noise", "sampling")
LINE: Final = (
    "{fault:9} epsilon <= {certified:.3f}, audit {correct:3} of {guesses}: epsilon >= {least:.3f}"
    "  p {p_value:.2g}  {verdict}"
)


def records_with(included: Sequence[bool]) -> tuple[torch.Tensor, torch.Tensor]:
    """All records and those canaries whose coin says in; features and labels."""
    source = torch.Generator().manual_seed(1)
    centres = 0.45 * torch.randn(CLASSES, COLUMNS, generator=source)
    labels = torch.randint(CLASSES, (RECORDS,), generator=source)
    rows = torch.zeros(RECORDS, COLUMNS + CANARIES)
    rows[:, :COLUMNS] = centres[labels] + torch.randn(RECORDS, COLUMNS, generator=source)
    chosen = torch.tensor([i for i, is_in in enumerate(included) if is_in], dtype=torch.long)
    canaries = torch.zeros(len(chosen), COLUMNS + CANARIES)
    canaries[torch.arange(len(chosen)), COLUMNS + chosen] = CANARY
    return torch.cat([rows, canaries]), torch.cat([labels, torch.zeros_like(chosen)])


def poisson_batches(size: int) -> Iterator[torch.Tensor]:
    """Each record joins each batch by a coin of its own."""
    while True:
        yield torch.nonzero(torch.rand(size) < RATE).flatten()


def shuffled_batches(size: int) -> Iterator[torch.Tensor]:
    """Batches of a shuffled pass, which are not Poisson batches."""
    while True:
        yield from torch.randperm(size).chunk(round(1 / RATE))


def train(run: Any, rows: torch.Tensor, labels: torch.Tensor, fault: Fault) -> torch.Tensor:
    """Train a linear classifier; what its weights were moved by, shape (columns, classes)."""
    weights = torch.zeros(rows.shape[1], CLASSES)
    noise = NOISE_MULTIPLIER * (NOISE_FAULT if fault == "noise" else 1.0)
    batches = (shuffled_batches if fault == "sampling" else poisson_batches)(len(rows))
    for _ in range(STEPS):
        run.step(
            mechanism=gaussian(noise_multiplier=NOISE_MULTIPLIER),
            sampling=poisson(sampling_probability=RATE),
        )
        batch = next(batches)
        errors = torch.softmax(rows[batch] @ weights, dim=1)
        errors[torch.arange(len(batch)), labels[batch]] -= 1
        # The gradient of one record is the outer product of its row and its error.
        norms = rows[batch].norm(dim=1) * errors.norm(dim=1)
        errors /= norms.clamp(min=1.0)[:, None]
        total = rows[batch].T @ errors + noise * torch.randn_like(weights)
        weights -= LEARNING_RATE * total / (RATE * DATASET_SIZE)
    return weights


def scores_of(weights: torch.Tensor) -> list[float]:
    """How far each canary's column was moved towards the canary's label."""
    direction = torch.full((CLASSES,), -1 / CLASSES)
    direction[0] += 1
    return [float(score) for score in weights[COLUMNS:] @ direction]


def audited(client: Client, dataset: str, name: str, fault: Fault) -> dict[str, Any]:
    """Train and audit once; the audit as the service answers it."""
    with client.start_run(name, dataset, delta=DELTA) as run:
        audit = OneRunAudit(
            client, name, canaries=CANARIES, guesses=GUESSES, delta=DELTA, out="absent",
            synthetic=True, view="last_iterate",
        )  # fmt: skip
        rows, labels = records_with(audit.included)
        weights = train(run, rows, labels, fault)
        run.flush()
        return audit.finish(scores_of(weights))


def run_experiment(client: Client, *, trainings: int) -> list[dict[str, Any]]:
    """The audits of some trainings of each kind."""
    dataset = f"audited-{secrets.token_hex(4)}"  # names are global and never used again
    client.create_dataset(
        dataset,
        dataset_size=DATASET_SIZE,
        neighboring_relation="add_or_remove_one",
        privacy_unit="one record",
    )
    return [
        audited(client, dataset, f"{dataset}-{fault}-{number}", fault) | {"fault": fault}
        for fault in FAULTS
        for number in range(trainings)
    ]


def main(given: Sequence[str] | None = None) -> None:
    """Train, audit, and print what each audit found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="one training of each kind")
    arguments = parser.parse_args(given)
    with connected(arguments) as client:
        for found in run_experiment(client, trainings=1 if arguments.quick else TRAININGS):
            compared = found["compared"]
            print(
                LINE.format(
                    fault=found["fault"],
                    certified=rounded_up(compared["epsilon"]),
                    correct=found["correct"],
                    guesses=found["guesses"],
                    least=found["sharper"]["epsilon_at_least"],
                    p_value=compared["p_value"],
                    verdict="CONTRADICTS" if compared["contradicts"] else "no contradiction",
                )
            )


if __name__ == "__main__":
    main()
