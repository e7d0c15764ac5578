"""A tiny network under Lightning's real Trainer, with records' gradients clipped by Opacus."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from opacus import GradSampleModule
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DistributedDPOptimizer, DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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

    def __init__(self, *, private: bool = True, together: bool = False) -> None:
        super().__init__()
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
        return kind(optimizer, noise_multiplier=NOISE, max_grad_norm=1.0, expected_batch_size=8)


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


class Two(Private):
    """Two layers with an optimizer each, which step one after the other on each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.second = GradSampleModule(nn.Linear(5, 2))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        rows, labels = batch
        for layer, optimizer in zip((self.layer, self.second), self.optimizers(), strict=True):
            optimizer.zero_grad()
            self.manual_backward(nn.functional.cross_entropy(layer(rows), labels))
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
