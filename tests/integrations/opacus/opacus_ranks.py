"""One of two processes that train together, over gloo."""

import os
import secrets
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
from dpledger_client import BudgetExhausted, Client
from dpledger_client.integrations.opacus import LedgerAccountant, broadcast
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus_loops import WARNINGS, Job, network, train, train_in_parts, weights
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

RECORDS = 1797
RANKS = 2
BATCHES = 20  # of a pass; some 45 expected records a rank


def data() -> TensorDataset:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    return TensorDataset(images, torch.tensor(digits.target))


def prepared(rank: int, accountant: Any, *, seed: int | None = None, **options: Any) -> Job:
    torch.manual_seed(rank if seed is None else seed)
    model = DifferentiallyPrivateDistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = PrivacyEngine()
    if accountant is not None:
        engine.accountant = accountant
    dataset = data()
    loader = options.pop("loader", None) or DataLoader(dataset, batch_size=90)
    made = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        criterion=torch.nn.CrossEntropyLoss(),
        **options,
    )
    if len(made) == 4:
        return Job(engine, made[0], made[1], made[3], made[2])
    return Job(engine, made[0], made[1], made[2], torch.nn.CrossEntropyLoss())


@contextmanager
def joined(rank: int, folder: str) -> Iterator[dict[str, Any]]:
    """Be one of the processes; what is put into the answer goes to a file of this rank."""
    for warning in WARNINGS:
        warnings.filterwarnings("ignore", message=warning.removeprefix("ignore:"))
    os.environ["DPLEDGER_SPOOL"] = f"{folder}/spool"
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS
    )
    happened: dict[str, Any] = {}
    yield happened
    torch.save(happened, Path(folder) / f"rank-{rank}.pt")
    torch.distributed.destroy_process_group()


def spawned(
    url: str, folder: Path, work: Any, datasets: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, tuple[str, str]], list[dict[str, Any]]]:
    """Names of run and dataset of each scenario, and what each rank saw of it."""
    names = {}
    with Client(url) as client:
        for what, options in datasets.items():
            name = f"{what.replace('_', '-')}-{secrets.token_hex(4)}"
            given = {"neighboring_relation": "add_or_remove_one", "privacy_unit": "one digit"}
            client.create_dataset(name, dataset_size=RECORDS, **(given | dict(options)))
            names[what] = (name, name)
    torch.multiprocessing.spawn(work, args=(url, names, str(folder)), nprocs=RANKS)
    ranks = [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(RANKS)]
    return names, ranks


def work(rank: int, url: str, names: dict[str, tuple[str, str]], folder: str) -> None:
    """Each scenario in turn."""
    client = Client(url)
    with joined(rank, folder) as happened:
        for what, scenario in SCENARIOS.items():
            name, dataset = names[what]
            run = client.start_run(
                name,
                dataset,
                delta=1e-5,
                rank=rank,
                world_size=RANKS,
                broadcast=None if what == "deaf" else broadcast,
                mode="observe" if what == "shuffled" else "leased",
            )
            happened[what] = scenario(rank, run)
            run.finish()
            torch.distributed.barrier()


def plain(rank: int, run: Any) -> Any:
    return both(rank, run, lambda job: train(job))


def ghost(rank: int, run: Any) -> Any:
    return both(rank, run, lambda job: train(job), grad_sample_mode="ghost")


def in_parts(rank: int, run: Any) -> Any:
    return both(rank, run, lambda job: train_in_parts(job, part=20))


def shuffled(rank: int, run: Any) -> Any:
    dataset = data()
    sampler = DistributedSampler(dataset, RANKS, rank, drop_last=True)
    loader = DataLoader(dataset, batch_size=45, sampler=sampler)
    run.declare(
        sampling={"kind": "shuffle", "batch_size": 90, "reshuffle": "once", "steps_per_pass": 20}
    )
    return both(rank, run, lambda job: train(job), poisson_sampling=False, loader=loader)


def both(rank: int, run: Any, loop: Any, **options: Any) -> Any:
    """The same training without a ledger and with one."""
    alone = prepared(rank, None, **options)
    loop(alone)
    job = prepared(rank, LedgerAccountant(run), **options)
    loop(job)
    return run.next_step, weights(alone), weights(job)


def refused(rank: int, run: Any) -> Any:
    job = prepared(rank, LedgerAccountant(run))
    for images, labels in job.loader:
        job.optimizer.zero_grad()
        job.criterion(job.model(images), labels).backward()
        before = weights(job)
        try:
            job.optimizer.step()
        except BudgetExhausted:
            return run.next_step, before, weights(job)
    return None


def same_coins(rank: int, run: Any) -> Any:
    return error_of(lambda: train(prepared(rank, LedgerAccountant(run), seed=5))), run.next_step


def deaf(rank: int, run: Any) -> Any:
    return error_of(lambda: prepared(rank, LedgerAccountant(run))), run.next_step


def all_the_data(rank: int, run: Any) -> Any:
    loader = DataLoader(data(), batch_size=45, shuffle=True)
    job = prepared(rank, LedgerAccountant(run), loader=loader, poisson_sampling=False)
    return error_of(lambda: train(job)), run.next_step


def one_is_refused(rank: int, run: Any) -> Any:
    """Rank 1 alone cannot be counted: it does not know the dataset's size."""
    if rank:
        run.dataset_size = None
    return error_of(lambda: train(prepared(rank, LedgerAccountant(run)))), run.next_step


def error_of(call: Any) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


SCENARIOS: dict[str, Any] = {
    "plain": plain,
    "ghost": ghost,
    "in_parts": in_parts,
    "shuffled": shuffled,
    "refused": refused,
    "same_coins": same_coins,
    "deaf": deaf,
    "all_the_data": all_the_data,
    "one_is_refused": one_is_refused,
}
