"""The plain example: its arithmetic, what its ledger holds, and where it stops."""

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from dpledger_client import BudgetExhausted, Client, gaussian, poisson
from dpledger_client.sampling_check import observe, start, verdict

from examples.numpy_logistic import train

ROOT = Path(__file__).parents[2]
MECHANISM = gaussian(noise_multiplier=train.NOISE_MULTIPLIER)
SAMPLING = poisson(sampling_probability=train.SAMPLING_PROBABILITY)


class Silence:
    """A generator of noise that is none."""

    def normal(self, mean: float, deviation: float, size: int) -> train.Floats:
        assert (mean, deviation) == (0, train.NOISE_MULTIPLIER * train.MAX_GRAD_NORM)
        return np.zeros(size)


def moved(rows: train.Floats, labels: train.Floats, weights: train.Floats) -> train.Floats:
    """The sum of clipped gradients."""
    silence: object = Silence()
    gradient = train.noisy_gradient(rows, labels, weights, noise=silence)  # type: ignore[arg-type]
    return gradient * train.SAMPLING_PROBABILITY * train.RECORDS


def test_no_case_moves_the_sum_by_more_than_the_norm() -> None:
    rows, labels = train.load()
    weights = np.zeros(rows.shape[1])
    everybody = moved(rows, labels, weights)
    lengths = [
        np.linalg.norm(everybody - moved(np.delete(rows, i, 0), np.delete(labels, i), weights))
        for i in range(40)
    ]
    assert max(lengths) == pytest.approx(train.MAX_GRAD_NORM, rel=1e-9)


def test_a_short_gradient_is_the_slope_of_the_loss() -> None:
    rows, label, weights = np.array([[0.3, -0.2]]), np.array([-1.0]), np.array([0.5, 1.5])

    def loss(at: train.Floats) -> float:
        return float(np.logaddexp(0, -label * (rows @ at))[0])

    slope = [(loss(weights + one) - loss(weights - one)) / 2e-6 for one in 1e-6 * np.eye(2)]
    np.testing.assert_allclose(moved(rows, label, weights), slope, atol=1e-8)


def test_noise_has_the_deviation_that_the_ledger_is_told_even_without_a_batch() -> None:
    noise, nobody = np.random.default_rng(1), np.zeros((0, 20_000))
    gradient = train.noisy_gradient(nobody, np.zeros(0), np.zeros(20_000), noise=noise)
    expected = train.NOISE_MULTIPLIER * train.MAX_GRAD_NORM
    deviation = np.std(gradient) * train.SAMPLING_PROBABILITY * train.RECORDS
    assert deviation == pytest.approx(expected, rel=0.03)


@pytest.mark.usefixtures("seeded")
def test_the_budget_ends_it_at_the_last_step_that_fits(address: str) -> None:
    with Client(address) as client:
        outcome = train.run_experiment(client)
        (run,) = client.runs()
        # Steps of the checkpoint and before are shared by both branches.
        assert outcome.counted == outcome.steps + train.LOST_STEPS
        assert run["state"] == "stopped_at_budget"
        assert [branch["next_step"] for branch in run["branches"]] == [
            train.CHECKPOINT_STEPS + train.LOST_STEPS,
            outcome.steps,
        ]
        ledger = client.ledger(run["name"])
        for event in ledger["events"]:
            assert (event["mechanism"], event["sampling"]) == (MECHANISM, SAMPLING)
        assert 0 < outcome.guarantee["epsilon"] <= train.EPSILON
        assert outcome.accuracy > 0.8
        again = client.start_run(
            f"{run['name']}-again", run["dataset"], mechanism=MECHANISM, sampling=SAMPLING
        )
        with pytest.raises(BudgetExhausted) as refusal:
            again.step()
        assert refusal.value.admissible_steps == 0
        again.finish()


def test_a_refused_step_leaves_the_weights_of_the_one_before(address: str) -> None:
    rows, labels = train.load()
    with Client(address) as client:
        budget = {"epsilon": 0.5, "delta": train.DELTA}
        client.create_dataset(
            "few", dataset_size=train.RECORDS, neighboring_relation="add_or_remove_one",
            privacy_unit="one case", budget=budget,
        )  # fmt: skip
        with client.start_run("few-1", "few", mechanism=MECHANISM, sampling=SAMPLING) as run:
            taken = list(train.train(run, rows, labels, np.zeros(rows.shape[1])))
            assert len(taken) == run.next_step > 0
            assert list(train.train(run, rows, labels, taken[-1])) == []
            assert run.next_step == len(taken)


def test_a_budget_that_ends_before_the_checkpoint_ends_the_training(address: str) -> None:
    with Client(address) as client:
        outcome = train.run_experiment(client, epsilon=0.5)
    assert 0 < outcome.steps == outcome.counted < train.CHECKPOINT_STEPS


def test_its_coins_are_those_that_it_declares() -> None:
    coins = np.random.default_rng(3)
    evidence = start(SAMPLING, dataset_size=train.RECORDS)
    for _ in range(2000):
        batch = np.flatnonzero(coins.random(train.RECORDS) < train.SAMPLING_PROBABILITY)
        evidence = observe(evidence, len(batch))
    assert verdict(evidence, level=1e-6) == "not refuted"


def test_the_command_says_what_it_cost(own_environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.numpy_logistic.train", "--epsilon", "1"],
        capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
        env={**own_environment, "HTTP_PROXY": "http://127.0.0.1:9"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (epsilon,) = re.findall(r"^epsilon ([\d.]+) of a budget of 1, ", done.stdout, re.MULTILINE)
    assert 0 < float(epsilon) <= 1
    assert math.isfinite(float(epsilon))
    assert re.search(r"^accuracy [\d.]+% on 114 other cases$", done.stdout, re.MULTILINE)
