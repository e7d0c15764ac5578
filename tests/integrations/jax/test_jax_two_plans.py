"""Two plans of one run: each step is recorded with the noise of its own."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dpledger_client import Client
from dpledger_client.integrations.jax_privacy import Ledger, with_secret_key
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig, DPExecutionPlan

pytestmark = pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated:DeprecationWarning")
RECORDS = 100


def plan(noise_multiplier: float) -> DPExecutionPlan:
    made = BandMFExecutionPlanConfig(
        iterations=5,
        strategy=np.ones(1),
        epsilon=None,
        delta=None,
        noise_multiplier=noise_multiplier,
        sampling_prob=0.1,
    )
    return with_secret_key(made.plan)


def test_steps_of_a_plan_are_not_taken_for_those_of_one_made_later(
    client: Client, dataset: Callable[..., str], spool: Path
) -> None:
    name = dataset(dataset_size=RECORDS)
    with client.start_run(f"{name}-run", name, delta=1e-5) as run:
        noisy, quiet = Ledger(run, plan(0.5)), Ledger(run, plan(5.0))
        for _ in noisy.batches(RECORDS, 3):
            pass
        for _ in quiet.batches(RECORDS, 4):
            pass
    events = client.ledger(run.name)["events"]
    assert [(one["steps"], one["mechanism"]["noise_multiplier"]) for one in events] == [
        (5, 0.5),
        (5, 5.0),
    ]
