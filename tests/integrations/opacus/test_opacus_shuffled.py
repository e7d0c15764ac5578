"""Passes that leave records out, with real loaders: what is recorded, and what they cost."""

import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from dpledger_client import Client, Run, gaussian, loaders, shuffle, shuffled
from dpledger_client.integrations.opacus import LedgerAccountant
from opacus.utils.batch_memory_manager import wrap_data_loader
from opacus_loops import RECORDS, WARNINGS, data, prepared, train
from torch.utils.data import DataLoader, TensorDataset

pytestmark = [pytest.mark.filterwarnings(warning) for warning in WARNINGS]
ROOT = Path(__file__).parents[3]
SIZE = 9  # 44 whole batches of 400 records, and 4 records
Dataset = Callable[..., str]
RunOf = Callable[..., Run]


@pytest.fixture
def run_of(client: Client, dataset: Dataset, spool: Path) -> Iterator[RunOf]:
    """Runs on data whose bounds may be derived."""
    accept = ["published", "derived"]
    of = dataset(dataset_size=RECORDS, relation="replace_special", accept=accept)
    opened = []

    def start(**options: Any) -> Run:
        run = client.start_run(f"run-{secrets.token_hex(4)}", of, delta=1e-5, **options)
        opened.append(run)
        return run

    yield start
    for run in opened:
        run.finish()


def recorded(client: Client, run: Run) -> list[tuple[int, dict[str, Any]]]:
    """Steps and sampling of the events that the ledger has."""
    run.flush()
    events = client.ledger(run.name)["events"]
    return [(event["steps"], event["sampling"]) for event in events]


def private(loader: Any, run: Run, passes: int) -> None:
    job = prepared(
        accountant=LedgerAccountant(run), noise=8.0, loader=loader, poisson_sampling=False
    )
    train(job, passes=passes)


def test_a_training_with_the_clients_loader_is_amplified(client: Client, run_of: RunOf) -> None:
    run, batches = run_of(), shuffled(data(), SIZE)
    private(DataLoader(data(), batch_sampler=batches, num_workers=0), run, passes=2)
    expected = shuffle(batch_size=SIZE, steps_per_pass=44)
    assert recorded(client, run) == [(2 * 44, expected)]
    found = run.guarantee()
    assert (found["bound"], found["status"]) == ("shuffled-batches", "derived")
    declared = run_of(mechanism=gaussian(noise_multiplier=8.0), sampling=batches.sampling)
    for _ in range(2):
        for _rows in batches:
            declared.step()
    assert recorded(client, declared) == [(2 * 44, expected)]
    assert declared.guarantee()["epsilon"] == found["epsilon"]


@pytest.mark.parametrize(
    ("size", "dropping", "steps", "amplified"),
    [(SIZE, True, 44, True), (SIZE, False, 45, False), (10, True, 40, False)],
)
def test_a_plain_loader_is_amplified_where_it_leaves_records_out(
    client: Client, run_of: RunOf, size: int, dropping: bool, steps: int, amplified: bool
) -> None:
    run = run_of()
    loader = DataLoader(data(), batch_size=size, shuffle=True, drop_last=dropping)
    private(loader, run, passes=2)
    expected = shuffle(batch_size=size, steps_per_pass=steps)
    assert recorded(client, run) == [(2 * steps, expected)]
    assert (run.guarantee()["bound"] == "shuffled-batches") is amplified


@pytest.mark.parametrize("workers", [0, 2])
def test_a_real_loader_gives_each_record_at_most_once_a_pass(workers: int) -> None:
    places = TensorDataset(torch.arange(101))
    batches = shuffled(places, 10)
    loader = DataLoader(places, batch_sampler=batches, num_workers=workers)
    assert len(loader) == 10
    passes = []
    for _ in range(3):
        torch.manual_seed(0)
        taken = [rows.tolist() for (rows,) in loader]
        assert [len(rows) for rows in taken] == [10] * 10
        passes.append(list(chain.from_iterable(taken)))
        assert len(set(passes[-1])) == 100
    assert len(set(map(tuple, passes))) == 3  # though the seed is the same


def test_real_loaders_are_known(run_of: RunOf) -> None:
    batches = shuffled(data(), SIZE)
    loader = DataLoader(data(), batch_sampler=batches)
    for what in (loader, batches, DataLoader(data(), batch_size=None, sampler=batches)):
        finding = loaders.inspect(what, declared=batches.sampling, dataset_size=RECORDS)
        assert finding.status == "detected"
        assert finding.sampling == shuffle(batch_size=SIZE, steps_per_pass=44)
    job = prepared(loader=loader, poisson_sampling=False)
    parts = wrap_data_loader(data_loader=job.loader, max_batch_size=4, optimizer=job.optimizer)
    assert loaders.inspect(parts, declared=None, dataset_size=RECORDS).sampling == shuffle(
        batch_size=SIZE, steps_per_pass=44
    )


def test_the_example_trains_as_well_and_costs_less(
    client: Client, service_url: str, spool: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.leave_records_out.train", "--quick",
         "--url", service_url],
        capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()[-5:-1]
    told = [re.search(r"(\d+) steps .*epsilon ([\d.]+)", line) for line in lines]
    steps, epsilons = zip(*[(int(one[1]), float(one[2])) for one in told if one], strict=True)
    assert steps == (314, 312, 314, 313)
    assert epsilons[0] > 3 * epsilons[1] > 3 * max(epsilons[2:])
    correct = [float(line.split("accuracy ")[1].split("%")[0]) for line in lines[:2]]
    assert abs(correct[0] - correct[1]) < 4.0
    assert all("not trained here" in line for line in lines[2:])
