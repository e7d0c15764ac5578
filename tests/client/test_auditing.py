"""Audits by the client: coins, guesses, and what the service says of them."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from dpledger_client import Client, InvalidRequest, full, gaussian
from dpledger_client.auditing import OneRunAudit

PLAN: dict[str, Any] = {
    "canaries": 400, "guesses": 100, "delta": 1e-5, "out": "absent", "synthetic": True,
}  # fmt: skip


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address) as client:
        client.create_dataset(
            "data",
            dataset_size=1000,
            neighboring_relation="add_or_remove_one",
            privacy_unit="record",
        )
        with client.start_run("run", "data", delta=1e-5) as run:
            # Epsilon 1.4: who guesses without knowledge contradicts it with a chance of 1e-13.
            run.step(mechanism=gaussian(noise_multiplier=3.0), sampling=full())
        yield client


def test_a_guesser_who_knows_all_coins_contradicts_the_run(client: Client) -> None:
    audit = OneRunAudit(client, "run", **PLAN)
    assert audit.number == 1
    assert 100 < sum(audit.included) < 300  # a fair coin each: outside with chance 1e-23
    found = audit.finish([float(one) for one in audit.included])
    assert (found["correct"], found["guesses"], found["canaries"]) == (100, 100, 400)
    assert found["compared"]["contradicts"] is True
    assert found["epsilon_at_least"] > 2


def test_a_guesser_who_knows_nothing_finds_nothing(client: Client) -> None:
    audit = OneRunAudit(client, "run", **PLAN)
    found = audit.finish([0.0] * 400)
    assert 10 < found["correct"] < 90
    assert found["compared"]["contradicts"] is False


def test_a_guesser_who_is_always_wrong_has_no_right_guess(client: Client) -> None:
    audit = OneRunAudit(client, "run", **PLAN)
    assert audit.finish([-float(one) for one in audit.included])["correct"] == 0


@pytest.mark.parametrize("scores", [[1.0] * 399, [1.0] * 399 + [math.nan], []])
def test_scores_that_are_missing_or_not_finite_are_refused_and_the_audit_stays_open(
    client: Client, scores: list[float]
) -> None:
    audit = OneRunAudit(client, "run", **PLAN)
    with pytest.raises(ValueError, match="400 finite numbers"):
        audit.finish(scores)
    assert audit.finish([0.0] * 400)["state"] == "ended"


def test_an_audit_that_cannot_be_is_refused(client: Client) -> None:
    with pytest.raises(ValueError, match="even"):
        OneRunAudit(client, "run", **PLAN | {"guesses": 99})
    with pytest.raises(InvalidRequest, match=r"body\.guesses"):
        OneRunAudit(client, "run", **PLAN | {"guesses": 402})
