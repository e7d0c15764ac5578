"""The state of Flower's own accountant is imported as a document and as a run."""

import json
from pathlib import Path
from typing import Any

import pytest
from dpledger_client import Client, fixed_size, gaussian, poisson
from dpledger_client.cli import main
from dpledger_client.importers import flower
from dpledger_client.importers.bounded_reader import BadFile
from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE


@pytest.mark.parametrize(
    ("method", "relation", "sampling"),
    [
        (SamplingMethod.POISSON, ADD, poisson(sampling_probability=0.1)),
        (SamplingMethod.WITHOUT_REPLACEMENT, REPLACE, fixed_size(batch_size=10)),
        (SamplingMethod.NO_AMPLIFICATION, ADD, fixed_size(batch_size=100)),
    ],
)
def test_rounds_of_flower_s_accountant_are_steps(
    client: Client,
    dataset: Any,
    spool: Path,
    tmp_path: Path,
    method: SamplingMethod,
    relation: NeighboringRelation,
    sampling: dict[str, Any],
) -> None:
    accountant = RdpAccountant(PrivacyConfig(1e-5, 100, relation, method))
    accountant.compose(GaussianPrivacyEvent(8.0, 10, 100), count=7)
    accountant.compose(GaussianPrivacyEvent(8.0, 10, 100), count=3)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(accountant.state_dict()))
    word = relation.value.replace("-", "_")
    name = dataset(dataset_size=100, relation=word)
    run = f"imported-{method.value}"
    assert main(["import", "flower", str(path), "--run", run, "--dataset", name]) == 0
    assert client.ledger(run)["events"] == [
        {
            "first_step": 0,
            "steps": 10,
            "mechanism": gaussian(noise_multiplier=8.0),
            "sampling": sampling,
        }
    ]
    found = client.guarantee(run, delta=1e-5)["epsilon"]
    theirs = accountant.get_epsilon(1e-5)
    if method is SamplingMethod.POISSON:
        assert found <= theirs
    else:  # a client makes room for another: twice the norm bound, which Flower leaves out
        assert found > theirs


def test_a_state_that_a_newer_flower_wrote_is_refused(tmp_path: Path) -> None:
    accountant = RdpAccountant(PrivacyConfig(1e-5, 100, ADD, SamplingMethod.POISSON))
    accountant.compose(GaussianPrivacyEvent(8.0, 10, 100))
    path = tmp_path / "state.json"
    path.write_text(json.dumps({**accountant.state_dict(), "schema_version": 2}))
    with pytest.raises(BadFile, match="schema_version: must be 1"):
        flower.read_state(path)
