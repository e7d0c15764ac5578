"""One step in the ledger for each step of Opacus' optimizer, and the same weights as without."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dpledger_client import Client, Run, fixed_size, full, gaussian, poisson
from dpledger_client.integrations.opacus import LedgerAccountant, attach
from opacus.schedulers import ExponentialGradClip, ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus_loops import (
    BATCH,
    RECORDS,
    WARNINGS,
    Counter,
    Job,
    data,
    equal,
    events,
    prepared,
    step,
    train,
    train_in_parts,
    weights,
)
from torch.utils.data import DataLoader

pytestmark = [pytest.mark.filterwarnings(warning) for warning in WARNINGS]
RATE = {"kind": "poisson", "sampling_probability": BATCH / RECORDS}
FULL = {"kind": "full"}
Dataset = Callable[..., str]


def twice(job: Job) -> None:
    train(job, passes=2)


def in_parts(job: Job) -> None:
    train_in_parts(job, part=9, passes=2)


def in_parts_by_workers(job: Job) -> None:
    train_in_parts(job, part=9, passes=2)


LOOPS: dict[str, tuple[Callable[[Job], None], dict[str, Any]]] = {
    "plain": (twice, {}),
    "in parts": (in_parts, {}),
    "ghost": (twice, {"grad_sample_mode": "ghost"}),
    "ghost in parts": (in_parts, {"grad_sample_mode": "ghost"}),
    "per layer": (twice, {"clipping": "per_layer", "max_grad_norm": [0.5] * 4}),
    "in parts by functorch": (in_parts, {"grad_sample_mode": "functorch"}),
}


@pytest.mark.parametrize("how", LOOPS)
def test_the_ledger_has_each_step_once_and_the_weights_are_the_same(
    client: Client, run: Run, how: str
) -> None:
    loop, options = LOOPS[how]
    alone = prepared(**options)
    loop(alone)
    job = prepared(accountant=LedgerAccountant(run), **options)
    counter = Counter(job)
    loop(job)
    assert counter.steps == run.next_step == len(job.engine.accountant) == 20
    assert equal(weights(alone), weights(job))
    assert job.engine.accountant.history == alone.engine.accountant.history == [(1.0, 0.1, 20)]
    assert events(client, run) == [(20, 1.0, RATE)]


def test_attaching_after_make_private_counts_the_same(client: Client, run: Run) -> None:
    alone = prepared()
    train_in_parts(alone, part=15)
    train(alone)
    job = prepared()
    accountant = attach(job.engine, run, optimizer=job.optimizer, data_loader=job.loader)
    assert job.engine.accountant is accountant
    counter = Counter(job)
    train_in_parts(job, part=15)
    train(job)
    assert counter.steps == 20
    assert equal(weights(alone), weights(job))
    assert events(client, run) == [(20, 1.0, RATE)]


def test_workers_that_fetch_ahead_change_nothing(client: Client, observed: Run) -> None:
    loader = DataLoader(
        data(), batch_size=BATCH, shuffle=True, num_workers=1, persistent_workers=True,
        multiprocessing_context="fork",
    )  # fmt: skip
    job = prepared(accountant=LedgerAccountant(observed), loader=loader, poisson_sampling=False)
    train(job, passes=2)
    train_in_parts(job, part=15)
    assert events(client, observed) == [
        (30, 1.0, {"kind": "shuffle", "batch_size": BATCH, "reshuffle": "each_pass",
                   "steps_per_pass": 10})
    ]  # fmt: skip


def test_empty_batches_are_steps(client: Client, dataset: Dataset, spool: Path) -> None:
    run = client.start_run(f"run-{secrets.token_hex(4)}", dataset(dataset_size=30), delta=1e-5)
    job = prepared(accountant=LedgerAccountant(run), loader=DataLoader(data(30)))
    sizes, counter = [], Counter(job)
    for images, labels in job.loader:
        sizes.append(len(labels))
        step(job, images, labels)
    assert 0 in sizes
    assert counter.steps == run.next_step == 30
    assert events(client, run) == [(30, 1.0, poisson(sampling_probability=1 / 30))]


def test_a_noise_scheduler_gives_each_step_its_own_noise(client: Client, run: Run) -> None:
    job = prepared(accountant=LedgerAccountant(run), noise=2.0)
    scheduler = ExponentialNoise(job.optimizer, gamma=0.5)
    for _ in range(3):
        train(job)
        scheduler.step()
    assert events(client, run) == [(10, 2.0, RATE), (10, 1.0, RATE), (10, 0.5, RATE)]


def test_no_noise_is_told(client: Client, observed: Run) -> None:
    job = prepared(accountant=LedgerAccountant(observed), noise=0.0)
    train(job)
    assert events(client, observed) == [(10, 0.0, RATE)]
    assert client.guarantee(observed.name)["epsilon"] is None


# What gradients were clipped to


def test_parts_clipped_to_a_larger_norm_than_the_noise_is_for_are_told(
    client: Client, run: Run
) -> None:
    job = prepared(accountant=LedgerAccountant(run))
    scheduler = ExponentialGradClip(job.optimizer, gamma=0.5)
    for number, (images, labels) in enumerate(job.loader):
        if number == 2:
            break
        job.optimizer.signal_skip_step(do_skip=number == 0)
        step(job, images, labels)
        scheduler.step()
    ((steps, noise, sampling),) = events(client, run)
    assert (steps, sampling) == (1, FULL)
    assert 0.2499 < noise < 0.25  # two draws, clipped to 1 and 0.5, noise for 0.5


@pytest.mark.parametrize(
    "options",
    [
        {"grad_sample_mode": "ghost"},
        {"clipping": "per_layer", "max_grad_norm": [0.5] * 4},
    ],
)
def test_a_clip_scheduler_that_only_noise_follows_is_told(
    client: Client, run: Run, options: dict[str, Any]
) -> None:
    job = prepared(accountant=LedgerAccountant(run), **options)
    scheduler = ExponentialGradClip(job.optimizer, gamma=0.5)
    train(job)
    scheduler.step()
    train(job)
    (_, first, _), (_, second, _) = events(client, run)
    assert first == 1.0
    assert 0.4999 < second < 0.5


def test_a_clip_scheduler_that_clipping_follows_changes_nothing(client: Client, run: Run) -> None:
    job = prepared(accountant=LedgerAccountant(run))
    scheduler = ExponentialGradClip(job.optimizer, gamma=0.5)
    train(job)
    scheduler.step()
    train(job)
    assert events(client, run) == [(20, 1.0, RATE)]


def test_norms_of_layers_that_are_raised_are_told(client: Client, run: Run) -> None:
    options = {"clipping": "per_layer", "max_grad_norm": [0.5] * 4}
    job = prepared(accountant=LedgerAccountant(run), **options)
    job.optimizer.max_grad_norms = [5.0] * 4
    train(job)
    ((steps, noise, _),) = events(client, run)
    assert steps == 10
    assert 0.0999 < noise < 0.1


# What is refused


def test_adaptive_clipping_is_refused(run: Run) -> None:
    with pytest.raises(ValueError, match="AdaClipDPOptimizer cannot be told"):
        prepared(
            accountant=LedgerAccountant(run), clipping="adaptive", target_unclipped_quantile=0.5,
            clipbound_learning_rate=0.1, max_clipbound=10.0, min_clipbound=0.1,
            unclipped_num_std=2.0,
        )  # fmt: skip
    assert run.next_step == 0


def test_adaptive_ghost_clipping_is_refused_at_its_first_step(run: Run) -> None:
    job = prepared(accountant=LedgerAccountant(run), grad_sample_mode="ghost")
    job.optimizer._adjusted_noise_multiplier = 1.1  # as Opacus' adaptive loss does
    before = weights(job)
    with pytest.raises(ValueError, match="Adaptive clipping divides"):
        train(job)
    assert run.next_step == 0
    assert equal(before, weights(job))


def test_steps_are_not_counted_twice(run: Run) -> None:
    job = prepared(accountant=LedgerAccountant(run))
    with pytest.raises(ValueError, match="counted already"):
        attach(None, run, optimizer=job.optimizer, data_loader=job.loader)


def test_steps_before_the_ledger_are_not_forgotten(run: Run) -> None:
    job = prepared()
    train(job)
    with pytest.raises(ValueError, match="taken before"):
        attach(job.engine, run, optimizer=job.optimizer, data_loader=job.loader)


def test_ghost_clipping_needs_its_module(client: Client, run: Run) -> None:
    job = prepared(grad_sample_mode="ghost")
    with pytest.raises(ValueError, match="module"):
        attach(job.engine, run, optimizer=job.optimizer, data_loader=job.loader)
    attach(job.engine, run, optimizer=job.optimizer, data_loader=job.loader, module=job.model)
    train(job)
    assert events(client, run) == [(10, 1.0, RATE)]


def test_a_hook_that_is_attached_by_hand_is_refused(run: Run) -> None:
    with pytest.raises(ValueError, match=r"call attach\(\)"):
        LedgerAccountant(run).get_optimizer_hook_fn(sample_rate=0.1)


def test_a_loop_that_leaves_parts_on_their_way_is_refused(run: Run) -> None:
    job = prepared(accountant=LedgerAccountant(run))
    with BatchMemoryManager(
        data_loader=job.loader, max_physical_batch_size=9, optimizer=job.optimizer
    ) as loader:
        for images, labels in loader:
            if run.next_step == 2:
                break  # its signal was given, its step never taken
            step(job, images, labels)
        with pytest.raises(ValueError, match="left early"):
            next(iter(loader))
    assert run.next_step == 2


# Accountants by hand


def test_a_step_by_hand_needs_a_declaration(client: Client, run: Run) -> None:
    accountant = LedgerAccountant(run)
    accountant.step(noise_multiplier=2.0, sample_rate=0.1)
    run.declare(sampling=poisson(sampling_probability=0.1))
    accountant.step(noise_multiplier=2.0, sample_rate=0.1)
    with pytest.raises(ValueError, match="higher"):
        accountant.step(noise_multiplier=2.0, sample_rate=0.2)
    assert events(client, run) == [(1, 2.0, {"kind": "unknown"}), (1, 2.0, RATE)]


def test_a_step_by_hand_is_held_against_the_declared_rate(client: Client, run: Run) -> None:
    accountant = LedgerAccountant(run)
    run.declare(sampling=poisson(expected_batch_size=BATCH))
    accountant.step(noise_multiplier=2.0, sample_rate=0.1)
    with pytest.raises(ValueError, match=r"higher than the declared rate, 0\.1"):
        accountant.step(noise_multiplier=2.0, sample_rate=0.5)
    run.declare(sampling=fixed_size(batch_size=1))  # which has no such rate
    accountant.step(noise_multiplier=2.0, sample_rate=0.5)
    run.declare(sampling=full())
    accountant.step(noise_multiplier=2.0, sample_rate=0.5)
    assert events(client, run) == [(1, 2.0, RATE), (1, 2.0, {"kind": "unknown"}), (1, 2.0, FULL)]


# The first orders that Opacus tries are the largest it has.
@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha")
def test_make_private_with_epsilon_calibrates_as_it_does(run: Run) -> None:
    torch.manual_seed(0)
    job = prepared(accountant=LedgerAccountant(run))
    engine = job.engine
    _, optimizer, _ = engine.make_private_with_epsilon(
        module=job.model, optimizer=job.optimizer.original_optimizer,
        data_loader=DataLoader(data(), batch_size=BATCH), target_epsilon=4.0, target_delta=1e-5,
        epochs=2, max_grad_norm=1.0,
    )  # fmt: skip
    assert gaussian(noise_multiplier=optimizer.noise_multiplier)["noise_multiplier"] > 0.5
