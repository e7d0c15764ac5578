"""Correlated noise against independent noise at one epsilon, with PyTorch.

    python -m examples.correlated_noise.train_torch --url http://127.0.0.1:8000 [--quick]

Records, batches and noise are those of train.py; the gradients are of torch.func.
"""

import secrets

import torch
from dpledger_client import Client
from torch import nn

from examples.correlated_noise.torch_optimizer import CorrelatedOptimizer, gradients_of
from examples.correlated_noise.train import (
    BATCH,
    DELTA,
    RATE,
    RECORDS,
    Method,
    digits,
    main,
)


def train(client: Client, dataset: str, method: Method) -> tuple[float, float]:
    """One recorded training: its accuracy on the other digits, and its certified epsilon."""
    rows, labels = (torch.from_numpy(one) for one in digits())
    model = nn.Linear(rows.shape[1], labels.shape[1], bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    gradients = gradients_of(model, nn.functional.cross_entropy)
    with client.start_run(
        f"{dataset}-{secrets.token_hex(4)}",
        dataset,
        mechanism=method.mechanism,
        sampling=method.sampling,
        delta=DELTA,
    ) as run:
        optimizer = CorrelatedOptimizer(
            torch.optim.SGD(model.parameters(), lr=RATE * BATCH),
            run,
            coefficients=method.coefficients,
            noise_multiplier=method.noise,
            norm_bound=1.0,
            batch_size=BATCH,
        )
        for batch in method.batches():
            optimizer.step(gradients(rows[batch], labels[batch]))
        epsilon = run.guarantee()["epsilon"]
    told = model(rows[RECORDS:]).argmax(dim=1)
    return float((told == labels[RECORDS:].argmax(dim=1)).double().mean()), float(epsilon)


if __name__ == "__main__":
    main(train)
