"""Charge a step with a client that was generated from the OpenAPI document; print its answers."""

import json
import os

from dpledger_generated.api.datasets import create_dataset
from dpledger_generated.api.events import append_events
from dpledger_generated.api.runs import create_run, get_run_guarantee
from dpledger_generated.client import AuthenticatedClient
from dpledger_generated.models import (
    AppendAnswer,
    Budget,
    EventBatch,
    EventBatchMode,
    EventMessage,
    GaussianMechanism,
    NewDataset,
    NewDatasetNeighboringRelation,
    NewRun,
    PoissonSampling,
    Problem,
    RunGuarantee,
)


def step(first_step: int) -> EventMessage:
    """One step of DP-SGD."""
    return EventMessage(
        first_step=first_step,
        steps=1,
        mechanism=GaussianMechanism(kind="gaussian", noise_multiplier=1.1),
        sampling=PoissonSampling(kind="poisson", sampling_probability=0.004),
    )


def main() -> None:
    """Create a dataset and a run, charge a step, leave a gap, read the guarantee."""
    client = AuthenticatedClient(os.environ["DPLEDGER_URL"], token=os.environ["DPLEDGER_API_KEY"])
    dataset = NewDataset(
        name="digits",
        dataset_size=60000,
        neighboring_relation=NewDatasetNeighboringRelation.ADD_OR_REMOVE_ONE,
        privacy_unit="one digit",
        budget=Budget(epsilon=3.0, delta=1e-5),
    )
    create_dataset.sync(client=client, body=dataset)
    run = NewRun(name="generated", writer="0123456789abcdef", dataset="digits", delta=1e-5)
    create_run.sync(client=client, body=run)
    batch = EventBatch(events=[step(0)], mode=EventBatchMode.CHARGE)
    charged = append_events.sync("generated", client=client, body=batch)
    assert isinstance(charged, AppendAnswer), charged
    gap = EventBatch(events=[step(5)], mode=EventBatchMode.CHARGE)
    refused = append_events.sync("generated", client=client, body=gap)
    assert isinstance(refused, Problem), refused
    guarantee = get_run_guarantee.sync("generated", client=client)
    assert isinstance(guarantee, RunGuarantee), guarantee
    told = {
        "accepted": charged.accepted,
        "verdict": charged.verdict.value,
        "expected_step": refused.expected_step,
        "epsilon": guarantee.epsilon,
        "status": guarantee.status.value,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
