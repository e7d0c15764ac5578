"""What really ran: real loaders of PyTorch and Opacus, and declarations that they contradict."""

import os
import secrets
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from dpledger_client import Client, Run, SamplingContradicted, gaussian, loaders, poisson
from dpledger_client.integrations.opacus import LedgerAccountant, attach
from opacus.data_loader import DPDataLoader
from opacus.utils.batch_memory_manager import wrap_data_loader
from opacus_loops import BATCH, RECORDS, WARNINGS, data, prepared, train
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

pytestmark = [pytest.mark.filterwarnings(warning) for warning in WARNINGS]
RATE = poisson(sampling_probability=BATCH / RECORDS)
SHUFFLE = {
    "kind": "shuffle", "batch_size": BATCH, "reshuffle": "each_pass", "steps_per_pass": 10,
}  # fmt: skip
Dataset = Callable[..., str]


@pytest.fixture
def run(client: Client, dataset: Dataset, spool: Path) -> Iterator[Run]:
    """A run that says Poisson, whatever its loader does."""
    of = dataset(dataset_size=RECORDS, relation="replace_special")
    with client.start_run(
        f"run-{secrets.token_hex(4)}", of, delta=1e-5, mode="observe", sampling=RATE
    ) as run:
        yield run


def told(run: Run, what: str) -> list[dict[str, Any]]:
    """The findings or incidents that the service has of a run."""
    run.flush()
    base = run.url.removesuffix(f"/v1/runs/{run.name}")
    url = (
        f"{run.url}/findings" if what == "findings" else f"{base}/v1/datasets/{run.dataset}/{what}"
    )
    answer = httpx.get(url, headers={"Authorization": f"Bearer {os.environ['DPLEDGER_API_KEY']}"})
    return list(answer.raise_for_status().json()[what])


def test_a_shuffled_loader_that_is_declared_as_poisson_is_caught(client: Client, run: Run) -> None:
    job = prepared(accountant=LedgerAccountant(run), poisson_sampling=False)
    with pytest.warns(SamplingContradicted, match="recorded as shuffle"):
        train(job)
    (found,) = told(run, "findings")
    assert (found["kind"], found["status"], found["from_step"]) == ("sampling", "contradicted", 0)
    assert found["declared"]["kind"] == "poisson"
    assert found["recorded"]["kind"] == "shuffle"
    assert found["seen"] == {
        "loader": "torch.utils.data.dataloader.DataLoader",
        "dataset": "torch.utils.data.dataset.TensorDataset",
        "sampler": "torch.utils.data.sampler.RandomSampler",
        "num_workers": 0,
        "batch_size": BATCH,
        "drop_last": False,
        "replacement": False,
    }
    (incident,) = told(run, "incidents")
    assert incident["kind"] == "sampling_contradicted"
    run.finish()
    (event,) = client.ledger(run.name)["events"]
    assert event["steps"] == 10
    assert event["sampling"]["kind"] == "shuffle"


def test_it_is_caught_when_the_ledger_comes_after_make_private(client: Client, run: Run) -> None:
    job = prepared(poisson_sampling=False)
    attach(job.engine, run, optimizer=job.optimizer, data_loader=job.loader)
    with pytest.warns(SamplingContradicted, match="recorded as shuffle"):
        train(job)
    run.finish()
    assert {event["sampling"]["kind"] for event in client.ledger(run.name)["events"]} == {"shuffle"}


def test_sizes_refute_a_loop_by_hand_in_this_process_only(client: Client, run: Run) -> None:
    run.declare(mechanism=gaussian(noise_multiplier=1.0))
    loader = DataLoader(data(), batch_size=BATCH, shuffle=True)

    def by_hand() -> None:
        for _ in range(2):
            for _images, labels in loader:
                run.step(size=len(labels))

    with pytest.warns(SamplingContradicted, match="sizes of the batches refute"):
        by_hand()
    run.finish()
    (event,) = client.ledger(run.name)["events"]
    assert (event["steps"], event["sampling"]) == (20, RATE)  # the verdict is private
    assert told(run, "findings") == []


