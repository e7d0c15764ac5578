"""DPTrainer: what it counts, refuses, saves and does with empty batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dpledger_client import BudgetExhausted, Client
from dpledger_client.integrations.dp_trainer import DPTrainer
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from transformers import BertForSequenceClassification, TrainingArguments
from transformers_loops import MARKS, Records, tiny_bert

pytestmark = MARKS


class Tokens(Records):
    """Records as a tokenizer leaves them: BERT makes the rest up, once for a batch."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = super().__getitem__(index)
        return {name: row[name] for name in ("input_ids", "labels")}


def arguments(folder: Path, **given: Any) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to=[], disable_tqdm=True,
        logging_strategy="no", **{"save_strategy": "no", "max_steps": 5, **given},
    )  # fmt: skip


def trainer(run: Any, folder: Path, **given: Any) -> Any:
    args = arguments(folder, **given.pop("args", {}))
    return DPTrainer(
        run=run, args=args,
        **{"model": tiny_bert(), "train_dataset": Tokens(64), "noise_multiplier": 1.1,
           "clipping_norm": 1.0, **given},
    )  # fmt: skip


@pytest.fixture
def start(client: Client, dataset: Callable[..., str]) -> Callable[..., Any]:
    def start(**given: Any) -> Any:
        budget = given.pop("budget", None)
        return client.start_run(None, dataset(dataset_size=64, budget=budget), delta=1e-5, **given)

    return start


def test_its_steps_are_in_the_ledger_as_they_are(
    client: Client, start: Callable[..., Any], tmp_path: Path
) -> None:
    with start() as run:
        made = trainer(run, tmp_path)
        made.train()
    (event,) = client.ledger(run.name)["events"]
    assert event["steps"] == 5
    assert event["mechanism"] == {"kind": "gaussian", "noise_multiplier": 1.1}
    assert event["sampling"] == {"kind": "poisson", "sampling_probability": 0.125}
    assert client.run(run.name).sampling_status == "detected"


def test_empty_batches_are_steps_that_add_noise(
    client: Client, start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [[], [3, 5], [], [7]]
    monkeypatch.setattr(UniformWithReplacementSampler, "__iter__", lambda self: iter(batches))
    sizes = []
    with start() as run:
        made = trainer(run, tmp_path, args={"per_device_train_batch_size": 16, "max_steps": 4})
        before = [one.detach().clone() for one in made.trained_model.parameters()]
        step = made.training_step

        def kept(model: Any, inputs: Any, *given: Any) -> Any:
            sizes.append(len(inputs["labels"]) if "labels" in inputs else 0)
            return step(model, inputs, *given)

        made.training_step = kept
        made.train()
    assert sizes == [0, 2, 0, 1]
    assert client.run(run.name).steps == 4
    after = made.trained_model.parameters()
    assert all(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("stop", ["raise", "quietly"])
def test_a_budget_ends_it(start: Callable[..., Any], tmp_path: Path, stop: Any) -> None:
    with start(budget={"epsilon": 8.0, "delta": 1e-5}) as run:
        made = trainer(run, tmp_path, stop=stop, args={"max_steps": 2000})
        if stop == "raise":
            with pytest.raises(BudgetExhausted):
                made.train()
        else:
            made.train()
    assert 0 < made.state.global_step == run.next_step < 2000


def test_it_saves_the_model_that_was_given(start: Callable[..., Any], tmp_path: Path) -> None:
    with start() as run:
        made = trainer(run, tmp_path)
        made.train()
    made.save_model(str(tmp_path / "saved"))
    again = BertForSequenceClassification.from_pretrained(tmp_path / "saved")
    ours = made.trained_model.state_dict()
    assert all(torch.equal(ours[name], value) for name, value in again.state_dict().items())


def mixed(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(outputs["logits"], labels)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"args": {"gradient_accumulation_steps": 2}}, "gradient_accumulation_steps=1"),
        ({"args": {"activation_checkpointing": True}}, "takes no activation_checkpointing"),
        ({"noise_multiplier": 0.0}, "must be positive"),
        ({"clipping_norm": 0.0}, "must be positive"),
        ({"compute_loss_func": mixed}, "takes no compute_loss_func"),
        ({"record_loss": mixed}, "one loss for each record"),
    ],
)
def test_what_is_no_step_of_dp_sgd_is_refused(
    start: Callable[..., Any], tmp_path: Path, given: dict[str, Any], told: str
) -> None:
    with start() as run, pytest.raises(ValueError, match=told):
        trainer(run, tmp_path, **given).train()


def test_labels_of_tokens_need_a_loss_of_records(start: Callable[..., Any], tmp_path: Path) -> None:
    class Many(Tokens):
        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            row = super().__getitem__(index)
            return {**row, "labels": row["input_ids"]}

    with start() as run, pytest.raises(ValueError, match="Give record_loss"):
        trainer(run, tmp_path, train_dataset=Many(64)).train()
