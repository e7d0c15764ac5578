"""Rounds that are calibrated to the budget are all released."""

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
from dpledger_client import Client, event, fixed_size, gaussian
from dpledger_client.integrations.flower import LedgerStrategy
from flwr.serverapp import GaussianPrivacyEvent
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

CLIENTS, ROUNDS, NOISE, DELTA = 10, 20, 4.0, 1e-3


def test_all_rounds_are_admitted_and_one_more_is_refused(
    client: Client, dataset: Callable[..., str], spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = event(
        mechanism=gaussian(noise_multiplier=NOISE),
        sampling=fixed_size(batch_size=CLIENTS),
        steps=ROUNDS,
    )
    made = client.plan(
        neighboring_relation="replace_special",
        events=[rounds],
        delta=DELTA,
        dataset_size=CLIENTS,
        as_envelope=True,
    )["envelope"]
    of = dataset(
        dataset_size=CLIENTS,
        relation="replace_special",
        budget={"epsilon": made["epsilon"], "delta": DELTA},
    )
    private = DifferentialPrivacyServerSideFixedClipping(FedAvg(), NOISE, 0.5, CLIENTS)
    with client.start_run(f"run-{secrets.token_hex(4)}", of, delta=DELTA) as run:
        strategy = LedgerStrategy(
            private, run, delta=DELTA, rounds=ROUNDS, dataset_budget="this plan"
        )
        said = capsys.readouterr().out
        assert f"It admits all {ROUNDS} steps of this training." in said
        released = GaussianPrivacyEvent(
            noise_multiplier=NOISE, sample_size=CLIENTS, population_size=CLIENTS
        )
        for _ in range(ROUNDS):
            assert not strategy.accountant.would_exceed(released)
            strategy.accountant.compose(released)
        with pytest.raises(PrivacyBudgetExhausted):
            strategy.accountant.compose(released)
    assert client.run(run.name)["steps"] == ROUNDS
