"""How far should a shuffled pass go before it starts anew? What tau does to loss and to epsilon.

    .venv/bin/python -m examples.partial_shuffle.train [--quick] [--csv PATH] [--picture PATH]

The experiment of document 004, Section 4.6: logistic regression by private SGD, for several tau,
the part of the records that a pass uses. Every step is told to a dpledger service.
"""

import argparse
import csv
import math
import secrets
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from dpledger_client import Client
from scipy.stats import f_oneway

from examples.connection import add_arguments, connected, rounded_up
from examples.partial_shuffle import picture
from examples.partial_shuffle.algorithm import Schedule, least_loss, synthetic
from examples.partial_shuffle.training import EXACT, NOISY, Checkpoint, Method, train

DELTA: Final = 1e-4  # the documents' choice, a tenth of 1 / 1000 records
DATA_SEED: Final = 1  # of the synthetic records alone, which are nobody's
TRAINERS: Final = 2  # at once; the client may be shared
FLUSH_STEPS: Final = 5000  # sent at once; steps that are older than 5 s are sent sooner
ROW: Final = "{:>7} {:>6} {:>8} {:>15} {:>15} {:>9} {:>10} {:>9}  {}"
HEADINGS: Final = (
    "tau", "steps", "passes", "loss, exact", "loss, noisy", "accuracy", "at least", "epsilon",
    "bound",
)  # fmt: skip
NOTES: Final = """
steps     of a pass, one record each; every training has about {epochs} epochs of {records} records
loss      on the training records, above the least there is; at the start {start:.4f}
exact     without noise, one training
noisy     with noise: mean and standard deviation of {repeats} trainings, as is the accuracy
epsilon   of one training with noise, every iterate shown, at delta {delta:g}: no dataset loses more
at least  what some dataset does lose

By chance alone the noisy losses differ so much between tau with probability {chance:.2f}
(analysis of variance). All {trainings} trainings with noise used the same records: together they
have spent epsilon {together:.4f}. Those without noise have no finite epsilon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of the experiment."""

    records: int
    features: int
    epochs: int
    taus: tuple[Fraction, ...]
    repeats: int  # trainings with noise for each tau
    checkpoints: int  # of each training


