"""Whose noise a step of Hugging Face's Trainer has, whoever else uses the run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from dpledger_client import BudgetExhausted, Client, full, gaussian
from dpledger_client.integrations.torch_callbacks import _check_coins
from dpledger_client.integrations.transformers import LedgerCallback
from dpledger_client.loaders import inspect
from transformers import Trainer, TrainerCallback
from transformers_loops import (
    DELTA,
    DERIVED,
    MARKS,
    NOISE,
    Make,
    budget_of_some_steps,
    equal,
    events,
    poisson_trainer,
    run_name,
    trainer,
    weights,
)

pytestmark = MARKS


class Twice(Trainer):
    """Goes through each batch twice."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        super().training_step(model, inputs, num_items_in_batch)
        return super().training_step(model, inputs, num_items_in_batch)


class Other(TrainerCallback):
    """Has a say in the run, and noise of its own."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def on_step_begin(self, *given: Any, **more: Any) -> None:
        self.run.declare(mechanism=gaussian(noise_multiplier=50.0), sampling=full())


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_batch_that_is_gone_through_twice_is_refused(
    client: Client, dataset: Make, tmp_path: Path, accumulation: int
) -> None:
    name = dataset(dataset_size=64, relation="replace_special", accept=DERIVED)
    with client.start_run(run_name(), name, delta=DELTA) as run:
        made = trainer(
            tmp_path, LedgerCallback(run), kind=Twice, gradient_accumulation_steps=accumulation
        )
        before = weights(made)
        with pytest.raises(ValueError, match=f"{2 * accumulation} backward passes"):
            made.train()
    assert equal(weights(made), before)
    assert client.run(run.name)["steps"] == 0


def test_callbacks_that_take_turns_each_record_their_own_noise(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    with client.start_run(run_name(), dataset(dataset_size=64), delta=DELTA) as run:
        loud, quiet = LedgerCallback(run), LedgerCallback(run)
        for told, noise in ((loud, NOISE), (quiet, 5.0), (loud, NOISE)):
            made = poisson_trainer(tmp_path, told, Other(run), max_steps=3)
            made.optimizer.noise_multiplier = noise
            made.train()
    assert events(client, run.name) == [
        (3, "poisson", NOISE), (3, "poisson", 5.0), (3, "poisson", NOISE),
    ]  # fmt: skip


def test_a_strict_run_is_charged_for_no_step_that_is_not_taken(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    with client.start_run(run_name(), dataset(dataset_size=64), mode="strict") as run:
        poisson_trainer(tmp_path, LedgerCallback(run, stop="quietly"), max_steps=3).train()
        assert client.run(run.name)["steps"] == 3
    run = client.start_run(run_name(), budget_of_some_steps(dataset), mode="strict")
    made = poisson_trainer(tmp_path, LedgerCallback(run, stop="quietly"))
    with run, pytest.raises(BudgetExhausted):
        made.train()
    assert client.run(run.name)["steps"] == made.state.global_step > 1
    alone = poisson_trainer(tmp_path, max_steps=made.state.global_step)
    alone.train()
    assert equal(weights(made), weights(alone))


def test_no_seed_leaves_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    def gather(into: list[Any], own: Any) -> None:
        sent.append(own)
        into[:] = [own, *others]

    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    made = poisson_trainer(tmp_path)
    loader = made.get_train_dataloader()
    finding = inspect(loader, declared=None, dataset_size=64)
    others = [b"another's"]
    _check_coins(finding, loader)
    others = list(sent)
    with pytest.raises(ValueError, match="from the same seed"):
        _check_coins(finding, loader)
    assert sent[0] == sent[1]
    assert len(sent[0]) == 32
    assert str(made.coins.initial_seed()).encode() not in (sent[0], sent[0].hex().encode())
    made.coins.manual_seed(4)
    _check_coins(finding, loader)
    assert sent[2] != sent[0]
