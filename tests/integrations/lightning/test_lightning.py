"""The real Trainer of Lightning, with and without the ledger."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning_loops
import pytest
import torch
from dpledger_client import BudgetExhausted, Client, poisson
from dpledger_client.integrations.lightning import LedgerCallback, saved_state
from dpledger_client.training.batch_size_check import SamplingContradicted
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from lightning_loops import (
    DELTA,
    DERIVED,
    MARKS,
    NOISE,
    Make,
    Manual,
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
from opacus.accountants import PRVAccountant

pytestmark = MARKS


class Fails(Callback):
    """As a machine would, after a batch."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def on_train_batch_end(self, trainer: Any, *given: Any) -> None:
        if trainer.fit_loop.total_batch_idx + 1 == self.batches:
            raise RuntimeError("power cut")


@pytest.mark.parametrize(
    ("settings", "arguments", "steps", "sampling"),
    [
        ({}, {}, 16, {"batch_size": 8, "steps_per_pass": 8}),
        # Eight batches by three: the last step of a pass has two.
        ({}, {"accumulate_grad_batches": 3}, 6, {"batch_size": 24, "steps_per_pass": 3}),
        # The ninth batch, of six, is dropped; the third step of a pass has two batches.
        (
            {"size": 70, "drop_last": True},
            {"accumulate_grad_batches": 3},
            6,
            {"batch_size": 24, "steps_per_pass": 3},
        ),
        # Each pass stops early.
        ({}, {"limit_train_batches": 5}, 10, {"batch_size": 8, "steps_per_pass": 5}),
    ],
)
def test_each_optimizer_step_is_in_the_ledger_and_no_weight_differs(
    client: Client,
    dataset: Make,
    tmp_path: Path,
    settings: dict[str, Any],
    arguments: dict[str, Any],
    steps: int,
    sampling: dict[str, Any],
) -> None:
    size = settings.get("size", 64)
    name = dataset(dataset_size=size, relation="replace_special", accept=DERIVED)
    alone, told = Private(), Private()
    torch.manual_seed(7)
    trainer(tmp_path, **arguments).fit(alone, loader(**settings))
    torch.manual_seed(7)
    with client.start_run(run_name(), name, delta=DELTA) as run:
        made = trainer(tmp_path, LedgerCallback(run), **arguments)
        made.fit(told, loader(**settings))
    assert equal(weights(told), weights(alone))
    assert made.global_step == steps == client.run(run.name)["steps"]
    assert client.run(run.name)["state"] == "finished"
    (event,) = client.ledger(run.name)["events"]
    assert event["mechanism"] == {"kind": "gaussian", "noise_multiplier": NOISE}
    assert event["sampling"] == {"kind": "shuffle", "reshuffle": "each_pass", **sampling}


