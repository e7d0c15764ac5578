"""Runs on the digits, in which every record joins a step by its own coin."""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dpledger_client import Client, Run
from opacus_loops import RECORDS

Dataset = Callable[..., str]


@pytest.fixture
def run(client: Client, dataset: Dataset, spool: Path) -> Iterator[Run]:
    name = dataset(dataset_size=RECORDS)
    with client.start_run(f"run-{secrets.token_hex(4)}", name, delta=1e-5) as run:
        yield run


@pytest.fixture
def observed(client: Client, dataset: Dataset, spool: Path) -> Iterator[Run]:
    """A run that may take steps for which no bound is accepted."""
    name = dataset(dataset_size=RECORDS, relation="replace_special")
    with client.start_run(f"run-{secrets.token_hex(4)}", name, delta=1e-5, mode="observe") as run:
        yield run
