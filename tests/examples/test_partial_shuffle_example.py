"""The first example: Algorithm 1 as it stands, what its ledger holds, and what it prints."""

import csv
import math
import re
import subprocess
import sys
from collections import deque
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from dpledger_client import Client

from accounting import NeighboringRelation, Span, Status, count_events, events, guarantee
from examples.partial_shuffle import train
from examples.partial_shuffle.algorithm import (
    MAX_GRAD_NORM,
    Floats,
    Schedule,
    accuracy,
    least_loss,
    loss,
    private_sgd,
    synthetic,
)

COMMAND = [sys.executable, "-m", "examples.partial_shuffle.train"]
ROOT = Path(__file__).parents[2]
SMALL = train.Size(
    records=60,
    features=12,
    epochs=4,
    taus=(Fraction(1, 60), Fraction(9, 10), Fraction(1)),
    repeats=2,
    checkpoints=3,
)


def updates(rows: Floats, schedule: Schedule, *, noise_multiplier: float = 0.0) -> Floats:
    """Every change of the weights, at learning rate 1."""
    weights = [np.zeros(rows.shape[1])]
    trained = private_sgd(
        rows,
        schedule,
        learning_rate=1.0,
        noise_multiplier=noise_multiplier,
        orders=np.random.default_rng(1),
        noise=np.random.default_rng(2),
    )
    weights.extend(now.copy() for now in trained)
    return np.diff(np.array(weights), axis=0)


@pytest.mark.parametrize(
    ("tau", "steps_per_pass", "passes"),
    [
        (Fraction(1, 1000), 1, 50_000),
        (Fraction(29, 100), 290, 172),
        (Fraction(1, 2), 500, 100),
        (Fraction(9, 10), 900, 55),
        (Fraction(1), 1000, 50),
    ],
)
def test_passes_and_their_lengths_are_those_of_the_documents(
    tau: Fraction, steps_per_pass: int, passes: int
) -> None:
    schedule = Schedule(tau=tau, records=1000, epochs=50)
    assert (schedule.steps_per_pass, schedule.passes) == (steps_per_pass, passes)
    assert schedule.steps == steps_per_pass * passes


@pytest.mark.parametrize("tau", [Fraction(0), Fraction(1, 1001), Fraction(1001, 1000)])
def test_a_pass_of_no_record_or_of_more_than_all_is_refused(tau: Fraction) -> None:
    with pytest.raises(ValueError, match="tau"):
        Schedule(tau=tau, records=1000, epochs=1)


def test_a_pass_takes_distinct_records_in_a_fresh_order() -> None:
    # Record i moves coordinate i and, by a little, those that moved before.
    records, schedule = 12, Schedule(tau=Fraction(1, 2), records=12, epochs=40)
    taken = updates(np.eye(records), schedule).argmax(axis=1)
    passes = taken.reshape(schedule.passes, schedule.steps_per_pass)
    assert passes.shape == (80, 6)
    assert all(len(set(one)) == 6 for one in passes.tolist())
    assert len({tuple(one) for one in passes.tolist()}) == 80
    assert {one[0] for one in passes.tolist()} == set(range(records))


def test_no_record_moves_the_weights_further_than_the_norm() -> None:
    rows = 50 * synthetic(20, 8, seed=3)
    lengths = np.linalg.norm(updates(rows, Schedule(tau=Fraction(1), records=20, epochs=2)), axis=1)
    assert lengths.max() == pytest.approx(MAX_GRAD_NORM, rel=1e-12)


def test_noise_has_the_deviation_that_the_ledger_is_told() -> None:
    moved = updates(
        np.zeros((4, 5000)), Schedule(tau=Fraction(1, 2), records=4, epochs=1), noise_multiplier=2.0
    )
    # The records are zero: but for the quadratic term, clipped to 1 in 5,000 dimensions, it is all.
    np.testing.assert_allclose(np.std(moved, axis=1), 2.0 * MAX_GRAD_NORM, rtol=0.05)
    assert np.abs(np.corrcoef(moved) - np.eye(4)).max() < 0.08


def test_a_step_follows_the_slope_of_the_loss() -> None:
    rows = 0.5 * synthetic(1, 3, seed=4)
    first, second = updates(rows, Schedule(tau=Fraction(1), records=1, epochs=2))
    for move, at in ((first, np.zeros(3)), (second, first)):
        width = 1e-6 * np.eye(3)
        slope = [(loss(rows, at + one) - loss(rows, at - one)) / 2e-6 for one in width]
        np.testing.assert_allclose(move, -np.array(slope), atol=1e-8)


def test_nothing_is_below_the_least_loss_and_training_without_noise_gets_there() -> None:
    rows = synthetic(50, 20, seed=5)
    least = least_loss(rows)
    trained = private_sgd(
        rows,
        Schedule(tau=Fraction(1), records=50, epochs=400),
        learning_rate=0.05,
        noise_multiplier=0.0,
        orders=np.random.default_rng(1),
        noise=np.random.default_rng(2),
    )
    (last,) = deque(trained, maxlen=1)
    assert 0 <= loss(rows, last) - least < 1e-5
    assert loss(rows, np.zeros(20)) == pytest.approx(math.log(2))


