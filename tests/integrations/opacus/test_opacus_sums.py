"""Several batches in one step, and passes that do not end where they should."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dpledger_client import Client, Run, SamplingContradicted, Unavailable, gaussian, poisson
from dpledger_client.integrations.opacus import LedgerAccountant
from opacus_loops import (
    BATCH,
    RECORDS,
    WARNINGS,
    Counter,
    Job,
    data,
    equal,
    events,
    pile,
    prepared,
    step,
    train,
    weights,
)
from torch.utils.data import DataLoader

pytestmark = [pytest.mark.filterwarnings(warning) for warning in WARNINGS]
RATE = {"kind": "poisson", "sampling_probability": BATCH / RECORDS}
FULL = {"kind": "full"}
Dataset = Callable[..., str]


def shuffled(batch_size: int, **more: int) -> dict[str, Any]:
    return {"kind": "shuffle", "batch_size": batch_size, "reshuffle": "each_pass", **more}


def test_poisson_batches_that_are_summed_by_hand_hide_nobody(client: Client, run: Run) -> None:
    job = prepared(accountant=LedgerAccountant(run))
    counter = Counter(job)
    summed(job, job.loader)
    assert counter.steps == run.next_step == 5
    # Opacus counts them as one batch each: (1.0, 0.1, 5). A record may be in both.
    assert job.engine.accountant.history == [(1.0, 0.1, 5)]
    assert events(client, run) == [(5, 0.5, FULL)]


def test_backward_passes_that_pile_up_are_draws(client: Client, run: Run) -> None:
    job = prepared(accountant=LedgerAccountant(run))
    job.model.allow_grad_accumulation()
    pile(job, 5)
    assert events(client, run) == [(2, 0.2, FULL)]


def test_shuffled_batches_that_pile_up_are_one_batch(client: Client, observed: Run) -> None:
    alone = prepared(poisson_sampling=False)
    pile(alone, 4)  # 4, 4 and the last 2 of a pass
    pile(alone, 4)
    job = prepared(accountant=LedgerAccountant(observed), poisson_sampling=False)
    counter = Counter(job)
    pile(job, 4)
    pile(job, 4)
    assert counter.steps == observed.next_step == 6
    assert equal(weights(alone), weights(job))
    assert events(client, observed) == [(6, 1.0, shuffled(160, steps_per_pass=3))]


def test_a_step_that_reaches_into_the_next_pass_hides_nobody(client: Client, observed: Run) -> None:
    job = prepared(accountant=LedgerAccountant(observed), poisson_sampling=False)
    job.optimizer.zero_grad()
    number = 0
    for _ in range(2):
        for images, labels in job.loader:
            number += 1
            job.criterion(job.model(images), labels).backward()
            if number % 4 == 0:
                job.optimizer.step()
                job.optimizer.zero_grad()
    # Batches 9 to 12 are of two passes, and the steps after them begin in the middle of one.
    whole = shuffled(160, steps_per_pass=3)
    assert events(client, observed) == [(2, 1.0, whole), (1, 0.5, FULL), (2, 1.0, FULL)]


def test_a_pass_after_one_that_was_broken_off_is_not_taken_for_its_rest(
    client: Client, observed: Run
) -> None:
    job = prepared(accountant=LedgerAccountant(observed), poisson_sampling=False)
    for stop in (10, 4, 10, 10):
        for number, (images, labels) in enumerate(job.loader):
            if number == stop:
                break
            step(job, images, labels)
    whole = shuffled(BATCH, steps_per_pass=10)
    assert events(client, observed) == [(14, 1.0, whole), (10, 1.0, FULL), (10, 1.0, whole)]


def test_a_pass_that_goes_on_beyond_its_declared_end_hides_nobody(
    client: Client, observed: Run
) -> None:
    early = shuffled(BATCH, steps_per_pass=6)
    observed.declare(sampling=early)
    job = prepared(accountant=LedgerAccountant(observed), poisson_sampling=False)
    for stop in (6, 6, 10, 6):
        for number, (images, labels) in enumerate(job.loader):
            if number == stop:
                break
            step(job, images, labels)
    assert events(client, observed) == [(18, 1.0, early), (4, 1.0, FULL), (6, 1.0, early)]


def test_gradients_that_are_cleared_are_in_no_step(
    client: Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = prepared(accountant=LedgerAccountant(run))
    with monkeypatch.context() as away:
        away.setattr(run, "step", unavailable)
        with pytest.raises(Unavailable):
            train(job)
    train(job)  # which clears them first
    assert events(client, run) == [(10, 1.0, RATE)]


def unavailable(**_: Any) -> None:
    raise Unavailable({"title": "The service did not answer"}, 0)


def test_a_step_that_was_not_counted_before_its_noise_is_counted_before_its_weights(
    client: Client, run: Run
) -> None:
    job = prepared(accountant=LedgerAccountant(run))
    del job.optimizer._check_skip_next_step  # somebody took the guard away
    counter = Counter(job)
    train(job)
    assert counter.steps == run.next_step == 10
    assert events(client, run) == [(10, 1.0, RATE)]


def test_a_loop_over_another_loader_is_noticed(client: Client, run: Run) -> None:
    job = prepared(accountant=LedgerAccountant(run))
    with pytest.warns(SamplingContradicted, match="do not come from the loader"):
        train(job, loader=DataLoader(data(), batch_size=BATCH, shuffle=True))
    assert events(client, run) == [(10, 1.0, {"kind": "unknown"})]


def test_a_look_at_the_loader_does_not_vouch_for_another_one(client: Client, run: Run) -> None:
    job = prepared(accountant=LedgerAccountant(run))
    next(iter(job.loader))
    with pytest.warns(SamplingContradicted, match="do not come from the loader"):
        train(job, loader=DataLoader(data(), batch_size=BATCH, shuffle=True))
    # The first step may be with the batch that was given.
    assert events(client, run) == [(1, 1.0, RATE), (9, 1.0, {"kind": "unknown"})]


def test_batches_of_another_loader_that_are_summed_move_a_record_as_far(
    client: Client, run: Run
) -> None:
    job = prepared(accountant=LedgerAccountant(run))
    next(iter(job.loader))
    with pytest.warns(SamplingContradicted, match="do not come from the loader"):
        summed(job, DataLoader(data(), batch_size=BATCH, shuffle=True))
    assert events(client, run) == [(5, 0.5, {"kind": "unknown"})]


def summed(job: Job, loader: Any) -> None:
    for number, (images, labels) in enumerate(loader):
        job.optimizer.signal_skip_step(do_skip=number % 2 == 0)
        step(job, images, labels)


def test_a_look_at_the_loader_costs_nothing(client: Client, run: Run) -> None:
    job = prepared(accountant=LedgerAccountant(run))
    next(iter(job.loader))
    for number, (images, labels) in enumerate(job.loader):
        step(job, images, labels)
        if number == 3:  # a metric over a pass, in the middle of another
            assert sum(1 for _ in job.loader) == 10
    assert events(client, run) == [(10, 1.0, RATE)]


def test_batches_that_are_joined_in_one_step_hide_nobody(client: Client, run: Run) -> None:
    job = prepared(accountant=LedgerAccountant(run))
    batches = iter(job.loader)
    for images, labels in batches:
        more_images, more_labels = next(batches)
        step(job, torch.cat([images, more_images]), torch.cat([labels, more_labels]))
    assert events(client, run) == [(5, 0.5, FULL)]


def test_a_batch_that_is_used_twice_is_nobody_s_draw(client: Client, run: Run) -> None:
    job = prepared(accountant=LedgerAccountant(run))

    def steps() -> None:
        for images, labels in job.loader:
            step(job, images, labels)
            step(job, images, labels)

    with pytest.warns(SamplingContradicted, match="used repeatedly"):
        steps()
    found = events(client, run)
    assert found == [(1, 1.0, RATE), (1, 1.0, {"kind": "unknown"})] * 10


# Several optimizers of one run


def test_each_of_two_jobs_of_a_run_has_its_own_noise(client: Client, run: Run) -> None:
    accountant = LedgerAccountant(run)
    loud = prepared(accountant=accountant, noise=5.0)
    quiet = prepared(accountant=accountant, noise=0.5, batch=80)
    batches, others = iter(loud.loader), iter(quiet.loader)
    for _ in range(3):
        step(loud, *next(batches))
        step(quiet, *next(others))
    often = {"kind": "poisson", "sampling_probability": 0.2}
    assert events(client, run) == [(1, 5.0, RATE), (1, 0.5, often)] * 3


def test_what_others_declare_of_a_run_is_not_what_its_optimizer_does(
    client: Client, run: Run
) -> None:
    job = prepared(accountant=LedgerAccountant(run))
    for number, (images, labels) in enumerate(job.loader):
        if number == 3:
            run.declare(mechanism=gaussian(noise_multiplier=9.0))
        if number == 6:
            run.declare(sampling=poisson(sampling_probability=0.001))
        step(job, images, labels)
    assert events(client, run) == [(10, 1.0, RATE)]


def test_what_was_found_of_one_loader_is_no_word_for_another(client: Client, run: Run) -> None:
    accountant = LedgerAccountant(run)
    train(prepared(accountant=accountant))
    unheard = DataLoader(data(), batch_size=BATCH, sampler=list(range(RECORDS)))
    train(prepared(accountant=accountant, loader=unheard, poisson_sampling=False))
    assert events(client, run) == [(10, 1.0, RATE), (10, 1.0, {"kind": "unknown"})]
