"""A tiny BERT under the real Trainer, with real records' gradients clipped and noised by Opacus."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from dpledger_client import Client
from opacus import GradSampleModule
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DistributedDPOptimizer, DPOptimizer
from opacus.utils.batch_memory_manager import wrap_data_loader
from torch.utils.data import DataLoader, Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

MARKS: Final = [
    pytest.mark.usefixtures("spool"),
    # Opacus' hooks see tokens, which have no gradient.
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
]
DELTA = 1e-5
DERIVED = ["published", "derived", "declared"]
Make = Callable[..., str]
NOISE = 1.25
LENGTH = 6


class Records(Dataset[dict[str, torch.Tensor]]):
    """Random tokens; whether the first are large."""

    def __init__(self, size: int) -> None:
        coins = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(0, 32, (size, LENGTH), generator=coins)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self.tokens[index]
        return {
            "input_ids": row,
            # Of each record, so that Opacus finds a gradient for each.
            "position_ids": torch.arange(LENGTH),
            "token_type_ids": torch.zeros(LENGTH, dtype=torch.long),
            "labels": (row[:2].sum() > 31).long(),
        }


class ClearSums(TrainerCallback):
    """The Trainer clears the gradients of its model, and not what the optimizer has summed."""

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        given["optimizer"].zero_grad()


class PoissonTrainer(Trainer):
    """Takes each record into each batch by a coin of its own."""

    coins: torch.Generator | None = None

    def get_train_dataloader(self) -> DataLoader[Any]:
        loader = DataLoader(
            self.train_dataset, self.args.train_batch_size, collate_fn=self.data_collator
        )
        batches = DPDataLoader.from_data_loader(loader, generator=self.coins)
        batches.collate_fn = self._collate  # Opacus' fails if the first batch is empty
        return batches

    def _collate(self, records: list[Any]) -> Any:
        return self.data_collator(records) if records else {"labels": torch.zeros(0)}

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        if len(inputs["labels"]):
            return super().training_step(model, inputs, num_items_in_batch)
        for parameter in model.parameters():  # BERT takes no batch of nobody, and noise is due
            parameter.grad_sample = parameter.new_zeros(0, *parameter.shape)
        return torch.zeros(())


class PartsTrainer(PoissonTrainer):
    """Takes each batch in parts of two, as if it were too large for the memory."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        whole = super().get_train_dataloader()
        return wrap_data_loader(data_loader=whole, max_batch_size=2, optimizer=self.optimizer)


def mean_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """Of the batch at hand alone: no record's gradient may depend on the others' number."""
    return torch.nn.functional.cross_entropy(outputs["logits"], labels)


def tiny_bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes = {"vocab_size": 32, "intermediate_size": 8, "max_position_embeddings": LENGTH}
    return BertForSequenceClassification(BertConfig(**shape, **sizes, num_labels=2))


def trainer(
    folder: Path,
    *callbacks: TrainerCallback,
    kind: type[Trainer] = Trainer,
    size: int = 64,
    private: bool = True,
    together: bool = False,
    **arguments: Any,
) -> Trainer:
    """Two passes over 64 records in batches of 8, unless told otherwise."""
    given = {"per_device_train_batch_size": 8, "num_train_epochs": 2, "save_strategy": "no"}
    args = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        remove_unused_columns=False,
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        **{**given, **arguments},
    )
    model: torch.nn.Module = tiny_bert()
    if private:
        model = GradSampleModule(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if private:
        optimizer = (DistributedDPOptimizer if together else DPOptimizer)(
            optimizer,
            noise_multiplier=NOISE,
            max_grad_norm=1.0,
            expected_batch_size=args.per_device_train_batch_size,
        )
    return kind(
        model=model,
        args=args,
        train_dataset=Records(size),
        optimizers=(optimizer, None),
        callbacks=[*callbacks, ClearSums()],
        compute_loss_func=mean_loss,
    )


def weights(made: Trainer) -> list[torch.Tensor]:
    return [each.detach().clone() for each in made.model.parameters()]


def equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def run_name() -> str:
    return f"run-{secrets.token_hex(6)}"


def events(client: Client, run: str) -> list[tuple[int, str, float]]:
    """Steps, sampling and noise of what the ledger has, branch after branch."""
    document = client.ledger(run)
    branches = [document["events"], *(each["events"] for each in document.get("branches", ()))]
    return [
        (each["steps"], each["sampling"]["kind"], each["mechanism"].get("noise_multiplier"))
        for branch in branches
        for each in branch
    ]


def budget_of_some_steps(dataset: Make) -> str:
    return dataset(dataset_size=64, budget={"epsilon": 2.6, "delta": DELTA})


def poisson_trainer(folder: Path, *callbacks: TrainerCallback, **arguments: Any) -> Any:
    made = trainer(folder, *callbacks, kind=PoissonTrainer, **arguments)
    made.coins = torch.Generator().manual_seed(3)
    return made
