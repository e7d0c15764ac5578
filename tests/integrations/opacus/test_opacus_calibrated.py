"""A training that is calibrated to the budget takes all its steps."""

import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dpledger_client import BudgetExhausted, Client
from dpledger_client.integrations.opacus import LedgerAccountant, attach
from opacus import PrivacyEngine
from opacus_loops import BATCH, RECORDS, WARNINGS, data, network, prepared, train
from torch.utils.data import DataLoader

pytestmark = [
    *(pytest.mark.filterwarnings(warning) for warning in WARNINGS),
    # Opacus calibrates by its table of orders first, which ends early.
    pytest.mark.filterwarnings("ignore:Optimal order is the"),
]
ROOT = Path(__file__).parents[3]
BUDGET = {"epsilon": 3.0, "delta": 1e-5}
EPOCHS = 12
Dataset = Callable[..., str]


def name() -> str:
    return f"run-{secrets.token_hex(4)}"


def test_the_script_of_the_guide_takes_all_its_steps(client: Client, spool: Path) -> None:
    script = ROOT / "examples" / "calibrated" / "with_opacus.py"
    words = [sys.executable, "-W", "ignore", str(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    told, result = done.stdout.splitlines()
    assert told.endswith(
        "an envelope of exactly this training. It admits all 400 steps of this training."
    )
    assert result.startswith("400 steps, epsilon 2.9")
    run = client.run("linear-1")
    assert (run["steps"], run["state"]) == (400, "finished")
    before = client.dataset("digits")
    assert before["budget"]["remaining_steps"] == 0
    again = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert "BudgetExhausted" in again.stderr  # it was trained already; the budget is the same
    after = client.dataset("digits")
    assert (after["revision"], after["budget"]["items"]) == (
        before["revision"],
        before["budget"]["items"],
    )


def calibrated(accountant: LedgerAccountant, epochs: int = EPOCHS) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model, engine = network(), PrivacyEngine()
    engine.accountant = accountant
    made = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data(), batch_size=BATCH),
        epochs=epochs,
        target_epsilon=BUDGET["epsilon"],
        target_delta=BUDGET["delta"],
        max_grad_norm=1.0,
    )
    return made[0], made[1], made[2]


def steps_of(model: Any, optimizer: Any, loader: Any, epochs: int) -> int:
    taken = 0
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            taken += 1
    return taken


def test_by_default_it_is_only_told_how_many_steps_fit(
    client: Client, dataset: Dataset, spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = dataset(dataset_size=RECORDS, budget=BUDGET)
    with client.start_run(name(), of) as run:
        made = calibrated(LedgerAccountant(run))
        said = capsys.readouterr().out
        admitted = int(said.split(" admits ")[1].split()[0])
        assert f"admits {admitted} of the 120 steps" in said
        assert 'dataset_budget="this plan"' in said
        assert 0 < admitted < 120
        with pytest.raises(BudgetExhausted):
            steps_of(*made, EPOCHS)
        assert run.next_step == admitted
    assert client.dataset(of)["revision"] == 1


def test_a_start_after_a_crash_goes_on_under_the_same_budget(
    client: Client, dataset: Dataset, spool: Path
) -> None:
    of, run_name = dataset(dataset_size=RECORDS, budget=BUDGET), name()
    with client.start_run(run_name, of, resume="allow") as run:
        made = calibrated(LedgerAccountant(run, dataset_budget="this plan"))
        assert steps_of(*made, 5) == 50
    revision = client.dataset(of)["revision"]
    with client.start_run(run_name, of, resume="allow") as run:
        with pytest.warns(UserWarning, match="non-zero privacy budget"):
            made = calibrated(LedgerAccountant(run, dataset_budget="this plan"))
        assert steps_of(*made, EPOCHS - 5) == 70
        with pytest.raises(BudgetExhausted):
            steps_of(*made, 1)
    found = client.dataset(of)
    assert (found["revision"], found["budget"]["remaining_steps"]) == (revision, 0)
    assert not found["budget"]["overdrawn"]


def test_epochs_may_be_given(client: Client, dataset: Dataset, spool: Path) -> None:
    of = dataset(dataset_size=RECORDS, budget={"epsilon": 1.0, "delta": 1e-5})
    with client.start_run(name(), of) as run:
        with pytest.raises(BudgetExhausted, match="No step was taken"):
            prepared(
                accountant=LedgerAccountant(run, epochs=3, dataset_budget="this plan"), noise=1.0
            )
        with pytest.raises(ValueError, match="length of the training is not known"):
            prepared(accountant=LedgerAccountant(run, dataset_budget="this plan"), noise=4.0)
        with pytest.raises(ValueError, match="epochs must be positive"):
            LedgerAccountant(run, epochs=0)
        job = prepared(noise=4.0)
        accountant = attach(
            job.engine, run, optimizer=job.optimizer, data_loader=job.loader, epochs=3,
            dataset_budget="this plan",
        )  # fmt: skip
        found = accountant.envelope(job.optimizer, job.loader, 3)
        assert found is not None
        assert (found.fits, found.steps) == (True, 30)
        train(job, passes=3)
    assert client.run(run.name)["steps"] == 30
