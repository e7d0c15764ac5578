"""A run that Opacus trained without a ledger is imported, and goes on in the ledger."""

import multiprocessing
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dpledger_client import BudgetExhausted, Client, NotFound
from dpledger_client.cli import main
from dpledger_client.integrations.opacus import LedgerAccountant, attach
from opacus import PrivacyEngine
from opacus_loops import RECORDS, WARNINGS, Job, equal, prepared, step, train, weights

pytestmark = [pytest.mark.filterwarnings(warning) for warning in WARNINGS]
DELTA = 1e-5
RATE = {"kind": "poisson", "sampling_probability": 0.1}
Dataset = Callable[..., str]


def some(job: Job, steps: int) -> None:
    for number, (images, labels) in enumerate(job.loader):
        if number == steps:
            return
        step(job, images, labels)


def save(job: Job, path: Path) -> None:
    job.engine.save_checkpoint(path=path, module=job.model, optimizer=job.optimizer)


def load(job: Job, path: Path) -> None:
    job.engine.load_checkpoint(path=path, module=job.model, optimizer=job.optimizer)


def opacus_alone(path: Path, *, steps: int, noise: float = 1.0, accountant: str = "prv") -> Job:
    """A checkpoint of training that no ledger saw."""
    job = prepared(accountant=PrivacyEngine(accountant=accountant).accountant, noise=noise)
    some(job, steps)
    save(job, path)
    return job


def imported(path: Path, dataset: str, *options: str) -> str:
    name = f"run-{secrets.token_hex(4)}"
    said = ["import", "opacus", str(path), "--run", name, "--dataset", dataset, *options]
    assert main(said) == 0
    return name


def branches(client: Client, run: str) -> list[tuple[int, int]]:
    """First and next step of each branch."""
    return [(one["from_step"], one["next_step"]) for one in client.run(run)["branches"]]


def recorded(client: Client, run: str) -> list[tuple[int, float, Any]]:
    """Steps, noise and sampling of all branches, one after the other."""
    ledger = client.ledger(run)
    lists = [ledger["events"], *(branch["events"] for branch in ledger.get("branches", ()))]
    return [
        (one["steps"], one["mechanism"]["noise_multiplier"], one["sampling"])
        for events in lists
        for one in events
    ]


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
def test_training_goes_on_as_a_run_of_the_ledger(
    client: Client, dataset: Dataset, spool: Path, tmp_path: Path, accountant: str
) -> None:
    plain, ledgered = tmp_path / "plain.pt", tmp_path / "ledgered.pt"
    kept = weights(opacus_alone(plain, steps=10, accountant=accountant))
    of = dataset(dataset_size=RECORDS)
    name = imported(plain, of)
    alone = client.guarantee(name, delta=DELTA)["epsilon"]
    with client.start_run(name, of, resume="must") as run:
        job = prepared(accountant=LedgerAccountant(run), seed=1)
        load(job, plain)
        assert equal(kept, weights(job))
        assert job.engine.accountant.history == [(1.0, 0.1, 10)]
        assert job.engine.get_epsilon(DELTA) == alone  # nothing is counted by loading
        some(job, 4)
        assert job.engine.accountant.history == [(1.0, 0.1, 14)]
        save(job, ledgered)
    with client.start_run(name, of, resume="must") as run:  # and on the next day
        job = prepared(accountant=LedgerAccountant(run), seed=2)
        load(job, ledgered)
        some(job, 3)
    assert branches(client, name) == [(0, 10), (10, 14), (14, 17)]
    assert recorded(client, name) == [(10, 1.0, RATE), (4, 1.0, RATE), (3, 1.0, RATE)]
    event = {"mechanism": {"kind": "gaussian", "noise_multiplier": 1.0}, "sampling": RATE}
    planned = client.plan(
        neighboring_relation="add_or_remove_one", events=[{**event, "steps": 17}], delta=DELTA
    )
    assert client.guarantee(name, delta=DELTA)["epsilon"] == pytest.approx(planned["epsilon"])
    assert client.dataset_guarantee(of, delta=DELTA)["epsilon"] >= planned["epsilon_lower"]
    found = client.run(name)
    assert (found["state"], found["steps"]) == ("finished", 17)


