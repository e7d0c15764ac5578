"""Whose noise a step of Lightning's Trainer has, whoever else uses the run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from dpledger_client import BudgetExhausted, Client, full, gaussian, poisson
from dpledger_client.integrations.lightning import LedgerCallback
from lightning.pytorch import Callback
from lightning_loops import (
    DELTA,
    DERIVED,
    MARKS,
    NOISE,
    Make,
    Meddles,
    PerLayer,
    Private,
    Two,
    budget_of_some_steps,
    equal,
    events,
    loader,
    poisson_loader,
    run_name,
    trained_alone,
    trainer,
    weights,
)
from opacus.utils.batch_memory_manager import wrap_data_loader

pytestmark = MARKS


def test_callbacks_that_take_turns_each_record_their_own_noise(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    with client.start_run(run_name(), dataset(dataset_size=64), delta=DELTA) as run:
        loud, quiet = LedgerCallback(run), LedgerCallback(run)
        for told, noise in ((loud, NOISE), (quiet, 5.0), (loud, NOISE)):
            trainer(tmp_path, told, max_steps=3).fit(Private(noise=noise), poisson_loader())
    assert events(client, run.name) == [
        (3, "poisson", NOISE), (3, "poisson", 5.0), (3, "poisson", NOISE),
    ]  # fmt: skip


def test_what_others_declare_in_between_changes_no_step(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    class Other(Callback):
        def on_train_batch_start(self, *given: Any) -> None:
            other = poisson(sampling_probability=0.001)
            run.declare(mechanism=gaussian(noise_multiplier=50.0), sampling=other)

    with client.start_run(run_name(), dataset(dataset_size=64), delta=DELTA) as run:
        told = LedgerCallback(run, stop="quietly")
        trainer(tmp_path, told, Other(), max_steps=3).fit(Private(), poisson_loader())
    (event,) = client.ledger(run.name)["events"]
    assert (event["steps"], event["mechanism"]["noise_multiplier"]) == (3, NOISE)
    assert event["sampling"] == poisson(sampling_probability=1 / 8)


def test_a_quiet_end_asks_for_the_step_that_would_come(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    class Other(Callback):
        def on_train_batch_end(self, *given: Any) -> None:
            run.declare(mechanism=gaussian(noise_multiplier=0.01), sampling=full())

    with client.start_run(run_name(), budget_of_some_steps(dataset)) as run:
        told = LedgerCallback(run, stop="quietly")
        made = trainer(tmp_path, Other(), told, max_steps=3)
        made.fit(Private(), poisson_loader())
    assert made.global_step == 3
    assert events(client, run.name) == [(3, "poisson", NOISE)]


def test_noise_that_another_fit_was_read_to_have_is_nobody_elses(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    with client.start_run(run_name(), dataset(dataset_size=64), delta=DELTA) as run:
        trainer(tmp_path, LedgerCallback(run), max_steps=1).fit(Private(), poisson_loader())
        with pytest.raises(ValueError, match="clips the gradient of a batch"):
            trainer(tmp_path, LedgerCallback(run)).fit(Private(private=False), poisson_loader())
    assert client.run(run.name)["steps"] == 1


def test_a_pass_that_another_callback_broke_off_is_seen(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    name = dataset(dataset_size=64, relation="replace_special", accept=DERIVED)
    with client.start_run(run_name(), name, delta=DELTA) as run:
        trainer(tmp_path, LedgerCallback(run), max_steps=5).fit(Private(), loader())
        trainer(tmp_path, LedgerCallback(run)).fit(Private(), loader())
    assert events(client, run.name) == [
        (5, "shuffle", NOISE), (8, "full", NOISE), (8, "shuffle", NOISE),
    ]  # fmt: skip


def lowered(optimizer: Any, batch: int) -> None:
    optimizer.max_grad_norm = 0.2  # as Opacus' schedulers of clipping do


def late_in_parts(optimizer: Any, batch: int) -> None:
    if optimizer._check_skip_next_step(pop_next=False):
        optimizer.max_grad_norm = 1.0
    else:
        optimizer.max_grad_norm = 0.2


def skipped(optimizer: Any, batch: int) -> None:
    optimizer.signal_skip_step(do_skip=batch % 2 == 0)


def untouched(optimizer: Any, batch: int) -> None:
    pass


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Meddles(untouched, backward=2), "2 backward passes"),
        (PerLayer(lowered), r"clipped to 1\.41.* is 0\.2"),
        (Meddles(skipped), "no part of a batch"),
        (Two(skips=True), "one of several optimizers"),
    ],
)
def test_gradients_that_noise_is_not_made_for_are_refused(
    client: Client, dataset: Make, tmp_path: Path, module: Private, reason: str
) -> None:
    with client.start_run(run_name(), dataset(dataset_size=64), delta=DELTA) as run:
        made, before = trainer(tmp_path, LedgerCallback(run)), weights(module)
        with pytest.raises(ValueError, match=reason):
            made.fit(module, poisson_loader())
    assert client.run(run.name)["steps"] == 0
    assert equal(weights(module), before)


def test_a_norm_may_change_between_steps_and_not_between_parts_of_one(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    with client.start_run(run_name(), dataset(dataset_size=64), delta=DELTA) as run:
        trainer(tmp_path, LedgerCallback(run), max_steps=2).fit(Meddles(lowered), poisson_loader())
        per_layer = PerLayer(untouched)
        trainer(tmp_path, LedgerCallback(run), max_steps=2).fit(per_layer, poisson_loader())
        module = Meddles(late_in_parts)
        optimizer = module.configure_optimizers()
        module.configure_optimizers = lambda: optimizer
        parts = wrap_data_loader(
            data_loader=poisson_loader(), max_batch_size=2, optimizer=optimizer
        )
        with pytest.raises(ValueError, match=r"clipped to 1\.0.* is 0\.2"):
            trainer(tmp_path, LedgerCallback(run)).fit(module, parts)
    assert events(client, run.name) == [(4, "poisson", NOISE)]


def test_noise_that_is_lowered_after_its_step_was_counted_is_refused(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    with client.start_run(run_name(), dataset(dataset_size=64), delta=DELTA) as run:
        made, module = trainer(tmp_path, LedgerCallback(run)), Two(then=0.5)
        before = weights(module.second)
        with pytest.raises(ValueError, match="changed after its step was counted"):
            made.fit(module, poisson_loader())
    assert equal(weights(module.second), before)


def test_a_strict_run_is_charged_for_no_step_that_is_not_taken(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    class Quieter(Callback):
        def on_train_batch_start(self, trainer: Any, *given: Any) -> None:
            if trainer.global_step == 2:
                trainer.optimizers[0].noise_multiplier = 2 * NOISE

    with client.start_run(run_name(), dataset(dataset_size=64), mode="strict") as run:
        told = LedgerCallback(run, stop="quietly")
        trainer(tmp_path, told, Quieter(), max_steps=4).fit(Private(), poisson_loader())
        assert client.run(run.name)["steps"] == 4
    assert events(client, run.name) == [(2, "poisson", NOISE), (2, "poisson", 2 * NOISE)]
    module = Private()
    run = client.start_run(run_name(), budget_of_some_steps(dataset), mode="strict")
    made = trainer(tmp_path, LedgerCallback(run, stop="quietly"))
    torch.manual_seed(7)
    with run, pytest.raises(BudgetExhausted):
        made.fit(module, poisson_loader())
    assert client.run(run.name)["steps"] == made.global_step > 1
    assert equal(weights(module), trained_alone(tmp_path, made.global_step))
