"""Runs on datasets of ten clients, and an environment that Flower and Ray read when imported."""

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dpledger_client import Client, Run

# Neither tells anything to anybody outside this machine.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # else Ray warns of its future

CLIENTS = 10
DELTA = 1e-3


@pytest.fixture
def start(client: Client, dataset: Callable[..., str], spool: Path) -> Iterator[Callable[..., Run]]:
    """Opens runs on datasets of ten clients."""
    runs = []

    def start(
        *, relation: str = "replace_special", clients: int = CLIENTS, epsilon: float | None = None
    ) -> Run:
        # Each round is a full batch, which this order suits.
        budget = epsilon and {"epsilon": epsilon, "delta": DELTA, "orders": [4.0]}
        name = dataset(dataset_size=clients, relation=relation, budget=budget)
        runs.append(client.start_run(f"run-{secrets.token_hex(6)}", name, delta=DELTA))
        return runs[-1]

    yield start
    for run in runs:
        run.finish()