def go_on(url: str, spool: str, name: str, dataset: str, path: str) -> None:
    """Another process: it goes on from the plain checkpoint, and is gone before it saves."""
    os.environ["DPLEDGER_SPOOL"] = spool
    run = Client(url).start_run(name, dataset, resume="must")
    job = prepared(accountant=LedgerAccountant(run), seed=1)
    load(job, Path(path))
    some(job, 5)
    os._exit(9)


def test_a_process_that_was_killed_before_it_saved_is_counted(
    client: Client, service_url: str, dataset: Dataset, spool: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain.pt"
    opacus_alone(plain, steps=8)
    of = dataset(dataset_size=RECORDS)
    name = imported(plain, of)
    arguments = (service_url, str(spool), name, of, str(plain))
    process = multiprocessing.get_context("spawn").Process(target=go_on, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == 9
    with client.start_run(name, of, resume="must") as run:  # the same script again
        job = prepared(accountant=LedgerAccountant(run), seed=2)
        load(job, plain)
        some(job, 3)
    kept = [(begin, end) for begin, end in branches(client, name) if begin < end]
    assert kept == [(0, 8), (8, 13), (8, 11)]
    assert sum(steps for steps, _, _ in recorded(client, name)) == 8 + 5 + 3


def test_an_earlier_checkpoint_of_what_was_imported_is_a_rewind(
    client: Client, dataset: Dataset, spool: Path, tmp_path: Path
) -> None:
    early, late = tmp_path / "early.pt", tmp_path / "late.pt"
    job = opacus_alone(early, steps=6)
    job.optimizer.noise_multiplier = 1.5
    train(job)
    save(job, late)
    of = dataset(dataset_size=RECORDS)
    name = imported(late, of)
    with client.start_run(name, of, resume="must") as run:
        job = prepared(noise=2.0)
        attach(job.engine, run, optimizer=job.optimizer, data_loader=job.loader)
        load(job, early)
        some(job, 3)
    kept = [(begin, end) for begin, end in branches(client, name) if begin < end]
    assert kept == [(0, 16), (6, 9)]
    assert recorded(client, name) == [(6, 1.0, RATE), (10, 1.5, RATE), (3, 2.0, RATE)]


def test_a_shuffled_loader_that_was_imported_as_one_goes_on(
    client: Client, dataset: Dataset, spool: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain.pt"
    job = prepared(poisson_sampling=False)
    train(job)
    save(job, plain)
    of = dataset(dataset_size=RECORDS, relation="replace_special")
    name = imported(plain, of, "--sampling", "shuffle:40,steps_per_pass=10")
    with client.start_run(name, of, resume="must", mode="observe") as run:
        job = prepared(accountant=LedgerAccountant(run), poisson_sampling=False)
        load(job, plain)
        train(job)
    assert [(steps, one["kind"]) for steps, _, one in recorded(client, name)] == [
        (10, "shuffle"), (10, "shuffle"),
    ]  # fmt: skip


def test_what_was_imported_counts_towards_the_budget(
    client: Client, dataset: Dataset, spool: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain.pt"
    opacus_alone(plain, steps=10)
    event = {"mechanism": {"kind": "gaussian", "noise_multiplier": 1.0}, "sampling": RATE}
    planned = client.plan(
        neighboring_relation="add_or_remove_one", events=[{**event, "steps": 12}], delta=DELTA
    )
    budget = {"epsilon": 3 * planned["epsilon"], "delta": DELTA}
    of = dataset(dataset_size=RECORDS, budget=budget)
    name = imported(plain, of)
    with client.start_run(name, of, resume="must", mode="strict") as run:
        job = prepared(accountant=LedgerAccountant(run))
        load(job, plain)
        with pytest.raises(BudgetExhausted):
            train(job, passes=30)
        taken = run.next_step - 10
        assert taken >= 1
    assert client.dataset_guarantee(of, delta=DELTA)["epsilon"] <= budget["epsilon"]
    assert recorded(client, name) == [(10, 1.0, RATE), (taken, 1.0, RATE)]


@pytest.mark.parametrize(
    ("passes", "noise", "batch", "place"),
    [(2, 1.0, 40, 10), (1, 1.1, 40, 0), (1, 1.0, 50, 0)],
)
def test_a_checkpoint_with_steps_that_were_not_imported_is_refused(
    client: Client,
    dataset: Dataset,
    spool: Path,
    tmp_path: Path,
    passes: int,
    noise: float,
    batch: int,
    place: int,
) -> None:
    plain, other = tmp_path / "plain.pt", tmp_path / "other.pt"
    opacus_alone(plain, steps=10)
    job = prepared(noise=noise, batch=batch)
    train(job, passes=passes)
    save(job, other)
    of = dataset(dataset_size=RECORDS)
    name = imported(plain, of)
    with client.start_run(name, of, resume="must") as run:
        job = prepared(accountant=LedgerAccountant(run))
        load(job, plain)
        train(job)  # steps of the ledger are none of the other checkpoint's
        with pytest.raises(ValueError, match=f"from step {place} on are not those"):
            load(job, other)
        assert run.next_step == 20
        assert len(job.engine.accountant) == 20
    assert recorded(client, name) == [(10, 1.0, RATE), (10, 1.0, RATE)]


def test_steps_of_the_ledger_are_not_taken_for_those_of_a_plain_checkpoint(
    client: Client, dataset: Dataset, spool: Path, tmp_path: Path
) -> None:
    """A run that was not imported may look the same."""
    plain = tmp_path / "plain.pt"
    opacus_alone(plain, steps=6)
    of = dataset(dataset_size=RECORDS)
    with client.start_run(f"run-{secrets.token_hex(4)}", of, delta=DELTA) as run:
        job = prepared(accountant=LedgerAccountant(run))
        some(job, 8)
        with pytest.raises(ValueError, match="were not imported"):
            load(job, plain)
        assert job.engine.accountant.history == [(1.0, 0.1, 8)]


def test_a_run_that_must_be_there_is_named_where_nothing_was_imported(
    client: Client, dataset: Dataset, spool: Path
) -> None:
    with pytest.raises(NotFound):
        client.start_run("never-imported", dataset(dataset_size=RECORDS), resume="must")


def test_a_history_that_is_malformed_is_refused_by_its_place(
    client: Client, dataset: Dataset, spool: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain.pt"
    opacus_alone(plain, steps=6)
    of = dataset(dataset_size=RECORDS)
    name = imported(plain, of)
    state = torch.load(plain, weights_only=False)["privacy_accountant_state_dict"]
    with client.start_run(name, of, resume="must") as run:
        accountant: Any = LedgerAccountant(run)
        for history in ([(1.0, 0.1)], [(1.0, 0.1, -3)], [(1.0, 2.0, 6)], None):
            with pytest.raises(ValueError, match="history"):
                accountant.load_state_dict({**state, "history": history})
        accountant.load_state_dict(state)
        assert run.next_step == 6


def test_a_checkpoint_without_steps_needs_no_import(
    client: Client, dataset: Dataset, spool: Path, tmp_path: Path
) -> None:
    save(prepared(), tmp_path / "plain.pt")
    of = dataset(dataset_size=RECORDS)
    with client.start_run(f"run-{secrets.token_hex(4)}", of, delta=DELTA) as run:
        job = prepared(accountant=LedgerAccountant(run))
        load(job, tmp_path / "plain.pt")
        some(job, 2)
    assert branches(client, run.name) == [(0, 2)]
