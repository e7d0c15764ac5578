"""A training that is calibrated to the budget takes all its steps under Lightning's Trainer."""

from pathlib import Path

import pytest
from dpledger_client import BudgetExhausted, Client, event, gaussian, poisson
from dpledger_client.integrations.lightning import LedgerCallback
from lightning_loops import DELTA, MARKS, NOISE, Make, Private, poisson_loader, run_name, trainer

pytestmark = MARKS
PASSES, STEPS = 5, 40


def calibrated(client: Client, dataset: Make) -> str:
    """A dataset whose budget the whole training needs, in any order."""
    steps = event(
        mechanism=gaussian(noise_multiplier=NOISE),
        sampling=poisson(sampling_probability=1 / 8),
        steps=STEPS,
    )
    made = client.plan(
        neighboring_relation="add_or_remove_one", events=[steps], delta=DELTA, as_envelope=True
    )["envelope"]
    return dataset(dataset_size=64, budget={"epsilon": made["epsilon"], "delta": DELTA})


def test_all_steps_run_and_a_resumed_run_changes_nothing(
    client: Client, dataset: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of, name = calibrated(client, dataset), run_name()
    with client.start_run(name, of) as run:
        told = LedgerCallback(run, dataset_budget="this plan")
        trainer(tmp_path, told, max_epochs=PASSES).fit(Private(), poisson_loader())
        assert run.next_step == STEPS
    assert f"It admits all {STEPS} steps of this training." in capsys.readouterr().out
    found = client.dataset(of)
    assert found["budget"]["remaining_steps"] == 0
    with client.start_run(name, of, resume="must") as run:
        told = LedgerCallback(run, dataset_budget="this plan")
        again = trainer(tmp_path, told, max_epochs=PASSES)
        with pytest.raises(BudgetExhausted):
            again.fit(Private(), poisson_loader())
    assert client.dataset(of)["revision"] == found["revision"]


def test_by_default_it_is_told_how_many_steps_fit(
    client: Client, dataset: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with client.start_run(run_name(), calibrated(client, dataset)) as run:
        told = LedgerCallback(run, stop="quietly")
        trainer(tmp_path, told, max_epochs=PASSES).fit(Private(), poisson_loader())
        said = capsys.readouterr().out
        assert f"admits {run.next_step} of the {STEPS} steps of this training" in said
        assert 0 < run.next_step < STEPS