def test_accuracy_is_the_part_on_the_right_side() -> None:
    assert accuracy(np.eye(4), np.array([1.0, 2.0, -1.0, 0.5])) == 0.75


def expected(records: int, schedule: Schedule) -> tuple[float | None, float | None]:
    """(epsilon_lower, epsilon) of a training with noise, without a service."""
    event = events.Event(
        mechanism=events.Gaussian(noise_multiplier=2.0),
        sampling=events.Shuffle(
            batch_size=1,
            steps_per_pass=schedule.steps_per_pass,
            dataset_size=records,
            reshuffle=events.Reshuffle.EACH_PASS,
        ),
    )
    answer = guarantee(
        count_events([[Span(event=event, steps=schedule.steps)]]),
        relation=NeighboringRelation.REPLACE_ONE,
        delta=train.DELTA,
        accept=frozenset({Status.PUBLISHED, Status.DERIVED}),
    )
    return answer.epsilon_lower, answer.epsilon


def test_the_ledger_holds_each_training_as_it_ran(address: str) -> None:
    with Client(address) as client:
        results = train.run_experiment(client, SMALL)
        (dataset,) = client.datasets()
        assert dataset["neighboring_relation"] == "replace_one"
        assert "derived" in dataset["accept"]
        assert len(list(client.runs())) == 3 * len(results.outcomes)
        for outcome in results.outcomes:
            for training in (*outcome.noisy, outcome.exact):
                steps = [one.steps for one in training]
                assert steps[-1] == outcome.schedule.steps
                assert steps == sorted(set(steps))
                assert len(steps) == SMALL.checkpoints
                run = training[0].run
                assert client.run(run)["state"] == "finished"
                (event,) = client.ledger(run)["events"]
                assert event["steps"] == outcome.schedule.steps
                assert event["sampling"] == {
                    "kind": "shuffle",
                    "batch_size": 1,
                    "reshuffle": "each_pass",
                    "steps_per_pass": outcome.schedule.steps_per_pass,
                }
                noisy = training is not outcome.exact
                assert event["mechanism"]["kind"] == ("gaussian" if noisy else "none")
                assert event["mechanism"].get("noise_multiplier", 0.0) == (2.0 if noisy else 0.0)
        assert client.dataset_guarantee(dataset["name"], delta=train.DELTA)["epsilon"] is None


def test_every_epsilon_is_that_of_a_proved_bound(address: str) -> None:
    with Client(address) as client:
        results = train.run_experiment(client, SMALL)
    for outcome in results.outcomes:
        lower, upper = expected(SMALL.records, outcome.schedule)
        assert outcome.guarantee["epsilon"] == pytest.approx(upper, rel=1e-9)
        assert outcome.guarantee["epsilon_lower"] == pytest.approx(lower, rel=1e-6)
        whole = outcome.schedule.tau == 1
        assert outcome.guarantee["status"] == ("published" if whole else "derived")
        # What the service answers to steps is an upper bound, too, and grows.
        told = [one.epsilon for one in outcome.noisy[0]]
        assert told == sorted(told)
        assert math.isfinite(told[-1])
        assert told[-1] >= outcome.guarantee["epsilon"]
        assert all(one.epsilon == math.inf for one in outcome.exact)
    assert results.epsilon > max(one.guarantee["epsilon"] for one in results.outcomes)


def test_the_command_prints_the_table_and_writes_what_was_asked_for(
    tmp_path: Path, own_environment: dict[str, str]
) -> None:
    files = ["--csv", str(tmp_path / "all.csv"), "--picture", str(tmp_path / "all.svg")]
    done = subprocess.run(
        [*COMMAND, "--quick", *files], capture_output=True, text=True, timeout=120, check=False,
        cwd=ROOT, env={**own_environment, "HTTP_PROXY": "http://127.0.0.1:9"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = re.findall(
        r"^ +([\d.]+) .* ([\d.]+) +([\d.]+)  \S+ \((\w+)\)$", done.stdout, re.MULTILINE
    )
    assert [float(row[0]) for row in rows] == [0.005, 0.5, 1.0]
    assert [row[3] for row in rows] == ["derived", "derived", "published"]
    for tau, printed_lower, printed, _ in rows:
        schedule = Schedule(tau=Fraction(tau), records=200, epochs=10)
        lower, upper = expected(200, schedule)
        assert upper is not None
        assert lower is not None
        assert upper <= float(printed) < upper + 2e-4  # never rounded down
        assert lower - 2e-4 < float(printed_lower) <= lower
    with (tmp_path / "all.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 3 * 3 * train.QUICK.checkpoints
    assert {line["noise_multiplier"] for line in lines} == {"0.0", "2.0"}
    assert "<svg" in (tmp_path / "all.svg").read_text(encoding="utf-8")


def test_a_picture_without_matplotlib_is_refused_before_anything_trains(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(sys, "argv", ["train", "--picture", "all.svg"])
    with pytest.raises(SystemExit) as leaving:
        train.main()
    assert leaving.value.code == 2
    assert "matplotlib" in capsys.readouterr().err
