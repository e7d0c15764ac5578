"""The example of correlated noise: its matrix, its sensitivity, and what its ledgers hold."""

import math

import numpy as np
import pytest
from dpledger_client import Client

from examples.correlated_noise import train
from examples.correlated_noise.optimizer import CorrelatedDescent, sensitivity, square_root

STEPS = 40


def test_the_strategy_takes_what_is_added_back_to_independent_noise() -> None:
    coefficients, rate = [2.0, *square_root(5)], 0.25
    descent = CorrelatedDescent(
        np.zeros((50, 50)), coefficients=coefficients, deviation=3.0, rate=rate
    )
    added = []
    for _ in range(STEPS):
        before = descent.weights
        descent.step(np.ones((50, 50)))
        added.append((before - descent.weights) / rate - 1.0)
    raw = [
        sum(c * added[step - i] for i, c in enumerate(coefficients) if i <= step)
        for step in range(STEPS)
    ]
    flat = np.array(raw).reshape(STEPS, -1)
    covariance = flat @ flat.T / flat.shape[1]
    # An entry is off by 9 sqrt(2 / 2500) = .25 on average.
    assert np.abs(covariance - 9 * np.eye(STEPS)).max() < 2


def test_the_sensitivity_is_that_of_the_service(address: str) -> None:
    coefficients = square_root(train.SEPARATION)
    found = sensitivity(coefficients, separation=train.SEPARATION, participations=train.PASSES)
    with Client(address) as client:
        digest = client.keep_strategy({"kind": "toeplitz", "coefficients": coefficients})
        answer = client._transport.get(
            f"/v1/strategies/{digest}/sensitivity",
            steps_per_pass=train.STEPS,
            min_separation=train.SEPARATION,
        )
    assert found >= math.sqrt(answer["sensitivity_squared"]) * (1 - 1e-15)
    assert found == pytest.approx(math.sqrt(answer["sensitivity_squared"]), rel=1e-12)
    with pytest.raises(ValueError, match="At most as many"):
        sensitivity([1.0, 0.5], separation=1, participations=2)


def test_no_digit_moves_the_sum_by_more_than_the_norm() -> None:
    rows, labels = train.digits()
    weights = np.random.default_rng(1).normal(size=(65, 10))
    lengths = [
        np.linalg.norm(train.clipped_sum(rows[i : i + 1], labels[i : i + 1], weights))
        for i in range(50)
    ]
    assert max(lengths) == pytest.approx(1.0, rel=1e-9)


def test_a_digit_comes_every_fifteenth_step_of_the_fixed_order() -> None:
    batches = list(train.in_order())
    assert len(batches) == train.STEPS
    first = np.unique(np.concatenate(batches[: train.SEPARATION]))
    assert len(first) == train.RECORDS
    for step in range(train.SEPARATION, train.STEPS):
        assert np.array_equal(batches[step], batches[step - train.SEPARATION])


@pytest.mark.usefixtures("seeded")
def test_three_trainings_of_one_epsilon(address: str) -> None:
    with Client(address) as client:
        found = train.compare(client, repeats=1)
        kinds = [
            [(one["mechanism"]["kind"], one["sampling"]["kind"], one["steps"])
             for one in client.ledger(run["name"])["events"]]
            for run in client.runs()
        ]  # fmt: skip
    pair = ("matrix_gaussian", "min_separation", train.STEPS)
    assert sorted(kinds) == sorted([[pair], [pair], [("gaussian", "poisson", train.STEPS)]])
    assert [0.999 < epsilon <= 1 for _, epsilon, _ in found.values()] == [True] * 3
    [plain], [correlated] = (found[f"{name} noise"][0] for name in ("independent", "correlated"))
    assert plain < correlated
