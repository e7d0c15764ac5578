"""What a run has spent, beside a W&B run that is offline."""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from dpledger_client import Client, gaussian, poisson
from dpledger_client.integrations.wandb import Mirror

STEP: dict[str, Any] = {
    "mechanism": gaussian(noise_multiplier=1.5),
    "sampling": poisson(sampling_probability=0.05),
}


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Any]:
    with wandb.init(mode="offline", project="letters", dir=tmp_path) as board:
        yield board


@pytest.fixture
def told(board: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is logged, beside the log."""
    found: list[dict[str, Any]] = []
    log = board.log

    def kept(values: dict[str, Any], *given: Any, **named: Any) -> None:
        found.append(values)
        log(values, *given, **named)

    monkeypatch.setattr(board, "log", kept)
    return found


def test_a_board_has_what_was_spent_at_its_step(
    client: Client,
    dataset: Callable[..., str],
    spool: Path,
    board: Any,
    told: list[dict[str, Any]],
) -> None:
    name = dataset(dataset_size=1000, budget={"epsilon": 3.0, "delta": 1e-5})
    with (
        client.start_run(f"run-{secrets.token_hex(6)}", name, **STEP) as run,
        Mirror(run, every_steps=1),
    ):
        run.step(steps=7)
        guarantee = run.guarantee()
    assert told[-1]["dpledger.steps"] == 7
    assert told[-1]["dpledger.epsilon"] == guarantee.epsilon
    assert told[-1]["dpledger.epsilon_lower"] == guarantee.epsilon_lower
    assert told[-1]["dpledger.budget.epsilon"] == 3.0
    assert board.config["dpledger.run"] == run.name
    assert board.config["dpledger.sampling_status"] == "declared"
    assert board.summary["dpledger.epsilon"] == guarantee.epsilon


def test_without_an_active_run_there_is_nothing_to_mirror(
    client: Client, dataset: Callable[..., str], spool: Path
) -> None:
    with (
        client.start_run(None, dataset(dataset_size=1000), **STEP) as run,
        pytest.raises(ValueError, match="No W&B run is active"),
    ):
        Mirror(run)


def test_a_board_that_fails_ends_no_training(
    client: Client,
    dataset: Callable[..., str],
    spool: Path,
    board: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(*given: Any, **named: Any) -> None:
        raise RuntimeError("full")

    monkeypatch.setattr(board, "log", fails)
    with client.start_run(None, dataset(dataset_size=1000), delta=1e-5, **STEP) as run, Mirror(run):
        run.step()
    assert "W&B is not told what run" in caplog.text