def test_poisson_batches_are_detected_and_cost_what_opacus_says(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    with client.start_run(run_name(), dataset(dataset_size=40), delta=DELTA) as run:
        made = trainer(tmp_path, LedgerCallback(run))
        made.fit(Private(), poisson_loader(40, 2))  # some batches are empty, and steps all the same
    assert made.global_step == 40
    (event,) = client.ledger(run.name)["events"]
    assert event["steps"] == 40
    assert event["sampling"] == {"kind": "poisson", "sampling_probability": 1 / 20}
    opacus = PRVAccountant()
    opacus.history = [(NOISE, 1 / 20, 40)]
    theirs, ours = opacus.get_epsilon(DELTA, eps_error=0.01), client.guarantee(run.name)
    assert ours["epsilon_lower"] <= theirs
    assert theirs - 0.02 <= ours["epsilon"] <= theirs


def test_a_shuffled_loader_that_is_declared_as_poisson_is_recorded_as_shuffle(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    name = dataset(dataset_size=64, relation="replace_special", accept=DERIVED)
    declared = poisson(sampling_probability=1 / 8)
    with client.start_run(run_name(), name, delta=DELTA, sampling=declared) as run:
        made = trainer(tmp_path, LedgerCallback(run))
        with pytest.warns(SamplingContradicted, match="shuffle"):
            made.fit(Private(), loader())
    assert events(client, run.name) == [(16, "shuffle", NOISE)]


@pytest.mark.parametrize("mode", ["leased", "strict"])
def test_a_budget_ends_training_before_the_weights_change(
    client: Client, dataset: Make, tmp_path: Path, mode: Any
) -> None:
    run, module = client.start_run(run_name(), budget_of_some_steps(dataset), mode=mode), Private()
    made = trainer(tmp_path, LedgerCallback(run))
    torch.manual_seed(7)
    with run, pytest.raises(BudgetExhausted):
        made.fit(module, poisson_loader())
    assert 1 < made.global_step < 16
    assert client.run(run.name)["steps"] == made.global_step
    assert equal(weights(module), trained_alone(tmp_path, made.global_step))


def test_a_quiet_end_leaves_what_the_last_admitted_step_left(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    module = Private()
    with client.start_run(run_name(), budget_of_some_steps(dataset)) as run:
        made = trainer(tmp_path, LedgerCallback(run, stop="quietly"))
        torch.manual_seed(7)
        made.fit(module, poisson_loader())
    assert 1 < made.global_step < 16
    assert client.run(run.name)["steps"] == made.global_step
    assert equal(weights(module), trained_alone(tmp_path, made.global_step))
    untouched = Private()
    before = weights(untouched)
    with client.start_run(run_name(), run.dataset) as second:
        made = trainer(tmp_path, LedgerCallback(second, stop="quietly"))
        with pytest.raises(BudgetExhausted):
            made.fit(untouched, poisson_loader())
    assert equal(weights(untouched), before)
    assert client.run(second.name)["steps"] == 0


def test_training_that_may_not_end_quietly_raises(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    with client.start_run(run_name(), budget_of_some_steps(dataset)) as run:
        made = trainer(tmp_path, LedgerCallback(run, stop="quietly"), min_epochs=2)
        with pytest.raises(BudgetExhausted):
            made.fit(Private(), poisson_loader())
    assert client.run(run.name)["steps"] == made.global_step < 16


def test_a_resumed_training_spends_on_a_branch_and_its_broken_pass_as_full(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    name = dataset(dataset_size=64, relation="replace_special", accept=DERIVED)
    saving = ModelCheckpoint(tmp_path / "kept", "{step}", every_n_train_steps=5, save_top_k=-1)
    run = client.start_run(run_name(), name, delta=DELTA)
    made = trainer(tmp_path, LedgerCallback(run), Fails(7), saving, enable_checkpointing=True)
    with pytest.raises(RuntimeError, match="power cut"):
        made.fit(Private(), loader())
    run._writer.leave("left")  # as at the end of a process
    checkpoint = tmp_path / "kept" / "step=5.ckpt"
    with client.start_run(run.name, name, state=saved_state(checkpoint)) as resumed:
        made = trainer(tmp_path, LedgerCallback(resumed))
        made.fit(Private(), loader(), ckpt_path=checkpoint)
        assert made.global_step == 16
    assert client.run(run.name)["steps"] == 7 + 11
    branches = {each["name"]: each["next_step"] for each in client.run(run.name)["branches"]}
    assert branches == {"main": 7, resumed.branch: 16}
    assert events(client, run.name) == [
        (7, "shuffle", NOISE), (3, "full", NOISE), (8, "shuffle", NOISE),
    ]  # fmt: skip
    # A script that sets its seed has the orders of its first start again.
    (branch,) = client.ledger(run.name)["branches"]
    assert branch["events"][-1]["sampling"]["reshuffle"] == "once"
    assert branch.get("order") is None  # so its passes count as told, and one more


def test_a_rewound_training_of_one_process_goes_on_on_a_branch(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    name = dataset(dataset_size=64, relation="replace_special", accept=DERIVED)
    saving = ModelCheckpoint(tmp_path / "kept", "{step}", every_n_epochs=1, save_top_k=-1)
    checkpoint = tmp_path / "kept" / "step=8.ckpt"
    with client.start_run(run_name(), name, delta=DELTA) as run:
        told = LedgerCallback(run)
        trainer(tmp_path, told, saving, enable_checkpointing=True).fit(Private(), loader())
        trainer(tmp_path, told).test(Private(), loader(shuffle=False), ckpt_path=checkpoint)
        assert run.branch == "main"
        trainer(tmp_path, told).fit(Private(), loader(), ckpt_path=checkpoint)
        assert run.branch.startswith("from-8-")
        assert client.run(run.name)["branches"][-1]["order"] is None  # repeated seeds may repeat it
    assert events(client, run.name) == [(16, "shuffle", NOISE), (8, "shuffle", NOISE)]
    torch.save({}, tmp_path / "none.ckpt")
    with pytest.raises(ValueError, match="without a LedgerCallback"):
        saved_state(tmp_path / "none.ckpt")


def test_a_pass_after_one_that_was_broken_off_counts_as_full(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    name = dataset(dataset_size=64, relation="replace_special", accept=DERIVED)
    with client.start_run(run_name(), name, delta=DELTA) as run:
        told, module = LedgerCallback(run), Private()
        trainer(tmp_path, told, max_steps=5).fit(module, loader())
        trainer(tmp_path, told).fit(module, loader())
    assert events(client, run.name) == [
        (5, "shuffle", NOISE), (8, "full", NOISE), (8, "shuffle", NOISE),
    ]  # fmt: skip


def test_modules_that_step_by_themselves_are_counted(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    name = dataset(dataset_size=64, relation="replace_special", accept=DERIVED)
    with client.start_run(run_name(), name, delta=DELTA) as run:
        trainer(tmp_path, LedgerCallback(run)).fit(Manual(), loader())
    assert events(client, run.name) == [(16, "shuffle", NOISE)]
    with client.start_run(run_name(), name, delta=DELTA) as run:
        trainer(tmp_path, LedgerCallback(run, accumulation=4)).fit(Manual(every=4), loader())
    (event,) = client.ledger(run.name)["events"]
    assert (event["steps"], event["sampling"]["batch_size"]) == (4, 32)


def test_several_optimizers_on_a_batch_are_one_step_with_less_noise(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    name = dataset(dataset_size=64, relation="replace_special", accept=DERIVED)
    with client.start_run(run_name(), name, delta=DELTA) as run:
        made = trainer(tmp_path, LedgerCallback(run))
        made.fit(Two(), loader())
    assert made.global_step == 32
    ((steps, sampling, noise),) = events(client, run.name)
    assert (steps, sampling) == (16, "shuffle")
    assert noise == pytest.approx(NOISE / math.sqrt(2))


@pytest.mark.parametrize(
    ("module", "reason"),
    [(Manual(every=2), "after 2 batches"), (Manual(times=2), "steps again on the same batch")],
)
def test_steps_that_are_not_one_a_batch_are_refused(
    client: Client, dataset: Make, tmp_path: Path, module: Manual, reason: str
) -> None:
    name = dataset(dataset_size=64, relation="replace_special", accept=DERIVED)
    with client.start_run(run_name(), name, delta=DELTA) as run:
        made = trainer(tmp_path, LedgerCallback(run))
        with pytest.raises(ValueError, match=reason):
            made.fit(module, loader())
    assert client.run(run.name)["steps"] <= 1


def test_what_cannot_be_told_is_refused(client: Client, dataset: Make, tmp_path: Path) -> None:
    with client.start_run(run_name(), dataset(dataset_size=64), delta=DELTA) as run:
        made = trainer(tmp_path, LedgerCallback(run))
        with pytest.raises(ValueError, match="clips the gradient of a batch"):
            made.fit(Private(private=False), loader())
        with pytest.raises(ValueError, match="several loaders"):
            trainer(tmp_path, LedgerCallback(run)).fit(Private(), [loader(), loader()])
        with pytest.raises(ValueError, match="Several draws"):
            trainer(tmp_path, LedgerCallback(run), accumulate_grad_batches=2).fit(
                Private(), poisson_loader()
            )
        with pytest.raises(ValueError, match="at least 1"):
            LedgerCallback(run, accumulation=0)
        with pytest.raises(ValueError, match="raise or quietly"):
            LedgerCallback(run, stop="loudly")  # type: ignore[arg-type]
    assert client.run(run.name)["steps"] == 0


def test_a_scheduled_accumulation_is_seen(client: Client, dataset: Make, tmp_path: Path) -> None:
    name = dataset(dataset_size=64, relation="replace_special", accept=DERIVED)
    with client.start_run(run_name(), name, delta=DELTA) as run:
        more = GradientAccumulationScheduler(scheduling={0: 1, 1: 2})
        with pytest.warns(SamplingContradicted):
            trainer(tmp_path, LedgerCallback(run), more).fit(Private(), loader())
    first, second = client.ledger(run.name)["events"]
    assert (first["steps"], first["sampling"]["batch_size"]) == (8, 8)
    assert (second["steps"], second["sampling"]["batch_size"]) == (4, 16)


@pytest.mark.parametrize("epsilon", [1000.0, 4.2])
def test_two_processes_stop_at_the_same_step_with_the_same_weights(
    client: Client, dataset: Make, tmp_path: Path, epsilon: float
) -> None:
    budget = {"epsilon": epsilon, "delta": DELTA}
    name = dataset(dataset_size=64, relation="replace_special", accept=DERIVED, budget=budget)
    run, script = run_name(), Path(lightning_loops.__file__).with_name("lightning_ranks.py")
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, *words, run, name, str(tmp_path)], check=True, env=environment, timeout=240
    )
    said = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert said[0] == said[1]
    assert said[0]["steps"] == said[0]["taken"] == client.run(run)["steps"]
    assert said[0]["refused"] == (epsilon < 1000)
    assert (said[0]["taken"] == 16) == (epsilon == 1000)
    assert equal(*(torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)))
    for event in client.ledger(run)["events"]:
        assert event["sampling"]["batch_size"] == 8
        assert event["mechanism"]["noise_multiplier"] == NOISE
