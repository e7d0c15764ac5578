"""A sweep with Optuna that is charged as one private selection: only the best trial is shown.

    python -m examples.selection.train --url http://127.0.0.1:8000 [--quick]

Records are 455 breast cancer cases that scikit-learn ships. Of the 114 others, which count as
public here, half score the trials and half measure the accuracy of the best one.
"""

import argparse
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import optuna
from dpledger_client import Client, event, full, gaussian, negative_binomial_trials, poisson
from dpledger_client.sweeps import Best, Trial
from optuna.distributions import FloatDistribution

from examples.connection import add_arguments, connected, rounded_up
from examples.numpy_logistic.train import RECORDS, Floats, accuracy, load

SAMPLING_PROBABILITY: Final = 0.1
NOISE_MULTIPLIER: Final = 3.0
DELTA: Final = 1e-4
STEPS: Final = 100  # of a trial
QUICK_STEPS: Final = 10
TRIALS: Final = negative_binomial_trials(shape=1.0, mean=30)
REPORT_SECONDS: Final = 30.0  # from the start; several times what a thousand trials take
QUICK_REPORT_SECONDS: Final = 20.0
SCORING: Final = slice(RECORDS, RECORDS + 57)
MEASURING: Final = slice(RECORDS + 57, None)
# Candidates are drawn from these distributions, which are fixed before the first trial.
SPACE: Final = {
    "learning_rate": FloatDistribution(1e-3, 1e2, log=True),
    "max_grad_norm": FloatDistribution(1e-2, 1e2, log=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of a sweep; epsilons are upper bounds at DELTA, in nats."""

    run: str
    best: Best  # its output: what Optuna drew, and the weights
    planned: dict[str, Any]  # the sweep, and beside it each trial recorded
    single: float  # epsilon of one trial alone
    guarantee: dict[str, Any]
    accuracy: float  # of the best, on cases that neither trained nor scored it


def drawn(trial: Trial) -> dict[str, float]:
    """One value of each distribution, drawn anew.

    Each trial has a study of its own, so that no sampler and no pruner sees another trial. The
    study stays in memory: its trials are not to be shown.
    """
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler())
    return study.ask(trial.candidate).params


def train(
    trial: Trial, rows: Floats, labels: Floats, *, learning_rate: float, max_grad_norm: float
) -> Floats:
    """The weights after all steps of the trial, each metered before it is taken."""
    # Seeded by the operating system: the coins and the noise of a trial are its own.
    coins, noise = np.random.default_rng(), np.random.default_rng()
    weights = np.zeros(rows.shape[1])
    for _ in trial.steps():
        batch = np.flatnonzero(coins.random(RECORDS) < SAMPLING_PROBABILITY)
        slopes = -labels[batch] * (1 - np.tanh(labels[batch] * (rows[batch] @ weights) / 2)) / 2
        gradients = slopes[:, None] * rows[batch]
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        total = (gradients / np.maximum(1, norms / max_grad_norm)).sum(axis=0)
        total += noise.normal(0, NOISE_MULTIPLIER * max_grad_norm, len(weights))
        weights -= learning_rate * total / (SAMPLING_PROBABILITY * RECORDS)
    return weights


def priced(client: Client, base: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """The plan of the sweep, and the epsilon of one trial alone; nothing is recorded."""
    asked: dict[str, Any] = {
        "neighboring_relation": "add_or_remove_one", "dataset_size": RECORDS, "delta": DELTA,
        "accept": ["published", "declared", "derived"],
    }  # fmt: skip
    whole = {"kind": "selection", "repetitions": TRIALS, "base": base}
    sweep = client.plan(events=[event(steps=1, mechanism=whole, sampling=full())], **asked)
    return sweep, client.plan(events=[event(**base)], **asked)["epsilon"]


def run_experiment(
    client: Client, *, steps: int = STEPS, report_seconds: float = REPORT_SECONDS
) -> Outcome:
    """Plan a sweep, make a budget that holds it, and run it; the best alone comes back."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would print a line for each trial
    base: dict[str, Any] = {
        "mechanism": gaussian(noise_multiplier=NOISE_MULTIPLIER),
        "sampling": poisson(sampling_probability=SAMPLING_PROBABILITY),
        "steps": steps,
    }
    planned, single = priced(client, base)
    name = f"cases-{secrets.token_hex(4)}"  # names are global and never used again
    client.create_dataset(
        name,
        dataset_size=RECORDS,
        neighboring_relation="add_or_remove_one",
        privacy_unit="one case",
        # The order at which the filter counts is the one that suits the sweep.
        budget={"epsilon": 5.0, "delta": DELTA, "orders": [planned["orders"]["best_order"]]},
        accept=["published", "declared", "derived"],
    )
    rows, labels = load()
    with client.start_run(f"{name}-sweep", name, mode="strict") as run:
        with run.selection(
            repetitions=TRIALS,
            candidates=[SPACE],
            report_at=time.time() + report_seconds,
            **base,
        ) as trials:
            for trial in trials:
                with trial:
                    chosen = drawn(trial)
                    weights = train(trial, rows[:RECORDS], labels[:RECORDS], **chosen)
                    score = accuracy(rows[SCORING], labels[SCORING], weights)
                    trial.finish(score=score, output=(chosen, weights))
        best, guarantee = trials.best, run.guarantee()
    if best is None or best.output is None:
        raise SystemExit("Every trial failed. The sweep is charged all the same.")
    found = accuracy(rows[MEASURING], labels[MEASURING], best.output[1])
    return Outcome(
        run=f"{name}-sweep", best=best, planned=planned, single=single, guarantee=guarantee,
        accuracy=found,
    )  # fmt: skip


def main(given: Sequence[str] | None = None) -> None:
    """Run the sweep, and print its best trial beside what each way to pay for it costs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help=f"trials of {QUICK_STEPS} steps")
    arguments = parser.parse_args(given)
    steps, seconds = STEPS, REPORT_SECONDS
    if arguments.quick:
        steps, seconds = QUICK_STEPS, QUICK_REPORT_SECONDS
    with connected(arguments) as client:
        outcome = run_experiment(client, steps=steps, report_seconds=seconds)
    composed = outcome.planned["composed"]
    costs = {
        "one trial alone": outcome.single,
        "the sweep, as one selection": outcome.planned["epsilon"],
        f"{composed['trials']} trials, each recorded": composed["epsilon"],
    }
    print(f"epsilon at delta {DELTA:g}")
    for what, epsilon in costs.items():
        print(f"{what:28} {rounded_up(epsilon):.4f}")
    print(f"\nthe best trial of the run {outcome.run}")
    for parameter, value in outcome.best.output[0].items():
        print(f"{parameter:28} {value:.3g}")
    print(f"{'accuracy':28} {outcome.accuracy:.1%} on {569 - RECORDS - 57} other cases")
    print(f"{'epsilon in the ledger':28} {rounded_up(outcome.guarantee['epsilon']):.4f}")


if __name__ == "__main__":
    main()