# The least tau is 1/n: a step a pass. The documents leave out 1, for which they have no bound.
WHOLE: Final = Size(
    records=1000,
    features=2000,
    epochs=50,
    taus=(Fraction(1, 1000), Fraction(1, 10), Fraction(1, 2), Fraction(9, 10), Fraction(1)),
    repeats=3,
    checkpoints=10,
)
QUICK: Final = Size(
    records=200,
    features=100,
    epochs=10,
    taus=(Fraction(1, 200), Fraction(1, 2), Fraction(1)),
    repeats=2,
    checkpoints=4,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All trainings of one schedule, each by its checkpoints."""

    schedule: Schedule
    exact: list[Checkpoint]
    noisy: list[list[Checkpoint]]
    guarantee: dict[str, Any]  # of one training with noise; all of them have the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Of the whole experiment."""

    outcomes: list[Outcome]
    least_loss: float
    epsilon: float  # nats, upper, at DELTA: of all trainings with noise together

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Of every training."""
        found = []
        for outcome in self.outcomes:
            for training in (outcome.exact, *outcome.noisy):
                found.extend(training)
        return found


def create_dataset(client: Client, size: Size) -> str:
    """Register the records; the dataset's name."""
    name = f"synthetic-{secrets.token_hex(4)}"  # names are global and never used again
    client.create_dataset(
        name,
        dataset_size=size.records,
        neighboring_relation="replace_one",
        privacy_unit="one record",
        accept=["published", "declared", "derived"],  # the bound of such passes is derived
    )
    return name


def run_experiment(client: Client, size: Size) -> Results:
    """Train for each tau, with noise and without, and ask the ledger what it cost."""
    dataset = create_dataset(client, size)
    rows = synthetic(size.records, size.features, seed=DATA_SEED)
    schedules = [Schedule(tau=tau, records=size.records, epochs=size.epochs) for tau in size.taus]

    def trained(schedule: Schedule, method: Method, which: str) -> list[Checkpoint]:
        name = f"{dataset}-{float(schedule.tau):g}-{which}"
        with client.start_run(
            name, dataset, mode="observe", delta=DELTA, flush_steps=FLUSH_STEPS
        ) as run:
            return list(train(run, rows, schedule, method, checkpoints=size.checkpoints))

    noisy = []
    with ThreadPoolExecutor(TRAINERS) as pool:
        begun = [
            [pool.submit(trained, schedule, NOISY, str(i)) for i in range(1, size.repeats + 1)]
            for schedule in schedules
        ]
        for schedule, trainings in zip(schedules, begun, strict=True):
            noisy.append([training.result() for training in trainings])
            _say(f"tau {float(schedule.tau):g}: {schedule.steps} steps, {size.repeats} times")
    _say("what it cost")
    guarantees = [client.guarantee(several[0][-1].run) for several in noisy]
    # Asked before anything trains without noise, after which no epsilon is finite.
    epsilon = client.dataset_guarantee(dataset, delta=DELTA)["epsilon"]
    _say("without noise")
    outcomes = [
        Outcome(
            schedule=schedule,
            exact=trained(schedule, EXACT, "exact"),
            noisy=several,
            guarantee=guarantee,
        )
        for schedule, several, guarantee in zip(schedules, noisy, guarantees, strict=True)
    ]
    return Results(outcomes=outcomes, least_loss=least_loss(rows), epsilon=epsilon)


def show(results: Results, size: Size) -> None:
    """The table, and what it says."""
    print(ROW.format(*HEADINGS))
    noisy = []
    for outcome in results.outcomes:
        last = [training[-1] for training in outcome.noisy]
        losses = [one.loss - results.least_loss for one in last]
        noisy.append(losses)
        print(
            ROW.format(
                f"{last[0].tau:g}",
                outcome.schedule.steps_per_pass,
                outcome.schedule.passes,
                f"{outcome.exact[-1].loss - results.least_loss:.2e}",
                f"{statistics.mean(losses):.4f} +- {statistics.stdev(losses):.4f}",
                f"{statistics.mean(one.accuracy for one in last):.1%}",
                f"{rounded_down(outcome.guarantee['epsilon_lower']):.4f}",
                f"{rounded_up(outcome.guarantee['epsilon']):.4f}",
                f"{outcome.guarantee['bound']} ({outcome.guarantee['status']})",
            )
        )
    print(
        NOTES.format(
            epochs=size.epochs,
            records=size.records,
            start=math.log(2) - results.least_loss,
            repeats=size.repeats,
            delta=DELTA,
            chance=f_oneway(*noisy).pvalue,
            trainings=size.repeats * len(results.outcomes),
            together=rounded_up(results.epsilon),
        )
    )


def rounded_down(epsilon: float) -> float:
    """To four decimals, so that what is printed is a lower bound, too."""
    return math.floor(epsilon * 1e4) / 1e4


def write_csv(path: Path, checkpoints: Sequence[Checkpoint]) -> None:
    """A line for each checkpoint of each training."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Checkpoint)])
        writer.writeheader()
        writer.writerows(asdict(one) for one in checkpoints)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run the experiment and print its table."""
    parser = argparse.ArgumentParser(prog="partial_shuffle", description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="small data, for a first look")
    parser.add_argument("--csv", type=Path, help="write every checkpoint to this file")
    parser.add_argument("--picture", type=Path, help="draw to this .svg, .png or .pdf")
    arguments = parser.parse_args()
    plot = None
    if arguments.picture:
        try:
            plot = picture.pyplot()
        except ImportError:
            parser.error("--picture needs matplotlib: .venv/bin/python -m pip install matplotlib")
    size = QUICK if arguments.quick else WHOLE
    with connected(arguments) as client:
        results = run_experiment(client, size)
    show(results, size)
    if arguments.csv:
        write_csv(arguments.csv, results.checkpoints)
    if plot:
        picture.draw(plot, arguments.picture, results.checkpoints, least_loss=results.least_loss)


if __name__ == "__main__":
    main()
