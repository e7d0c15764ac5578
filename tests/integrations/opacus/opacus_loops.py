"""Real training with Opacus on the digits of scikit-learn, small enough for a test."""

import sys
from dataclasses import dataclass
from typing import Any, Final

import torch
from dpledger_client import Client, Run
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RECORDS = 400
BATCH = 40  # a rate of 1/10
# Runs a module with the same coins and noise each time. By chance one training in a few hundred is
# worse than what it is compared with.
SEEDED: Final = (
    sys.executable,
    "-c",
    """
import itertools, random, runpy, secrets, sys
import numpy as np
import torch

seeds, draw = itertools.count(1), np.random.default_rng
np.random.default_rng = lambda seed=None: draw(next(seeds) if seed is None else seed)
secrets.randbits = random.Random(1).getrandbits
torch.manual_seed(1)
runpy.run_module(sys.argv.pop(1), run_name="__main__")
""",
)


def data(records: int = RECORDS) -> TensorDataset:
    digits = load_digits()
    images = torch.tensor(digits.images[:records], dtype=torch.float32).unsqueeze(1) / 16
    return TensorDataset(images, torch.tensor(digits.target[:records]))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 10)
    )


@dataclass
class Job:
    """What make_private returned, and the engine it came from."""

    engine: PrivacyEngine
    model: Any
    optimizer: Any
    loader: Any
    criterion: Any


def prepared(
    *,
    accountant: Any = None,
    seed: int = 0,
    noise: float = 1.0,
    loader: Any = None,
    batch: int = BATCH,
    shuffle: bool = True,
    **options: Any,
) -> Job:
    """A job from `make_private`; with an accountant, as the first of the two lines sets it."""
    torch.manual_seed(seed)
    model = network()
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    engine = PrivacyEngine()
    if accountant is not None:
        engine.accountant = accountant
    options.setdefault("max_grad_norm", 1.0)
    made = engine.make_private(
        module=model,
        optimizer=plain,
        data_loader=loader or DataLoader(data(), batch_size=batch, shuffle=shuffle),
        noise_multiplier=noise,
        criterion=nn.CrossEntropyLoss(),
        **options,
    )
    if options.get("grad_sample_mode") == "ghost":
        model, optimizer, criterion, loader = made
    else:
        (model, optimizer, loader), criterion = made, nn.CrossEntropyLoss()
    return Job(engine, model, optimizer, loader, criterion)


def step(job: Job, images: torch.Tensor, labels: torch.Tensor) -> None:
    job.optimizer.zero_grad()
    job.criterion(job.model(images), labels).backward()
    job.optimizer.step()


def train(job: Job, *, passes: int = 1, loader: Any = None) -> None:
    for _ in range(passes):
        for images, labels in loader or job.loader:
            step(job, images, labels)


def train_in_parts(job: Job, *, part: int, passes: int = 1) -> None:
    with BatchMemoryManager(
        data_loader=job.loader, max_physical_batch_size=part, optimizer=job.optimizer
    ) as loader:
        train(job, passes=passes, loader=loader)


def weights(job: Job) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in job.model.parameters()]


def equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


class Counter:
    """How often the wrapped optimizer really stepped."""

    def __init__(self, job: Job) -> None:
        self.steps = 0
        job.optimizer.original_optimizer.register_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        self.steps += 1


def pile(job: Job, height: int, *, flush: bool = True) -> None:
    """A pass with a step for so many batches; the rest of the pass is a step too, if flushed."""
    job.optimizer.zero_grad()
    for number, (images, labels) in enumerate(job.loader, 1):
        job.criterion(job.model(images), labels).backward()
        if number % height == 0 or (flush and number == len(job.loader)):
            job.optimizer.step()
            job.optimizer.zero_grad()


def events(client: Client, run: Run) -> list[tuple[int, float, dict[str, Any]]]:
    """What the ledger has after the end: steps, noise and sampling, run-length encoded."""
    run.finish()
    found = client.ledger(run.name)["events"]
    assert [event["first_step"] for event in found][:1] == [0]
    return [
        (event["steps"], event["mechanism"].get("noise_multiplier", 0.0), event["sampling"])
        for event in found
    ]


# Warnings of the frameworks themselves, in each test module of this folder.
WARNINGS = [
    # Opacus says at each engine that its noise is not from a cryptographic generator.
    "ignore:Secure RNG turned off",
    # torch's backward hooks say that an input needs no gradient, which images never do.
    "ignore:Full backward hook is firing",
    # Opacus sees a new dataset object each time that an engine is given another loader.
    "ignore:PrivacyEngine detected new dataset object",
]
