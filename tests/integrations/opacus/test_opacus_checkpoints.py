"""Checkpoints: training goes on where it was, and what was spent since stays spent."""

import multiprocessing
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dpledger_client import Client, Run
from dpledger_client.integrations.opacus import LedgerAccountant
from opacus.accountants import PRVAccountant
from opacus_loops import RECORDS, WARNINGS, Job, equal, prepared, step, train, weights

pytestmark = [pytest.mark.filterwarnings(warning) for warning in WARNINGS]
DELTA = 1e-5
Dataset = Callable[..., str]


def branches(client: Client, run: Run) -> list[tuple[int, int]]:
    """First and next step of each branch."""
    return [(one["from_step"], one["next_step"]) for one in client.run(run.name)["branches"]]


def recorded(client: Client, run: Run) -> list[tuple[int, str]]:
    """Steps and sampling of all branches, one after the other."""
    ledger = client.ledger(run.name)
    lists = [ledger["events"], *(branch["events"] for branch in ledger.get("branches", ()))]
    return [(event["steps"], event["sampling"]["kind"]) for events in lists for event in events]


def some(job: Job, steps: int) -> None:
    for number, (images, labels) in enumerate(job.loader):
        if number == steps:
            return
        step(job, images, labels)


def save(job: Job, path: Path) -> None:
    job.engine.save_checkpoint(path=path, module=job.model, optimizer=job.optimizer)


def load(job: Job, path: Path) -> None:
    job.engine.load_checkpoint(path=path, module=job.model, optimizer=job.optimizer)


def test_a_rewind_erases_nothing(
    client: Client, dataset: Dataset, spool: Path, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.pt"
    of = dataset(dataset_size=RECORDS)
    with client.start_run(f"run-{secrets.token_hex(4)}", of, delta=DELTA) as run:
        job = prepared(accountant=LedgerAccountant(run))
        train(job)
        save(job, path)
        kept = weights(job)
        some(job, 4)
        spent = job.engine.get_epsilon(DELTA)
        load(job, path)
        assert equal(kept, weights(job))
        assert (len(job.engine.accountant), job.engine.accountant.history) == (10, [(1.0, 0.1, 10)])
        assert job.engine.get_epsilon(DELTA) == spent
        some(job, 3)
        assert job.engine.get_epsilon(DELTA) > spent
        assert branches(client, run) == [(0, 14), (10, 13)]
    assert recorded(client, run) == [(14, "poisson"), (3, "poisson")]


def test_loading_at_the_same_place_opens_no_branch(
    client: Client, dataset: Dataset, spool: Path, tmp_path: Path
) -> None:
    of = dataset(dataset_size=RECORDS)
    with client.start_run(f"run-{secrets.token_hex(4)}", of, delta=DELTA) as run:
        job = prepared(accountant=LedgerAccountant(run))
        some(job, 4)
        save(job, tmp_path / "checkpoint.pt")
        load(job, tmp_path / "checkpoint.pt")
        run.flush()
        assert branches(client, run) == [(0, 4)]


def crash(url: str, spool: str, name: str, dataset: str, path: str) -> None:
    """Another process: it saves after 6 steps, takes 2 more, and is gone."""
    os.environ["DPLEDGER_SPOOL"] = spool
    client = Client(url)
    run = client.start_run(name, dataset, delta=DELTA)
    job = prepared(accountant=LedgerAccountant(run))
    some(job, 6)
    save(job, Path(path))
    some(job, 2)
    os._exit(9)


def test_another_process_goes_on_from_a_checkpoint(
    client: Client, service_url: str, dataset: Dataset, spool: Path, tmp_path: Path
) -> None:
    name, path = f"run-{secrets.token_hex(4)}", tmp_path / "checkpoint.pt"
    of = dataset(dataset_size=RECORDS)
    arguments = (service_url, str(spool), name, of, str(path))
    process = multiprocessing.get_context("spawn").Process(target=crash, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == 9

    state = torch.load(path, weights_only=False)["privacy_accountant_state_dict"]["dpledger"]
    with client.start_run(name, of, state=state) as run:
        job = prepared(accountant=LedgerAccountant(run), seed=1)
        load(job, path)
        assert branches(client, run) == [(0, 8), (6, 6)]  # what was lost with the process is known
        some(job, 5)
        assert len(job.engine.accountant) == 11
    assert branches(client, run) == [(0, 8), (6, 11)]
    assert recorded(client, run) == [(8, "poisson"), (5, "poisson")]


def test_opacus_can_still_read_the_checkpoint(
    client: Client, dataset: Dataset, spool: Path, tmp_path: Path
) -> None:
    of = dataset(dataset_size=RECORDS)
    with client.start_run(f"run-{secrets.token_hex(4)}", of, delta=DELTA) as run:
        job = prepared(accountant=LedgerAccountant(run))
        some(job, 6)
        save(job, tmp_path / "checkpoint.pt")
    alone = prepared()
    load(alone, tmp_path / "checkpoint.pt")
    assert isinstance(alone.engine.accountant, PRVAccountant)
    assert alone.engine.accountant.history == [(1.0, 0.1, 6)]


def test_a_checkpoint_that_the_ledger_does_not_know_is_refused(
    client: Client, dataset: Dataset, spool: Path, tmp_path: Path
) -> None:
    alone = prepared()
    some(alone, 3)
    save(alone, tmp_path / "checkpoint.pt")
    of = dataset(dataset_size=RECORDS)
    with client.start_run(f"run-{secrets.token_hex(4)}", of, delta=DELTA) as run:
        accountant: Any = LedgerAccountant(run)
        with pytest.raises(ValueError, match="written without a ledger"):
            load(prepared(accountant=accountant), tmp_path / "checkpoint.pt")


def test_a_rewind_in_the_middle_of_a_pass_counts_its_rest_as_full(
    client: Client, dataset: Dataset, spool: Path, tmp_path: Path
) -> None:
    of = dataset(dataset_size=RECORDS, relation="replace_special")
    with client.start_run(f"run-{secrets.token_hex(4)}", of, delta=DELTA, mode="observe") as run:
        job = prepared(accountant=LedgerAccountant(run), poisson_sampling=False)
        train(job)
        save(job, tmp_path / "checkpoint.pt")
        for number, (images, labels) in enumerate(job.loader):
            if number == 4:
                load(job, tmp_path / "checkpoint.pt")
            step(job, images, labels)
        train(job)
    assert recorded(client, run) == [(14, "shuffle"), (6, "full"), (10, "shuffle")]