class Deal(Sampler[int]):
    """Of nobody's library: a shuffle."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(RECORDS).tolist())

    def __len__(self) -> int:
        return RECORDS


def test_sizes_refute_a_loader_that_is_not_known(run: Run) -> None:
    loader = DataLoader(data(), batch_size=BATCH, sampler=Deal())
    job = prepared(accountant=LedgerAccountant(run), loader=loader, poisson_sampling=False)
    with pytest.warns(SamplingContradicted, match="sizes of the batches refute"):
        train(job, passes=2)
    (found,) = told(run, "findings")
    assert (found["status"], found["recorded"]) == ("declared", RATE)
    assert "test_opacus_sampling.Deal" in found["reason"]
    assert told(run, "incidents") == []


def test_sizes_of_true_poisson_batches_refute_nothing(run: Run) -> None:
    job = prepared(accountant=LedgerAccountant(run))
    with warnings.catch_warnings():
        warnings.simplefilter("error", SamplingContradicted)
        train(job, passes=4)
    assert run.sampling == RATE


# The table of the guide, on the real classes


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(RECORDS))


class OwnLoader(DataLoader[Any]):
    """It adds a setting, and draws as it did."""

    colour = "red"


class OwnDraws(RandomSampler):
    def __iter__(self) -> Iterator[int]:
        return iter(range(RECORDS))


SIGNALLED: Any = None  # nothing is drawn, so that no optimizer is told
DATA = TensorDataset(torch.arange(RECORDS))
ODD = TensorDataset(torch.arange(RECORDS + 1))


def batched(sampler: Any, *, drop_last: bool = False, of: Any = DATA, size: int = BATCH) -> Any:
    return DataLoader(of, batch_sampler=BatchSampler(sampler, size, drop_last))


def shard(of: Any = DATA, **options: Any) -> Any:
    sampler = DistributedSampler(of, num_replicas=4, rank=1, **options)
    return DataLoader(of, batch_size=10, sampler=sampler)


def in_parts(loader: Any) -> Any:
    return wrap_data_loader(data_loader=loader, max_batch_size=7, optimizer=SIGNALLED)


CYCLIC = {"kind": "cyclic", "batch_size": BATCH, "steps_per_pass": 10}
FOUND: list[tuple[Any, int, dict[str, Any]]] = [
    (DataLoader(DATA, BATCH, shuffle=True), RECORDS, SHUFFLE),
    (OwnLoader(DATA, BATCH, shuffle=True), RECORDS, SHUFFLE),
    (batched(RandomSampler(DATA)), RECORDS, SHUFFLE),
    (DataLoader(DATA, batch_size=None, sampler=BatchSampler(RandomSampler(DATA), BATCH, False)),
     RECORDS, SHUFFLE),
    (DataLoader(ODD, BATCH, shuffle=True, drop_last=True), RECORDS + 1,
     {**SHUFFLE, "steps_per_pass": 10}),
    (DataLoader(ODD, BATCH, shuffle=True), RECORDS + 1, {**SHUFFLE, "steps_per_pass": 11}),
    (batched(RandomSampler(DATA, num_samples=200)), RECORDS, {**SHUFFLE, "steps_per_pass": 5}),
    (batched(RandomSampler(DATA, num_samples=800)), RECORDS, SHUFFLE),
    (batched(RandomSampler(DATA, replacement=True, num_samples=200)), RECORDS,
     {"kind": "with_replacement", "batch_size": BATCH}),
    (DataLoader(DATA, BATCH), RECORDS, CYCLIC),
    (batched(SequentialSampler(DATA)), RECORDS, CYCLIC),
    (batched(SubsetRandomSampler(range(RECORDS))), RECORDS, SHUFFLE),
    (batched(SubsetRandomSampler(range(200))), RECORDS,
     {"kind": "cyclic", "batch_size": BATCH, "steps_per_pass": 5}),
    (batched(WeightedRandomSampler([1.0] * 399 + [5.0], 100), size=1), RECORDS,
     {"kind": "non_uniform", "max_weight": 0.013}),
    (batched(WeightedRandomSampler([1.0] * RECORDS, RECORDS, replacement=False)), RECORDS,
     CYCLIC),
    (shard(), RECORDS, {**SHUFFLE, "reshuffle": "once"}),
    (shard(ODD, drop_last=True), RECORDS + 1,
     {**SHUFFLE, "reshuffle": "once", "steps_per_pass": 10}),
    (shard(ODD), RECORDS + 1, {"kind": "unknown"}),
    (shard(shuffle=False), RECORDS, CYCLIC),
    (DPDataLoader(DATA, sample_rate=0.1), RECORDS, RATE),
    (in_parts(DPDataLoader(DATA, sample_rate=0.1)), RECORDS, RATE),
    (in_parts(DataLoader(DATA, BATCH, shuffle=True)), RECORDS, SHUFFLE),
]  # fmt: skip


@pytest.mark.parametrize(("loader", "size", "sampling"), FOUND)
def test_real_loaders_are_what_the_guide_says(
    loader: Any, size: int, sampling: dict[str, Any]
) -> None:
    state = torch.get_rng_state()
    found = loaders.inspect(loader, declared=None, dataset_size=size)
    assert (found.status, found.sampling) == ("detected", sampling), found.reason
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Stream(), BATCH),
        batched(OwnDraws(DATA)),
        DataLoader(DATA, batch_size=None),
        DataLoader(DATA, BATCH, sampler=[3, 1, 2]),
        [1, 2, 3],
    ],
)
def test_real_loaders_that_cannot_be_read_are_not_guessed(loader: Any) -> None:
    found = loaders.inspect(loader, declared=None, dataset_size=RECORDS)
    assert (found.status, found.sampling) == ("declared", {"kind": "unknown"})
    kept = loaders.inspect(loader, declared=RATE, dataset_size=RECORDS)
    assert (kept.status, kept.sampling) == ("declared", RATE)


def test_real_data_that_hold_a_record_twice_are_refused() -> None:
    for of in (Subset(DATA, [0] * 5 + list(range(5, RECORDS))), ConcatDataset([DATA] * 3)):
        for loader in (DataLoader(of, BATCH, shuffle=True), DPDataLoader(of, sample_rate=0.1)):
            with pytest.raises(ValueError, match=f"{type(of).__name__} has .* twice"):
                loaders.inspect(loader, declared=None, dataset_size=RECORDS)


def test_a_loader_that_may_repeat_a_record_in_a_batch_is_refused() -> None:
    for sampler in (
        WeightedRandomSampler([1.0] * RECORDS, RECORDS),
        RandomSampler(DATA, num_samples=RECORDS + 1),
    ):
        with pytest.raises(ValueError, match=r"repeatedly|twice"):
            loaders.inspect(batched(sampler), declared=RATE, dataset_size=RECORDS)
