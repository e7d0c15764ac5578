"""The real Trainer of Hugging Face, with and without the ledger."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers_loops
from dpledger_client import BudgetExhausted, Client, cyclic, full, gaussian, poisson
from dpledger_client.integrations.torch_callbacks import Steps
from dpledger_client.integrations.transformers import LedgerCallback, saved_state
from dpledger_client.training.batch_size_check import SamplingContradicted
from opacus.accountants import PRVAccountant
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizerFastGradientClipping
from transformers import TrainerCallback
from transformers_loops import (
    DELTA,
    DERIVED,
    MARKS,
    NOISE,
    Make,
    PartsTrainer,
    PoissonTrainer,
    budget_of_some_steps,
    equal,
    events,
    poisson_trainer,
    run_name,
    trainer,
    weights,
)

pytestmark = MARKS
SAVING: dict[str, Any] = {"save_strategy": "steps", "save_steps": 5}


class Fails(TrainerCallback):
    """As a machine would, after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step == self.step:
            raise RuntimeError("power cut")


@pytest.mark.parametrize(
    ("arguments", "steps", "sampling"),
    [
        ({}, 16, {"batch_size": 8}),
        # Eight batches by three: the last step of a pass has two.
        ({"gradient_accumulation_steps": 3}, 6, {"batch_size": 24}),
        # The ninth batch, of six, is dropped; the third step of a pass has two batches.
        (
            {"size": 70, "dataloader_drop_last": True, "gradient_accumulation_steps": 3},
            6,
            {"batch_size": 24},
        ),
        # The orders of this Trainer's sampler follow from its seed, and six records are left out.
        (
            {"size": 70, "dataloader_drop_last": True, "max_steps": 11},
            11,
            {"batch_size": 8, "steps_per_pass": 8, "reshuffle": "once"},
        ),
    ],
)
def test_each_optimizer_step_is_in_the_ledger_and_no_weight_differs(
    client: Client,
    dataset: Make,
    tmp_path: Path,
    arguments: dict[str, Any],
    steps: int,
    sampling: dict[str, Any],
) -> None:
    size = arguments.get("size", 64)
    name = dataset(dataset_size=size, relation="replace_special", accept=DERIVED)
    alone = trainer(tmp_path, **arguments)
    assert alone.train().global_step == steps
    with client.start_run(run_name(), name, delta=DELTA) as run:
        told = trainer(tmp_path, LedgerCallback(run), **arguments)
        told.train()
    assert equal(weights(told), weights(alone))
    assert client.run(run.name)["steps"] == steps
    assert client.run(run.name)["state"] == "finished"
    (event,) = client.ledger(run.name)["events"]
    assert event["mechanism"] == {"kind": "gaussian", "noise_multiplier": NOISE}
    length = sampling.get("steps_per_pass", -(-size // sampling["batch_size"]))
    assert event["sampling"] == {
        "kind": "shuffle", "reshuffle": "each_pass", "steps_per_pass": length, **sampling,
    }  # fmt: skip


def test_poisson_batches_are_detected_and_cost_what_opacus_says(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    with client.start_run(run_name(), dataset(dataset_size=40), delta=DELTA) as run:
        made = trainer(
            tmp_path, LedgerCallback(run), kind=PoissonTrainer, size=40,
            per_device_train_batch_size=2,
        )  # fmt: skip
        steps = made.train().global_step  # some batches are empty, and steps all the same
    assert steps == 40
    (event,) = client.ledger(run.name)["events"]
    assert event["steps"] == steps
    assert event["sampling"] == {"kind": "poisson", "sampling_probability": 1 / 20}
    opacus = PRVAccountant()
    opacus.history = [(NOISE, 1 / 20, steps)]
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
            made.train()
    assert events(client, run.name) == [(16, "shuffle", NOISE)]


@pytest.mark.parametrize("mode", ["leased", "strict"])
def test_a_budget_ends_training_before_the_weights_change(
    client: Client, dataset: Make, tmp_path: Path, mode: Any
) -> None:
    run = client.start_run(run_name(), budget_of_some_steps(dataset), mode=mode)
    made = poisson_trainer(tmp_path, LedgerCallback(run))
    with run, pytest.raises(BudgetExhausted):
        made.train()
    taken = made.state.global_step
    assert 1 < taken < 16
    assert client.run(run.name)["steps"] == taken
    alone = poisson_trainer(tmp_path, max_steps=taken)
    alone.train()
    assert equal(weights(made), weights(alone))


def test_a_quiet_end_saves_what_the_last_admitted_step_left(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    with client.start_run(run_name(), budget_of_some_steps(dataset)) as run:
        made = poisson_trainer(tmp_path, LedgerCallback(run, stop="quietly"))
        taken = made.train().global_step
    assert 1 < taken < 16
    assert client.run(run.name)["steps"] == taken
    alone = poisson_trainer(tmp_path, max_steps=taken)
    alone.train()
    assert equal(weights(made), weights(alone))
    with client.start_run(run_name(), run.dataset) as second:
        untouched = poisson_trainer(tmp_path, LedgerCallback(second, stop="quietly"))
        before = weights(untouched)
        with pytest.raises(BudgetExhausted):
            untouched.train()
    assert equal(weights(untouched), before)
    assert client.run(second.name)["steps"] == 0


@pytest.mark.parametrize("restored", [False, True], ids=["", "restored by the Trainer"])
def test_a_resumed_training_spends_on_a_branch_and_its_broken_pass_as_full(
    client: Client, dataset: Make, tmp_path: Path, restored: bool
) -> None:
    name = dataset(dataset_size=64, relation="replace_special", accept=DERIVED)
    run = client.start_run(run_name(), name, delta=DELTA)
    with pytest.raises(RuntimeError, match="power cut"):
        trainer(tmp_path, LedgerCallback(run), Fails(7), **SAVING).train()
    run._writer.leave("left")  # as at the end of a process
    checkpoint = tmp_path / "checkpoint-5"
    with client.start_run(run.name, name, state=saved_state(checkpoint)) as resumed:
        callback = LedgerCallback(resumed)
        made = trainer(tmp_path, callback, restore_callback_states_from_checkpoint=restored)
        assert made.train(resume_from_checkpoint=str(checkpoint)).global_step == 16
    assert client.run(run.name)["steps"] == 7 + 11
    branches = {each["name"]: each["next_step"] for each in client.run(run.name)["branches"]}
    assert branches == {"main": 7, resumed.branch: 16}
    assert events(client, run.name) == [
        (7, "shuffle", NOISE), (3, "full", NOISE), (8, "shuffle", NOISE),
    ]  # fmt: skip
    # The seeds are restored with the rest, and may give an order that was seen before.
    (branch,) = client.ledger(run.name)["branches"]
    assert branch["events"][-1]["sampling"]["reshuffle"] == "once"
    assert branch.get("order") is None  # so its passes count as told, and one more
    # Another run can go on from the checkpoint, too.
    with client.start_run(run_name(), name, delta=DELTA) as another:
        trainer(tmp_path, LedgerCallback(another)).train(resume_from_checkpoint=str(checkpoint))
    assert events(client, another.name) == [(3, "full", NOISE), (8, "shuffle", NOISE)]
    with client.start_run(run_name(), name, delta=DELTA) as another:
        made = trainer(tmp_path, LedgerCallback(another), ignore_data_skip=True)
        made.train(resume_from_checkpoint=str(checkpoint))
    assert events(client, another.name)[0] == (8, "full", NOISE)


def test_a_rewound_training_of_one_process_goes_on_on_a_branch(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    name = dataset(dataset_size=64, relation="replace_special", accept=DERIVED)
    saving = {"save_strategy": "epoch"}
    with client.start_run(run_name(), name, delta=DELTA) as run:
        made = trainer(tmp_path, LedgerCallback(run), **saving)
        made.train()
        made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
        assert run.branch.startswith("from-8-")
        assert client.run(run.name)["branches"][-1]["order"] is None  # repeated seeds may repeat it
    assert client.run(run.name)["steps"] == 16 + 8
    assert events(client, run.name) == [(16, "shuffle", NOISE), (8, "shuffle", NOISE)]
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "trainer_state.json").write_text("{}")
    with pytest.raises(ValueError, match="without a LedgerCallback"):
        saved_state(tmp_path / "none")


def test_a_pass_after_one_that_was_broken_off_counts_as_full(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    name = dataset(dataset_size=64, relation="replace_special", accept=DERIVED)
    with client.start_run(run_name(), name, delta=DELTA) as run:
        made = trainer(tmp_path, LedgerCallback(run), max_steps=5)
        made.train()
        made.args.max_steps = 12
        made.train()
    assert events(client, run.name) == [
        (5, "shuffle", NOISE), (8, "full", NOISE), (4, "shuffle", NOISE),
    ]  # fmt: skip


def test_draws_that_a_checkpoint_would_repeat_are_refused(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    name = dataset(dataset_size=64)
    saving = {"save_strategy": "steps", "save_steps": 3, "max_steps": 4}
    with client.start_run(run_name(), name, delta=DELTA) as run:
        trainer(tmp_path, LedgerCallback(run), kind=PoissonTrainer, **saving).train()
        checkpoint = str(tmp_path / "checkpoint-3")
        again = trainer(tmp_path, LedgerCallback(run), kind=PoissonTrainer)
        with pytest.raises(ValueError, match=r"torch\.Generator of its own"):
            again.train(resume_from_checkpoint=checkpoint)
        anew = poisson_trainer(tmp_path, LedgerCallback(run))
        anew.train(resume_from_checkpoint=checkpoint)
    assert client.run(run.name)["steps"] == 4 + 13


def test_noise_that_nobody_can_know_is_refused(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    name = dataset(dataset_size=64, relation="replace_special", accept=DERIVED)
    with client.start_run(run_name(), name, delta=DELTA) as run:
        with pytest.raises(ValueError, match="clips the gradient of a batch"):
            trainer(tmp_path, LedgerCallback(run), private=False).train()
        with pytest.raises(ValueError, match="noise_multiplier is 2"):
            trainer(tmp_path, LedgerCallback(run, noise_multiplier=2.0)).train()
        with pytest.raises(ValueError, match="finite and at least 0"):
            LedgerCallback(run, noise_multiplier=float("nan"))
        for kind in (AdaClipDPOptimizer, DPOptimizerFastGradientClipping):
            other = trainer(tmp_path, LedgerCallback(run))
            other.optimizer.__class__ = kind
            with pytest.raises(ValueError, match=kind.__name__):
                other.train()
        counted = trainer(tmp_path, LedgerCallback(run))
        counted.optimizer._check_skip_next_step = counted.optimizer._check_skip_next_step
        with pytest.raises(ValueError, match="already"):
            counted.train()
        with pytest.raises(ValueError, match="group_by_length"):
            trainer(
                tmp_path, LedgerCallback(run), train_sampling_strategy="group_by_length"
            ).train()
    assert client.run(run.name)["steps"] == 0


def test_noise_from_elsewhere_is_what_was_declared(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    name = dataset(dataset_size=64, relation="replace_special", accept=DERIVED)
    with client.start_run(run_name(), name, delta=DELTA) as run:
        given = LedgerCallback(run, noise_multiplier=2.0)
        trainer(tmp_path, given, private=False, max_steps=8).train()
    assert events(client, run.name) == [(8, "shuffle", 2.0)]
    mechanism, sampling = gaussian(noise_multiplier=3.0), full()
    with client.start_run(
        run_name(), name, delta=DELTA, mechanism=mechanism, sampling=sampling
    ) as run:
        trainer(tmp_path, LedgerCallback(run), private=False, max_steps=8).train()
    assert events(client, run.name) == [(8, "full", 3.0)]


def test_parts_of_a_batch_are_one_step(client: Client, dataset: Make, tmp_path: Path) -> None:
    with client.start_run(run_name(), dataset(dataset_size=64), delta=DELTA) as run:
        made = trainer(tmp_path, LedgerCallback(run), kind=PartsTrainer)
        draws: list[Any] = []
        made.optimizer.attach_step_hook(draws.append)  # called when noise was drawn
        parts = made.train().global_step
    assert parts > 2 * len(draws) > 0
    assert events(client, run.name) == [(len(draws), "poisson", NOISE)]


def test_what_ranks_may_not_do_together_is_refused(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    name, made = dataset(dataset_size=64), trainer(tmp_path, private=False)
    whole: dict[str, Any] = {"accumulation": 1, "place": (0, 2), "batches": 8, "again": False}
    with client.start_run(run_name(), name, delta=DELTA, world_size=2) as run:
        steps = Steps(run, noise_multiplier=1.0, stop="raise")
        with pytest.raises(ValueError, match="broadcast"):
            steps.begin(made.get_train_dataloader(), [made.optimizer], **whole)
    with client.start_run(
        run_name(), name, delta=DELTA, world_size=2, broadcast=lambda number: number
    ) as run:
        steps = Steps(run, noise_multiplier=1.0, stop="raise")
        with pytest.raises(ValueError, match="take a DistributedSampler"):
            steps.begin(made.get_train_dataloader(), [made.optimizer], **whole)
        alone = trainer(tmp_path).optimizer
        with pytest.raises(ValueError, match="DPOptimizer adds noise in each of 2"):
            Steps(run, noise_multiplier=None, stop="raise").before([alone])
    assert client.run(run.name)["steps"] == 0


def test_a_scheduled_noise_is_read_with_each_step(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    class Quieter(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            made.optimizer.optimizer.noise_multiplier = NOISE * 2

    name = dataset(dataset_size=64, relation="replace_special", accept=DERIVED)
    with client.start_run(run_name(), name, delta=DELTA) as run:
        made = trainer(tmp_path, LedgerCallback(run), Quieter(), max_steps=8)
        made.train()
    assert events(client, run.name) == [(1, "shuffle", NOISE), (7, "shuffle", NOISE * 2)]


@pytest.mark.parametrize("epsilon", [1000.0, 4.2])
def test_two_processes_stop_at_the_same_step_with_the_same_weights(
    client: Client, dataset: Make, tmp_path: Path, epsilon: float
) -> None:
    budget = {"epsilon": epsilon, "delta": DELTA}
    name = dataset(dataset_size=64, relation="replace_special", accept=DERIVED, budget=budget)
    run, script = run_name(), Path(transformers_loops.__file__).with_name("transformers_ranks.py")
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


def test_a_process_that_is_not_the_one_the_run_was_started_for_is_refused(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    run = client.start_run(run_name(), dataset(dataset_size=64), delta=DELTA, world_size=2)
    with run, pytest.raises(ValueError, match="rank 0 of 1"):
        trainer(tmp_path, LedgerCallback(run)).train()


def test_a_dearer_declaration_of_the_order_is_kept(
    client: Client, dataset: Make, tmp_path: Path
) -> None:
    name = dataset(dataset_size=64, relation="replace_special")
    with client.start_run(
        run_name(), name, delta=DELTA, sampling=cyclic(batch_size=8, steps_per_pass=8)
    ) as run:
        trainer(tmp_path, LedgerCallback(run)).train()
    assert events(client, run.name) == [(16, "cyclic", NOISE)]
