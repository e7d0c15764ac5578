"""A checkpoint that Opacus wrote is imported without training code, and runs nothing."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from dpledger_client import Client
from dpledger_client.cli import main
from dpledger_client.importers import opacus
from dpledger_client.importers.bounded_reader import BadFile
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),  # noise of a test is no secret
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),  # Opacus' own hooks
]
RECORDS, BATCH = 64, 8


def trained(path: Path, *, accountant: str) -> Any:
    records = TensorDataset(torch.randn(RECORDS, 4), torch.randint(0, 2, (RECORDS,)))
    model = torch.nn.Linear(4, 2)
    engine = PrivacyEngine(accountant=accountant)
    module, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        data_loader=DataLoader(records, batch_size=BATCH),
        noise_multiplier=1.1,
        max_grad_norm=1.0,
    )
    for noise in (1.1, 1.3):
        optimizer.noise_multiplier = noise
        for rows, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(rows), labels).backward()
            optimizer.step()
    engine.save_checkpoint(path=path, module=module, optimizer=optimizer)
    return engine


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_a_checkpoint_is_its_accountant_s_history(
    client: Client, dataset: Any, spool: Path, tmp_path: Path, accountant: str
) -> None:
    path = tmp_path / "checkpoint.pt"
    engine = trained(path, accountant=accountant)
    steps = RECORDS // BATCH
    name = dataset(dataset_size=RECORDS)
    run = f"imported-{accountant}"
    assert main(["import", "opacus", str(path), "--run", run, "--dataset", name]) == 0
    events = client.ledger(run)["events"]
    assert [(one["mechanism"]["noise_multiplier"], one["steps"]) for one in events] == [
        (1.1, steps), (1.3, steps),
    ]  # fmt: skip
    assert {one["sampling"]["sampling_probability"] for one in events} == {BATCH / RECORDS}
    found = client.guarantee(run, delta=1e-5)
    assert found["epsilon_lower"] <= found["epsilon"] <= engine.get_epsilon(1e-5) + 0.02


@pytest.mark.parametrize("zipped", [True, False])
def test_a_saved_state_of_an_accountant_is_read_as_well(tmp_path: Path, zipped: bool) -> None:
    engine = trained(tmp_path / "checkpoint.pt", accountant="rdp")
    path = tmp_path / "accountant.pt"
    torch.save(engine.accountant.state_dict(), path, _use_new_zipfile_serialization=zipped)
    assert opacus.read(path) == opacus.read(tmp_path / "checkpoint.pt")


class Trap:
    """What runs when it is read as a pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path, zipped: bool) -> None:
    state = {"history": [(1.1, 0.1, 5)], "mechanism": "rdp"}
    content = {"privacy_accountant_state_dict": state, "more": Trap(tmp_path / "run")}
    path = tmp_path / "checkpoint.pt"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(BadFile, match="no checkpoint of plain values"):
        opacus.read(path)
    assert not (tmp_path / "run").exists()
