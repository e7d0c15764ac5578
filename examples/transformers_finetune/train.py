"""Fine-tune a tiny BERT on handwritten digits, privately, with the Trainer of Hugging Face.

    python examples/transformers_finetune/train.py [--url URL] [--key KEY] [--quick]

The records are scikit-learn's digits. Some are taken for public, and the model is trained on them
in the usual way; the others are private. README.md says what it takes to have Opacus under the
Trainer.
"""

import argparse
import math
import os
import secrets
import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model is made here; nothing is to be fetched

import torch
from dpledger_client import BudgetExhausted, Client
from dpledger_client.integrations.dp_trainer import DPTrainer
from sklearn.datasets import load_digits
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
)

TOKENS: Final = 16  # of a digit: squares of four pixels, in 17 shades
PUBLIC: Final = 300
TESTED: Final = 297
DELTA: Final = 1e-5
BUDGET: Final = 4.0
BATCH_SIZE: Final = 120  # expected, of 1200

SUMMARY: Final = """{steps} steps, each in the ledger before it was taken{ended}
accuracy {before:.1%} before, {after:.1%} after, on {tested} other digits
epsilon  {epsilon:.4f} (upper, delta {delta:g}), of {budget:g}"""


class Digits(Dataset[dict[str, torch.Tensor]]):
    """Digits as sequences of shades."""

    def __init__(self, rows: slice) -> None:
        data = load_digits()
        pixels = torch.tensor(data.images[rows])
        squares = torch.nn.functional.avg_pool2d(pixels, 2).round().long()
        self.shades = squares.reshape(-1, TOKENS)
        self.labels = torch.tensor(data.target[rows], dtype=torch.long)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {
            "input_ids": self.shades[index],
            "labels": self.labels[index],
        }


def tiny_bert() -> Any:
    """Untrained, with some 14,000 weights."""
    config = BertConfig(
        vocab_size=17, pad_token_id=None, max_position_embeddings=TOKENS, num_labels=10,
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def mean_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """Of the public training."""
    return torch.nn.functional.cross_entropy(outputs["logits"], labels)


def arguments(folder: Path, **given: Any) -> Any:
    """For both trainings; nothing is saved or reported."""
    return TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        remove_unused_columns=False,
        lr_scheduler_type="constant",
        **given,
    )


def accuracy(model: torch.nn.Module, records: Digits) -> float:
    """The share that is told right."""
    model.eval()
    with torch.no_grad():
        batch = torch.utils.data.default_collate([records[index] for index in range(len(records))])
        labels = batch.pop("labels")
        told = model(**batch)["logits"].argmax(dim=1)
    return float((told == labels).float().mean())


def pretrained(folder: Path, passes: int) -> Any:
    """Trained on the public digits, as everybody does it."""
    model = tiny_bert()
    given = {"num_train_epochs": passes, "per_device_train_batch_size": 30, "learning_rate": 3e-3}
    Trainer(
        model=model,
        args=arguments(folder, **given),
        train_dataset=Digits(slice(PUBLIC)),
        compute_loss_func=mean_loss,
    ).train()
    return model


def fine_tune(client: Client, folder: Path, *, quick: bool) -> dict[str, Any]:
    """Train on the private digits until the plan or the budget ends; what came of it."""
    private, tested = Digits(slice(PUBLIC, -TESTED)), Digits(slice(-TESTED, None))
    name = f"digits-{secrets.token_hex(4)}"  # names are global and never used again
    client.create_dataset(
        name,
        dataset_size=len(private),
        neighboring_relation="add_or_remove_one",
        privacy_unit="one digit",
        budget={"epsilon": BUDGET, "delta": DELTA},
    )
    model = pretrained(folder, passes=1 if quick else 20)
    before, stopped = accuracy(model, tested), False
    given = {"max_steps": 3 if quick else 1000, "learning_rate": 3e-3}
    args = arguments(folder, per_device_train_batch_size=BATCH_SIZE, **given)
    with client.start_run(name, name) as run:
        trainer = DPTrainer(
            run=run, model=model, args=args, train_dataset=private,
            noise_multiplier=1.5, clipping_norm=1.0,
        )  # fmt: skip
        try:
            trainer.train()
        except BudgetExhausted:
            stopped = True  # the weights are those of the last step that was admitted
        epsilon = run.guarantee()["epsilon"]
    return {
        "steps": trainer.state.global_step,
        "ended": "; the budget ended training" if stopped else "",
        "before": before,
        "after": accuracy(model, tested),
        "tested": TESTED,
        "epsilon": math.ceil(epsilon * 1e4) / 1e4,  # still an upper bound
        "delta": DELTA,
        "budget": BUDGET,
    }


def main(words: Sequence[str] | None = None) -> None:
    """Print what training brought and what it cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of the service; by default DPLEDGER_URL")
    parser.add_argument("--key", help="API key, admin scope; by default DPLEDGER_API_KEY")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    given = parser.parse_args(words)
    # Opacus' hooks see tokens, which have no gradient; torch says so once.
    warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
    with TemporaryDirectory() as folder, Client(given.url, given.key) as client:
        print(SUMMARY.format(**fine_tune(client, Path(folder), quick=given.quick)))


if __name__ == "__main__":
    main()
