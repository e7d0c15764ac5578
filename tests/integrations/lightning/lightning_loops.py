"""A tiny network under Lightning's real Trainer, with records' gradients clipped by Opacus."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from dpledger_client import Client
from lightning.pytorch import Callback, LightningModule, Trainer
from opacus import GradSampleModule
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DistributedDPOptimizer, DPOptimizer, DPPerLayerOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MARKS: Final = [
    pytest.mark.usefixtures("spool"),
    # Opacus' hooks see records, which have no gradient.
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
    # Lightning asks torch in a way that torch would like to be asked otherwise.
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
    # The data are tiny: one process that reads them is enough.
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The 'test_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    # Where the tests of Slurm run, too.
    pytest.mark.filterwarnings("ignore:The `srun` command is available"),
    # What the tests of checkpoints are about.
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before"),
]
DELTA = 1e-5
DERIVED = ["published", "derived", "declared"]
Make = Callable[..., str]
NOISE = 1.25


def loader(size: int = 64, batch_size: int = 8, **settings: Any) -> DataLoader[Any]:
    """Of random records; shuffled, unless told otherwise."""
    rows = torch.randn(size, 5, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(rows, (rows[:, 0] > 0).long())
    return DataLoader(data, batch_size, **{"shuffle": True, **settings})


def poisson_loader(size: int = 64, batch_size: int = 8) -> DataLoader[Any]:
    coins = torch.Generator().manual_seed(3)
    return DPDataLoader.from_data_loader(loader(size, batch_size), generator=coins)


class Private(LightningModule):
    """A linear layer; its optimizer is Opacus', or plain SGD."""

    def __init__(
        self, *, private: bool = True, together: bool = False, noise: float = NOISE
    ) -> None:
        super().__init__()
        self.noise = noise
        torch.manual_seed(0)
        layer: nn.Module = nn.Linear(5, 2)
        self.layer = GradSampleModule(layer) if private else layer
        self.private, self.together = private, together

    def loss(self, batch: Any) -> torch.Tensor:
        rows, labels = batch
        return nn.functional.cross_entropy(self.layer(rows), labels)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.loss(batch)

    def configure_optimizers(self) -> Any:
        return self.optimizer_of(self.layer)

    def optimizer_of(self, layer: nn.Module) -> Any:
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
        if not self.private:
            return optimizer
        kind = DistributedDPOptimizer if self.together else DPOptimizer
        return kind(
            optimizer, noise_multiplier=self.noise, max_grad_norm=1.0, expected_batch_size=8
        )


class Manual(Private):
    """Steps by itself: after every so many batches, so many times."""

    def __init__(self, *, every: int = 1, times: int = 1, **settings: Any) -> None:
        super().__init__(**settings)
        self.automatic_optimization = False
        self.every, self.times = every, times

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        self.manual_backward(self.loss(batch))
        if (batch_idx + 1) % self.every == 0:
            for _ in range(self.times):
                optimizer.step()
            optimizer.zero_grad()


class Meddles(Private):
    """Goes backward so many times on a batch, and calls something before it steps on that."""

    def __init__(
        self, meddle: Callable[[Any, int], None], *, backward: int = 1, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.automatic_optimization = False
        self.meddle, self.backward_passes = meddle, backward

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        for _ in range(self.backward_passes):
            self.manual_backward(self.loss(batch))
        self.meddle(optimizer.optimizer, batch_idx)
        optimizer.step()


class PerLayer(Meddles):
    """Clips the gradient of each parameter by itself."""

    def optimizer_of(self, layer: nn.Module) -> Any:
        return DPPerLayerOptimizer(
            torch.optim.SGD(layer.parameters(), lr=0.5),
            noise_multiplier=self.noise,
            max_grad_norm=[1.0, 1.0],
            expected_batch_size=8,
        )


class Two(Private):
    """Two layers with an optimizer each, which step one after the other on each batch."""

    def __init__(self, *, then: float = NOISE, skips: bool = False) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.second = GradSampleModule(nn.Linear(5, 2))
        self.then, self.skips = then, skips  # noise of the second, set late; whether the first does

    def training_step(self, batch: Any, batch_idx: int) -> None:
        rows, labels = batch
        for layer, optimizer in zip((self.layer, self.second), self.optimizers(), strict=True):
            optimizer.zero_grad()
            self.manual_backward(nn.functional.cross_entropy(layer(rows), labels))
            if layer is self.second:
                optimizer.optimizer.noise_multiplier = self.then
            elif self.skips:
                optimizer.signal_skip_step()
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [self.optimizer_of(self.layer), self.optimizer_of(self.second)]


def trainer(folder: Path, *callbacks: Callback, **arguments: Any) -> Trainer:
    """Two passes, unless told otherwise; nothing is logged, nothing shown."""
    given = {"max_epochs": 2, "enable_checkpointing": False, "devices": 1}
    return Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **{**given, **arguments},
    )


def weights(module: LightningModule) -> list[torch.Tensor]:
    return [each.detach().clone() for each in module.parameters()]


def equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def run_name() -> str:
    return f"run-{secrets.token_hex(6)}"


def events(client: Client, run: str) -> list[tuple[int, str, float]]:
    """Steps, sampling and noise of what the ledger has, branch after branch."""
    document = client.ledger(run)
    branches = [document["events"], *(each["events"] for each in document.get("branches", ()))]
    return [
        (each["steps"], each["sampling"]["kind"], each["mechanism"]["noise_multiplier"])
        for branch in branches
        for each in branch
    ]


def budget_of_some_steps(dataset: Make) -> str:
    return dataset(dataset_size=64, budget={"epsilon": 2.6, "delta": DELTA})


def trained_alone(folder: Path, steps: int) -> list[torch.Tensor]:
    module = Private()
    torch.manual_seed(7)
    trainer(folder, max_steps=steps).fit(module, poisson_loader())
    return weights(module)
